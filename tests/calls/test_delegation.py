"""Delegations: a signed statement on whose behalf a call is made, valid for this call only."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.calls.networks import Network

from enfold import CallError, Context, Identity, OperationRegistry
from enfold.calls import PendingRequestMap
from enfold.calls.protocol.delegation import HEADER, signer, verifier
from enfold.calls.protocol.events import Failed, Requested, read_event, write_event
from enfold.calls.protocol.transport import Message
from enfold.operations import new_request_id
from enfold.surfaces.calls import serve_calls

KEY = Ed25519PrivateKey.generate()
KEYS = {"edge": KEY.public_key()}
ANN = Context(identity=Identity("ann"))


def whoami() -> OperationRegistry:
    ops = OperationRegistry("shop")

    @ops.query
    async def echo(context: Context) -> list[str | None]:
        identity = context.identity
        return [None, None] if identity is None else [identity.id, identity.on_behalf_of]

    return ops


async def test_the_callee_sees_the_peer_and_on_whose_behalf_it_calls(network: Network) -> None:
    async with (
        serve_calls(whoami(), network.peer("worker"), verify=verifier(KEYS)),
        PendingRequestMap(network.peer("alice"), sign=signer(KEY, "edge")) as alice,
    ):
        assert (await alice.call("shop.echo", {}, ANN)).data == ["alice", "ann"]
        assert (await alice.call("shop.echo", {})).data == ["alice", None]


async def test_a_statement_of_an_unknown_signer_is_refused(network: Network) -> None:
    unknown_key = signer(Ed25519PrivateKey.generate(), "edge")
    async with (
        serve_calls(whoami(), network.peer("worker"), verify=verifier(KEYS)),
        PendingRequestMap(network.peer("alice"), sign=unknown_key) as alice,
    ):
        with pytest.raises(CallError) as raised:
            await alice.call("shop.echo", {}, ANN)
    assert (raised.value.code, raised.value.details) == ("ACCESS_DENIED", {"reason": "delegation"})


REQUEST = Requested(new_request_id(), "shop.echo", {"a": 1}, 5000)

CHANGES: dict[str, Any] = {
    "another operation": {"operation_id": "shop.pay"},
    "another request": {"request_id": new_request_id()},
    "another input": {"input": {"a": 2}},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_statement_is_good_for_one_call_only(change: dict[str, Any]) -> None:
    headers = signer(KEY, "edge")(REQUEST, ANN, "alice")
    message = Message("op.alice.shop.echo", headers=headers, peer="alice", identity=Identity("alice"))
    verify = verifier(KEYS)
    identity = verify(message, REQUEST)
    assert identity is not None
    assert identity.on_behalf_of == "ann"
    with pytest.raises(CallError):
        verify(message, msgspec.structs.replace(REQUEST, **change))


OTHERS: dict[str, dict[str, Any]] = {
    "another peer": {"peer": "mallory", "identity": Identity("mallory")},
    "another peer who has its identity": {"peer": "mallory"},
    "another peer in other letters": {"peer": "Alice"},
    "no peer": {"peer": None},
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_delegation_is_valid_for_its_peer_only(other: dict[str, Any]) -> None:
    headers = signer(KEY, "edge")(REQUEST, ANN, "alice")
    message = Message("op.alice.shop.echo", headers=headers, peer="alice", identity=Identity("alice"))
    verify = verifier(KEYS)
    with pytest.raises(CallError) as raised:
        verify(msgspec.structs.replace(message, **other), REQUEST)
    assert raised.value.details == {"reason": "delegation"}
    assert verify(message, REQUEST) is not None  # who tried has not used it up


def test_a_statement_is_used_once_however_much_comes_between() -> None:
    headers = signer(KEY, "edge")(REQUEST, ANN, "alice")
    message = Message("op.alice.shop.echo", headers=headers, peer="alice", identity=Identity("alice"))
    verify = verifier(KEYS)
    verify(message, REQUEST)
    for _ in range(100):
        other = msgspec.structs.replace(REQUEST, request_id=new_request_id())
        verify(msgspec.structs.replace(message, headers=signer(KEY, "edge")(other, ANN, "alice")), other)
    with pytest.raises(CallError):
        verify(message, REQUEST)


def test_a_statement_without_a_soon_end_is_refused() -> None:
    long = msgspec.structs.replace(REQUEST, ttl_ms=10_000_000)
    headers = signer(KEY, "edge")(long, ANN, "alice")
    message = Message("op.alice.shop.echo", headers=headers, peer="alice", identity=Identity("alice"))
    with pytest.raises(CallError):
        verifier(KEYS)(message, REQUEST)


async def test_a_replay_by_another_peer_is_not_executed(network: Network) -> None:
    ran: list[str | None] = []
    ops = OperationRegistry("shop")

    @ops.mutation
    async def echo(context: Context) -> None:
        ran.append(context.identity.on_behalf_of if context.identity else None)

    sign = signer(KEY, "edge")
    seen: list[tuple[Requested, dict[str, str]]] = []

    def overheard(request: Requested, context: Context, name: str) -> dict[str, str]:
        seen.append((request, dict(sign(request, context, name))))
        return seen[-1][1]

    mallory = network.peer("mallory")
    async with (
        serve_calls(ops, network.peer("worker"), verify=verifier(KEYS)),
        PendingRequestMap(network.peer("alice"), sign=overheard) as alice,
    ):
        await alice.call("shop.echo", {}, ANN)
        request, headers = seen[0]
        assert ran == ["ann"]
        await mallory.connect()
        answers: asyncio.Queue[Message] = asyncio.Queue()
        await mallory.subscribe(f"{mallory.inbox()}.*", answers.put_nowait)
        data = write_event("replayed", request)
        reply = f"{mallory.inbox()}.{request.request_id}"
        await mallory.send("op.mallory.shop.echo", data, reply=reply, headers=headers)
        answer = read_event((await asyncio.wait_for(answers.get(), 5)).data).payload
    assert isinstance(answer, Failed)
    assert (answer.code, answer.details, ran) == ("ACCESS_DENIED", {"reason": "delegation"}, ["ann"])


def test_a_statement_ends_soon_after_the_call() -> None:
    headers = signer(KEY, "edge")(REQUEST, ANN, "alice")
    message = Message("op.alice.shop.echo", headers=headers, peer="alice", identity=Identity("alice"))
    with pytest.raises(CallError):
        verifier(KEYS, clock=lambda: time.time() + 60)(message, REQUEST)


@pytest.mark.parametrize("text", ["", "a.b.c", "..", "a.b", "é.é.é", "eyJhbGciOiJub25lIn0.e30."])
def test_anything_but_a_statement_is_refused(text: str) -> None:
    message = Message("op.alice.shop.echo", headers={HEADER: text}, peer="alice", identity=Identity("alice"))
    with pytest.raises(CallError):
        verifier(KEYS)(message, REQUEST)


def test_without_an_identity_of_the_peer_nothing_is_claimed() -> None:
    headers = signer(KEY, "edge")(REQUEST, ANN, "alice")
    assert verifier(KEYS)(Message("op.x.shop.echo", headers=headers), REQUEST) is None
