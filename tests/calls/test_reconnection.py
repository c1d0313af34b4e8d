"""Reconnection to servers that do not answer at first: every subscription is restored, and only once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from tests.calls.networks import shop
from tests.waiting import PATIENCE, until
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as listen
from websockets.typing import Subprotocol

from enfold.calls import PendingRequestMap
from enfold.calls.nats import NATSTransport
from enfold.calls.protocol.transport import Message, Signal
from enfold.calls.transports.frames import SUBPROTOCOL, Frame, Op, read_frame, write_frame
from enfold.calls.websocket import WebSocketHub, WebSocketTransport
from enfold.surfaces.calls import serve_calls

INFO = b'INFO {"server_id":"x","version":"2.10.0","max_payload":1048576,"headers":true,"proto":1}\r\n'


class NATSServer:
    """Speaks as much of the protocol as a connection needs; the second connection gets no answer to its subscriptions."""

    def __init__(self) -> None:
        self.open: dict[int, asyncio.StreamWriter] = {}
        self._connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        number, pings = self._connections, 0
        self.open[number] = writer
        writer.write(INFO)
        while line := await reader.readline():
            pings += line.startswith(b"PING")
            if line.startswith(b"PING") and (number != 2 or pings == 1):
                writer.write(b"PONG\r\n")
        del self.open[number]
        writer.close()

    def reject(self, number: int) -> None:
        """Send an error after which nats-py does not reconnect."""
        self.open[number].write(b"-ERR 'maximum payload violation'\r\n")


@pytest.fixture
async def nats() -> AsyncIterator[tuple[NATSServer, str]]:
    fake = NATSServer()
    listener = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    yield fake, f"nats://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    listener.close()


async def test_a_nats_client_that_could_not_be_prepared_does_not_stay(nats: tuple[NATSServer, str]) -> None:
    fake, url = nats
    received: list[Message] = []
    async with asyncio.timeout(PATIENCE), NATSTransport(url, name="worker") as transport:
        await transport.subscribe("shop.news", received.append)
        fake.reject(1)
        await until(lambda: _is_restored(received))
        await until(lambda: list(fake.open) == [3])


async def test_a_client_of_a_hub_that_confirms_no_subscription_connects_again() -> None:
    connections = 0

    async def serve(connection: ServerConnection) -> None:
        nonlocal connections
        connections += 1
        number = connections
        await connection.send(write_frame(Frame(Op.HELLO, 1_000_000, "worker")))
        async for wire in connection:
            if number != 2:
                await connection.send(write_frame(Frame(Op.OK, read_frame(wire)[0].id)))
            if number == 1:
                return

    received: list[Message] = []
    async with asyncio.timeout(PATIENCE), listen(serve, "127.0.0.1", 0, subprotocols=[Subprotocol(SUBPROTOCOL)]) as hub:
        port = next(iter(hub.sockets)).getsockname()[1]
        async with WebSocketTransport(f"ws://127.0.0.1:{port}") as transport:
            await transport.subscribe("op.*.shop.add", received.append)
            await until(lambda: _is_restored(received))
    assert connections == 3


async def test_an_operation_registered_while_the_hub_is_away_is_offered_once_it_is_back() -> None:
    ops = shop()
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(WebSocketHub())
        await first.listen()
        transport = await stack.enter_async_context(WebSocketTransport(f"ws://127.0.0.1:{first.port}"))
        serving = await stack.enter_async_context(serve_calls(ops, transport))
        await first.close()
        await until(lambda: transport.why != "")
        ops.query(name="late")(lambda: 7)
        await until(lambda: "shop.late" in serving.refused)
        second = await stack.enter_async_context(WebSocketHub())
        await second.listen(port=first.port)
        await until(lambda: "shop.late" in serving.handler.offered)
        assert serving.refused == {}
        async with PendingRequestMap(second.transport) as caller:
            assert (await caller.call("shop.late", {})).data == 7


def _is_restored(received: list[Message]) -> bool:
    return received[-1:] == [Message("", signal=Signal.RESTORED)]
