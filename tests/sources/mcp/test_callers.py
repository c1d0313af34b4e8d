"""Who a message is for that names no call."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from enfold import Context
from enfold.mcp.json_rpc import RequestId
from enfold.mcp.messages import AboutTask, Params
from enfold.operations.context import Invocation
from enfold.sources.mcp.callers import MAX_ABANDONED, MCPCaller, OutgoingCall, PossibleCallers, Turns
from enfold.sources.mcp.settings import Connection


def caller() -> MCPCaller:
    """A caller with a client of its own."""
    client: Any = SimpleNamespace(client=object(), capabilities={}, session=None, meta={})
    return MCPCaller(Context(invocation=Invocation(client)), Connection())


def call(number: int, caller: MCPCaller, method: str = "tools/call", params: Params | None = None) -> OutgoingCall:
    return OutgoingCall(number, method, params or Params(), caller, asyncio.get_running_loop().create_future())


async def test_a_task_counts_from_its_beginning_until_its_result_has_come() -> None:
    """The answer that begins a task ends its request, and its question may come in the same breath."""
    ann, bob = caller(), caller()
    waiting: dict[RequestId, OutgoingCall] = {2: call(2, bob)}
    possible = PossibleCallers(waiting, Turns(), 600)
    possible.note_answer(1)
    possible.note_task("t", ann)
    assert possible.only_caller() is None
    nap = waiting.pop(2)
    waiting[3] = call(3, ann, "tasks/result", AboutTask("t"))
    assert possible.only_caller() is ann
    del waiting[3]
    waiting[2] = nap
    possible.note_task_end("t")
    assert possible.only_caller() is bob


async def test_after_too_many_cancelled_calls_questions_are_declined() -> None:
    ann = caller()
    possible = PossibleCallers({MAX_ABANDONED + 1: call(MAX_ABANDONED + 1, ann)}, Turns(), 600)
    for number in range(MAX_ABANDONED + 1):
        possible.note_abandoned(call(number, ann))
    for number in range(MAX_ABANDONED):
        possible.note_answer(number)
    assert possible.only_caller() is None


async def test_a_client_with_calls_side_by_side_does_not_keep_another_waiting_forever() -> None:
    ann, bob, turns = object(), object(), Turns()
    assert turns.take(ann, ("call", 1))
    assert turns.take(ann, ("call", 2))
    assert not turns.take(bob, ("call", 3))
    bobs = asyncio.create_task(turns.wait(bob, ("call", 3)))
    await asyncio.sleep(0)
    assert not turns.take(ann, ("call", 4))
    anns = asyncio.create_task(turns.wait(ann, ("call", 4)))
    await asyncio.sleep(0)
    turns.release(("call", 1))
    turns.release(("call", 2))
    await bobs
    assert not anns.done()
    turns.release(("call", 3))
    await anns
