"""Closing a peer: it ends soon, also if its NATS server is down, and callers learn which of their calls it gives up."""

import asyncio
import signal
from contextlib import suppress

from tests.calls.networks import Server, shop
from tests.calls.processes import HubProcess
from tests.waiting import PATIENCE, until

from enfold import CallError
from enfold.calls import PendingRequestMap
from enfold.calls.memory import MemoryTransport
from enfold.calls.nats import NATSTransport
from enfold.calls.protocol.settings import NEVER, CallSettings, WorkerLimits
from enfold.calls.protocol.transport import TransportError
from enfold.calls.websocket import WebSocketTransport
from enfold.surfaces.calls import serve_calls


async def test_closing_a_worker_does_not_hang_after_its_server_died(server: Server) -> None:
    async with asyncio.timeout(PATIENCE):
        async with NATSTransport(server.url) as transport, serve_calls(shop(), transport):
            server.kill()
            await until(lambda: not transport.client.is_connected)


async def test_closing_a_transport_does_not_hang_on_a_frozen_server(server: Server) -> None:
    async with asyncio.timeout(PATIENCE):
        async with NATSTransport(server.url, ping_interval=3600) as transport:
            await transport.connect()
            server.freeze()
            with suppress(TransportError):
                for _ in range(64):
                    await transport.publish("shop.news", b"x" * 500_000)


async def test_callers_of_a_worker_that_stops_learn_what_became_of_their_calls() -> None:
    bus, limits = MemoryTransport("bus"), WorkerLimits(running=3)
    async with PendingRequestMap(bus.join("caller"), settings=CallSettings(silence=3600), retry=NEVER) as caller:
        serving = await serve_calls(shop(), bus, limits=limits)
        items = caller.subscribe("shop.count", {"to": 9, "pause": 3600})
        running = [
            asyncio.create_task(caller.call("shop.wait", {"seconds": 3600})),
            asyncio.create_task(caller.call("shop.wait_once", {"seconds": 3600})),
            asyncio.ensure_future(anext(items)),
        ]
        await until(lambda: serving.handler.running == 3)
        waiting = asyncio.create_task(caller.call("shop.wait_once", {"seconds": 0}))
        await until(lambda: len(caller) == 4)
        await serving.close(drain=False)
        errors = await asyncio.wait_for(asyncio.gather(*running, waiting, return_exceptions=True), PATIENCE)
    assert [getattr(error, "code", error) for error in errors] == ["UNAVAILABLE"] * 4
    assert [error.details.get("started") for error in errors if isinstance(error, CallError)] == [None] * 3 + [False]
    # A query, and what did not start, may be called again without harm.
    assert [error.retryable for error in errors if isinstance(error, CallError)] == [True, False, False, True]


async def test_closing_a_worker_of_many_operations_waits_only_once_for_a_frozen_hub() -> None:
    hub = HubProcess()
    try:
        async with (
            asyncio.timeout(40),
            WebSocketTransport(hub.url, token="worker") as transport,
            serve_calls(shop(), transport),
        ):
            hub.send_signal(signal.SIGSTOP)
    finally:
        hub.close()
