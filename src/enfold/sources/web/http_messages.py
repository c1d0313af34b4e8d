"""Requests and responses as values: what is written on the wire, and what is read from it with a bound."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import lru_cache
from typing import Final, Protocol, TypeAlias

import msgspec

from enfold.sources.web.decompression import ACCEPTED, decoder_for
from enfold.sources.web.urls import Endpoint, is_sendable
from enfold.sources.web.web_error import WebError, response_too_large

Headers: TypeAlias = list[tuple[str, str]]

DEFAULTS: Final = (("user-agent", "enfold"), ("accept", "*/*"), ("accept-encoding", ACCEPTED))

_DEFAULT_LINES: Final = tuple((name, f"{name}: {value}") for name, value in DEFAULTS)
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_UNSENDABLE: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_FRAMING: Final = frozenset({"transfer-encoding", "connection", "keep-alive", "upgrade", "te", "trailer", "expect"})
_HAVE_BODIES: Final = frozenset({"POST", "PUT", "PATCH"})


class Request(msgspec.Struct, frozen=True):
    """A request; the target is exactly what goes on the wire."""

    method: str
    origin: str
    target: str
    headers: Headers = []
    content: bytes | None = None

    @property
    def url(self) -> str:
        return f"{self.origin}{self.target}"


def write(request: Request, endpoint: Endpoint, proxy: Endpoint | None = None) -> bytes:
    """The bytes of a request; a WebError where it would not be the request it says."""
    if not is_sendable(request.target) or not request.target.startswith("/"):
        raise WebError("unsendable", "The target has characters that a URL cannot hold")
    lines, present = _header_lines(request.headers)
    if "host" not in present:
        lines.insert(0, f"Host: {endpoint.authority}")
    lines += [line for name, line in _DEFAULT_LINES if name not in present]
    if endpoint.credentials and "authorization" not in present:
        lines.append(f"Authorization: {endpoint.authorization}")
    target = request.target
    if proxy is not None and endpoint.scheme == "http":
        target = f"http://{endpoint.authority}{target}"
        if proxy.authorization:
            lines.append(f"Proxy-Authorization: {proxy.authorization}")
    content = request.content or b""
    if content or request.content is not None or request.method in _HAVE_BODIES:
        lines.append(f"Content-Length: {len(content)}")
    _header_name(request.method)  # a method is a token too
    return "\r\n".join([f"{request.method} {target} HTTP/1.1", *lines, "", ""]).encode() + content


def _header_lines(headers: Headers) -> tuple[list[str], set[str]]:
    """The lines of the headers, and their names; the length of the body is ours to say."""
    lines: list[str] = []
    present: set[str] = set()
    for name, value in headers:
        lower = _header_name(name)
        if _UNSENDABLE.search(value) is not None:
            raise WebError("unsendable", f"The header {name} has characters that no header can hold")
        if lower == "content-length":
            continue
        if lower in _FRAMING or (lower == "host" and lower in present):
            raise WebError("unsendable", f"The header {name} is not for a caller to set")
        present.add(lower)
        lines.append(f"{name}: {value}")
    return lines, present


@lru_cache(maxsize=1024)
def _header_name(name: str) -> str:
    if not _NAME.match(name):
        raise WebError("unsendable", f"{name[:40]!r} is no name of a header or a method")
    return name.lower()


class RawBody(Protocol):
    """Where the bytes of a body come from."""

    async def chunk(self) -> bytes:
        """The next piece as it is on the wire; empty at the end."""

    async def close(self) -> None:
        """Nobody reads any more."""


class Response:
    """An open response: its head, and its body as it comes, unpacked. Who opens it closes it."""

    __slots__ = ("_raw", "headers", "peer", "reason", "status", "url")

    def __init__(
        self, request: Request, status: int, reason: str, headers: Headers, raw: RawBody, peer: str = ""
    ) -> None:
        self.status = status
        self.reason = reason
        self.headers = headers  # names in lower case
        self.peer = peer  # the IP address that answered, where it is known
        self.url = request.url
        self._raw = raw

    def header(self, name: str) -> str | None:
        """The first header of a name in lower case."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]

    async def chunks(self) -> AsyncGenerator[bytes]:
        """The body in pieces; a WebError where it breaks off or cannot be unpacked."""
        raw = self._raw
        decoder = decoder_for(",".join(self.all("content-encoding")))
        while chunk := await raw.chunk():
            if decoder is None:
                yield chunk
            else:
                for piece in decoder.feed(chunk):
                    yield piece
        if decoder is not None:
            decoder.end()

    async def body(self, limit: int) -> bytes:
        """The whole body, refused as soon as it is known to be over the limit."""
        length = self.header("content-length") or ""
        if length.isdecimal() and int(length) > limit:
            raise response_too_large(limit)
        next_chunk = self._raw.chunk if self.header("content-encoding") is None else _chunk_reader(self.chunks())
        parts: list[bytes] = []
        size = 0
        while chunk := await next_chunk():
            size += len(chunk)
            if size > limit:
                raise response_too_large(limit)
            parts.append(chunk)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def close(self) -> None:
        await self._raw.close()


def _chunk_reader(chunks: AsyncGenerator[bytes]) -> Callable[[], Awaitable[bytes]]:
    """A function that gives one chunk after another, and an empty one at the end."""

    async def following() -> bytes:
        return await anext(chunks, b"")

    return following
