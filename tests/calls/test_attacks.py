"""Attacks of one peer on others, on NATS with generated permissions and around a hub. None succeeds."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.calls.networks import PASSWORD, PEERS, Network, Server, shop
from tests.waiting import PATIENCE, until

from enfold import CallError, Context, Identity, OperationRegistry
from enfold.auth.tokens import Tokens
from enfold.calls import CallHandler, PendingRequestMap
from enfold.calls.nats import NATSTransport
from enfold.calls.protocol.events import Aborted, Requested, responded, write_event
from enfold.calls.protocol.settings import NEVER
from enfold.calls.protocol.transport import DeniedError, Message, Transport, TransportError
from enfold.calls.transports.frames import Frame, Op, write_frame
from enfold.calls.transports.hub import Hub
from enfold.calls.websocket import WebSocketHub, WebSocketTransport
from enfold.calls.worker.announcer import Announcer
from enfold.envelope import local_envelope
from enfold.operations import new_request_id
from enfold.sources.calls import Discovery, from_calls
from enfold.surfaces.calls import Serving, serve_calls


@pytest.fixture
async def mallory(wide_network: Network) -> Transport:
    transport = wide_network.peer("mallory")
    await transport.connect()
    return transport


@pytest.fixture
async def serving(wide_network: Network, mallory: Transport) -> AsyncIterator[Serving]:
    async with serve_calls(shop(), wide_network.peer("worker")) as serving:
        yield serving


@pytest.fixture
async def alice(wide_network: Network, serving: Serving) -> AsyncIterator[PendingRequestMap]:
    async with PendingRequestMap(wide_network.peer("alice"), retry=NEVER) as pending:
        yield pending


async def listen(transport: Transport, subject: str, queue: str | None = None) -> list[Message]:
    """What a peer hears on a subject, if it is let in at all."""
    heard: list[Message] = []

    def receive(message: Message) -> None:
        if message.signal is None:
            heard.append(message)

    try:
        await transport.subscribe(subject, receive, queue=queue)
    except DeniedError:
        heard.clear()
    return heard


def request(operation_id: str = "shop.add", **fields: Any) -> Requested:
    return Requested(new_request_id(), operation_id, {"x": 1, "y": 2}, 5000, **fields)


async def post(transport: Transport, subject: str, payload: Any, reply: str | None = None) -> None:
    """Send a forged message; the client may reject it, or else the broker has handled it when this returns."""
    with suppress(TransportError):
        await transport.publish(subject, write_event("e", payload), reply=reply)
        await round_trip(transport)


async def round_trip(transport: Transport) -> None:
    """Wait until the broker has handled what this peer sent, and this peer has read what was sent to it before."""
    subscription = await transport.subscribe(f"{transport.inbox()}.round-trip", lambda _: None)
    await subscription.close()


async def settle(network: Network) -> None:
    """Wait until the worker has handled every message that the broker has handled."""
    async with PendingRequestMap(network.peer("bob"), retry=NEVER) as bob:
        assert (await bob.call("shop.add", {"x": 1, "y": 2})).data == 3


async def test_a_reply_cannot_be_forged(mallory: Transport, wide_network: Network) -> None:
    ops, request_ids, go_on = OperationRegistry("shop"), asyncio.Queue[str](), asyncio.Event()

    @ops.query
    async def wait(context: Context) -> str:
        request_ids.put_nowait(context.request_id)
        await go_on.wait()
        return "done"

    heard = await listen(mallory, "op.*.shop.wait")
    transport = wide_network.peer("alice")
    async with (
        serve_calls(ops, wide_network.peer("worker")),
        PendingRequestMap(transport, retry=NEVER) as alice,
        asyncio.timeout(PATIENCE),
    ):
        call = asyncio.create_task(alice.call("shop.wait", {}))
        request_id = await request_ids.get()  # The attacker gets an id that they could not guess.
        forged = responded(request_id, local_envelope("forged", "shop.wait"))
        await post(mallory, f"{transport.inbox()}.{request_id}", forged)
        go_on.set()
        assert ((await call).data, heard) == ("done", [])


@pytest.mark.parametrize("subject", ["op.>", "op.*.shop.add", "_INBOX.>", "_INBOX.alice.>", "ctl.>", ">"])
async def test_nothing_can_be_overheard(mallory: Transport, alice: PendingRequestMap, subject: str) -> None:
    heard = await listen(mallory, subject)
    for _ in range(5):
        await alice.call("shop.add", {"x": 1, "y": 2})
    assert heard == []


async def test_the_workers_cannot_be_joined(mallory: Transport, alice: PendingRequestMap) -> None:
    heard = await listen(mallory, "op.*.shop.add", "workers")
    answers = [(await alice.call("shop.add", {"x": 1, "y": 2})).data for _ in range(20)]
    assert (answers, heard) == ([3] * 20, [])


async def test_a_call_that_was_not_granted_is_refused_immediately(wide_network: Network, serving: Serving) -> None:
    async with PendingRequestMap(wide_network.peer("mallory"), retry=NEVER) as pending:
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(CallError) as raised:
                await pending.call("shop.pay", {"amount": 1}, timeout=30)
    # The broker's own permissions refuse; a worker says no more than of an operation that is not there.
    assert raised.value.code == ("ACCESS_DENIED" if wide_network.name == "nats" else "OPERATION_NOT_FOUND")


async def test_a_reply_address_cannot_be_another_s_operation(
    mallory: Transport, serving: Serving, wide_network: Network
) -> None:
    before = serving.handler.counts.refused
    await post(mallory, "op.mallory.shop.add", request(), "op.alice.shop.pay")
    await settle(wide_network)
    assert serving.handler.counts.refused == before + 1
    assert "shop.pay" not in serving.handler.operations


async def test_a_worker_cannot_be_made_to_write_to_another_s_inbox(
    wide_network: Network, mallory: Transport, serving: Serving
) -> None:
    victim = wide_network.peer("alice")
    await victim.connect()
    heard = await listen(victim, f"{victim.inbox()}.*")
    payload = request()
    await post(mallory, "op.mallory.shop.add", payload, f"{victim.inbox()}.{payload.request_id}")
    await settle(wide_network)
    await round_trip(victim)
    assert (heard, serving.handler.counts.refused) == ([], 1)


async def test_a_peer_cannot_impersonate_another(wide_network: Network, mallory: Transport, serving: Serving) -> None:
    payload = Requested(new_request_id(), "shop.pay", {"amount": 1}, 5000)
    await post(mallory, "op.alice.shop.pay", payload, f"_INBOX.alice.x.{payload.request_id}")
    await settle(wide_network)
    assert "shop.pay" not in serving.handler.operations


async def test_an_identity_in_the_body_counts_for_nothing(wide_network: Network, mallory: Transport) -> None:
    ops = OperationRegistry("shop")
    seen: list[str | None] = []

    @ops.query
    async def echo(context: Context) -> None:
        seen.append(None if context.identity is None else context.identity.id)

    async with serve_calls(ops, wide_network.peer("worker")):
        payload = request("shop.echo")
        wire = write_event("e", payload).replace(b'"input":{"x":1,"y":2}', b'"input":{},"identity":{"id":"alice"}')
        await mallory.publish("op.mallory.shop.echo", wire, reply=f"{mallory.inbox()}.{payload.request_id}")
        await until(lambda: seen)
    assert seen == ["mallory"]


@pytest.mark.parametrize("is_known", [False, True], ids=["guessed", "known"])
async def test_another_s_call_cannot_be_aborted_by_its_request_id(
    is_known: bool, mallory: Transport, wide_network: Network
) -> None:
    ops, begun, go_on = shop(), asyncio.Event(), asyncio.Event()
    ops.unregister("shop.wait")
    known: list[str] = []

    @ops.query
    async def wait(context: Context) -> str:
        known.append(context.request_id)
        begun.set()
        await go_on.wait()
        return "done"

    async with (
        serve_calls(ops, wide_network.peer("worker")) as serving,
        PendingRequestMap(wide_network.peer("alice"), retry=NEVER) as alice,
        asyncio.timeout(PATIENCE),
    ):
        call = asyncio.create_task(alice.call("shop.wait", {}))
        await begun.wait()
        guess = known[0] if is_known else new_request_id()
        await post(mallory, f"ctl.worker.{serving.handler.boot}.{guess}", Aborted(guess))
        await settle(wide_network)
        go_on.set()
        assert (await call).data == "done"


async def test_the_subject_and_the_request_must_name_the_same_operation(mallory: Transport, serving: Serving) -> None:
    payload = Requested(new_request_id(), "shop.pay", {"amount": 1}, 5000)
    heard = await listen(mallory, f"{mallory.inbox()}.*")
    await post(mallory, "op.mallory.shop.add", payload, f"{mallory.inbox()}.{payload.request_id}")
    await until(lambda: heard)
    assert "shop.pay" not in serving.handler.operations
    assert b"VALIDATION_ERROR" in heard[0].data


# --- around a hub -------------------------------------------------------------------------------------------------


@pytest.fixture
async def hub() -> AsyncIterator[WebSocketHub]:
    async with WebSocketHub(Tokens(PEERS)) as hub:
        await hub.listen()
        yield hub


def spoke(hub: WebSocketHub, token: str | None) -> WebSocketTransport:
    return WebSocketTransport(f"ws://127.0.0.1:{hub.port}", token=token)


@pytest.mark.parametrize("token", [None, "unknown", ""])
async def test_a_hub_rejects_clients_without_a_token(hub: WebSocketHub, token: str | None) -> None:
    with pytest.raises(CallError) as raised:
        await spoke(hub, token).connect()
    assert raised.value.code == "ACCESS_DENIED"


async def test_a_client_offers_only_what_its_token_grants(hub: WebSocketHub) -> None:
    bank = OperationRegistry("bank")
    bank.register(lambda: 1, name="pay")
    bank.register(lambda: 1, name="shopping", namespace="shopkeeper")
    async with spoke(hub, "worker") as worker, serve_calls(bank, worker) as serving:
        assert sorted(serving.refused) == ["bank.pay", "shopkeeper.shopping"]
        assert hub.hub.router.listeners("op.*.bank.pay") == []


async def test_a_client_cannot_replace_what_exists(hub: WebSocketHub) -> None:
    own = OperationRegistry("shop")
    own.register(lambda: "the hub's", name="add")
    async with (
        serve_calls(own, hub.transport),
        spoke(hub, "worker") as worker,
        serve_calls(shop(), worker) as first,
        spoke(hub, "second") as second,
        serve_calls(shop(), second) as other,
    ):
        assert list(first.refused) == ["shop.add"]
        assert set(other.refused) == {spec.id for spec in shop().list()}


async def test_a_client_cannot_describe_what_it_may_not_offer() -> None:
    """A false description with no scopes would open an operation on whatever surface the hub has."""
    guarded, false = OperationRegistry("shop"), OperationRegistry()
    guarded.mutation(name="pay", access={"required_scopes": ["pay"]})(_pay)
    false.register(_pay, name="pay", namespace="shop", type="mutation")
    false.register(_pay, name="lend", namespace="bank", type="mutation")
    evil = Identity("evil", resources={"namespace:bank": ["offer"]})
    async with (
        WebSocketHub(Tokens({**PEERS, "evil": evil}), identity=Identity("hub", frozenset({"pay"}))) as hub,
        from_calls(hub.transport, discovery=Discovery(patience=0.3)) as found,
    ):
        await hub.listen()
        async with (
            spoke(hub, "evil") as liar,
            spoke(hub, "worker") as worker,
            _answering_for(liar, false),
            serve_calls(guarded, worker),
        ):
            seen = OperationRegistry()
            found.keep(seen)
            await until(lambda: not ({"shop.pay", "bank.lend"} - {spec.id for spec in seen.list()}))
            assert seen.get_spec("shop.pay").access_control.required_scopes == ("pay",)


async def _pay(amount: int) -> int:
    return amount


@asynccontextmanager
async def _answering_for(transport: Transport, registry: OperationRegistry) -> AsyncIterator[None]:
    """A peer that offers all these operations, whatever its token grants."""
    handler = CallHandler(registry, transport)
    announcer = Announcer(transport, handler, lambda _: registry.list(), "shop", "1.0.0")
    await announcer.start()
    yield
    await announcer.close()


async def test_a_client_cannot_take_the_hub_s_name() -> None:
    async with WebSocketHub(Tokens({"token": Identity("hub")})) as hub:
        await hub.listen()
        async with spoke(hub, "token") as claiming:
            assert claiming.name != hub.transport.name
            with pytest.raises(DeniedError):
                await claiming.subscribe(f"{hub.transport.inbox()}.*", lambda _: None)


async def test_a_hub_beyond_this_machine_needs_tokens_and_tls() -> None:
    with pytest.raises(CallError, match="needs tokens and TLS"):
        await WebSocketHub(Tokens(PEERS)).listen("0.0.0.0")


async def test_a_token_that_is_withdrawn_ends_the_connection() -> None:
    class Changing:
        known = True

        def identify(self, token: str) -> Identity | None:
            return PEERS[token] if self.known else None

    tokens = Changing()
    async with WebSocketHub(tokens, recheck=0.05) as hub:
        await hub.listen()
        async with spoke(hub, "alice"):
            assert len(hub.hub.clients) == 1
            tokens.known = False
            await until(lambda: not hub.hub.clients)


async def test_pages_of_other_origins_are_refused(hub: WebSocketHub) -> None:
    transport = WebSocketTransport(f"ws://127.0.0.1:{hub.port}", token="alice", origin="https://evil.example")
    with pytest.raises(CallError) as raised:
        await transport.connect()
    assert raised.value.code == "ACCESS_DENIED"


class Silent:
    """A connection whose other end is never read."""

    def write(self, frame: bytes) -> None: ...


def test_noise_on_a_client_s_wire_is_counted_and_dropped() -> None:
    hub = Hub()
    attached = hub.attach(Silent(), PEERS["mallory"])
    for noise in [b"", b"\x00", b"\xff" * 10, b"\x00\x00\x00\x02[]", b'\x00\x00\x00\x07["hi"]', "text", None]:
        attached.receive(noise)
    assert hub.counts.malformed == 7


@pytest.mark.parametrize(
    "subject",
    [
        "_INBOX.mallory." + "a." * 20_000 + "a",
        "_INBOX.mallory." + "a" * 300,
        "_INBOX.mallory.*.*.*.*",
        "_INBOX.mallory.b.>.c",
        "ctl.mallory.*.x.*",
    ],
    ids=["deep", "long", "wide", "the rest in the middle", "wide controls"],
)
def test_a_client_cannot_slow_down_the_hub_s_routing(subject: str) -> None:
    hub = Hub()
    attached = hub.attach(Silent(), Identity("mallory", resources={"namespace:m": ["offer"]}))
    attached.receive(write_frame(Frame(Op.SUBSCRIBE, 1, subject)))
    assert hub.router.listeners(subject) == []


def test_publishing_where_a_client_has_no_permission_is_denied() -> None:
    hub = Hub()
    attached = hub.attach(Silent(), PEERS["mallory"])
    for number in range(100):
        attached.receive(write_frame(Frame(Op.PUBLISH, 0, f"ctl.{number}.{'x' * 50_000}.y")))
        attached.receive(write_frame(Frame(Op.SEND, 0, f"op.mallory.m{number}.x", None, "r" * 50_000)))
    assert hub.counts.denied == 200


# --- NATS ---------------------------------------------------------------------------------------------------------


async def test_on_a_server_without_users_callers_have_no_identity(nats_program: str, tmp_path: Path) -> None:
    server = Server(nats_program, tmp_path)
    server.wait_until_ready()
    try:
        async with (
            NATSTransport(server.url, name="worker", identities=PEERS) as worker,
            NATSTransport(server.url, name="alice") as caller,
            serve_calls(shop(), worker),
            PendingRequestMap(caller) as alice,
        ):
            assert not worker.capabilities.peer_identity
            with pytest.raises(CallError) as raised:
                await alice.call("shop.pay", {"amount": 1})
        assert (raised.value.code, raised.value.details) == ("ACCESS_DENIED", {"reason": "no_identity"})
    finally:
        server.close()


async def test_a_server_that_binds_no_subjects_proves_no_identity(nats_program: str, tmp_path: Path) -> None:
    users = ", ".join(f'{{user: "{name}", password: "{PASSWORD}"}}' for name in ("worker", "alice"))
    server = Server(nats_program, tmp_path, f"authorization {{ users: [{users}] }}\n")
    server.wait_until_ready()
    try:
        async with NATSTransport(server.url, user="worker", password=PASSWORD, identities=PEERS) as worker:
            assert not worker.capabilities.peer_identity
    finally:
        server.close()


async def test_a_remote_server_without_authentication_is_refused(nats_program: str, tmp_path: Path) -> None:
    address = own_address()
    if address.startswith("127."):
        pytest.skip("this machine has no address but the loopback")
    server = Server(nats_program, tmp_path, host="0.0.0.0")
    server.wait_until_ready()
    url = f"nats://{address}:{server.port}"
    try:
        with pytest.raises(CallError, match="requires no credentials"):
            await NATSTransport(url).connect()
        async with NATSTransport(url, insecure=True) as transport:
            assert not transport.capabilities.peer_identity
    finally:
        server.close()


def own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # nothing is sent: only a route is looked for
            return str(sock.getsockname()[0])
        except OSError:
            return "127.0.0.1"
