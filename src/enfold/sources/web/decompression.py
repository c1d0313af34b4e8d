"""Compressed bodies, unpacked piece by piece, so that a small body never becomes a large one at once. No I/O."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Final

from enfold.sources.web.web_error import WebError

ACCEPTED: Final = "gzip, deflate"
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
