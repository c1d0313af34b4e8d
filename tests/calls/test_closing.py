"""Closing a peer whose NATS server is down: it ends soon and without errors, whatever was still unsent."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.calls.networks import Server, nats_server_program, shop
from tests.calls.processes import HubProcess
from tests.waiting import PATIENCE, until

from enfold.calls.nats import NATSTransport
from enfold.calls.protocol.transport import TransportError
from enfold.calls.websocket import WebSocketTransport
from enfold.surfaces.calls import serve_calls


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(nats_server_program(), tmp_path)
    made.wait_until_ready()
    yield made
    made.close()


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
