"""Compressed bodies, unpacked piece by piece, so that a small body never becomes a large one at once. No I/O."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Final, Protocol

from enfold.sources.web.web_error import WebError

ACCEPTED: Final = "gzip, deflate"
PIECE: Final = 64 * 1024
MOST: Final = 2  # codings on top of each other

_GZIP: Final = 16 + zlib.MAX_WBITS
_KNOWN: Final = {"gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate"}


class Decoder(Protocol):
    """Unpacks the chunks of one body."""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The content of a chunk, in pieces of bounded size."""

    def end(self) -> None:
        """Raises where the body has broken off in the middle."""


def decoder_for(encoding: str) -> Decoder | None:
    """The decoder of a `Content-Encoding`; None where nothing is packed. A coding nobody asked for is refused."""
    names = [name for each in encoding.split(",") if (name := each.strip().lower()) not in ("", "identity")]
    if not names:
        return None
    unknown = next((name for name in names if name not in _KNOWN), None)
    if unknown is not None or len(names) > MOST:
        named = unknown if unknown is not None else ", ".join(names)
        raise _unreadable(f"its encoding {named[:40]!r} was not asked for")
    found: Decoder | None = None
    for name in names:
        inner: Decoder = _Gzip() if _KNOWN[name] == "gzip" else _Deflate()
        found = inner if found is None else _Both(inner, found)
    return found


class _Gzip:
    """One gzip member after another; zeros behind the last one are padding."""

    def __init__(self) -> None:
        self._unpacker = zlib.decompressobj(_GZIP)
        self._is_begun = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        while chunk:
            if self._unpacker.eof:
                chunk = chunk.lstrip(b"\0")
                if not chunk:
                    return
                self._unpacker = zlib.decompressobj(_GZIP)
            self._is_begun = True
            yield from _unpacked(self._unpacker, chunk)
            chunk = self._unpacker.unused_data

    def end(self) -> None:
        if self._is_begun and not self._unpacker.eof:
            raise _unreadable("it breaks off in the middle")


class _Deflate:
    """Deflate as the standard has it, in a zlib stream, and as some servers send it, without one."""

    def __init__(self) -> None:
        self._start = b""
        self._unpacker: Any = None

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        if self._unpacker is None:
            chunk = self._start = self._start + chunk
            if len(chunk) < 2:
                return
            has_header = chunk[0] & 0x0F == 8 and (chunk[0] << 8 | chunk[1]) % 31 == 0
            self._unpacker = zlib.decompressobj(zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS)
        yield from _unpacked(self._unpacker, chunk)

    def end(self) -> None:
        if self._start and (self._unpacker is None or not self._unpacker.eof):
            raise _unreadable("it breaks off in the middle")


class _Both:
    """Two codings: `outer` was applied last."""

    def __init__(self, outer: Decoder, inner: Decoder) -> None:
        self._outer, self._inner = outer, inner

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        for piece in self._outer.feed(chunk):
            yield from self._inner.feed(piece)

    def end(self) -> None:
        self._outer.end()
        self._inner.end()


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
