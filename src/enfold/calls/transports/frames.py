"""The WebSocket protocol of hub and clients: a short header, then the data. The only module that knows `websockets`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from enfold.calls.protocol.transport import DisconnectedError, OverloadedError, PayloadTooLargeError
from enfold.errors import FormatError, missing_package
from enfold.operations import Identity

if TYPE_CHECKING:
    from websockets.asyncio.connection import Connection


SUBPROTOCOL: Final = "enfold.calls.v1"
MAX_HEADER: Final = 60 * 1024  # bytes that a message may have beside its data


class Op(StrEnum):
    """The type of a frame."""

    # From the hub: the subject is your name, the id the maximum message size; a peer name means that you are authenticated.
    HELLO = "hello"
    SUBSCRIBE = "sub"  # to a subject; the reply is the queue group
    UNSUBSCRIBE = "unsub"
    PUBLISH = "pub"
    SEND = "send"
    OK = "ok"  # the subscription with this id is confirmed, or closed
    REFUSED = "no"  # the subscription with this id is refused; the subject is the reason
    MESSAGE = "msg"  # for the subscription with this id
    NO_RESPONDERS = "none"  # no subscriber; the subject is the reply subject
    GONE = "gone"  # no subscriber any more; the subject is the reply subject
    DENIED = "denied"  # publishing to this subject is not permitted


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """The header of a frame; peer, identity and namespaces are filled in by the hub."""

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
    """Encode a frame: the length of the header in four bytes, the header as JSON, the data."""
    header = _encode(frame)
    if len(header) > MAX_HEADER:
        raise PayloadTooLargeError(len(header), MAX_HEADER)
    return b"".join((len(header).to_bytes(4, "big"), header, data))


def read_frame(wire: Any) -> tuple[Frame, bytes]:
    """Decode the header and data of a frame; raise FormatError for anything else."""
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
ENOUGH: Final = 8 * 1024  # bytes that are written without waiting for the end of the loop turn
OPEN: Final = 1  # websockets.protocol.OPEN

# A peer that does not answer a ping within five seconds is disconnected.
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
        raise missing_package("A hub needs websockets", "websocket")


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
    """The write buffer of a connection: frames of one loop turn are sent with one system call.

    Sending never waits for a slow reader: it raises an OverloadedError if the buffer is full.
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
        """Write all frames at once; `Connection.send` would write and await each one."""
        frames, self._frames, self._size = self._frames, [], 0
        if not frames:
            return
        protocol = self._connection.protocol
        if protocol.state == OPEN:  # otherwise the frames are lost with the connection
            for frame in frames:
                protocol.send_binary(frame)
            self._connection.transport.write(b"".join(protocol.data_to_send()))
