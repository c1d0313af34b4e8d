"""The networks of these tests: the same peers in memory, around a hub, and on a real NATS server with permissions."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from tests.conftest import not_run

from enfold import Identity, OperationRegistry
from enfold.auth.tokens import Tokens
from enfold.calls.memory import MemoryTransport
from enfold.calls.nats import NATSTransport
from enfold.calls.protocol.transport import Transport
from enfold.calls.transports.nats_streams import NATSUser, nats_permissions
from enfold.calls.websocket import WebSocketHub, WebSocketTransport

PASSWORD = "secret"

# Who there is on every network; workers may offer everything below `shop`.
PEERS = {
    "worker": Identity("worker", resources={"namespace:shop": ["offer"]}),
    "second": Identity("second", resources={"namespace:shop": ["offer"]}),
    "alice": Identity("alice", frozenset({"pay"})),
    "bob": Identity("bob"),
    "mallory": Identity("mallory"),
    "operator": Identity("operator", frozenset({"enfold:peers"})),
}


class Network(Protocol):
    """Where peers meet."""

    name: str

    def peer(self, name: str) -> Transport: ...


class Memory:
    name = "memory"

    def __init__(self) -> None:
        self._bus = MemoryTransport("bus")

    def peer(self, name: str) -> Transport:
        return self._bus.join(name, PEERS[name])


class Around:
    """Clients around a hub."""

    name = "websocket"

    def __init__(self) -> None:
        self.hub = WebSocketHub(Tokens(PEERS), identity=Identity("hub"))
        self.opened: list[WebSocketTransport] = []

    def peer(self, name: str) -> Transport:
        client = WebSocketTransport(f"ws://127.0.0.1:{self.hub.port}", token=name)
        self.opened.append(client)
        return client


class OnNATS:
    name = "nats"

    def __init__(self, url: str) -> None:
        self.url = url
        self.opened: list[NATSTransport] = []

    def peer(self, name: str) -> Transport:
        transport = NATSTransport(self.url, user=name, password=PASSWORD, identities=PEERS)
        self.opened.append(transport)
        return transport


# --- a real NATS server -------------------------------------------------------------------------------------------


def nats_server_program() -> str:
    """The server program, from the virtual environment or the path; the test is skipped without it."""
    found = shutil.which("nats-server", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        not_run("nats-server")
    return found


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class Server:
    """One nats-server process, which can be killed, frozen and started again."""

    def __init__(
        self, program: str, folder: Path, config: str = "", *, host: str = "127.0.0.1", name: str = "n"
    ) -> None:
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self.folder = folder
        self._program = program
        self._file = folder / f"{name}-{self.port}.conf"
        self._file.write_text(f'listen: "{host}:{self.port}"\nping_interval: "10s"\nping_max: 2\n{config}')
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._file.with_suffix(".log").open("ab") as log:
            return subprocess.Popen([self._program, "-c", str(self._file)], stdout=log, stderr=log)

    def wait_until_ready(self) -> None:
        for _ in range(1200):
            with socket.socket() as sock:
                sock.settimeout(0.2)
                if sock.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if self.process.poll() is not None:
                raise RuntimeError(self._file.with_suffix(".log").read_text())
            time.sleep(0.05)
        raise RuntimeError("nats-server does not answer")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def reconfigure(self, old: str, new: str) -> None:
        """Change the configuration that the next start reads."""
        self._file.write_text(self._file.read_text().replace(old, new))

    def restart(self) -> None:
        self.process = self._start()
        self.wait_until_ready()

    def send_signal(self, number: int) -> None:
        self.process.send_signal(number)

    def freeze(self) -> None:
        """Stop it at once; when this returns, it no longer answers."""
        self.send_signal(signal.SIGSTOP)
        while Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "T":
            time.sleep(0.001)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()


def permissions_of_the_shop() -> str:
    serves: Mapping[str, tuple[str, ...]] = {"worker": ("shop",), "second": ("shop",)}
    users = [
        NATSUser(identity, serves.get(name, ()), is_operator=name == "operator", password=PASSWORD)
        for name, identity in PEERS.items()
    ]
    return nats_permissions(shop().list(), users)


# --- what is served -----------------------------------------------------------------------------------------------


def shop() -> OperationRegistry:
    """The operations of these tests."""
    ops = OperationRegistry("shop")

    @ops.query
    async def add(x: int, y: int) -> int:
        return x + y

    @ops.query
    def add_in_thread(x: int, y: int) -> int:
        return x + y

    @ops.query
    async def wait(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "done"

    @ops.mutation
    async def wait_once(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "done"

    @ops.query
    async def echo(value: Any = None) -> Any:
        return value

    @ops.query
    async def large(size: int) -> str:
        return "x" * size

    @ops.query
    async def fail(message: str) -> None:
        raise ValueError(message)

    @ops.mutation(access={"required_scopes": ["pay"]})
    async def pay(amount: int) -> int:
        return amount

    @ops.subscription
    async def count(to: int, pause: float = 0.0, size: int = 0) -> AsyncIterator[int]:
        for number in range(to):
            if pause:
                await asyncio.sleep(pause)
            yield number

    @ops.subscription
    async def count_and_fail(to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number
        raise ValueError("no more")

    @ops.subscription
    async def large_items(to: int, size: int) -> AsyncIterator[str]:
        for _ in range(to):
            yield "x" * size

    return ops
