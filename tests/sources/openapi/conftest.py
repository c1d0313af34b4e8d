"""What the tests of the OpenAPI source share: a real HTTP server that records what came over its socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from tests.openapi_options import openapi_options

from enfold import OperationRegistry
from enfold.sources.openapi import ImportedOperations, from_openapi


class Received(msgspec.Struct):
    """One request as received over the socket."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> str:
        return self.target.partition("?")[2]

    def header(self, name: str) -> str | None:
        found = [value for key, value in self.headers if key.lower() == name]
        return ", ".join(found) if found else None


Answer = bytes | AsyncIterator[bytes] | Awaitable[bytes]
Respond = Callable[[Received], Answer]


class RawServer:
    """An HTTP/1.1 server on a free port: `respond` gives the bytes of each answer, headers included."""

    def __init__(self, respond: Respond) -> None:
        self._respond = respond
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.received: list[Received] = []
        self.closed = asyncio.Event()  # set when a client goes away before its answer is complete
        self.url = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(connection)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (received := await _read(reader)) is not None:
                self.received.append(received)
                if not await self._answer(self._respond(received), reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            self.closed.set()
        finally:
            writer.close()

    async def _answer(self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Write an answer, and tell whether the connection stays open; a stream ends with its iterator."""
        if isinstance(answer, bytes):
            writer.write(answer)
        elif isinstance(answer, Awaitable):
            gone = asyncio.ensure_future(reader.read(1))
            waited = asyncio.ensure_future(answer)
            done, _ = await asyncio.wait({gone, waited}, return_when=asyncio.FIRST_COMPLETED)
            if waited not in done:
                waited.cancel()
                self.closed.set()
                return False
            gone.cancel()
            writer.write(waited.result())
        else:
            async for chunk in answer:
                if writer.is_closing():
                    raise ConnectionError
                writer.write(chunk)
                await writer.drain()
            return False
        await writer.drain()
        return True


async def _read(reader: asyncio.StreamReader) -> Received | None:
    head = await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b""
    if not head:
        return None
    request_line, *lines = head.decode("latin-1").strip().split("\r\n")
    method, target, _ = request_line.split(" ")
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    length = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
    return Received(method, target, headers, await reader.readexactly(length))


def reply(
    body: Any = b"",
    *,
    status: str = "200 OK",
    content_type: str | None = "application/json",
    headers: dict[str, str] | None = None,
) -> bytes:
    """The bytes of an answer; other values are written as JSON."""
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(content)}"]
    if content_type is not None:
        lines.append(f"Content-Type: {content_type}")
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def stream_head(content_type: str = "text/event-stream") -> bytes:
    """The head of an answer whose body comes in chunks."""
    return f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()


def chunk(text: str | bytes) -> bytes:
    """One chunk of a body; an empty one ends it."""
    content = text.encode() if isinstance(text, str) else text
    return f"{len(content):x}\r\n".encode() + content + b"\r\n"


def document(
    operation: dict[str, Any], *, method: str = "get", path: str = "/x", version: str = "3.1.0", **root: Any
) -> dict[str, Any]:
    """A document with one operation, named `x` unless it says otherwise."""
    whole = {"operationId": "x", "responses": {"200": {"description": "ok"}}, **operation}
    key = "swagger" if version == "2.0" else "openapi"
    return {key: version, "info": {"title": "t", "version": "1"}, "paths": {path: {method: whole}}, **root}


def json_body(schema: dict[str, Any], *, required: bool = True) -> dict[str, Any]:
    return {"required": required, "content": {"application/json": {"schema": schema}}}


def json_response(schema: dict[str, Any], status: str = "200") -> dict[str, Any]:
    return {status: {"description": "ok", "content": {"application/json": {"schema": schema}}}}


class Words:
    """The words tests write documents and answers with."""

    Server = RawServer
    reply = staticmethod(reply)
    stream_head = staticmethod(stream_head)
    chunk = staticmethod(chunk)
    document = staticmethod(document)
    json_body = staticmethod(json_body)
    json_response = staticmethod(json_response)


@pytest.fixture
def http() -> type[Words]:
    return Words


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., OperationRegistry]]:
    """A registry with the operations of a document; its connections are closed with the test."""
    opened: list[ImportedOperations] = []

    def connect(document: Any, **options: Any) -> OperationRegistry:
        imported = from_openapi(document, **openapi_options(**options))
        opened.append(imported)
        registry = OperationRegistry()
        registry.register_all(imported)
        return registry

    yield connect
    for imported in opened:
        await imported.aclose()


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[Respond], Awaitable[RawServer]]]:
    """Start a server with a function that answers; it stops with the test."""
    started: list[RawServer] = []

    async def start(respond: Respond) -> RawServer:
        server = RawServer(respond)
        await server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        await server.stop()


Serve = Callable[[Respond], Awaitable[RawServer]]
Connect = Callable[..., OperationRegistry]
