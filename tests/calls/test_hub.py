"""A hub with spokes: what they offer is in the hub's registry and on its surfaces."""

from __future__ import annotations

import asyncio
import socket

import pytest
import uvicorn
from tests.calls.networks import PEERS, shop

from enfold import CallError, Context, Identity, OperationRegistry
from enfold.calls import PendingRequestMap
from enfold.calls.settings import NEVER
from enfold.calls.websocket import WebSocketHub, WebSocketTransport
from enfold.sources.calls import from_calls
from enfold.surfaces.calls import serve_calls
from enfold.surfaces.http import to_http
from enfold.tokens import Tokens


async def test_what_spokes_offer_is_in_the_hub_s_registry_and_for_other_spokes() -> None:
    registry = OperationRegistry("hub")

    @registry.query
    async def hello(context: Context) -> str:
        assert context.identity is not None
        return f"hello {context.identity.id}"

    async with (
        WebSocketHub(Tokens(PEERS), identity=Identity("hub", frozenset({"pay"}))) as hub,
        serve_calls(registry, hub.transport),
        from_calls(hub.transport, patience=0.3) as spokes,
    ):
        await hub.listen()
        spokes.keep(registry)
        url = f"ws://127.0.0.1:{hub.port}"
        async with WebSocketTransport(url, token="worker") as worker, serve_calls(shop(), worker):
            await _until(lambda: "shop.add" in registry)
            assert (await registry.execute("shop.pay", {"amount": 5})).data == 5
            async with WebSocketTransport(url, token="bob") as spoke, from_calls(spoke) as imported:
                bob = OperationRegistry()
                bob.register_all(imported)
                assert (await bob.execute("hub.hello", {})).data == "hello bob"
                assert (await bob.execute("shop.add", {"x": 1, "y": 2})).data == 3
                assert "shop.pay" not in bob
        await _until(lambda: "shop.add" not in registry)


async def test_a_hub_is_mounted_in_the_http_surface() -> None:
    hub = WebSocketHub(Tokens(PEERS), identity=Identity("hub"))
    registry = OperationRegistry()
    app = to_http(registry, mounts={"/calls": hub})
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="websockets-sansio", lifespan="on"))
        running = asyncio.create_task(server.serve(sockets=[sock]))
        await _until(lambda: server.started)
        url = f"ws://127.0.0.1:{port}/calls"
        async with from_calls(hub.transport, patience=0.3) as spokes:
            spokes.keep(registry)
            async with WebSocketTransport(url, token="worker") as worker, serve_calls(shop(), worker):
                await _until(lambda: "shop.add" in registry)
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


async def test_a_hub_that_comes_back_is_found_again() -> None:
    hub = WebSocketHub(Tokens(PEERS))
    await hub.listen()
    url = f"ws://127.0.0.1:{hub.port}"
    async with (
        WebSocketTransport(url, token="worker") as worker,
        serve_calls(shop(), worker) as serving,
        WebSocketTransport(url, token="alice") as spoke,
        PendingRequestMap(spoke, retry=NEVER) as alice,
    ):
        under_way = asyncio.create_task(alice.call("shop.wait", {"seconds": 20}))
        await asyncio.sleep(0.1)
        await hub.close()
        with pytest.raises(CallError) as raised:
            await asyncio.wait_for(under_way, 5)
        assert (raised.value.code, raised.value.details["reason"]) == ("UNAVAILABLE", "connection_lost")
        again = WebSocketHub(Tokens(PEERS))
        await again.listen(port=hub.port)
        async with asyncio.timeout(20):
            while True:
                try:
                    assert (await alice.call("shop.add", {"x": 1, "y": 2})).data == 3
                    break
                except CallError as error:
                    assert error.code == "UNAVAILABLE"  # noqa: PT017  # until it is back
                    await asyncio.sleep(0.05)
        # The worker hears at last that nobody waits for the first call.
        await _until(lambda: serving.handler.running == 0)
        await again.close()


async def _until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # registries tell of changes by being others
            await asyncio.sleep(0.01)
