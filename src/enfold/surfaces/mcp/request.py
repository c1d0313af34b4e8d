"""One request of a client over HTTP: who sends it, which operations they may see, and the way back to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Final

import msgspec

from enfold.errors import CallError
from enfold.mcp.json_rpc import AnyResponse, OutgoingMessage, RequestId, encode
from enfold.mcp.revisions import UNSAID, find_revision
from enfold.operations import Identity
from enfold.surfaces.asgi import IDENTITY, JSON, VERIFIER, Exchange, Header, Headers, respond
from enfold.surfaces.authentication import Authentication
from enfold.surfaces.mcp.exchange import Caller
from enfold.surfaces.mcp.server import MCPServer
from enfold.surfaces.mcp.sessions import EventStream, HTTPSession, Sessions

EVENTS: Final = b"text/event-stream"

_STREAM: Final[list[Header]] = [
    (b"content-type", EVENTS),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class MCPEndpoint(msgspec.Struct, eq=False):
    """What all requests to one server over HTTP share: its sessions, its open streams, its limits."""

    server: MCPServer
    authentication: Authentication
    max_body: int
    sessions: Sessions
    listening: dict[EventStream, AnyResponse] = {}  # the open streams, and the message that ends each

    def stop(self) -> None:
        self.sessions.close_all()
        self.server.following.stop()
        for stream, last in list(self.listening.items()):
            stream.send(last, is_last=True)


class MCPRequest(Exchange, eq=False, kw_only=True):
    """One request; to its exchange it is the channel."""

    headers: Headers
    endpoint: MCPEndpoint
    identity: Identity | None
    size: int = 0  # of the body, in bytes
    session: HTTPSession | None = None  # where the client can come back to
    message_id: RequestId | None = None  # of the message that is answered there
    _stream: EventStream | None = None
    _carrying: asyncio.Task[None] | None = None

    def while_admitted(self, refuse: Callable[[], None]) -> AbstractContextManager[None]:
        """Call `refuse` if the caller's token becomes invalid while a stream is open."""
        is_from_above = self.scope.get(IDENTITY) is not None  # the app that mounts us has checked the token
        verifier = self.scope.get(VERIFIER) if is_from_above else None
        return self.endpoint.authentication.while_admitted(self.headers, self.identity, refuse, verifier)

    def caller(self) -> Caller:
        """Return the session that the request names; without one, a caller with only a revision."""
        session_id = self.headers.get(b"mcp-session-id")
        if session_id is not None:
            return self.endpoint.sessions.find(session_id, self.identity)
        said = self.headers.get(b"mcp-protocol-version", b"").decode("latin-1")
        return Caller(find_revision(said) or UNSAID)

    @property
    def _takes_events(self) -> bool:
        return EVENTS in self.headers.get(b"accept", b"")

    # what an exchange needs of its channel

    def notify(self, message: OutgoingMessage) -> None:
        """Send a notification before the answer, which then comes on the same stream."""
        if self._takes_events:
            self._open().send(message)

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Ask the client on the stream, and wait for the answer that it posts to its session."""
        if self.session is None or not self._takes_events:
            message = "This client cannot be asked: it has no session, or does not accept events"
            raise CallError("UNAVAILABLE", message, {"reason": "no_session"}, retryable=False)
        return await self.session.questions.ask(self._open().send, method, params)

    def close_stream(self) -> None:
        """Close the connection, where the client can reconnect with the id of an event."""
        if self.session is not None and self.session.revision.has_priming and self._takes_events:
            stream = self._open()
            # In the next turn, so that the connection has begun, and its first event is on the way.
            asyncio.get_running_loop().call_soon(stream.close_if_resumable)

    # the answer

    def begin_heartbeats(self) -> None:
        """Begin a stream although there is nothing to say yet; it sends heartbeats until there is."""
        if self._takes_events:
            self._open()

    async def answer(self, status: int, body: bytes = b"", headers: Sequence[Header] = ()) -> None:
        """Send an answer in one piece."""
        self.is_started = True
        await respond(self.send, status, body, headers, is_head=self.scope["method"] == "HEAD")

    async def finish(self, message: OutgoingMessage, status: int = 200) -> None:
        """Send the answer to a message: on the stream, if there is one."""
        if status == 200 and self.headers.get(b"accept", b"").startswith(EVENTS):
            self._open()  # both are always listed: the first is preferred
        if self._stream is None or self._carrying is None:
            await self.answer(status, encode(message), [JSON])
        else:
            self._stream.send(message, is_last=True)
            await self._carrying

    async def abandon(self) -> None:
        """End without an answer, because the client has cancelled its request."""
        if self._stream is not None and self._carrying is not None:
            self._stream.end()
            await self._carrying
        elif not self.is_started:
            await self.answer(202)

    def end_stream(self) -> None:
        """Close the connection that carries the stream, because its token is no longer valid."""
        if self._stream is not None:
            self._stream.close_connection()

    async def carry(self, stream: EventStream, after: int = -1) -> None:
        """Carry a stream to the client, from the event after one it has seen."""
        self.is_started = True
        self._stream = stream
        with suppress(OSError):  # the client has gone; whether it comes back is not for us to know
            await self.send({"type": "http.response.start", "status": 200, "headers": _STREAM})
            await stream.carry(self._put, after)
            await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    def _open(self) -> EventStream:
        if self._stream is None:
            self._stream = EventStream() if self.session is None else self.session.new_stream(self.identity)
            self._carrying = asyncio.get_running_loop().create_task(self.carry(self._stream))
        return self._stream

    async def _put(self, event: bytes) -> None:
        await self.send({"type": "http.response.body", "body": event, "more_body": True})
