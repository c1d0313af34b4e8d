"""`PendingRequestMap` alone: which responses it accepts, and which it ignores."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.calls.faulty import Faults, FaultyTransport

from enfold import CallError, OperationRegistry, ResponseEnvelope, local_envelope
from enfold.calls import CallHandler, PendingRequestMap
from enfold.calls.memory import MemoryTransport
from enfold.calls.protocol.transport import Message, peer_name
from enfold.calls.transports.memory import Listener, Router


async def _waiting(pending: PendingRequestMap, bus: MemoryTransport) -> tuple[str, asyncio.Task[ResponseEnvelope[Any]]]:
    """A call that a worker has accepted and not answered."""
    taken: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    await bus.subscribe("op.*.shop.add", taken.set_result, queue="workers")
    call = asyncio.create_task(pending.call("shop.add", {}))
    reply = (await taken).reply
    assert reply is not None
    return reply.rpartition(".")[2], call


@pytest.mark.parametrize("output", [None, 3, "text", {"data": 1}, {"data": 1, "meta": {"source": "moon"}}])
async def test_only_an_envelope_is_an_answer(output: Any) -> None:
    pending = PendingRequestMap(MemoryTransport())
    with pytest.raises(TypeError, match="The output must be a ResponseEnvelope"):
        await pending.respond("0123456789abcdef", output)


async def test_a_call_resolves_with_the_envelope_it_is_answered_with() -> None:
    bus = MemoryTransport()
    async with PendingRequestMap(bus) as pending:
        request_id, call = await _waiting(pending, bus)
        envelope = local_envelope(3, "shop.add")
        await pending.respond(request_id, envelope)
        assert await call == envelope


async def test_a_call_raises_the_error_it_is_answered_with() -> None:
    bus = MemoryTransport()
    async with PendingRequestMap(bus) as pending:
        request_id, call = await _waiting(pending, bus)
        await pending.emit_error(request_id, CallError("OUT_OF_STOCK", "none left", {"left": 0}))
        with pytest.raises(CallError) as raised:
            await call
    assert (raised.value.code, raised.value.details) == ("OUT_OF_STOCK", {"left": 0})


async def test_a_call_that_is_abandoned_ends_at_once() -> None:
    bus = MemoryTransport()
    async with PendingRequestMap(bus) as pending:
        request_id, call = await _waiting(pending, bus)
        pending.abort(request_id)
        with pytest.raises(CallError) as raised:
            await call
    assert raised.value.code == "ABORTED"


async def test_answers_to_unknown_requests_are_ignored() -> None:
    pending = PendingRequestMap(MemoryTransport())
    await pending.respond("0123456789abcdef", local_envelope(1, "x"))
    await pending.emit_error("0123456789abcdef", CallError("TIMEOUT", "late"))
    await pending.complete("0123456789abcdef", 3)
    pending.abort("0123456789abcdef")
    assert len(pending) == 0


@pytest.mark.parametrize(
    "noise",
    [
        b"",
        b"{}",
        b"\xff\xfe",
        b'{"v":"2","type":"call.responded","id":"e","payload":{"requestId":"ID","output":{}}}',
        b'{"v":1,"type":"call.responded","id":"e","payload":{"requestId":"another-request-id","output":{}}}',
        b'{"v":1,"type":"call.moon","id":"e","payload":{"requestId":"ID"}}',
        b'{"v":1,"type":"call.credit","id":"e","payload":{"requestId":"ID","n":5}}',
        b'{"v":1,"type":"call.completed","id":"e","payload":{"requestId":"ID","seq":0}}',
    ],
    ids=["nothing", "no event", "no text", "no version", "another id", "unknown type", "a credit", "an end"],
)
async def test_noise_at_a_caller_s_address_does_not_end_their_call(noise: bytes) -> None:
    bus = MemoryTransport()
    async with PendingRequestMap(bus) as pending:
        request_id, call = await _waiting(pending, bus)
        await bus.publish(f"{bus.inbox()}.{request_id}", noise.replace(b"ID", request_id.encode()))
        await asyncio.sleep(0)
        assert not call.done()
        await pending.respond(request_id, local_envelope(3, "shop.add"))
        assert (await call).data == 3


@pytest.mark.parametrize("output", [b"3", b"null", b'{"data": 1}', b'{"data": 1, "meta": {"source": "moon"}}'])
async def test_an_answer_that_is_not_an_envelope_ends_the_call_and_says_so(output: bytes) -> None:
    bus = MemoryTransport()
    async with PendingRequestMap(bus) as pending:
        request_id, call = await _waiting(pending, bus)
        payload = b'{"requestId":"' + request_id.encode() + b'","output":' + output + b"}"
        wire = b'{"v":1,"type":"call.responded","id":"e","payload":' + payload + b"}"
        await bus.publish(f"{bus.inbox()}.{request_id}", wire)
        with pytest.raises(CallError) as raised:
            await call
    assert raised.value.code == "UNKNOWN_ERROR"


async def test_closing_ends_what_still_waits() -> None:
    bus = MemoryTransport()
    pending = PendingRequestMap(bus)
    _, call = await _waiting(pending, bus)
    await pending.close()
    with pytest.raises(CallError):
        await call


@pytest.mark.parametrize("operation_id", ["", "shop.*", "shop.>", "a b", "shop.add\r\nPUB x 1", "a..b", "é"])
async def test_an_invalid_operation_id_is_not_found(operation_id: str) -> None:
    async with PendingRequestMap(MemoryTransport()) as pending:
        with pytest.raises(CallError) as raised:
            await pending.call(operation_id, {})
    assert raised.value.code == "OPERATION_NOT_FOUND"


async def test_caller_and_callee_share_no_data_in_one_process() -> None:
    ops = OperationRegistry("shop")
    kept: list[Any] = []

    @ops.query
    async def echo(value: list[Any]) -> list[Any]:
        kept.append(value)
        return value

    bus = MemoryTransport()
    handler = CallHandler(ops, bus)
    await handler.offer("shop.echo")
    async with PendingRequestMap(bus) as pending:
        mine = [1, [2]]
        answer = (await pending.call("shop.echo", {"value": mine})).data
        mine[1].append(3)  # type: ignore[attr-defined]  # a list in a list
        answer.append(4)
        assert kept == [[1, [2]]]
    await handler.close()


async def test_responses_of_a_worker_meet_the_faults_of_its_own_transport() -> None:
    bus, ops = MemoryTransport("caller"), OperationRegistry("shop")

    @ops.query
    async def add(x: int) -> int:
        return x

    faulty = FaultyTransport(bus.join("worker"), Faults(drop=1.0), 1)
    handler = CallHandler(ops, faulty)
    await handler.offer("shop.add")
    async with PendingRequestMap(bus) as pending:
        with pytest.raises(CallError) as raised:
            await pending.call("shop.add", {"x": 1}, timeout=0.1)
    assert (raised.value.code, faulty.lost) == ("TIMEOUT", 1)
    await handler.close()


def test_a_router_finds_by_tokens_and_wildcards() -> None:
    router = Router()
    heard: dict[str, list[str]] = {}
    for pattern in ("a.b", "a.*", "a.>", "*.b", "a.b.c", ">"):
        heard[pattern] = []
        router.add(Listener(pattern, lambda message, into=heard[pattern]: into.append(message.subject), None))  # type: ignore[misc]  # a default binds the list
    for subject in ("a.b", "a.c", "a.b.c", "x.b", "x"):
        router.route(Message(subject))
        router.route(Message(subject))
    assert {pattern: sorted(set(subjects)) for pattern, subjects in heard.items()} == {
        "a.b": ["a.b"],
        "a.*": ["a.b", "a.c"],
        "a.>": ["a.b", "a.b.c", "a.c"],
        "*.b": ["a.b", "x.b"],
        "a.b.c": ["a.b.c"],
        ">": ["a.b", "a.b.c", "a.c", "x", "x.b"],
    }


def test_a_router_forgets_who_is_gone() -> None:
    router = Router()
    listener = Listener("a.*", lambda _: None, "group")
    router.add(listener)
    assert router.route(Message("a.b")) == 1
    router.remove(listener)
    router.remove(listener)
    assert (router.route(Message("a.b")), router.listeners("a.*")) == (0, [])


@pytest.mark.parametrize(
    ("identity", "name"), [("ann", "ann"), ("ann@shop", "ann_shop_"), ("a.b", "a_b_"), ("x" * 60, "x")]
)
def test_names_of_peers_fit_into_subjects(identity: str, name: str) -> None:
    made = peer_name(identity)
    assert made.startswith(name)
    assert len(made) <= 48
    assert made == identity or made != peer_name(identity + "!")


COLLIDING = ["ann.example.com", "ann@example.com", "ann_example_com", "x" * 60, "x" * 61, "hub", "ann_0123456789abcdef"]


def test_no_id_has_the_name_of_another_peer() -> None:
    """An id may be chosen to be what another one's name is, however often names are made of names."""
    ids = COLLIDING + [made for each in COLLIDING if (made := peer_name(each)) != each]
    ids += [made for each in ids if (made := peer_name(each)) not in ids]
    assert len({peer_name(each) for each in ids}) == len(ids)
    assert peer_name("ann_example_com_71d4f55f") != peer_name("ann.example.com")
    assert peer_name("ann_example_com_71d4f55f") != "ann_example_com_71d4f55f"  # it looks hashed
    assert peer_name("ann_example_com") == "ann_example_com"
