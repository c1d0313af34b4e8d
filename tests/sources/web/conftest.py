"""A server that is only a socket: it records every byte it receives, and responds with exactly the given bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import pytest

from enfold.http_client.client import WebClient

Talk: TypeAlias = Callable[["Line"], Awaitable[None]]
Listen: TypeAlias = Callable[[Talk], Awaitable["Raw"]]


class Line:
    """One connection, from the server's side."""

    def __init__(self, raw: Raw, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._raw, self.reader, self.writer = raw, reader, writer

    async def request(self) -> bytes:
        """The next request, whole; empty where the client has gone."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""
        fields = [line.partition(b":") for line in head.split(b"\r\n")]
        length = next((int(value) for name, _, value in fields if name.lower() == b"content-length"), 0)
        request = head + (await self.reader.readexactly(length) if length else b"")
        self._raw.requests.append(request)
        return request

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def gone(self) -> None:
        """Wait until the client has gone."""
        while await self.reader.read(65536):
            pass


class Raw:
    """The server."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self.requests: list[bytes] = []
        self.connections = 0
        self.gone = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.origin = ""
        self.port = 0

    async def start(self, host: str = "127.0.0.1", **options: Any) -> None:
        self._server = await asyncio.start_server(self._accept, host, 0, **options)
        self.port = self._server.sockets[0].getsockname()[1]
        written = f"[{host}]" if ":" in host else host
        self.origin = f"{'https' if options.get('ssl') else 'http'}://{written}:{self.port}"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._tasks.add(asyncio.create_task(self._serve(Line(self, reader, writer))))

    async def _serve(self, line: Line) -> None:
        try:
            await self._talk(line)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.gone.set()
        finally:
            line.writer.close()

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.fixture
async def listen() -> AsyncIterator[Listen]:
    started: list[Raw] = []

    async def listen(talk: Talk, host: str = "127.0.0.1", **options: Any) -> Raw:
        raw = Raw(talk)
        await raw.start(host, **options)
        started.append(raw)
        return raw

    yield listen
    for raw in started:
        await raw.stop()


@pytest.fixture
async def client() -> AsyncIterator[WebClient]:
    made = WebClient()
    yield made
    await made.aclose()


def answering(*answers: bytes) -> Talk:
    """Answers each request with the next of these, and the last one again and again."""
    left = list(answers)

    async def talk(line: Line) -> None:
        while await line.request():
            await line.write(left.pop(0) if len(left) > 1 else left[0])

    return talk


def once(*pieces: bytes) -> Talk:
    """Answers one request with these pieces, and hangs up."""

    async def talk(line: Line) -> None:
        await line.request()
        for piece in pieces:
            await line.write(piece)

    return talk


def reply(body: bytes = b"", status: str = "200 OK", **headers: str) -> bytes:
    named = {"Content-Length": str(len(body)), **{name.replace("_", "-"): value for name, value in headers.items()}}
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body


@pytest.fixture
def words() -> Any:
    """The ways to answer, for test modules: folders of tests are no packages."""

    class Words:
        answering = staticmethod(answering)
        once = staticmethod(once)
        reply = staticmethod(reply)

    return Words
