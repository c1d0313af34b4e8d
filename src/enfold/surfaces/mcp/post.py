"""One POST of a client: its message is read, and answered by the rules of its revision."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import UNSET

from enfold.auth.challenges import refused_token
from enfold.auth.tokens import address_of
from enfold.errors import CallError
from enfold.mcp.headers import check_headers
from enfold.mcp.json_rpc import (
    CAPABILITIES_KEY,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    UNSUPPORTED_VERSION,
    VERSION_KEY,
    AnyResponse,
    OutgoingMessage,
    ProtocolError,
    RequestId,
    RPCErrorResponse,
    RPCMessage,
    encode,
    error_response,
    parse,
    parse_batch,
)
from enfold.mcp.messages import Cancelled, read_loosely
from enfold.mcp.revisions import HANDSHAKE, UNSAID, find_revision
from enfold.operations import Identity
from enfold.surfaces.asgi import (
    IDENTITY,
    JSON,
    VERIFIER,
    Header,
    Headers,
    Receive,
    RequestWatcher,
    Scope,
    Send,
    late_body,
    respond,
)
from enfold.surfaces.authentication import Authentication
from enfold.surfaces.limits import Limits
from enfold.surfaces.mcp.exchange import Caller, ClientExchange, read_caller
from enfold.surfaces.mcp.results import protocol_error
from enfold.surfaces.mcp.server import MCPServer
from enfold.surfaces.mcp.sessions import EventStream, HTTPSession, Sessions
from enfold.surfaces.request import is_json
from enfold.surfaces.responses import check_length, not_acceptable, unsupported_body

_IN_SESSIONS: Final = frozenset(revision.name.encode() for revision in HANDSHAKE)

# The HTTP status of each error of the protocol.
STATUSES: Final = {
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    METHOD_NOT_FOUND: 404,
    HEADER_MISMATCH: 400,
    MISSING_CAPABILITY: 400,
    UNSUPPORTED_VERSION: 400,
}


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


class MCPRequest(msgspec.Struct, eq=False):
    """One request to the endpoint, who sends it, and which operations they may see."""

    scope: Scope
    receive: Receive
    send: Send
    headers: Headers
    endpoint: MCPEndpoint
    identity: Identity | None

    def while_admitted(self, refuse: Callable[[], None]) -> AbstractContextManager[None]:
        """Call `refuse` if the caller's token becomes invalid while a stream is open."""
        is_from_above = self.scope.get(IDENTITY) is not None  # the app that mounts us has checked the token
        verifier = self.scope.get(VERIFIER) if is_from_above else None
        return self.endpoint.authentication.while_admitted(self.headers, self.identity, refuse, verifier)


class Post(msgspec.Struct, eq=False):
    """One request that carries a message, and how it is answered."""

    _request: MCPRequest
    _reply: HTTPReply
    _request_id: RequestId | None = None
    _meta: dict[str, Any] = {}
    _size: int = 0  # of the body

    async def run(self, watcher: RequestWatcher) -> None:
        """Read the message, and answer it unless its client cancels it or disconnects."""
        headers, max_body = self._request.headers, self._request.endpoint.max_body
        _check_types(headers.get(b"content-type", b""), headers.get(b"accept", b"*/*"))
        check_length(headers, max_body)
        watcher.break_silence = self._reply.break_silence
        watcher.begin()
        try:
            body = await watcher.body(max_body)
            self._size = len(body)
            if body.startswith(b"["):
                await self._handle_batch(body)
                return
            message = parse(body)
            self._meta = message.meta
            if VERSION_KEY in self._meta or self._is_stateless(message):
                await self._handle_stateless(message)
            else:
                await self._handle_in_session(message, watcher)
        except asyncio.CancelledError:
            await self._end_unanswered(watcher)
        finally:
            watcher.end()

    async def _end_unanswered(self, watcher: RequestWatcher) -> None:
        """End a cancelled request without an answer; a cancellation that came from elsewhere is raised again."""
        ended = watcher.end()
        if ended is None:
            raise asyncio.CancelledError
        if ended == "late":
            raise late_body()
        session = self._reply.session
        if session is not None and session.is_over:
            message = "The session was closed before the response: initialize again"
            closed = protocol_error(CallError("ABORTED", message, {"reason": "session"}))
            await self._reply.finish(error_response(self._request_id, closed))
        else:
            await self._reply.abandon()

    def _is_stateless(self, message: RPCMessage) -> bool:
        """Whether a message without a version in its `_meta` belongs to a revision without a handshake."""
        if message.method in ("server/discover", "subscriptions/listen"):
            return True
        said = self._request.headers.get(b"mcp-protocol-version")
        if said is None or message.method == "initialize":
            return False
        return said not in _IN_SESSIONS

    def _exchange(self, message: RPCMessage, caller: Caller) -> ClientExchange:
        request = self._request
        return ClientExchange(
            message.request_id,
            str(message.method),
            message.params,
            self._meta,
            caller,
            request.identity,
            self._reply,
            request.endpoint.server.changes,
            request.headers,
            size=self._size,
        )

    # without a handshake

    async def _handle_stateless(self, message: RPCMessage) -> None:
        """Handle a message that carries its client's version and capabilities."""
        if message.method is UNSET or message.id is UNSET:
            # A client cancels by disconnecting: there is no notification we would act on, and no answer we wait for.
            await respond(self._request.send, 202)
            return
        try:
            if VERSION_KEY in self._meta and CAPABILITIES_KEY in self._meta:
                check_headers(self._request.headers, message, self._meta[VERSION_KEY])
            exchange = self._exchange(message, read_caller(self._meta, self._request.endpoint.server.text_clients))
            if message.method == "subscriptions/listen":
                await self._listen(exchange)
                return
        except ProtocolError as error:
            error.request_id = message.id
            raise
        answer = await self._request.endpoint.server.respond(exchange)
        status = STATUSES.get(answer.error.code, 200) if isinstance(answer, RPCErrorResponse) else 200
        await self._reply.finish(answer, status)

    async def _listen(self, exchange: ClientExchange) -> None:
        """Send notifications of changes until the client disconnects, or the server stops."""
        stream, listening = EventStream(), self._request.endpoint.listening
        self._request.endpoint.server.changes.schedule = asyncio.get_running_loop().call_soon_threadsafe
        stop = await self._request.endpoint.server.subscribe(exchange, stream.send)
        listening[stream] = self._request.endpoint.server.subscription_end(exchange)
        try:
            refusal = error_response(exchange.id, protocol_error(refused_token()))
            with self._request.while_admitted(lambda: stream.send(refusal, is_last=True)):
                await self._reply.carry(stream)
        finally:
            stop()
            del listening[stream]

    # with a handshake

    async def _initialize(self, message: RPCMessage) -> None:
        session = self._request.endpoint.sessions.open(
            self._request.identity, address_of(self._request.scope.get("client"))
        )
        answer = self._request.endpoint.server.respond_now(self._exchange(message, session))
        await respond(self._request.send, 200, encode(answer), [JSON, (b"mcp-session-id", session.id.encode())])

    async def _handle_in_session(self, message: RPCMessage, watcher: RequestWatcher) -> None:
        if message.method == "initialize" and message.is_request:
            await self._initialize(message)
            return
        session, caller = self._session()
        if not message.is_request:
            _handle_notification(session, message)
            await respond(self._request.send, 202)
        elif session is None:
            await self._reply.finish(await self._request.endpoint.server.respond(self._exchange(message, caller)))
        else:
            # The client may reconnect for its answer: to disconnect is not to cancel.
            watcher.outlives_client = True
            self._reply.session, self._reply.identity = session, self._request.identity
            self._request_id = request_id = message.request_id
            session.running[request_id] = watcher
            try:
                await self._reply.finish(await self._request.endpoint.server.respond(self._exchange(message, session)))
            finally:
                session.running.pop(request_id, None)

    async def _handle_batch(self, body: bytes | bytearray) -> None:
        """Handle a batch, which only the oldest revisions allow, and respond with one array."""
        session, caller = self._session()
        if not caller.revision.has_batches:
            raise ProtocolError(INVALID_REQUEST, "This revision does not support batches: send one message per request")
        answers: list[bytes] = []
        size, limits = 0, self._request.endpoint.server.settings.limits
        for message in parse_batch(body, limits.batch_entries):
            self._meta = message.meta
            if not message.is_request:
                _handle_notification(session, message)
            else:
                is_within = size <= limits.batch_bytes
                exchange = self._exchange(message, caller)
                answer = (
                    await self._request.endpoint.server.respond(exchange) if is_within else _not_run(exchange, limits)
                )
                await asyncio.sleep(0)  # a long batch does not block others
                answers.append(encode(answer))
                size += len(answers[-1])
        await (
            respond(self._request.send, 200, b"[%b]" % b",".join(answers), [JSON])
            if answers
            else respond(self._request.send, 202)
        )

    def _session(self) -> tuple[HTTPSession | None, Caller]:
        """Return the session of a request; without one, a caller with only a revision."""
        session_id = self._request.headers.get(b"mcp-session-id")
        if session_id is None:
            said = self._request.headers.get(b"mcp-protocol-version", b"").decode("latin-1")
            return None, Caller(find_revision(said) or UNSAID)
        session = self._request.endpoint.sessions.find(session_id, self._request.identity)
        return session, session


def _not_run(exchange: ClientExchange, limits: Limits) -> AnyResponse:
    """Return the response for a request of a batch that was not run because earlier responses are too long."""
    message = f"The responses to a batch exceed {limits.batch_bytes} bytes: send this request separately"
    error = CallError("PAYLOAD_TOO_LARGE", message, {"reason": "batch_bytes"})
    return error_response(exchange.id, protocol_error(error))


@lru_cache(maxsize=64)  # clients send the same few values with every request
def _check_types(content_type: bytes, accept: bytes) -> None:
    """Reject a body of another type, or a client that accepts none of our responses."""
    if not is_json(content_type):
        raise unsupported_body("The body must be application/json")
    if not any(part in accept for part in (b"application/json", EVENTS, b"*/*", b"application/*")):
        raise not_acceptable("application/json or text/event-stream")


def _handle_notification(session: HTTPSession | None, message: RPCMessage) -> None:
    """Handle a notification of the client, or its answer to a question."""
    if session is None:
        return
    if message.method is UNSET:
        session.questions.resolve(message)
    elif message.method == "notifications/cancelled" and (cancelled := read_loosely(message.params, Cancelled)):
        session.cancel(cancelled.request_id)


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

    def send(self, message: OutgoingMessage) -> None:
        """Send a notification before the answer, which then comes on the same stream."""
        if self._takes_events:
            self._open().send(message)

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Ask the client on the stream, and wait for the answer that it posts to its session."""
        if self.session is None or not self._takes_events:
            message = "This client cannot be asked: it has no session, or does not accept events"
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

    async def finish(self, message: OutgoingMessage, status: int = 200) -> None:
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
