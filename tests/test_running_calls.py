"""A source is not closed under its calls: whatever kind of handler it has, a call counts from its beginning to its end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from enfold import Context, OperationRegistry, OperationSpec
from enfold.app.sources import RunningCalls
from enfold.operations import Operation

Seen = list[bool]


def handlers(running: RunningCalls, seen: Seen) -> dict[str, Callable[..., Any]]:
    """A handler of each kind, which notes whether its call is counted while it works."""

    def note() -> int:
        seen.append(bool(running))
        return 1

    async def coroutine(input: Any, context: Context) -> int:
        return note()

    def plain(input: Any, context: Context) -> int:
        return note()

    def gives_coroutine(input: Any, context: Context) -> Awaitable[int]:
        return coroutine(input, context)

    async def stream(input: Any, context: Context) -> AsyncIterator[int]:
        yield note()
        yield note()

    def gives_stream(input: Any, context: Context) -> AsyncIterator[int]:
        return stream(input, context)

    async def awaits_stream(input: Any, context: Context) -> AsyncIterator[int]:
        return stream(input, context)

    def blocking_stream(input: Any, context: Context) -> Iterator[int]:
        yield note()
        yield note()

    kinds = (coroutine, plain, gives_coroutine, stream, gives_stream, awaits_stream, blocking_stream)
    return {kind.__name__: kind for kind in kinds}


@pytest.mark.parametrize("name", handlers(RunningCalls(), []))
async def test_a_call_of_any_kind_counts_until_it_is_over(name: str) -> None:
    running, seen, ops = RunningCalls(), Seen(), OperationRegistry()
    handler = running.counted(handlers(running, seen)[name])
    is_stream = "stream" in name
    ops.register(Operation(OperationSpec(name="work", type="subscription" if is_stream else "mutation"), handler))
    if is_stream:
        items = ops.subscribe("work")
        assert (await anext(items)).data == 1
        assert running  # between its items, too
        assert [each.data async for each in items] == [1]
    else:
        assert (await ops.execute("work")).data == 1
    assert seen == [True, True][: 2 if is_stream else 1]
    assert not running


async def test_an_abandoned_stream_no_longer_counts() -> None:
    running, ops = RunningCalls(), OperationRegistry()
    handler = running.counted(handlers(running, [])["gives_stream"])
    ops.register(Operation(OperationSpec(name="work", type="subscription"), handler))
    items = ops.subscribe("work")
    await anext(items)
    await items.aclose()
    assert not running
