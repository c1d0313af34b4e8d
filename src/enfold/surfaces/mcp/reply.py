"""The answer to one HTTP request: a JSON message, or a stream of events as soon as there is something to say before it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

import msgspec

from enfold.errors import CallError
from enfold.mcp.json_rpc import encode
from enfold.operation import Identity
from enfold.surfaces.asgi.messages import JSON, Header, Send, respond
from enfold.surfaces.mcp.event_stream import EventStream
from enfold.surfaces.mcp.sessions import HTTPSession

EVENTS: Final = b"text/event-stream"

_STREAM: Final[list[Header]] = [
    (b"content-type", EVENTS),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class HTTPReply(msgspec.Struct, eq=False):
    """The way back to the client of one request; to its exchange it is the channel."""

    _send: Send
    accept: bytes = b""
    session: HTTPSession | None = None  # where the client can come back to
    identity: Identity | None = None  # who may read it there
    _stream: EventStream | None = None
    _carrying: asyncio.Task[None] | None = None
    is_begun: bool = False

    @property
    def _takes_events(self) -> bool:
        return EVENTS in self.accept

    # what an exchange needs of its channel

    def send(self, message: dict[str, Any]) -> None:
        """Send a notification before the answer, which then comes on the same stream."""
        if self._takes_events:
            self._open().send(message)

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Ask the client on the stream, and wait for the answer, which it posts to its session."""
        if self.session is None or not self._takes_events:
            message = "This client cannot be asked: it has no session, or takes no events"
            raise CallError("UNAVAILABLE", message, {"reason": "no_session"}, retryable=False)
        return await self.session.questions.ask(self._open().send, method, params)

    def break_silence(self) -> None:
        """Begin a stream although there is nothing to say yet; it sends heartbeats until there is."""
        if self._takes_events:
            self._open()

    def close_stream(self) -> None:
        """Close the connection, where the client can reconnect with the id of an event."""
        if self.session is not None and self.session.revision.has_priming and self._takes_events:
            stream = self._open()
            # In the next turn, so that the connection has begun, and its first event is on the way.
            asyncio.get_running_loop().call_soon(stream.close_if_resumable)

    # the answer

    async def finish(self, message: dict[str, Any], status: int = 200) -> None:
        """Send the answer: on the stream, if there is one."""
        if status == 200 and self.accept.startswith(EVENTS):  # both are always listed: the first is preferred
            self._open()
        if self._stream is None or self._carrying is None:
            body = encode(message)
            self.is_begun = True
            headers = [JSON, (b"content-length", b"%d" % len(body))]
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
            await self._send({"type": "http.response.body", "body": body})
            return
        self._stream.send(message, is_last=True)
        await self._carrying

    async def abandon(self) -> None:
        """End without an answer, because the client has cancelled its request."""
        if self._stream is not None and self._carrying is not None:
            self._stream.end()
            await self._carrying
        elif not self.is_begun:
            await respond(self._send, 202)

    def end_stream(self) -> None:
        """Close the connection that carries the stream, because its token is no longer valid."""
        if self._stream is not None:
            self._stream.close_connection()

    async def carry(self, stream: EventStream, after: int = -1) -> None:
        """Carry a stream to the client, from the event after one it has seen."""
        self.is_begun = True
        self._stream = stream
        with suppress(OSError):  # the client has gone; whether it comes back is not for us to know
            await self._send({"type": "http.response.start", "status": 200, "headers": _STREAM})
            await stream.carry(self._put, after)
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def _open(self) -> EventStream:
        if self._stream is None:
            self._stream = EventStream() if self.session is None else self.session.new_stream(self.identity)
            self._carrying = asyncio.get_running_loop().create_task(self.carry(self._stream))
        return self._stream

    async def _put(self, event: bytes) -> None:
        await self._send({"type": "http.response.body", "body": event, "more_body": True})
