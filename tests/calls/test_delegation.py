"""On whose behalf a call is made: a statement for one call, which is good for nothing else."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.calls.networks import Network

from enfold import CallError, Context, Identity, OperationRegistry
from enfold.calls import PendingRequestMap
from enfold.calls.protocol.delegation import HEADER, signer, verifier
from enfold.calls.protocol.events import Requested
from enfold.calls.protocol.transport import Message
from enfold.operation import new_request_id
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


async def test_a_statement_of_a_stranger_is_refused(network: Network) -> None:
    stranger = signer(Ed25519PrivateKey.generate(), "edge")
    async with (
        serve_calls(whoami(), network.peer("worker"), verify=verifier(KEYS)),
        PendingRequestMap(network.peer("alice"), sign=stranger) as alice,
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
    headers = signer(KEY, "edge")(REQUEST, ANN)
    message = Message("op.alice.shop.echo", headers=headers, peer="alice", identity=Identity("alice"))
    verify = verifier(KEYS)
    identity = verify(message, REQUEST)
    assert identity is not None
    assert identity.on_behalf_of == "ann"
    with pytest.raises(CallError):
        verify(message, msgspec.structs.replace(REQUEST, **change))


def test_a_statement_ends_soon_after_the_call() -> None:
    headers = signer(KEY, "edge")(REQUEST, ANN)
    message = Message("op.alice.shop.echo", headers=headers, peer="alice", identity=Identity("alice"))
    with pytest.raises(CallError):
        verifier(KEYS, clock=lambda: time.time() + 60)(message, REQUEST)


@pytest.mark.parametrize("text", ["", "a.b.c", "..", "a.b", "é.é.é", "eyJhbGciOiJub25lIn0.e30."])
def test_what_is_no_statement_is_refused(text: str) -> None:
    message = Message("op.alice.shop.echo", headers={HEADER: text}, peer="alice", identity=Identity("alice"))
    with pytest.raises(CallError):
        verifier(KEYS)(message, REQUEST)


def test_without_an_identity_of_the_peer_nothing_is_claimed() -> None:
    headers = signer(KEY, "edge")(REQUEST, ANN)
    assert verifier(KEYS)(Message("op.x.shop.echo", headers=headers), REQUEST) is None
