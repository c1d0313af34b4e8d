"""`enfold.sources`: where the operations come from, how each source is at this moment, and what its tools cost a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any

import msgspec

from enfold.costs import estimate_tokens
from enfold.operation import Operation, OperationSpec, OperationType
from enfold.registry import Registry
from enfold.reserved import reserved_operation
from enfold.source_states import Problem, SourceState

POLL_INTERVAL = 1.0  # seconds between two questions to other processes
_BEST_TO_WORST = ("up", "starting", "down")


class SourceSummary(msgspec.Struct, frozen=True):
    """A source at this moment."""

    name: str
    kind: str
    state: str  # up, down, starting
    since: int | None  # Unix milliseconds
    why: str
    operations: int
    skipped: list[Problem]
    required: bool
    tokens: int  # that a model reads to know its tools, by estimate
    changed: list[Problem] = []  # the last operations whose definitions it has changed, and what of each
    changes: int = 0  # of definitions, since the process began


def source_operations(registry: Registry) -> Iterable[Operation]:
    async def sources() -> list[SourceSummary]:
        """List the sources: their states, why they are down, what was skipped, and what their tools cost a model."""
        return await _in_all_processes(registry)

    async def watch() -> AsyncIterator[list[SourceSummary]]:
        """List the sources now, and again after every change."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def tell(before: SourceState | None, after: SourceState | None) -> None:  # noqa: ARG001  # every watcher gets both
            loop.call_soon_threadsafe(changed.set)

        stop = registry.sources.watch(tell)
        before: list[SourceSummary] | None = None
        try:
            while True:
                changed.clear()
                found = await _in_all_processes(registry)
                if found != before:
                    before = found
                    yield found
                with suppress(TimeoutError):
                    await asyncio.wait_for(
                        changed.wait(), None if registry.reserved.elsewhere is None else POLL_INTERVAL
                    )
        finally:
            stop()

    yield reserved_operation(sources, "enfold.sources")
    yield reserved_operation(watch, "enfold.sources.watch", type=OperationType.SUBSCRIPTION)


async def _in_all_processes(registry: Registry) -> list[SourceSummary]:
    """The sources as they are in all processes that serve them: one that is down anywhere is down."""
    own, elsewhere = _summaries(registry), registry.reserved.elsewhere
    if elsewhere is None:
        return own
    others = msgspec.convert(await elsewhere.ask("sources"), list[list[SourceSummary]])
    worst = {each.name: each for each in own}
    for each in (source for found in others for source in found):
        if each.name not in worst or _BEST_TO_WORST.index(each.state) > _BEST_TO_WORST.index(worst[each.name].state):
            worst[each.name] = each
    return list(worst.values())


def source_summaries(registry: Registry) -> Any:
    """The sources of this process as plain data, for another process that asks for them."""
    return msgspec.to_builtins(_summaries(registry))


def _summaries(registry: Registry) -> list[SourceSummary]:
    operations, states = list(registry), list(registry.sources)
    if not states:  # a registry that was served as it is
        tokens = _tokens(each.spec for each in operations)
        return [SourceSummary("functions", "functions", "up", None, "", len(operations), [], True, tokens)]
    if len(states) == 1:
        return [_summary(states[0], operations)]
    by_source: dict[str, list[Operation]] = {}
    for each in operations:
        by_source.setdefault(registry.sources.name_of(each.origin.kind, each.origin.name), []).append(each)
    return [_summary(state, by_source.get(state.name, [])) for state in states]


def _summary(state: SourceState, operations: list[Operation]) -> SourceSummary:
    tokens = _tokens(each.spec for each in operations)
    fields = msgspec.structs.asdict(state) | {"since": round(state.since * 1000), "tokens": tokens}
    return msgspec.convert(fields, SourceSummary)


def _tokens(specs: Iterable[OperationSpec]) -> int:
    """What a model reads to know these as tools: their names, descriptions and arguments."""
    return sum(estimate_tokens([spec.id, spec.description, spec.input_schema]) for spec in specs)
