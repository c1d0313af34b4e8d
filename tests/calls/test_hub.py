"""A hub with clients: their operations are in the hub's registry and on its surfaces."""

from __future__ import annotations

import asyncio
import socket
import ssl
import tracemalloc
from collections import Counter
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from tests.calls.networks import PEERS, shop
from tests.waiting import PATIENCE, until
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from enfold import CallError, Context, Identity, OperationRegistry
from enfold.auth.tokens import Tokens
from enfold.calls import PendingRequestMap
from enfold.calls.protocol.settings import NEVER
from enfold.calls.protocol.transport import OverloadedError
from enfold.calls.transports.frames import SUBPROTOCOL, Frame, Op, read_frame, write_frame
from enfold.calls.transports.hub import Hub
from enfold.calls.websocket import WebSocketHub, WebSocketTransport
from enfold.sources.calls import Discovery, from_calls
from enfold.surfaces.calls import serve_calls
from enfold.surfaces.http import to_http

DAY = timedelta(days=1)


async def test_operations_of_clients_are_in_the_hub_s_registry_and_callable_by_other_clients() -> None:
    registry = OperationRegistry("hub")

    @registry.query
    async def hello(context: Context) -> str:
        assert context.identity is not None
        return f"hello {context.identity.id}"

    async with (
        WebSocketHub(Tokens(PEERS), identity=Identity("hub", frozenset({"pay"}))) as hub,
        serve_calls(registry, hub.transport),
        from_calls(hub.transport, discovery=Discovery(patience=0.3)) as spokes,
    ):
        await hub.listen()
        spokes.keep(registry)
        url = f"ws://127.0.0.1:{hub.port}"
        async with WebSocketTransport(url, token="worker") as worker, serve_calls(shop(), worker):
            await until(lambda: "shop.add" in registry)
            assert (await registry.execute("shop.pay", {"amount": 5})).data == 5
            async with WebSocketTransport(url, token="bob") as spoke, from_calls(spoke) as imported:
                bob = OperationRegistry()
                bob.register_all(imported)
                assert (await bob.execute("hub.hello", {})).data == "hello bob"
                assert (await bob.execute("shop.add", {"x": 1, "y": 2})).data == 3
                assert "shop.pay" not in bob
        await until(lambda: [listing.worker for listing in spokes.workers] == ["hub"])
        with pytest.raises(CallError) as raised:
            await registry.execute("shop.add", {"x": 1, "y": 2})
        assert raised.value.code == "UNAVAILABLE"


async def test_a_hub_is_mounted_in_the_http_surface() -> None:
    hub = WebSocketHub(Tokens(PEERS), identity=Identity("hub"))
    registry = OperationRegistry()
    app = to_http(registry, mounts={"/calls": hub})
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="websockets-sansio", lifespan="on"))
        running = asyncio.create_task(server.serve(sockets=[sock]))
        await until(lambda: server.started)
        url = f"ws://127.0.0.1:{port}/calls"
        async with from_calls(hub.transport, discovery=Discovery(patience=0.3)) as spokes:
            spokes.keep(registry)
            async with WebSocketTransport(url, token="worker") as worker, serve_calls(shop(), worker):
                await until(lambda: "shop.add" in registry)
                assert (await registry.execute("shop.add", {"x": 1, "y": 2})).data == 3
                items = [item.data async for item in registry.subscribe("shop.count", {"to": 200})]
                assert items == list(range(200))
            with pytest.raises(CallError) as raised:
                await WebSocketTransport(url, token="wrong").connect()
        assert raised.value.code in {"ACCESS_DENIED", "UNAVAILABLE"}
        server.should_exit = True
        await running


async def test_without_tokens_on_this_machine_everybody_may_offer() -> None:
    async with WebSocketHub() as hub:
        await hub.listen()
        url = f"ws://127.0.0.1:{hub.port}"
        async with (
            WebSocketTransport(url) as worker,
            serve_calls(shop(), worker) as serving,
            WebSocketTransport(url) as other,
            PendingRequestMap(other) as caller,
        ):
            assert serving.refused == {}
            assert (await caller.call("shop.add", {"x": 1, "y": 2})).data == 3
            with pytest.raises(CallError) as raised:
                await caller.call("shop.pay", {"amount": 1})
            assert raised.value.code == "ACCESS_DENIED"


async def test_calls_and_streams_go_over_tls(tmp_path: Path) -> None:
    server, client = _certified(tmp_path)
    async with WebSocketHub(Tokens(PEERS)) as hub:
        await hub.listen(tls=server)
        url = f"wss://127.0.0.1:{hub.port}"
        async with (
            WebSocketTransport(url, token="worker", ssl=client) as worker,
            serve_calls(shop(), worker),
            WebSocketTransport(url, token="alice", ssl=client) as spoke,
            PendingRequestMap(spoke) as alice,
        ):
            assert (await alice.call("shop.add", {"x": 1, "y": 2})).data == 3
            assert len((await alice.call("shop.large", {"size": 900_000})).data) == 900_000
            items = [item.data async for item in alice.subscribe("shop.count", {"to": 200})]
    assert items == list(range(200))


def _certified(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server that proves to be this machine, and a client that believes it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "enfold tests")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - DAY, now + DAY)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    text = certificate.public_bytes(Encoding.PEM).decode()
    file = folder / "server.pem"
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + text.encode())
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)
    return server, ssl.create_default_context(cadata=text)


async def test_a_message_in_fragments_is_put_together_in_its_turn() -> None:
    from websockets.asyncio.client import connect

    async with WebSocketHub() as hub:
        await hub.listen()
        async with connect(f"ws://127.0.0.1:{hub.port}", subprotocols=[SUBPROTOCOL]) as wire:  # type: ignore[list-item]  # a NewType of str
            hello, _ = read_frame(await wire.recv())
            inbox = f"_INBOX.{hello.subject}.b.x"
            asked = write_frame(Frame(Op.SUBSCRIBE, 1, f"_INBOX.{hello.subject}.b.*"))
            await wire.send([asked[:3], asked[3:7], asked[7:]])
            said = write_frame(Frame(Op.PUBLISH, 0, inbox), b"hello")
            await wire.send([said[:9], said[9:]])
            await wire.send(write_frame(Frame(Op.PUBLISH, 0, inbox), b"again"))
            answers = [read_frame(await wire.recv()) for _ in range(3)]
    assert [(frame.op, data) for frame, data in answers] == [
        (Op.OK, b""),
        (Op.MESSAGE, b"hello"),
        (Op.MESSAGE, b"again"),
    ]


async def test_empty_fragments_without_an_end_cost_the_hub_nothing() -> None:
    from websockets.asyncio.client import connect

    async with WebSocketHub() as hub:
        await hub.listen()
        async with connect(f"ws://127.0.0.1:{hub.port}", subprotocols=[SUBPROTOCOL]) as wire:  # type: ignore[list-item]  # a NewType of str
            await wire.recv()
            wire.protocol.send_binary(b"", fin=False)
            tracemalloc.start()
            try:
                for _ in range(50_000):
                    wire.protocol.send_continuation(b"", fin=False)
                wire.transport.write(b"".join(wire.protocol.data_to_send()))
                await (await wire.ping())  # answered once the hub has read all of it
                used, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert used < 200_000  # bytes; a list of the fragments has 400,000
            asked = write_frame(Frame(Op.SUBSCRIBE, 1, "evt._enfold.*"))
            wire.protocol.send_continuation(asked, fin=False)
            wire.protocol.send_continuation(b"", fin=True)
            wire.transport.write(b"".join(wire.protocol.data_to_send()))
            assert read_frame(await wire.recv())[0].op is Op.OK


async def test_a_worker_too_slow_to_be_reached_is_known_at_once() -> None:
    """Its requests do not wait in the hub, nor their callers for a silence to be long enough."""

    class Full:
        def write(self, frame: bytes) -> None:
            if frame[4:].startswith(b'["msg"'):
                raise OverloadedError

    hub = Hub(Identity("hub"))
    worker = hub.attach(Full(), PEERS["worker"])
    worker.receive(write_frame(Frame(Op.SUBSCRIBE, 1, "op.*.shop.add", None, "workers")))
    async with PendingRequestMap(hub.transport, retry=NEVER) as caller:
        with pytest.raises(CallError) as raised:
            async with asyncio.timeout(PATIENCE):
                await caller.call("shop.add", {"x": 1, "y": 2})
    assert (raised.value.code, raised.value.details["started"], hub.counts.undelivered) == ("UNAVAILABLE", False, 1)


async def test_the_hub_queues_a_bounded_amount_for_a_client_that_never_reads() -> None:
    async with WebSocketHub() as hub:
        await hub.listen()
        url = f"ws://127.0.0.1:{hub.port}"
        async with (
            connect(url, subprotocols=[SUBPROTOCOL]) as deaf,  # type: ignore[list-item]  # a NewType of str
            PendingRequestMap(hub.transport, retry=NEVER) as caller,
        ):
            await deaf.recv()  # the greeting
            await deaf.send(write_frame(Frame(Op.SUBSCRIBE, 1, "op.*.shop.echo", None, "workers")))
            assert read_frame(await deaf.recv())[0].op is Op.OK
            deaf.transport.pause_reading()
            calls = [caller.call("shop.echo", {"value": "x" * 500_000}, timeout=0.5) for _ in range(60)]
            codes = Counter(
                getattr(outcome, "code", "") for outcome in await asyncio.gather(*calls, return_exceptions=True)
            )
            deaf.transport.abort()
    assert codes["UNAVAILABLE"] + codes["RESOURCE_EXHAUSTED"] > 10
    assert codes["TIMEOUT"] < 50


async def test_a_hub_that_recovers_is_found_again() -> None:
    hub = WebSocketHub(Tokens(PEERS))
    await hub.listen()
    url = f"ws://127.0.0.1:{hub.port}"
    async with (
        WebSocketTransport(url, token="worker") as worker,
        serve_calls(shop(), worker) as serving,
        WebSocketTransport(url, token="alice") as spoke,
        PendingRequestMap(spoke, retry=NEVER) as alice,
    ):
        await alice.call("shop.add", {"x": 1, "y": 2})
        under_way = asyncio.create_task(alice.call("shop.wait", {"seconds": 20}))
        await until(lambda: serving.handler.running == 1)
        await hub.close()
        with pytest.raises(CallError) as raised:
            await asyncio.wait_for(under_way, PATIENCE)
        assert (raised.value.code, raised.value.details["reason"]) == ("UNAVAILABLE", "connection_lost")
        again = WebSocketHub(Tokens(PEERS))
        await again.listen(port=hub.port)
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    assert (await alice.call("shop.add", {"x": 1, "y": 2})).data == 3
                    break
                except CallError as error:
                    assert error.code == "UNAVAILABLE"  # noqa: PT017  # until it is back
                    await asyncio.sleep(0.05)
        # The worker finally learns that the first call has no caller any more.
        await until(lambda: serving.handler.running == 0)
        await again.close()


async def test_a_refused_client_is_logged_and_slowed_down_like_any_other_caller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with WebSocketHub(Tokens(PEERS)) as hub:
        await hub.listen()
        url = f"ws://127.0.0.1:{hub.port}"
        for _ in range(2):
            with pytest.raises(InvalidStatus) as raised:
                await connect(url, additional_headers={"Authorization": "Bearer a-guess"})
            assert raised.value.response.status_code == 401
    refusals = [record.getMessage() for record in caplog.records if record.name == "enfold.auth"]
    assert refusals == ["A token from 127.0.0.1 was refused"] * 2
    assert "a-guess" not in caplog.text
