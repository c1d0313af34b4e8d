"""`enfold.about`: the program, its addresses, and the caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any, Final

import msgspec

import enfold
from enfold.formats import FORMATS
from enfold.operations import Context, Identity, Operation, OperationSpec, OperationType
from enfold.runtime.registry import Registry
from enfold.runtime.reserved import ADMIN, reserved_operation
from enfold.runtime.source_states import DefinitionChange, Problem, SourceEvent, SourceState, SourceTable
from enfold.search.signatures import estimate_tokens

MAX_ANONYMOUS: Final = 50


class SurfaceAddress(msgspec.Struct, frozen=True):
    """A way to call the operations; its address is relative to that of the program."""

    name: str
    address: str


class CallerSummary(msgspec.Struct, frozen=True):
    """Who calls, as the surface knows them."""

    id: str
    scopes: list[str]
    on_behalf_of: str | None = None


class AnonymousAccess(msgspec.Struct, frozen=True):
    """What callers without a token may call."""

    operations: int
    ids: list[str]  # the first of them


class About(msgspec.Struct, frozen=True):
    """This program, and who asks."""

    version: str
    surfaces: list[SurfaceAddress]
    caller: CallerSummary | None
    formats: list[str]
    operations: int  # those that the caller may call
    anonymous: AnonymousAccess


def operations(registry: Registry) -> Iterable[Operation]:
    return [*_about_operations(registry), *_source_operations(registry)]


def _about_operations(registry: Registry) -> Iterable[Operation]:
    async def about(context: Context) -> About:
        """Tell which version this is, where its surfaces are, who is calling, and which formats there are."""
        identity = context.identity
        return About(
            version=enfold.__version__,
            surfaces=[SurfaceAddress(*each) for each in registry.services.surfaces.items()],
            caller=None if identity is None else _caller_summary(identity),
            formats=list(FORMATS),
            operations=len(registry.visible(identity)),
            anonymous=_anonymous_access(registry),
        )

    yield reserved_operation(about, "enfold.about", scopes=())


def _anonymous_access(registry: Registry) -> AnonymousAccess:
    is_open = registry.services.admits_anonymous
    ids = [spec.id for spec in registry.visible(None) if is_open or spec.access_control.public]
    return AnonymousAccess(len(ids), ids[:MAX_ANONYMOUS])


def _caller_summary(identity: Identity) -> CallerSummary:
    return CallerSummary(identity.id, sorted(identity.scopes), identity.on_behalf_of)


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
    changed: list[DefinitionChange] = []  # the last operations whose definitions it has changed, and what of each
    changes: int = 0  # of definitions, since the process began
    history: list[SourceEvent] = []  # the last changes of its state, the oldest first
    can_reconnect: bool = False


def _source_operations(registry: Registry) -> Iterable[Operation]:
    async def sources() -> list[SourceSummary]:
        """List the sources: their states, why they are down, what was skipped, and what their tools cost a model."""
        return await _in_all_processes(registry)

    async def watch() -> AsyncIterator[list[SourceSummary]]:
        """List the sources now, and again after every change."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def tell(before: SourceState | None, after: SourceState | None) -> None:  # noqa: ARG001  # every watcher gets both
            loop.call_soon_threadsafe(changed.set)

        stop = registry.services.sources.watch(tell)
        before: list[SourceSummary] | None = None
        try:
            while True:
                changed.clear()
                found = await _in_all_processes(registry)
                if found != before:
                    before = found
                    yield found
                with suppress(TimeoutError):
                    # Unlike `wait_for` of 3.11, `timeout` never loses a cancellation.
                    async with asyncio.timeout(None if registry.services.siblings is None else POLL_INTERVAL):
                        await changed.wait()
        finally:
            stop()

    async def reconnect(name: str) -> SourceSummary:
        """Connect to a source now, without waiting for the next attempt; in-flight calls of the old connection drain.

        Args:
            name: The name of the source, as `enfold.sources` has it.
        """
        await registry.services.sources.reconnect(name)
        return next(each for each in _summaries(registry) if each.name == name)

    yield reserved_operation(sources, "enfold.sources")
    yield reserved_operation(
        reconnect, "enfold.sources.reconnect", type=OperationType.MUTATION, scopes=(ADMIN,), idempotent=True
    )
    yield reserved_operation(watch, "enfold.sources.watch", type=OperationType.SUBSCRIPTION)


async def _in_all_processes(registry: Registry) -> list[SourceSummary]:
    """Return the sources as they are in all processes: one that is down anywhere is down."""
    own, siblings = _summaries(registry), registry.services.siblings
    if siblings is None:
        return own
    others = msgspec.convert(await siblings.ask("sources"), list[list[SourceSummary]])
    worst = {each.name: each for each in own}
    for each in (source for found in others for source in found):
        if each.name not in worst or _BEST_TO_WORST.index(each.state) > _BEST_TO_WORST.index(worst[each.name].state):
            worst[each.name] = each
    return list(worst.values())


def source_summaries(registry: Registry) -> Any:
    """Return the sources of this process as plain data, for another process."""
    return msgspec.to_builtins(_summaries(registry))


def _summaries(registry: Registry) -> list[SourceSummary]:
    operations, states = list(registry), list(registry.services.sources)
    if not states:  # a registry that was served as it is
        tokens = _tokens(each.spec for each in operations)
        return [SourceSummary("functions", "functions", "up", None, "", len(operations), [], True, tokens)]
    if len(states) == 1:
        return [_summary(states[0], operations, registry.services.sources)]
    by_source: dict[str, list[Operation]] = {}
    for each in operations:
        by_source.setdefault(registry.services.sources.name_of(each.origin.kind, each.origin.name), []).append(each)
    return [_summary(state, by_source.get(state.name, []), registry.services.sources) for state in states]


def _summary(state: SourceState, operations: list[Operation], table: SourceTable) -> SourceSummary:
    fields = msgspec.structs.asdict(state) | {
        "since": round(state.since * 1000),
        "tokens": _tokens(each.spec for each in operations),
        "history": table.history(state.name),
        "can_reconnect": table.can_reconnect(state.name),
    }
    return msgspec.convert(fields, SourceSummary)


def _tokens(specs: Iterable[OperationSpec]) -> int:
    """Estimate the tokens that a model reads to know these tools: names, descriptions and arguments."""
    return sum(estimate_tokens([spec.id, spec.description, spec.input_schema]) for spec in specs)
