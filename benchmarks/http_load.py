"""The load generator of the HTTP benchmarks: a cheap client instead of tools that must be installed."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final

import msgspec

CONNECTIONS: Final = 32

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Post(msgspec.Struct, frozen=True):
    """One request to a server of this machine, as it is sent over and over."""

    port: int
    path: str
    body: bytes
    headers: dict[str, str] = {}

    def to_bytes(self) -> bytes:
        fields = {
            "Host": f"127.0.0.1:{self.port}",
            "Content-Type": "application/json",
            "Content-Length": str(len(self.body)),
            **self.headers,
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"POST {self.path} HTTP/1.1\r\n{head}\r\n".encode() + self.body


async def ask(post: Post) -> bytes:
    """The body of one answer."""
    answers = await _asked(post, [1])
    return answers.body


async def ask_often(post: Post, count: int) -> None:
    """Send a request so many times over all connections; each answer must be a success, of whatever length."""
    left = [count]
    await asyncio.gather(*(_asked(post, left) for _ in range(min(CONNECTIONS, count))))


async def _asked(post: Post, left: list[int]) -> _Asking:
    loop = asyncio.get_running_loop()
    transport, asking = await loop.create_connection(lambda: _Asking(post.to_bytes(), left), "127.0.0.1", post.port)
    try:
        await asking.done
    finally:
        transport.close()
        await asking.closed.wait()
    return asking


class _Asking(asyncio.Protocol):
    """One connection: as soon as an answer is complete, the next request is sent."""

    def __init__(self, request: bytes, left: list[int]) -> None:
        self._request = request
        self._left = left  # shared by all connections
        self._head = b""  # of the answer, until it is whole
        self._missing = 0  # bytes of its body
        self._parts: list[bytes] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.closed = asyncio.Event()

    @property
    def body(self) -> bytes:
        """The body of the last answer."""
        return b"".join(self._parts)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._next()

    def data_received(self, data: bytes) -> None:
        if self._missing:
            self._take(data)
            return
        head, end, rest = (self._head + data).partition(b"\r\n\r\n")
        if not end:
            self._head = head
            return
        length = _LENGTH.search(head)
        if not head.startswith(b"HTTP/1.1 200") or length is None:
            self.done.set_exception(ConnectionError(f"not a success of known length: {head[:300]!r} {rest[:300]!r}"))
            return
        self._head, self._missing = b"", int(length[1])
        self._take(rest)

    def _take(self, part: bytes) -> None:
        self._parts.append(part)
        self._missing -= len(part)
        if self._missing == 0:
            self._next()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed.set()
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the server closed the connection"))

    def _next(self) -> None:
        if self._left[0] <= 0:
            self.done.set_result(None)
            return
        self._left[0] -= 1
        self._parts = []
        self._transport.write(self._request)
