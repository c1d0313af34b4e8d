"""Responding without a registry: a peer that answers requests through its map, and a subscriber that observes them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Self

import jsonschema_rs
import pytest
from tests.calls.networks import Network

from enfold import CallError, OperationRegistry, local_envelope
from enfold.calls import CALL_EVENT_SCHEMA, PendingRequestMap
from enfold.calls.memory import MemoryTransport
from enfold.calls.protocol.settings import NEVER
from enfold.calls.protocol.transport import Message, Transport
from enfold.surfaces.calls import serve_calls


class ByHand:
    """A peer that serves `shop.add` without a CallHandler."""

    def __init__(self, transport: Transport) -> None:
        self.requests: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.map = PendingRequestMap(transport)
        self._transport = transport

    async def __aenter__(self) -> Self:
        await self.map.__aenter__()
        await self._transport.subscribe("op.*.shop.add", self._take, queue="workers")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.map.close()

    def _take(self, message: Message) -> None:
        if message.signal is None:
            self.requests.put_nowait(json.loads(message.data)["payload"])


@pytest.fixture
async def peers(network: Network) -> AsyncIterator[tuple[PendingRequestMap, ByHand]]:
    async with (
        ByHand(network.peer("worker")) as worker,
        PendingRequestMap(network.peer("alice"), retry=NEVER) as caller,
    ):
        yield caller, worker


async def test_the_response_of_a_peer_reaches_the_caller(peers: tuple[PendingRequestMap, ByHand]) -> None:
    caller, worker = peers
    call = asyncio.create_task(caller.call("shop.add", {"x": 1, "y": 2}, timeout=20))
    request = await worker.requests.get()
    envelope = local_envelope(request["input"]["x"] + request["input"]["y"], "shop.add")
    await worker.map.respond(request["requestId"], envelope)
    assert await call == envelope


async def test_the_error_that_a_peer_emits_reaches_the_caller(peers: tuple[PendingRequestMap, ByHand]) -> None:
    caller, worker = peers
    call = asyncio.create_task(caller.call("shop.add", {}, timeout=20))
    request = await worker.requests.get()
    await worker.map.emit_error(request["requestId"], CallError("SOLD_OUT", "none left", {"left": 0}))
    with pytest.raises(CallError) as raised:
        await call
    assert (raised.value.code, raised.value.details) == ("SOLD_OUT", {"left": 0})


async def test_a_peer_can_answer_a_subscription_item_by_item(peers: tuple[PendingRequestMap, ByHand]) -> None:
    caller, worker = peers

    async def answer() -> None:
        request = await worker.requests.get()
        for number in (1, 2, 3):
            await worker.map.respond(request["requestId"], local_envelope(number, "shop.add"), seq=number)
        await worker.map.complete(request["requestId"], 3)

    answering = asyncio.create_task(answer())
    assert [item.data async for item in caller.subscribe("shop.add", {}, timeout=20)] == [1, 2, 3]
    await answering


async def test_only_an_envelope_is_published_and_only_once(peers: tuple[PendingRequestMap, ByHand]) -> None:
    caller, worker = peers
    call = asyncio.create_task(caller.call("shop.add", {}, timeout=20))
    request = await worker.requests.get()
    with pytest.raises(TypeError, match="The output must be a ResponseEnvelope"):
        await worker.map.respond(request["requestId"], {"result": 3})
    assert not call.done()
    for data in (3, 4):
        await worker.map.respond(request["requestId"], local_envelope(data, "shop.add"))
    assert (await call).data == 3


async def test_an_answer_that_cannot_be_sent_raises_at_its_sender(peers: tuple[PendingRequestMap, ByHand]) -> None:
    caller, worker = peers
    call = asyncio.create_task(caller.call("shop.add", {}, timeout=20))
    request = await worker.requests.get()
    with pytest.raises(CallError) as raised:
        await worker.map.respond(request["requestId"], local_envelope("x" * 10_000_000, "shop.add"))
    assert raised.value.code == "PAYLOAD_TOO_LARGE"
    await worker.map.respond(request["requestId"], local_envelope("short", "shop.add"))
    assert (await call).data == "short"


# --- looking on ---------------------------------------------------------------------------------------------------


def shop() -> OperationRegistry:
    ops = OperationRegistry("shop")

    @ops.query
    async def add(x: int, y: int) -> int:
        return x + y

    return ops


@pytest.mark.parametrize("patterns", [[">"], ["op.>", "_INBOX.>"], ["op.*.shop.add", "_INBOX.*.*.*"]])
async def test_a_subscriber_sees_the_events_of_calls_in_memory(patterns: list[str]) -> None:
    bus, seen = MemoryTransport(), []
    spy = bus.join("spy")
    async with serve_calls(shop(), bus), PendingRequestMap(bus.join("caller")) as caller:
        subscriptions = [
            await spy.subscribe(pattern, lambda message: seen.append(message.data)) for pattern in patterns
        ]
        assert (await caller.call("shop.add", {"x": 1, "y": 2})).data == 3
        for subscription in subscriptions:
            await subscription.close()
        assert (await caller.call("shop.add", {"x": 2, "y": 2})).data == 4
    events = [json.loads(data) for data in seen if data]
    calls = [event for event in events if event["type"] in ("call.requested", "call.responded")]
    assert [event["type"] for event in calls] == ["call.requested", "call.responded"]
    for event in calls:
        assert set(event) == {"v", "type", "id", "payload"}
        jsonschema_rs.validate(CALL_EVENT_SCHEMA[event["type"]], event["payload"])
    assert calls[0]["payload"]["input"] == {"x": 1, "y": 2}
    assert calls[1]["payload"]["output"]["data"] == 3
    assert calls[0]["payload"]["requestId"] == calls[1]["payload"]["requestId"]


async def test_a_subscriber_sees_what_a_peer_responds_to_its_own_call() -> None:
    bus, seen = MemoryTransport(), []
    await bus.join("spy").subscribe("_INBOX.>", lambda message: seen.append(json.loads(message.data)["type"]))
    async with PendingRequestMap(bus) as pending:
        taken: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        await bus.subscribe("op.*.shop.add", taken.set_result, queue="workers")
        call = asyncio.create_task(pending.call("shop.add", {}))
        request_id = json.loads((await taken).data)["payload"]["requestId"]
        await pending.respond(request_id, local_envelope(3, "shop.add"))
        assert (await call).data == 3
    assert seen == ["call.responded"]
