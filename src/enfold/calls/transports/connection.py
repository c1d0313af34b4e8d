"""What hub and clients say to each other over a WebSocket, as pure functions: a short header, then the data as it is."""

from __future__ import annotations

import asyncio
from asyncio import _enter_task, _leave_task
from collections.abc import Callable
from enum import StrEnum
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from enfold.calls.protocol.transport import DisconnectedError, OverloadedError, PayloadTooLargeError
from enfold.errors import CallError, FormatError
from enfold.operations import Identity
from enfold.version import install_command

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection
    from websockets.asyncio.connection import Connection
    from websockets.asyncio.server import ServerConnection


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


# --- what comes in ------------------------------------------------------------------------------------------------


class _DirectConnection:
    """A connection that handles messages in the callback that read them, without a queue and a task between.

    Taking is quick and never waits, so that a peer which sends too fast is slowed down by its own socket.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._take: Take | None = None
        self._listener: asyncio.Task[Any] | None = None
        self._parts: list[bytes] = []
        self._early: list[bytes] = []
        self._arrived = asyncio.Event()

    async def first(self) -> bytes:
        await self._arrived.wait()
        if not self._early:
            raise DisconnectedError
        return self._early.pop(0)

    def start(self, take: Take) -> None:
        self._take, self._listener = take, asyncio.current_task()
        early, self._early = self._early, []
        for message in early:
            take(message)

    # what the library calls

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)  # type: ignore[misc]  # of the class it is mixed into, as below
        self._arrived.set()

    def data_received(self, data: bytes) -> None:
        listener = self._listener
        if listener is None:
            super().data_received(data)  # type: ignore[misc]
            return
        # Handlers that never wait run in here, and may ask which task they run in.
        loop = asyncio.get_running_loop()
        _enter_task(loop, listener)
        try:
            super().data_received(data)  # type: ignore[misc]
        finally:
            _leave_task(loop, listener)

    def process_event(self, event: Any) -> None:
        """Handle data frames; the handshake, pings and the rest are the library's."""
        opcode = getattr(event, "opcode", None)
        if opcode is None or opcode > BINARY:
            super().process_event(event)  # type: ignore[misc]
        elif event.fin and not self._parts:
            self._hand_over(event.data)
        else:
            if event.data:  # empty ones could go on without end, within any limit of size
                self._parts.append(event.data)
            if event.fin:
                parts, self._parts = self._parts, []
                self._hand_over(b"".join(parts))

    def _hand_over(self, data: Any) -> None:
        message = data if type(data) is bytes else bytes(data)
        if self._take is not None:
            self._take(message)
        else:
            self._early.append(message)
            self._arrived.set()


@cache
def server_connection() -> type[ServerConnection]:
    """The hub's end of a connection."""
    from websockets.asyncio.server import ServerConnection

    return type("DirectServerConnection", (_DirectConnection, ServerConnection), {})


@cache
def client_connection() -> type[ClientConnection]:
    """The client's end of a connection."""
    from websockets.asyncio.client import ClientConnection

    return type("DirectClientConnection", (_DirectConnection, ClientConnection), {})


async def first_message(connection: Connection) -> bytes:
    """The first message of a connection, before `listen`."""
    direct: Any = connection
    message: bytes = await direct.first()
    return message


async def listen(connection: Connection, take: Take) -> None:
    """Pass every message of a connection to `take`, earlier ones included, until it is closed."""
    direct: Any = connection
    direct.start(take)
    await connection.wait_closed()


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
