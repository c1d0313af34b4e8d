"""What hub and clients say to each other over a WebSocket, as pure functions: a short header, then the data as it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from enfold.calls.protocol.transport import DisconnectedError, OverloadedError, PayloadTooLargeError
from enfold.errors import CallError, FormatError
from enfold.operations import Identity
from enfold.version import install_command

if TYPE_CHECKING:
    from websockets.asyncio.connection import Connection


SUBPROTOCOL: Final = "enfold.calls.v1"
MAX_HEADER: Final = 60 * 1024  # the rest of what a message may have beyond its data is the connection's own


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


MAX_UNSENT: Final = 8 * 1024 * 1024
ENOUGH: Final = 8 * 1024  # bytes that leave at once: both ends work while some dozens of calls are in flight
OPEN: Final = 1  # the state of a connection that can be used
BINARY: Final = 2  # the largest opcode of a frame that carries data

# A peer that is not heard for five seconds is gone; what waits in the library is little, because we take it at once.
CONNECTION_SETTINGS: Final[dict[str, Any]] = {
    "compression": None,
    "max_queue": 16,
    "write_limit": 32 * 1024,
    "ping_interval": 5,
    "ping_timeout": 5,
}

Take: TypeAlias = Callable[[bytes], None]


def require_websockets() -> None:
    """Raise an error with the command that installs `websockets`, if it is missing."""
    if find_spec("websockets") is None:
        raise CallError("UNAVAILABLE", f"A hub needs websockets: {install_command('websocket')}", retryable=False)


async def listen(connection: Connection, take: Take) -> None:
    """Pass every message of a connection to `take` until it is closed."""
    from websockets.exceptions import ConnectionClosed

    with suppress(ConnectionClosed):
        while True:
            # Empty fragments are dropped: they count towards no limit, and a peer could send them without end.
            parts = [part async for part in connection.recv_streaming(decode=False) if part]
            take(parts[0] if len(parts) == 1 else b"".join(parts))


# --- what goes out ------------------------------------------------------------------------------------------------


class Outbox:
    """The write buffer of a connection: frames of one loop turn leave together, because each write costs a system call.

    Sending does not wait for a slow reader: a frame is taken at once, or there is too much before it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._frames: list[bytes] = []
        self._size = 0

    def write(self, frame: bytes) -> None:
        connection = self._connection
        if connection.protocol.state != OPEN:
            raise DisconnectedError
        if self._size + connection.transport.get_write_buffer_size() > MAX_UNSENT:
            raise OverloadedError
        if not self._frames:
            connection.loop.call_soon(self._flush)
        self._frames.append(frame)
        self._size += len(frame)
        if self._size >= ENOUGH:
            self._flush()

    def _flush(self) -> None:
        """Write by the library's own protocol, whose `send` would write each frame alone and wait for each."""
        frames, self._frames, self._size = self._frames, [], 0
        if not frames:
            return
        protocol = self._connection.protocol
        if protocol.state == OPEN:  # else they are lost with the connection, and those who wait are told
            for frame in frames:
                protocol.send_binary(frame)
            self._connection.transport.write(b"".join(protocol.data_to_send()))
