"""Clients over HTTP that made a handshake: their sessions, the streams they can come back to, what they are asked."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from typing import Any, Final

import msgspec

from enfold.mcp.messages import RequestId
from enfold.operation import Identity
from enfold.surfaces.asgi.exchange import Presence
from enfold.surfaces.mcp.events import EventStream
from enfold.surfaces.mcp.questions import Questions
from enfold.surfaces.mcp.service import Session

__all__ = ["HTTPSession", "Sessions"]

MAX_SESSIONS: Final = 10_000
MAX_STREAMS: Final = 32
MAX_KEPT: Final = 4_000_000  # bytes of events that clients may still come back for
IDLE: Final = 3600.0


class HTTPSession(Session, eq=False, kw_only=True):
    """One client, from its handshake to its DELETE."""

    id: str = msgspec.field(default_factory=lambda: os.urandom(24).hex())
    running: dict[RequestId, Presence] = msgspec.field(default_factory=dict)
    questions: Questions = msgspec.field(default_factory=Questions)
    streams: OrderedDict[str, EventStream] = msgspec.field(default_factory=OrderedDict)
    news: EventStream | None = None  # what belongs to no request, on the stream that a GET opens
    seen: float = msgspec.field(default_factory=time.monotonic)

    def new_stream(self) -> EventStream:
        """A stream that the client can take up again, until it has had many others."""
        stream = EventStream(is_kept=self.revision.has_priming)
        while self.streams and self._keeps_too_much():
            self.streams.popitem(last=False)
        self.streams[stream.id] = stream
        return stream

    def _keeps_too_much(self) -> bool:
        is_large = sum(stream.size for stream in self.streams.values()) > MAX_KEPT
        return len(self.streams) >= MAX_STREAMS or is_large

    def cancel(self, request_id: object) -> None:
        running = self.running.get(request_id) if isinstance(request_id, int | str) else None
        if running is not None:
            running.stop()

    def end(self) -> None:
        for running in list(self.running.values()):
            running.stop()
        if self.news is not None:
            self.news.end()
        self.let_go()

    def tell(self, message: dict[str, Any]) -> None:
        """Send what belongs to no request, if the client has opened a stream for it."""
        if self.news is not None:
            self.news.send(message)


class Sessions:
    """The sessions by their ids; those that nobody uses any more make room for new ones."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, HTTPSession] = OrderedDict()

    def open(self, identity: Identity | None) -> HTTPSession:
        self._make_room()
        session = HTTPSession(identity=identity)
        self._sessions[session.id] = session
        return session

    def find(self, session_id: bytes, identity: Identity | None) -> HTTPSession | None:
        """The session of an id, if it is this caller's: an id alone opens nothing to somebody else."""
        session = self._sessions.get(session_id.decode("latin-1"))
        if session is None or _id_of(session.identity) != _id_of(identity):
            return None
        session.seen = time.monotonic()
        self._sessions.move_to_end(session.id)
        return session

    def close(self, session: HTTPSession) -> None:
        self._sessions.pop(session.id, None)
        session.end()

    def close_all(self) -> None:
        for session in list(self._sessions.values()):
            self.close(session)

    def _make_room(self) -> None:
        """The one unused for longest goes when it has been idle, or when there are too many."""
        while self._sessions:
            oldest = next(iter(self._sessions.values()))
            is_idle = time.monotonic() - oldest.seen > IDLE and not oldest.running and oldest.news is None
            if not is_idle and len(self._sessions) < MAX_SESSIONS:
                return
            self.close(oldest)


def _id_of(identity: Identity | None) -> str | None:
    return None if identity is None else identity.id
