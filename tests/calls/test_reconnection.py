"""Reconnection to NATS after nats-py has closed its client for good: there is a new client, and only one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.waiting import PATIENCE, until

from enfold.calls.nats import NATSTransport
from enfold.calls.protocol.transport import Message

INFO = b'INFO {"server_id":"x","version":"2.10.0","max_payload":1048576,"headers":true,"proto":1}\r\n'


class Server:
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
async def server() -> AsyncIterator[tuple[Server, str]]:
    fake = Server()
    listener = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    yield fake, f"nats://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    listener.close()


async def test_a_client_that_could_not_be_prepared_does_not_stay(server: tuple[Server, str]) -> None:
    fake, url = server
    signals: list[str] = []

    def receive(message: Message) -> None:
        signals.append("" if message.signal is None else message.signal.value)

    async with asyncio.timeout(PATIENCE), NATSTransport(url, name="worker") as transport:
        await transport.subscribe("shop.news", receive)
        fake.reject(1)
        await until(lambda: signals[-1:] == ["restored"])
        await until(lambda: list(fake.open) == [3])
