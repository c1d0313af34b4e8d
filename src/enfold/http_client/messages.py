"""Requests and responses as values, and bodies decompressed within a limit."""

from __future__ import annotations

import re
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from functools import lru_cache
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from enfold.http_client.errors import WebError, response_too_large
from enfold.http_client.urls import Endpoint, is_sendable

Headers: TypeAlias = list[tuple[str, str]]

ACCEPTED: Final = "gzip, deflate"
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


PIECE: Final = 64 * 1024
MAX_CODINGS: Final = 2  # codings on top of each other

_KNOWN: Final = ("gzip", "x-gzip", "deflate")


def decoder_for(encoding: str) -> Decoder | None:
    """The decoder of a `Content-Encoding`; None where nothing is packed. A coding nobody asked for is refused."""
    names = [name for each in encoding.split(",") if (name := each.strip().lower()) not in ("", "identity")]
    unknown = next((name for name in names if name not in _KNOWN), None)
    if unknown is not None or len(names) > MAX_CODINGS:
        named = unknown if unknown is not None else ", ".join(names)
        raise _unreadable(f"its encoding {named[:40]!r} was not asked for")
    decoder: Decoder | None = None
    for name in names:
        decoder = Decoder(decoder, is_gzip=name != "deflate")
    return decoder


class Decoder:
    """Unpacks the chunks of a body: gzip members one after another, or deflate, in a zlib stream or, as some send it, without."""

    def __init__(self, inner: Decoder | None, *, is_gzip: bool) -> None:
        """`inner` unpacks what comes out of this one, where two codings were applied."""
        self._inner = inner
        self._is_gzip = is_gzip
        self._unpacker: Any = None

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The content of a chunk, in pieces of bounded size."""
        while chunk:
            if self._unpacker is not None and self._unpacker.eof:
                chunk = chunk.lstrip(b"\0") if self._is_gzip else b""  # zeros behind a member are padding
                self._unpacker = None if chunk else self._unpacker
            else:
                self._unpacker = self._unpacker or zlib.decompressobj(self._window(chunk[0]))
                for piece in _unpacked(self._unpacker, chunk):
                    yield from [piece] if self._inner is None else self._inner.feed(piece)
                chunk = self._unpacker.unused_data

    def end(self) -> None:
        """Raises where the body has broken off in the middle."""
        if self._unpacker is not None and not self._unpacker.eof:
            raise _unreadable("it breaks off in the middle")
        if self._inner is not None:
            self._inner.end()

    def _window(self, first: int) -> int:
        """What zlib is told of the stream; the first byte says whether deflate has the header of a zlib stream."""
        if self._is_gzip:
            return 16 + zlib.MAX_WBITS
        return zlib.MAX_WBITS if first & 0x0F == 8 else -zlib.MAX_WBITS


def _unpacked(unpacker: Any, chunk: bytes) -> Iterator[bytes]:
    while True:
        try:
            piece = unpacker.decompress(chunk, PIECE)
        except zlib.error as error:
            raise _unreadable(str(error)) from None
        if piece:
            yield piece
        chunk = unpacker.unconsumed_tail
        # A full piece may have more behind it although all input is taken.
        if unpacker.eof or (not chunk and len(piece) < PIECE):
            return


def _unreadable(reason: str) -> WebError:
    return WebError("unreadable", f"The response cannot be decompressed: {reason}")
