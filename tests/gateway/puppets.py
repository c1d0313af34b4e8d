"""Servers that a test controls message by message: over stdio, and over HTTP."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from tests.gateway.conftest import serve

Message = dict[str, Any]

CAPABILITIES: Message = {"tools": {}, "logging": {}}
TOOLS = [{"name": name, "description": name, "inputSchema": {"type": "object"}} for name in ("pay", "nap", "rest")]


class Puppet(Protocol):
    """What a test plays a server with."""

    target: Any

    async def call_of(self, tool: str) -> Message:
        """The next request that calls a tool."""

    async def next(self) -> Message:
        """The next message of another kind: a notification, or the answer to a question."""

    def write(self, message: Message) -> None:
        """Write to everybody at once: on the standard output, or on the stream that belongs to no call."""


class _Received:
    """What a server has received and its test has not looked at yet."""

    def __init__(self) -> None:
        self._calls: asyncio.Queue[Message] = asyncio.Queue()
        self._others: asyncio.Queue[Message] = asyncio.Queue()

    def take(self, message: Message) -> None:
        if message.get("method") in ("notifications/initialized", "subscriptions/listen"):
            return
        (self._calls if message.get("method") == "tools/call" else self._others).put_nowait(message)

    async def call_of(self, tool: str) -> Message:
        call = await self._calls.get()
        assert call["params"]["name"] == tool
        return call

    async def next(self) -> Message:
        return await self._others.get()

    @property
    def has_calls(self) -> bool:
        """Whether calls have come that the test has not looked at."""
        return not self._calls.empty()


class StdioPuppet(_Received):
    """A process; several, where the gateway has started more, of which the newest writes."""

    def __init__(self, target: list[str]) -> None:
        super().__init__()
        self.target = target
        self.processes: list[asyncio.StreamWriter] = []

    async def attach(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.processes.append(writer)
        async for line in reader:
            self.take(json.loads(line))

    def write(self, message: Message) -> None:
        self.processes[-1].write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def answer(self, call: Message) -> None:
        self.write({"id": call["id"], "result": {"content": []}})


@asynccontextmanager
async def stdio_puppet(era: str) -> AsyncIterator[StdioPuppet]:
    puppet = StdioPuppet([])
    server = await asyncio.start_server(puppet.attach, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    puppet.target = [sys.executable, str(Path(__file__).parent / "puppet_server.py"), str(port), era]
    try:
        yield puppet
    finally:
        server.close()
        for writer in puppet.processes:
            writer.close()


class HTTPPuppet(_Received):
    """An address: each call has a stream of its own, and there is one that belongs to no call."""

    def __init__(self) -> None:
        super().__init__()
        self.target = ""
        self._common: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._streams: dict[int, asyncio.Queue[bytes | None]] = {}

    def write(self, message: Message) -> None:
        self._common.put_nowait(_event(message))

    def end_stream(self) -> None:
        """End the stream that belongs to no call."""
        self._common.put_nowait(None)

    def write_to(self, call: Message, message: Message) -> None:
        """Write on the stream of a call."""
        self._streams[call["id"]].put_nowait(_event(message))

    def answer(self, call: Message) -> None:
        answer = {"id": call["id"], "result": {"content": []}}
        if call["id"] in self._streams:
            self.write_to(call, answer)
            self._streams[call["id"]].put_nowait(None)
        else:
            self.write(answer)  # its stream has been closed

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] == "GET":
            await _stream(self._common, receive, send)
        elif scope["method"] == "DELETE":
            await _reply(send, 200, b"")
        else:
            await self._post(json.loads(await _body(receive)), receive, send)

    async def _post(self, message: Message, receive: Any, send: Any) -> None:
        method = message.get("method")
        own: dict[str, Any] = {
            "tools/list": {"tools": TOOLS},
            "logging/setLevel": {},
            "initialize": {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES, "serverInfo": {}},
        }
        if method in own:
            await _reply(send, 200, json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": own[method]}).encode())
        elif method == "server/discover":
            refusal = {"code": -32601, "message": "There is no server/discover"}
            await _reply(send, 200, json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": refusal}).encode())
        elif method == "tools/call":
            stream = self._streams[message["id"]] = asyncio.Queue()
            self.take(message)
            await _stream(stream, receive, send)
            del self._streams[message["id"]]
        else:
            await _reply(send, 202, b"")
            self.take(message)


@asynccontextmanager
async def http_puppet() -> AsyncIterator[HTTPPuppet]:
    puppet = HTTPPuppet()
    async with serve(puppet, puppet.end_stream) as url:
        puppet.target = f"{url}/mcp"
        yield puppet


def _event(message: Message) -> bytes:
    return b"data: " + json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n\n"


async def _body(receive: Any) -> bytes:
    body, has_more = b"", True
    while has_more:
        event = await receive()
        body, has_more = body + event.get("body", b""), event.get("more_body", False)
    return body


async def _reply(send: Any, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"mcp-session-id", b"one")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _stream(events: asyncio.Queue[bytes | None], receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    await send({"type": "http.response.body", "body": b": open\n\n", "more_body": True})
    leaving = asyncio.create_task(_left(receive))
    try:
        while True:
            getting = asyncio.create_task(events.get())
            await asyncio.wait({getting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not getting.done():
                getting.cancel()
                return
            event = getting.result()
            await send({"type": "http.response.body", "body": event or b"", "more_body": event is not None})
            if event is None:
                return
    finally:
        leaving.cancel()


async def _left(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
