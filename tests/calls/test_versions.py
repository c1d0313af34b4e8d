"""Two versions of the protocol on one network: what is not understood is refused with a reason, and every peer goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.calls.networks import Network
from tests.waiting import PATIENCE, until

from enfold import CallError, OperationRegistry
from enfold.calls import PendingRequestMap
from enfold.calls.protocol.events import Requested, Responded, read_event, write_event
from enfold.calls.protocol.transport import WORKERS, Message, Transport
from enfold.operations import new_request_id
from enfold.sources.calls import Discovery, from_calls
from enfold.surfaces.calls import Serving, serve_calls

QUICK = Discovery(refresh=0.1, patience=0.3)


def newer(event: bytes, **payload: Any) -> bytes:
    """The event as the next version may write it: with a field more, and fields of other types."""
    wire = msgspec.json.decode(event)
    return msgspec.json.encode({**wire, "v": 2, "flags": ["x"], "payload": wire["payload"] | payload})


@pytest.fixture
def ran() -> list[int]:
    return []


@pytest.fixture
async def serving(network: Network, ran: list[int]) -> AsyncIterator[Serving]:
    ops = OperationRegistry("shop")

    @ops.mutation
    async def add(x: int) -> int:
        ran.append(x)
        return x

    async with serve_calls(ops, network.peer("worker")) as serving:
        yield serving


@pytest.mark.parametrize("changes", [{}, {"input": 7, "ttlMs": "soon"}], ids=["readable", "unreadable"])
async def test_a_request_of_a_newer_version_is_refused_and_may_be_sent_to_another_worker(
    network: Network, serving: Serving, ran: list[int], changes: dict[str, Any]
) -> None:
    caller, answers = network.peer("alice"), asyncio.Queue[Message]()
    await caller.connect()
    await caller.subscribe(f"{caller.inbox()}.*", answers.put_nowait)
    request_id = new_request_id()
    request = newer(write_event("1", Requested(request_id, "shop.add", {"x": 1}, 5000)), **changes)
    await caller.send("op.alice.shop.add", request, reply=f"{caller.inbox()}.{request_id}")
    async with asyncio.timeout(PATIENCE):
        refusal = msgspec.to_builtins(read_event((await answers.get()).data).payload)
    assert (refusal["requestId"], refusal["code"], refusal["retryable"]) == (request_id, "UNAVAILABLE", True)
    assert refusal["details"] == {"reason": "version", "started": False}
    assert refusal["message"] == (
        "The request cannot be read: version 2 of the call protocol is not supported, only version 1. Upgrade the worker"
    )
    async with PendingRequestMap(network.peer("bob")) as calls:
        assert (await calls.call("shop.add", {"x": 2})).data == 2
    assert ran == [2]
    assert serving.handler.counts.malformed == 1


async def newer_worker(transport: Transport) -> None:
    """Offer an operation, and answer each request as the next version may."""
    answering: set[asyncio.Task[None]] = set()

    def receive(message: Message) -> None:
        if message.signal is None:
            request = read_event(message.data).payload
            answer = newer(write_event("1", Responded(request.request_id, {})), output=[1, 2])
            answering.add(asyncio.ensure_future(transport.publish(message.reply or "", answer)))

    await transport.connect()
    await transport.subscribe("op.*.shop.add", receive, queue=WORKERS)


async def test_an_answer_of_a_newer_version_ends_its_call_with_the_reason(network: Network) -> None:
    await newer_worker(network.peer("worker"))
    async with asyncio.timeout(PATIENCE), PendingRequestMap(network.peer("alice")) as calls:
        with pytest.raises(
            CallError, match=r"The worker's response cannot be read: version 2 .* Upgrade this process"
        ) as raised:
            await calls.call("shop.add", {"x": 1}, timeout=PATIENCE)
        assert (raised.value.code, raised.value.details) == ("UNAVAILABLE", {"reason": "version"})
        assert not raised.value.retryable  # it may have run
        with pytest.raises(CallError, match="version 2"):
            async for _ in calls.subscribe("shop.add", {}):
                pass
        assert len(calls) == 0


async def test_a_question_of_a_newer_version_is_answered(network: Network, serving: Serving) -> None:
    asker, listings = network.peer("alice"), asyncio.Queue[Message]()
    await asker.connect()
    await asker.subscribe(f"{asker.inbox()}.d", listings.put_nowait)
    question = msgspec.json.encode({"v": 2, "boot": "", "region": "eu"})
    await asker.publish("op.alice._enfold.peers", question, reply=f"{asker.inbox()}.d")
    async with asyncio.timeout(PATIENCE):
        listing = msgspec.json.decode((await listings.get()).data)
    assert (listing["worker"], listing["boot"]) == ("worker", serving.handler.boot)


async def test_a_worker_that_lists_its_operations_in_a_newer_version_is_left_out(
    network: Network, serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    second = network.peer("second")
    await second.connect()

    def answer(message: Message) -> None:
        if message.signal is None:
            listing = {"v": 2, "worker": "second", "boot": "b" * 16, "digest": "d", "tree": {}}
            asyncio.ensure_future(second.publish(message.reply or "", msgspec.json.encode(listing)))  # noqa: RUF006

    await second.subscribe("op.*._enfold.peers", answer)
    async with from_calls(network.peer("bob"), discovery=QUICK) as operations:
        assert [operation.spec.id for operation in operations] == ["shop.add"]
        await until(lambda: "does not support: upgrade it" in caplog.text)
        assert [listing.worker for listing in operations.workers] == ["worker"]
    assert (
        "Operations of second are ignored: it has version 2 of the call protocol, which this process does not support"
        in caplog.text
    )
