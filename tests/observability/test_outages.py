"""The loss and the return of NATS and of a hub are one line each; a server that refuses us is distinguished from a dead one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.calls.networks import Server, free_port, nats_server_program
from tests.waiting import PATIENCE

from enfold import OperationRegistry
from enfold.auth.tokens import Tokens
from enfold.calls.nats import NATSTransport
from enfold.calls.protocol.transport import Message, Signal
from enfold.calls.websocket import WebSocketHub, WebSocketTransport
from enfold.operations import Identity
from enfold.sources.calls import from_calls

USERS = 'authorization {{ users = [{{ user: ann, password: "{}" }}] }}'


class Signals:
    """What a transport says about its connection, as it says it."""

    def __init__(self) -> None:
        self._heard: asyncio.Queue[Signal] = asyncio.Queue()

    def __call__(self, message: Message) -> None:
        if message.signal is not None:
            self._heard.put_nowait(message.signal)

    async def wait_for(self, signal: Signal) -> None:
        while await asyncio.wait_for(self._heard.get(), 30) is not signal:
            pass


@contextmanager
def awaited_line(text: str) -> Iterator[asyncio.Event]:
    """An event that is set when a line of the log holds a text."""
    found, log = asyncio.Event(), logging.getLogger("enfold")

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if text in record.getMessage():
                found.set()

    listener = Listener()
    log.addHandler(listener)
    try:
        yield found
    finally:
        log.removeHandler(listener)


async def test_the_loss_and_return_of_nats_is_a_line_each_and_a_changed_password_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(nats_server_program(), tmp_path, USERS.format("right"))
    server.wait_until_ready()
    signals = Signals()
    place = f"NATS at nats://127.0.0.1:{server.port}"
    try:
        async with NATSTransport(f"nats://ann:right@127.0.0.1:{server.port}") as transport:
            await transport.subscribe("evt.x", signals)
            server.kill()
            await signals.wait_for(Signal.LOST)
            server.restart()
            await signals.wait_for(Signal.RESTORED)
            assert [each.getMessage() for each in caplog.records] == [
                f"{place} is lost: reconnecting",
                f"{place} is back",
            ]
            server.kill()
            server.reconfigure("right", "changed")
            with awaited_line(f"{place} refuses the connection: check the user, password or token") as told:
                server.restart()
                await asyncio.wait_for(told.wait(), PATIENCE)
    finally:
        server.close()
    assert caplog.text.count("refuses the connection") == 1
    assert "right" not in caplog.text


async def test_the_loss_and_return_of_a_hub_is_a_line_each(caplog: pytest.LogCaptureFixture) -> None:
    port, signals = free_port(), Signals()
    tokens = Tokens({"t": Identity("ann")})
    hub = WebSocketHub(tokens)
    await hub.listen(port=port)
    async with WebSocketTransport(f"ws://127.0.0.1:{port}", token="t") as client:
        await client.subscribe(f"{client.inbox()}.x", signals)
        await hub.close()
        await signals.wait_for(Signal.LOST)
        again = WebSocketHub(tokens)
        await again.listen(port=port)
        await signals.wait_for(Signal.RESTORED)
        place = f"The hub at ws://127.0.0.1:{port}"
        ours = [each.getMessage() for each in caplog.records if each.name == "enfold.calls.websocket"]
        assert ours == [f"{place} is lost: reconnecting", f"{place} is back"]
    await again.close()


async def test_readiness_distinguishes_a_dead_server_from_one_that_rejects_the_credentials(
    tmp_path: Path,
) -> None:
    server = Server(nats_server_program(), tmp_path, USERS.format("right"))
    server.wait_until_ready()
    registry, changed = OperationRegistry(), asyncio.Event()
    registry.services.sources.watch(lambda *_: changed.set())

    async def until(why: str) -> None:
        while registry.services.sources["nats"].why != why:
            changed.clear()
            await asyncio.wait_for(changed.wait(), PATIENCE)

    try:
        async with (
            NATSTransport(f"nats://ann:right@127.0.0.1:{server.port}") as transport,
            from_calls(transport, name="nats") as peers,
        ):
            peers.keep(registry)
            server.kill()
            await until("it cannot be reached")
            server.reconfigure("right", "changed")
            server.restart()
            await until("the connection is refused: check the user, password or token")
            server.kill()
            await until("it cannot be reached")
            server.reconfigure("changed", "right")
            server.restart()
            await until("")
    finally:
        server.close()
