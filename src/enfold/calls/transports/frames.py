"""What hub and spokes say to each other over a WebSocket, as pure functions: a short header, then the data as it is."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import msgspec

from enfold.calls.protocol.transport import PayloadTooLargeError
from enfold.errors import FormatError
from enfold.operation import Identity

SUBPROTOCOL: Final = "enfold.calls.v1"
MAX_HEADER: Final = 60 * 1024  # the rest of what a message may have beyond its data is the line's own


class Op(StrEnum):
    """What a frame asks for, or says."""

    # The hub: your name is the subject, the id is how many bytes a message may have; the peer, if any, is vouched for.
    HELLO = "hello"
    SUBSCRIBE = "sub"  # to a subject, in the group that the reply names
    UNSUBSCRIBE = "unsub"
    PUBLISH = "pub"
    SEND = "send"
    OK = "ok"  # the subscription of this id stands, or has ended
    REFUSED = "no"  # the subscription of this id is refused, and the subject says why
    MESSAGE = "msg"  # for the subscription of this id
    NOBODY = "none"  # nobody listens: the subject is the reply that will not come
    GONE = "gone"  # nobody listens any more, but somebody did: the subject is the reply that will not come
    DENIED = "denied"  # you may not publish to this subject


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """The header of a frame; what a peer may not say of itself is filled in by the hub."""

    op: Op
    id: int = 0
    subject: str = ""
    headers: dict[str, str] | None = None
    reply: str | None = None
    peer: str | None = None
    identity: Identity | None = None
    may_offer: tuple[str, ...] | None = None


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Frame).decode


def write_frame(frame: Frame, data: bytes = b"") -> bytes:
    """A frame: the length of the header in four bytes, the header as JSON, the data."""
    header = _encode(frame)
    if len(header) > MAX_HEADER:
        raise PayloadTooLargeError(len(header), MAX_HEADER)
    return b"".join((len(header).to_bytes(4, "big"), header, data))


def read_frame(wire: Any) -> tuple[Frame, bytes]:
    """The header and the data of a frame; anything else raises a FormatError."""
    if not isinstance(wire, bytes) or len(wire) < 4:
        raise FormatError("Not a frame")
    end = 4 + int.from_bytes(wire[:4], "big")
    if end > len(wire) or end > 4 + MAX_HEADER:
        raise FormatError("Not a frame: its header has no end")
    try:
        return _decode(memoryview(wire)[4:end]), wire[end:]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"Not a frame: {error}") from error
