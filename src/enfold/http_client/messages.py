"""Requests and responses, and decompression of bodies within a limit."""

from __future__ import annotations

import re
import zlib
from collections.abc import AsyncGenerator, Iterator
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
    """A request; the target is written to the wire unchanged."""

    method: str
    origin: str
    target: str
    headers: Headers = []
    content: bytes | None = None

    @property
    def url(self) -> str:
        return f"{self.origin}{self.target}"


def write(request: Request, endpoint: Endpoint, proxy: Endpoint | None = None) -> bytes:
    """Encode a request; raise WebError if it is invalid."""
    if not is_sendable(request.target) or not request.target.startswith("/"):
        raise WebError("unsendable", "The target has characters that are not allowed in a URL")
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
    """Return the header lines and their names, without the length of the body."""
    lines: list[str] = []
    present: set[str] = set()
    for name, value in headers:
        lower = _header_name(name)
        if _UNSENDABLE.search(value) is not None:
            raise WebError("unsendable", f"The header {name} has invalid characters")
        if lower == "content-length":
            continue
        if lower in _FRAMING or (lower == "host" and lower in present):
            raise WebError("unsendable", f"The header {name} cannot be set")
        present.add(lower)
        lines.append(f"{name}: {value}")
    return lines, present


@lru_cache(maxsize=1024)
def _header_name(name: str) -> str:
    if not _NAME.match(name):
        raise WebError("unsendable", f"{name[:40]!r} is not a valid header name or method")
    return name.lower()


class RawBody(Protocol):
    """The source of a body."""

    async def chunk(self) -> bytes:
        """Return the next raw chunk; empty at the end."""

    async def close(self) -> None:
        """Stop reading."""


class Response:
    """An open response: its head, and its decompressed body as a stream. Close it after use."""

    __slots__ = ("_raw", "headers", "peer", "reason", "status", "url")

    def __init__(
        self, request: Request, status: int, reason: str, headers: Headers, raw: RawBody, peer: str = ""
    ) -> None:
        self.status = status
        self.reason = reason
        self.headers = headers  # names in lower case
        self.peer = peer  # the remote IP address, if known
        self.url = request.url
        self._raw = raw

    def header(self, name: str) -> str | None:
        """Return the first header with a lower-case name."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the body in chunks; raise WebError if it is incomplete or cannot be decompressed."""
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
        """Return the whole body; raise WebError as soon as it exceeds the limit."""
        length = self.header("content-length") or ""
        if length.isdecimal() and int(length) > limit:
            raise response_too_large(limit)
        parts: list[bytes] = []
        size = 0
        async for chunk in self.chunks():
            size += len(chunk)
            if size > limit:
                raise response_too_large(limit)
            parts.append(chunk)
        return b"".join(parts)

    async def close(self) -> None:
        await self._raw.close()


PIECE: Final = 64 * 1024
MAX_CODINGS: Final = 2  # nested codings
MAX_EMPTY: Final = 1024 * 1024  # compressed bytes in a row without content, such as empty gzip members

_KNOWN: Final = ("gzip", "x-gzip", "deflate")


def decoder_for(encoding: str) -> Decoder | None:
    """Return the decoder of a `Content-Encoding`, or None; raise WebError for an unsupported coding."""
    names = [name for each in encoding.split(",") if (name := each.strip().lower()) not in ("", "identity")]
    unknown = next((name for name in names if name not in _KNOWN), None)
    if unknown is not None or len(names) > MAX_CODINGS:
        named = unknown if unknown is not None else ", ".join(names)
        raise _unreadable(f"unsupported encoding {named[:40]!r}")
    decoder: Decoder | None = None
    for name in names:
        decoder = Decoder(decoder, is_gzip=name != "deflate")
    return decoder


class Decoder:
    """Decompresses a body: consecutive gzip members, or deflate with or without a zlib header."""

    def __init__(self, inner: Decoder | None, *, is_gzip: bool) -> None:
        """`inner` decodes the output, where two codings were applied."""
        self._inner = inner
        self._is_gzip = is_gzip
        self._empty = 0
        self._unpacker: Any = None

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the content of a chunk in pieces of limited size."""
        self._empty += len(chunk)
        while chunk:
            if self._unpacker is not None and self._unpacker.eof:
                chunk = chunk.lstrip(b"\0") if self._is_gzip else b""  # zeros after a member are padding
                self._unpacker = None if chunk else self._unpacker
            else:
                self._unpacker = self._unpacker or zlib.decompressobj(self._window(chunk[0]))
                for piece in _unpacked(self._unpacker, chunk):
                    self._empty = 0
                    yield from [piece] if self._inner is None else self._inner.feed(piece)
                chunk = self._unpacker.unused_data
        if self._empty > MAX_EMPTY:
            raise _unreadable("it has no content")

    def end(self) -> None:
        """Raise WebError if the body is incomplete."""
        if self._unpacker is not None and not self._unpacker.eof:
            raise _unreadable("it is incomplete")
        if self._inner is not None:
            self._inner.end()

    def _window(self, first: int) -> int:
        """Return the window bits for zlib; the first byte shows whether deflate has a zlib header."""
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
        # More output may follow a full piece although all input is consumed.
        if unpacker.eof or (not chunk and len(piece) < PIECE):
            return


def _unreadable(reason: str) -> WebError:
    return WebError("unreadable", f"The response cannot be decompressed: {reason}")
