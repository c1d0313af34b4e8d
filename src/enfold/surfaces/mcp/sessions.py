"""Clients over HTTP that made a handshake: their sessions, the streams they can resume, what they are asked."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Mapping
from itertools import chain
from typing import Any, Final

import msgspec

from enfold.errors import CallError
from enfold.log import Log
from enfold.mcp.json_rpc import RequestId
from enfold.operation import Identity
from enfold.surfaces.asgi.exchange import Presence
from enfold.surfaces.bounds import Bounds
from enfold.surfaces.mcp.clients import Session
from enfold.surfaces.mcp.event_stream import EventStream, ResumeBuffer

MAX_STREAMS: Final = 32
IDLE: Final = 3600.0

_log: Final = Log("enfold.mcp")


class HTTPSession(Session, eq=False, kw_only=True):
    """One client, from its handshake to its DELETE."""

    id: str
    running: dict[RequestId, Presence] = msgspec.field(default_factory=dict)
    streams: OrderedDict[str, EventStream] = msgspec.field(default_factory=OrderedDict)
    notifications: EventStream | None = None  # the stream that a GET opens, for what belongs to no request
    identity_id: str | None = None  # the one person who may use it
    owner: str = ""  # their identity, or else their address
    buffer: ResumeBuffer
    seen: float = msgspec.field(default_factory=time.monotonic)

    def new_stream(self, identity: Identity | None) -> EventStream:
        """A stream that the client can resume, until it has had many others."""
        if not self.revision.has_priming:
            return EventStream()
        while len(self.streams) >= MAX_STREAMS:
            self.streams.popitem(last=False)[1].release()
        stream = EventStream(self.buffer, self.owner, identity)
        self.streams[stream.id] = stream
        return stream

    @property
    def is_idle(self) -> bool:
        return not self.running and self.notifications is None

    def cancel(self, request_id: object) -> None:
        running = self.running.get(request_id) if isinstance(request_id, int | str) else None
        if running is not None:
            running.stop()

    def end(self) -> None:
        """Cancel what runs, whose callers get an error, and drop the streams."""
        self.is_over = True  # which the cancelled requests look at
        for running in list(self.running.values()):
            running.stop()
        if self.notifications is not None:
            self.notifications.end()
        for stream in self.streams.values():
            stream.release()
        self.finish()

    def notify(self, message: dict[str, Any]) -> None:
        """Send what belongs to no request, if the client has opened a stream for it."""
        if self.notifications is not None:
            self.notifications.send(message)


class Sessions:
    """The sessions by their ids, and by their owners: a new one takes the place of another of the same owner."""

    def __init__(self, bounds: Bounds, prefix: str = "") -> None:
        """`prefix` is what the ids begin with: it tells a sibling of this process whose session it is."""
        self._bounds = bounds
        self._prefix = prefix
        self._buffer = ResumeBuffer(bounds)
        self._sessions: OrderedDict[str, HTTPSession] = OrderedDict()
        self._owners: dict[str, OrderedDict[str, HTTPSession]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, identity: Identity | None, address: str = "") -> HTTPSession:
        """A new session; whoever has too many loses their oldest, and where all is full somebody new has to wait."""
        owner = f"address {address}" if identity is None else f"identity {identity.id}"
        self._make_room(owner)
        name = self._prefix + os.urandom(24).hex()
        session = HTTPSession(id=name, identity_id=_id_of(identity), owner=owner, buffer=self._buffer)
        self._sessions[session.id] = session
        self._owners.setdefault(owner, OrderedDict())[session.id] = session
        return session

    def find(self, session_id: bytes, identity: Identity | None) -> HTTPSession | None:
        """The session of an id, if it is this caller's: an id alone opens nothing to somebody else."""
        session = self._sessions.get(session_id.decode("latin-1"))
        if session is None or session.identity_id != _id_of(identity):
            return None
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
        if own is not None and (len(own) >= self._bounds.sessions_per_identity or self._is_full()):
            _log.warning("A session of %s ends for a newer one: they have %d", owner, len(own))
            self.close(_least_used(own))
        elif self._is_full():
            _log.warning("A session of %s was refused: there are %d of others", owner, len(self._sessions))
            details = {"reason": "sessions", "retry_after": 60}
            raise CallError("RESOURCE_EXHAUSTED", "There are too many sessions: try again later", details)

    def _is_full(self) -> bool:
        return len(self._sessions) >= self._bounds.sessions

    def _close_idle(self) -> None:
        """End the sessions that nobody has used for long."""
        while self._sessions:
            oldest = next(iter(self._sessions.values()))
            if not oldest.is_idle or time.monotonic() - oldest.seen <= IDLE:
                return
            self.close(oldest)


def _least_used(sessions: Mapping[str, HTTPSession]) -> HTTPSession:
    """Of those in which nothing happens the oldest; else of those that only listen; else of all."""
    idle = (each for each in sessions.values() if each.is_idle)
    quiet = (each for each in sessions.values() if not each.running)
    return next(chain(idle, quiet, sessions.values()))


def _id_of(identity: Identity | None) -> str | None:
    return None if identity is None else identity.id
