"""What one message of a NATS server can hold: too much is refused at once, and nothing waits forever because it has grown."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.calls.networks import Server
from tests.waiting import PATIENCE

from enfold import CallError, Context, OperationRegistry
from enfold.calls.nats import NATSTransport
from enfold.operations.questions import ask, elicitation
from enfold.tasks import Status, Task, TaskHandle, Tasks
from enfold.tasks.nats import NATSTasks
from enfold.tasks.nats_streams import Names

FORM = {"type": "object", "properties": {"text": {"type": "string"}}}

ops = OperationRegistry("shop")


@ops.mutation(durable=True)
async def echo(text: str, size: int = 1) -> str:
    return text[:size]


@ops.mutation(durable=True)
async def two(text: str, context: Context) -> int:
    answers = await ask(context, {"first": elicitation("One?", FORM), "second": elicitation("Two?", FORM)})
    return len(text) + sum(len(each["content"]["text"]) for each in answers.values())


@pytest.fixture
async def transport(jetstream: Server) -> AsyncIterator[NATSTransport]:
    async with NATSTransport(jetstream.url) as opened:
        yield opened


@pytest.fixture
def names() -> Names:
    return Names(f"t{os.urandom(4).hex()}")


@pytest.fixture
async def tasks(transport: NATSTransport, names: Names) -> AsyncIterator[Tasks]:
    async with Tasks(ops, NATSTasks(transport, name=names.name)) as made:
        yield made


def said(size: int) -> dict[str, Any]:
    return {"action": "accept", "content": {"text": "y" * size}}


async def asked(handle: TaskHandle) -> Task:
    async with asyncio.timeout(PATIENCE):
        async for task in handle.watch():
            if task.status is Status.INPUT_REQUIRED:
                return task
    raise AssertionError("it asks for nothing")


async def code_of(call: Any) -> str:
    with pytest.raises(CallError) as raised:
        async with asyncio.timeout(PATIENCE):
            await call
    return raised.value.code


async def test_an_input_that_the_server_cannot_hold_is_refused_and_nothing_is_queued(
    tasks: Tasks, transport: NATSTransport, names: Names
) -> None:
    for size in (1_043_000, 1_047_000, 1_100_000, 3_000_000):
        refused = tasks.start("shop.echo", {"text": "x" * size}, idempotency_key="k")
        assert await code_of(refused) == "PAYLOAD_TOO_LARGE"
    assert await tasks.store.list(None) == []
    assert (await transport.client.jetstream().stream_info(names.queue)).state.messages == 0
    handle = await tasks.start("shop.echo", {"text": "x"}, idempotency_key="k")  # the key has not been used
    assert (await handle.result()).data == "x"


async def test_the_largest_input_leaves_space_for_a_result_of_any_size(tasks: Tasks) -> None:
    for size in (1, 60_000, 1_000_000):
        handle = await tasks.start("shop.echo", {"text": "x" * 1_000_000, "size": size})
        assert len((await handle.result()).data) == size


async def test_answers_that_do_not_fit_beside_the_input_are_refused_and_shorter_ones_are_taken(tasks: Tasks) -> None:
    handle = await tasks.start("shop.two", {"text": "x" * 600_000})
    first, second = (await asked(handle)).questions
    assert await code_of(handle.answer({first: said(600_000)})) == "PAYLOAD_TOO_LARGE"
    await handle.answer({first: said(300_000)})
    assert await code_of(handle.answer({second: said(300_000)})) == "PAYLOAD_TOO_LARGE"
    assert list((await handle.state()).questions) == [second]
    await handle.answer({second: said(5)})
    assert (await handle.result()).data == 900_005


@pytest.mark.parametrize("does", ["go on", "cancel"])
async def test_one_of_several_answers_that_is_too_large_is_refused(tasks: Tasks, does: str) -> None:
    handle = await tasks.start("shop.two", {"text": "x" * 600_000})
    both = [handle.answer({key: said(300_000)}) for key in (await asked(handle)).questions]
    (error,) = (each for each in await asyncio.gather(*both, return_exceptions=True) if isinstance(each, CallError))
    assert error.code == "PAYLOAD_TOO_LARGE"
    (left,) = (await handle.state()).questions
    if does == "cancel":
        await handle.cancel()
        assert await code_of(handle.result()) == "ABORTED"
    else:
        await handle.answer({left: said(5)})
        assert (await handle.result()).data == 900_005
