"""Sessions of clients over HTTP: their streams, which can be resumed, and their open questions."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from itertools import chain
from typing import Final, TypeAlias

import msgspec

from enfold.errors import CallError
from enfold.mcp.json_rpc import OutgoingMessage, encode
from enfold.observability.log import Log
from enfold.operations import Identity
from enfold.operations.access import grants_all_of
from enfold.surfaces.limits import Limits
from enfold.surfaces.mcp.exchange import Session

MAX_STREAMS: Final = 32
IDLE: Final = 3600.0

_log: Final = Log("enfold.mcp")


class HTTPSession(Session, eq=False, kw_only=True):
    """One client, from its handshake to its DELETE."""

    id: str
    streams: OrderedDict[str, EventStream] = msgspec.field(default_factory=OrderedDict)
    notifications: EventStream | None = None  # the stream that a GET opens, for what belongs to no request
    identity_id: str | None = None  # the one person who may use it
    owner: str = ""  # their identity, or else their address
    buffer: ResumeBuffer
    seen: float = msgspec.field(default_factory=time.monotonic)

    def new_stream(self, identity: Identity | None) -> EventStream:
        """Create a stream that the client can resume, until it has had many others."""
        if not self.revision.has_priming:
            return EventStream()
        while len(self.streams) >= MAX_STREAMS:
            self.streams.popitem(last=False)[1].release()
        stream = EventStream(self.buffer, self.owner, identity)
        self.streams[stream.id] = stream
        return stream

    def interrupted_stream(self, event_id: bytes, identity: Identity | None) -> tuple[EventStream | None, int]:
        """Return the stream that has an event, and the number of the event there.

        None for a stream that was dropped, or that holds the answer to a token that allowed more.
        """
        name, _, number = event_id.decode("latin-1").rpartition("-")
        stream = self.streams.get(name)
        if stream is None or stream.is_dropped or not (number.isascii() and number.isdigit() and len(number) < 12):
            return None, -1
        asked = stream.identity
        allowed_more = identity is not None and asked is not None and not grants_all_of(identity, asked)
        return (None, -1) if allowed_more else (stream, int(number))

    @property
    def is_idle(self) -> bool:
        return not self.running and self.notifications is None

    def end(self) -> None:
        """Cancel what runs, whose callers get an error, and drop the streams."""
        self.is_over = True  # which the cancelled requests look at
        for cancel in list(self.running.values()):
            cancel()
        if self.notifications is not None:
            self.notifications.end()
        for stream in self.streams.values():
            stream.release()
        self.finish()

    def notify(self, message: OutgoingMessage) -> None:
        """Send what belongs to no request, if the client has opened a stream for it."""
        if self.notifications is not None:
            self.notifications.send(message)


class Sessions:
    """The sessions by their ids, and by their owners: a new one takes the place of another of the same owner."""

    def __init__(self, limits: Limits, prefix: str = "") -> None:
        """`prefix` starts every session id: it tells sibling processes whose session it is."""
        self._limits = limits
        self._prefix = prefix
        self._buffer = ResumeBuffer(limits)
        self._sessions: OrderedDict[str, HTTPSession] = OrderedDict()
        self._owners: dict[str, OrderedDict[str, HTTPSession]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, identity: Identity | None, address: str = "") -> HTTPSession:
        """Open a session; a caller with too many loses the oldest, and if all slots are taken, new callers are refused."""
        owner = f"address {address}" if identity is None else f"identity {identity.id}"
        self._make_room(owner)
        name = self._prefix + os.urandom(24).hex()
        identity_id = None if identity is None else identity.id
        session = HTTPSession(id=name, identity_id=identity_id, owner=owner, buffer=self._buffer)
        self._sessions[session.id] = session
        self._owners.setdefault(owner, OrderedDict())[session.id] = session
        return session

    def find(self, session_id: bytes, identity: Identity | None) -> HTTPSession:
        """Return the session with this id if it belongs to the caller; the id alone grants no access."""
        session = self._sessions.get(session_id.decode("latin-1"))
        if session is None or session.identity_id != (None if identity is None else identity.id):
            raise CallError("OPERATION_NOT_FOUND", "Unknown session: initialize again")
        session.seen = time.monotonic()
        self._sessions.move_to_end(session.id)
        self._owners[session.owner].move_to_end(session.id)
        return session

    def close(self, session: HTTPSession) -> None:
        if self._sessions.pop(session.id, None) is not None:
            own = self._owners[session.owner]
            del own[session.id]
            if not own:
                del self._owners[session.owner]
        session.end()

    def close_all(self) -> None:
        for session in list(self._sessions.values()):
            self.close(session)

    def _make_room(self, owner: str) -> None:
        self._close_idle()
        own = self._owners.get(owner)
        if own is not None and (len(own) >= self._limits.sessions_per_identity or self._is_full()):
            _log.warning("A session of %s ends for a newer one: they have %d", owner, len(own))
            self.close(_least_used(own))
        elif self._is_full():
            _log.warning("A session of %s was refused: other callers have %d", owner, len(self._sessions))
            details = {"reason": "sessions", "retry_after": 60}
            raise CallError("RESOURCE_EXHAUSTED", "Too many sessions: retry later", details)

    def _is_full(self) -> bool:
        return len(self._sessions) >= self._limits.sessions

    def _close_idle(self) -> None:
        """End idle sessions."""
        while self._sessions:
            oldest = next(iter(self._sessions.values()))
            if not oldest.is_idle or time.monotonic() - oldest.seen <= IDLE:
                return
            self.close(oldest)


def _least_used(sessions: Mapping[str, HTTPSession]) -> HTTPSession:
    """Choose a session to drop: the oldest idle one, else one that only listens, else any."""
    idle = (each for each in sessions.values() if each.is_idle)
    quiet = (each for each in sessions.values() if not each.running)
    return next(chain(idle, quiet, sessions.values()))


Put: TypeAlias = Callable[[bytes], Awaitable[None]]

HEARTBEAT: Final = 15.0
RETRY_MS: Final = 500
# Notifications beyond this are dropped for a client that does not read; its answer never is.
MAX_WAITING: Final = 1_000
MAX_BYTES: Final = 1_000_000

_HEARTBEAT_EVENT: Final = b":\n\n"


class EventStream:
    """Messages in their order; one with a buffer can be resumed after any of its events."""

    def __init__(self, buffer: ResumeBuffer | None = None, owner: str = "", identity: Identity | None = None) -> None:
        """With a `buffer`, events are kept after they were sent, so that the client can resume after any of them.

        `identity` is who asked for what is on it, with the rights of their request.
        """
        self.id = os.urandom(8).hex()
        self.owner = owner
        self.identity = identity
        self._buffer = buffer
        self._has_ids = buffer is not None
        self._events: deque[bytes] = deque()
        self._first = 0  # the number of the oldest event there is
        self._sent = 0  # the number after the last event that a connection took
        self.size = 0  # in bytes
        self._is_ended = False
        self.is_dropped = False  # no connection carries it, and it cannot be resumed
        self._wake = asyncio.Event()
        self._carrier = 0  # the number of the newest connection: the one before it ends
        self._carriers = 0
        if buffer is not None:
            # A first event without data, so that a client has an id to come back with before anything is said.
            self._append(b"retry: %d\ndata: \n\n" % RETRY_MS)

    def send(self, message: OutgoingMessage, *, is_last: bool = False) -> None:
        """Queue a message; one that is not the last is dropped where the queue of a client that does not read is full."""
        if self._is_ended or self.is_dropped:
            return
        event = b"data: %b\n\n" % encode(message)
        if not is_last and not self._has_room(len(event)):
            return
        self._append(event)
        self._is_ended = is_last

    def end(self) -> None:
        """End the stream after the events that wait."""
        self._is_ended = True
        self._wake.set()

    def close_if_resumable(self) -> None:
        """Close the connection of a stream with a buffer; the client reconnects with the id of the last event it saw."""
        if self._buffer is not None:
            self.close_connection()

    def close_connection(self) -> None:
        """Close the connection that carries the stream; the stream itself goes on."""
        self._carrier += 1
        self._wake.set()

    def release(self) -> None:
        """Drop what has been sent, or everything where no connection carries the stream; it cannot be resumed any more."""
        if self._buffer is not None:
            self._buffer.remove(self, self.size, entirely=True)
            self._buffer = None
        self.forget_sent()
        if not self._carriers:
            self.is_dropped = True
            self._events.clear()
            self.size = 0

    def forget_sent(self) -> None:
        while self._events and self._first < self._sent:
            self._drop_first()

    async def carry(self, put: Put, after: int = -1) -> None:
        """Send every event after one to a connection, with heartbeats in between, until the stream ends."""
        self._carrier += 1
        self._carriers += 1
        try:
            await self._carry(put, self._carrier, max(after + 1, self._first))
        finally:
            self._carriers -= 1

    async def _carry(self, put: Put, carrier: int, number: int) -> None:
        while True:
            self._wake.clear()
            number = max(number, self._first)
            while number < self._first + len(self._events):
                await put(self._events[number - self._first])
                number += 1
                self._sent = max(self._sent, number)
                if self._buffer is None or self._buffer.is_full(self.owner):
                    self.forget_sent()
                number = max(number, self._first)
            if self._is_ended or carrier != self._carrier:
                return
            if not await self._is_woken():
                await put(_HEARTBEAT_EVENT)

    async def _is_woken(self) -> bool:
        try:
            async with asyncio.timeout(HEARTBEAT):
                await self._wake.wait()
        except TimeoutError:
            return False
        return True

    def _append(self, event: bytes) -> None:
        number = self._first + len(self._events)
        head = b"id: %b-%d\n" % (self.id.encode(), number) if self._has_ids else b""
        self._events.append(b"event: message\n" + head + event)
        size = len(self._events[-1])
        self.size += size
        if self._buffer is not None:
            self._buffer.add(self, size)
        self._wake.set()

    def _has_room(self, size: int) -> bool:
        """Whether another notification may be queued; what has been sent already makes room for it."""
        if len(self._events) < MAX_WAITING and self.size + size <= MAX_BYTES:
            return True
        self.forget_sent()
        return not self._events or (len(self._events) < MAX_WAITING and self.size + size <= MAX_BYTES)

    def _drop_first(self) -> None:
        size = len(self._events.popleft())
        self.size -= size
        self._first += 1
        if self._buffer is not None:
            self._buffer.remove(self, size)


# --- how much is kept ---------------------------------------------------------------------------------------------


class ResumeBuffer:
    """How many bytes of events are kept for clients that may reconnect: in total, and per owner.

    Where there are too many, the oldest streams of that owner, or of the owner who has most, are released.
    """

    def __init__(self, limits: Limits) -> None:
        self._most = limits.resume_bytes
        self._most_of_one = limits.resume_bytes_per_identity
        self._streams: dict[str, dict[EventStream, None]] = {}  # of each owner, the oldest first
        self._sizes: Counter[str] = Counter()
        self.size = 0

    def add(self, stream: EventStream, size: int) -> None:
        """Count an event that has been added to a stream, and make room for it."""
        self._streams.setdefault(stream.owner, {})[stream] = None
        self._sizes[stream.owner] += size
        self.size += size
        while self._sizes[stream.owner] > self._most_of_one and self._release_oldest(stream.owner, stream):
            pass
        while self.size > self._most and self._release_oldest(max(self._sizes, key=self._sizes.__getitem__), stream):
            pass
        if self.is_full(stream.owner):
            stream.forget_sent()

    def is_full(self, owner: str) -> bool:
        """Whether nothing more of an owner can be kept."""
        return owner in self._streams and (self._sizes[owner] > self._most_of_one or self.size > self._most)

    def remove(self, stream: EventStream, size: int, *, entirely: bool = False) -> None:
        """Count some bytes of a stream no more; `entirely` where none of it is kept any longer."""
        streams = self._streams.get(stream.owner, {})
        if stream not in streams:
            return
        self._sizes[stream.owner] -= size
        self.size -= size
        if entirely:
            del streams[stream]
            if not streams:
                del self._streams[stream.owner], self._sizes[stream.owner]

    def _release_oldest(self, owner: str, but: EventStream) -> bool:
        found = next((each for each in self._streams[owner] if each is not but), None)
        if found is not None:
            found.release()
        return found is not None
