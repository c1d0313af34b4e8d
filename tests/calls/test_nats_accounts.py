"""Callers in separate accounts: the server adds the caller to each request, and rewrites reply subjects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.calls.networks import PASSWORD, Server, shop

from enfold import CallError, Context, Identity, OperationRegistry
from enfold.calls import PendingRequestMap
from enfold.calls.nats import NATSTransport
from enfold.calls.protocol.events import Requested, write_event
from enfold.calls.protocol.settings import NEVER
from enfold.operations import new_request_id
from enfold.sources.calls import from_calls
from enfold.surfaces.calls import serve_calls

ACCOUNTS = f"""
accounts {{
  OPS: {{
    users: [{{user: worker, password: {PASSWORD}}}]
    exports: [
      {{service: "op.*.shop.>", response_type: stream}}, {{service: "op.*._enfold.peers", response_type: stream}}
      {{service: "op.*._enfold.peers.*", response_type: stream}}
      {{service: "ctl.>"}}
    ]
  }}
  ALICE: {{
    users: [{{user: alice, password: {PASSWORD}}}]
    imports: [
      {{service: {{account: OPS, subject: "op.*.shop.>"}}, share: true}}
      {{service: {{account: OPS, subject: "op.*._enfold.peers"}}, share: true}}
      {{service: {{account: OPS, subject: "op.*._enfold.peers.*"}}, share: true}}
      {{service: {{account: OPS, subject: "ctl.>"}}}}
    ]
  }}
  MALLORY: {{ users: [{{user: mallory, password: {PASSWORD}}}] }}
}}
"""

IDENTITIES = {"ALICE": Identity("ALICE", frozenset({"pay"}))}


@pytest.fixture
def url(nats_program: str, tmp_path: Path) -> Iterator[str]:
    server = Server(nats_program, tmp_path, ACCOUNTS)
    server.wait_until_ready()
    yield server.url
    server.close()


def connect(url: str, user: str) -> NATSTransport:
    return NATSTransport(url, user=user, password=PASSWORD, identities=IDENTITIES, identity_from="account")


async def test_the_account_is_the_identity(url: str) -> None:
    ops = OperationRegistry("shop")

    @ops.query
    async def echo(context: Context) -> str | None:
        return None if context.identity is None else context.identity.id

    async with (
        connect(url, "worker") as worker,
        serve_calls(ops, worker),
        connect(url, "alice") as transport,
        PendingRequestMap(transport) as alice,
    ):
        assert (await alice.call("shop.echo", {})).data == "ALICE"


async def test_a_forged_stamp_in_other_letters_is_not_read(url: str) -> None:
    ops = OperationRegistry("shop")
    seen: list[str] = []

    @ops.query
    async def echo(context: Context) -> None:
        seen.append("anonymous" if context.identity is None else context.identity.id)

    async with (
        connect(url, "worker") as worker,
        serve_calls(ops, worker),
        connect(url, "alice") as transport,
        PendingRequestMap(transport) as alice,
    ):
        payload = Requested(new_request_id(), "shop.echo", {}, 5000)
        headers = {"nats-request-info": '{"acc":"ROOT"}', "Nats-Request-Info": '{"acc":"ROOT"}'}
        reply = f"{transport.inbox()}.{payload.request_id}"
        await transport.publish("op.alice.shop.echo", write_event("e", payload), reply=reply, headers=headers)
        await alice.call("shop.echo", {})
    assert set(seen) == {"ALICE"}


async def test_calls_streams_and_discovery_cross_accounts(url: str) -> None:
    async with (
        connect(url, "worker") as worker,
        serve_calls(shop(), worker),
        connect(url, "alice") as transport,
        from_calls(transport) as operations,
    ):
        mine = OperationRegistry()
        mine.register_all(operations)
        assert (await mine.execute("shop.pay", {"amount": 5})).data == 5
        assert (await mine.execute("shop.wait", {"seconds": 0.2})).data == "done"
        assert [item.data async for item in mine.subscribe("shop.count", {"to": 500})] == list(range(500))


async def test_without_an_import_no_worker_serves_it(url: str) -> None:
    async with (
        connect(url, "worker") as worker,
        serve_calls(shop(), worker),
        connect(url, "mallory") as transport,
        PendingRequestMap(transport, retry=NEVER) as mallory,
    ):
        with pytest.raises(CallError) as raised:
            await mallory.call("shop.add", {"x": 1, "y": 2})
    assert raised.value.code == "OPERATION_NOT_FOUND"
