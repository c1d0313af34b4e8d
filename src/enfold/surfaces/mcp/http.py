"""A registry as an MCP server over HTTP: an ASGI app with one endpoint, on which clients of every revision are served."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import cached_property, partial
from typing import Any, Final

from enfold.auth.challenges import WELL_KNOWN, no_identity
from enfold.auth.tokens import Verifier
from enfold.errors import ERROR_KEY, CallError
from enfold.mcp.json_rpc import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    RESOURCE_NOT_FOUND,
    AnyResponse,
    ProtocolError,
    RPCErrorResponse,
    encode,
    error_response,
)
from enfold.observability.log import Log
from enfold.operations import Identity, Policy
from enfold.operations.access import grants_all_of
from enfold.runtime.registry import Registry
from enfold.surfaces.asgi import (
    BODY_TIMEOUT,
    IDENTITY,
    IS_CLOSED,
    JSON,
    Headers,
    Receive,
    RequestWatcher,
    Scope,
    Send,
    answer_other,
    respond,
)
from enfold.surfaces.authentication import Authentication
from enfold.surfaces.hosts import Hosts
from enfold.surfaces.introspection import introduce
from enfold.surfaces.mcp.exchange import ClientExchange
from enfold.surfaces.mcp.post import EVENTS, STATUSES, HTTPReply, MCPEndpoint, MCPRequest, Post
from enfold.surfaces.mcp.server import MCPServer, code_of_protocol
from enfold.surfaces.mcp.sessions import HTTPSession, Sessions, event_place
from enfold.surfaces.mcp.settings import MCPSettings
from enfold.surfaces.responses import MAX_BODY, error_headers, not_acceptable, not_allowed, status_of

_log: Final = Log("enfold.mcp")


def to_mcp(
    registry: Registry,
    *,
    tokens: Verifier | None = None,
    allow_anonymous: bool = False,
    authorization_servers: Iterable[str] = (),
    allowed_hosts: Iterable[str] = (),
    allowed_origins: Iterable[str] = (),
    max_body: int = MAX_BODY,
    expose_errors: bool = True,
    **settings: Any,
) -> MCPApp:
    """Serve a registry as an ASGI app; `settings` are the fields of `MCPSettings`.

    With `tokens` every caller needs a token, except for public operations; `allow_anonymous` opens operations without access rules.
    `authorization_servers` issue the tokens, `allowed_hosts` are the host names of this server (by default the loopback and
    its own address), and pages of `allowed_origins` may call it.
    """
    served = registry if expose_errors else registry.with_policy(Policy(expose_errors=False))
    if settings.get("tasks") is not None:
        settings["tasks"] = settings["tasks"].with_registry(served)
    introduce(registry, {"mcp": "mcp"}, settings.get("recorder"))
    server = MCPServer(served, MCPSettings(**settings), has_identities=tokens is not None)
    hosts = Hosts(allowed_hosts, allowed_origins)
    authentication = Authentication(
        registry, tokens, hosts, allow_anonymous=allow_anonymous, authorization_servers=authorization_servers
    )
    return MCPApp(_endpoint(server, authentication, max_body))


def _endpoint(server: MCPServer, authentication: Authentication, max_body: int) -> MCPEndpoint:
    sessions = Sessions(server.settings.limits, server.settings.session_prefix)
    return MCPEndpoint(server, authentication, max_body, sessions)


class MCPApp:
    """An MCP server over HTTP. It needs no lifespan; `stop` ends its open streams."""

    def __init__(self, endpoint: MCPEndpoint) -> None:
        self._endpoint = endpoint
        self._authentication = endpoint.authentication
        self._hosts = endpoint.authentication.hosts
        self._authenticator = endpoint.authentication.authenticator
        self._observers = endpoint.server.registry.observers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request: hosts -> authentication -> method."""
        if scope["type"] != "http":
            await answer_other(scope, receive, send, self._endpoint.server.registry.lifetime, self.stop)
            return
        headers: Headers = dict(scope["headers"])
        reply = HTTPReply(send, headers.get(b"accept", b""))
        request = MCPRequest(scope, receive, send, headers, self._endpoint, scope.get(IDENTITY))
        try:
            self._check_hosts(request)
            if self._authenticator is not None or scope.get(IS_CLOSED):
                if scope["method"] == "GET" and WELL_KNOWN in scope["path"] and self._authenticator is not None:
                    await self._send_resource_metadata(request)
                    return
                await self._authenticate(request)
            await self._route(request, reply)
        except (ProtocolError, CallError) as refused:
            await self._refuse(refused, request)
        except BaseException as fault:  # whatever went wrong in here, the client gets an answer and no stack
            if not isinstance(fault, asyncio.CancelledError):
                _log.error("Failed to respond", error=fault)
            if not reply.is_begun:  # else only the connection can report it
                error = ProtocolError(INTERNAL_ERROR, "The server failed to respond")
                await respond(send, 500, encode(error_response(None, error)), [JSON])
            if not isinstance(fault, Exception):
                raise

    def _check_hosts(self, request: MCPRequest) -> None:
        """Refuse another host, a page of another origin or site, and headers that come twice."""
        if len(request.headers) != len(request.scope["headers"]):
            _check_repeated_headers(request.scope["headers"])
        is_mounted = IDENTITY in request.scope  # an app above us has checked host, origin and token
        if not is_mounted:
            self._hosts.check(request.scope, request.headers)
        is_allowed = is_mounted and b"origin" in request.headers
        if not is_allowed and not self._needs_token(request):
            self._hosts.check_site(request.headers)

    def _needs_token(self, request: MCPRequest) -> bool:
        """Whether callers without a token may use public operations only."""
        return self._authentication.is_closed or bool(request.scope.get(IS_CLOSED))

    async def _authenticate(self, request: MCPRequest) -> None:
        """Set the identity of the caller; one without a token where one is needed gets the public operations."""
        if request.identity is None:
            request.identity = await self._authentication.authenticate(request.scope, request.headers, request.receive)
        if request.identity is None and self._needs_token(request):
            request.endpoint = self._public_or_401()

    async def _route(self, request: MCPRequest, reply: HTTPReply) -> None:
        """Dispatch by method: POST carries a message, GET opens or resumes a stream, DELETE ends a session."""
        match request.scope["method"]:
            case "POST":
                await Post(request, reply).run(RequestWatcher(request.receive, BODY_TIMEOUT))
            case "GET":
                await self._carry_stream(request)
            case "DELETE":
                request.endpoint.sessions.close(_session(request))
                await respond(request.send, 204)
            case method:
                raise not_allowed(method, ("GET", "POST", "DELETE"))

    def stop(self) -> None:
        """End every stream and session, so that the program can shut down."""
        for endpoint in self._endpoints():
            endpoint.stop()

    @property
    def sessions(self) -> int:
        """The number of open sessions."""
        return sum(len(endpoint.sessions) for endpoint in self._endpoints())

    def _endpoints(self) -> list[MCPEndpoint]:
        """Return the endpoints for callers with and without a token; the latter is created on first use."""
        return [self._endpoint, *([self._public] if "_public" in self.__dict__ else [])]

    @cached_property
    def _public(self) -> MCPEndpoint:
        server = self._endpoint.server
        public = PublicServer(server.registry.public(), server.settings)
        return _endpoint(public, self._authentication, self._endpoint.max_body)

    def _public_or_401(self) -> MCPEndpoint:
        """Return the public operations for a caller without a required token; raise 401 if there are none."""
        if not len(self._public.server.registry):
            raise no_identity()
        return self._public

    async def _send_resource_metadata(self, request: MCPRequest) -> None:
        resource, name = request.scope["path"].partition(WELL_KNOWN)[2], self._endpoint.server.info["name"]
        document = self._authentication.metadata(request.scope, request.headers, resource, name)
        await respond(request.send, 200, document, [JSON])

    async def _refuse(self, error: ProtocolError | CallError, request: MCPRequest) -> None:
        """Answer a rejected request with its HTTP status, and report it to the observers once."""
        is_observed = isinstance(error, NotPublicError) and error.is_observed
        identity = request.identity
        if isinstance(error, ProtocolError):
            status = STATUSES.get(error.code, 400)
        else:
            status = status_of(error, None, has_identity=identity is not None)
        if request.endpoint is not self._endpoint and status in (404, 405):  # a token may find it
            error, status = no_identity(), 401
        if isinstance(error, ProtocolError):
            told, code, own = error, code_of_protocol(error), [JSON]
        else:
            told, code = ProtocolError(INVALID_REQUEST, error.message), error.code
            own = [JSON, *error_headers(error, status)]
        path = request.scope["path"]
        challenged = self._authentication.with_challenge(own, request.scope, request.headers, path)
        body = encode(error_response(told.request_id, told))
        await respond(request.send, status, body, challenged, is_head=request.scope["method"] == "HEAD")
        if not is_observed:
            self._observers.refused("mcp", code, caller=None if identity is None else identity.id)

    def resource_updated(self, uri: str) -> None:
        """Notify clients that follow a resource of a change. Thread-safe."""
        for endpoint in self._endpoints():
            changes = endpoint.server.changes
            changes.schedule(partial(changes.resource_updated, uri))

    # GET: the stream of notifications that belong to no request, or one that is resumed

    async def _carry_stream(self, request: MCPRequest) -> None:
        session, reply, identity = _session(request), HTTPReply(request.send), request.identity
        if EVENTS not in request.headers.get(b"accept", b""):
            raise not_acceptable("text/event-stream")
        with RequestWatcher(request.receive, has_body=False), request.while_admitted(reply.end_stream):
            place = event_place(request.headers.get(b"last-event-id", b""))
            stream = None if place is None else session.streams.get(place[0])
            asked = None if stream is None else stream.identity
            allowed_more = identity is not None and asked is not None and not grants_all_of(identity, asked)
            if stream is not None and (stream.is_dropped or allowed_more):
                stream = None  # it was dropped, or holds the answer to a token that allowed more
            if stream is not None and place is not None:
                await reply.carry(stream, place[1])
            else:
                await self._stream_notifications(request.endpoint.server, session, identity, reply)

    async def _stream_notifications(
        self, server: MCPServer, session: HTTPSession, identity: Identity | None, reply: HTTPReply
    ) -> None:
        stream = session.new_stream(identity)
        if session.notifications is not None:
            session.notifications.end()  # the newest connection gets the notifications
        session.notifications = stream
        server.changes.schedule = asyncio.get_running_loop().call_soon_threadsafe
        stop = server.notify_of_changes(session, identity, session.notify)
        try:
            await reply.carry(stream)
        finally:
            stop()
            if session.notifications is stream:
                session.notifications = None


def _session(request: MCPRequest) -> HTTPSession:
    session_id = request.headers.get(b"mcp-session-id")
    if session_id is None:
        raise not_allowed(request.scope["method"], ("POST",))
    return request.endpoint.sessions.find(session_id, request.identity)


def _check_repeated_headers(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuse a repeated header that must be unique: readers of the first and of the last would disagree."""
    names = [name for name, _ in headers if name.startswith(b"mcp-") or name == b"authorization"]
    if len(set(names)) != len(names):
        raise ProtocolError(HEADER_MISMATCH, "Header mismatch: an Mcp header, or Authorization, is repeated")


# --- callers without a token, where one is needed -----------------------------------------------------------------

_UNKNOWN: Final = (INVALID_PARAMS, METHOD_NOT_FOUND, RESOURCE_NOT_FOUND)


class NotPublicError(CallError):
    """What a caller without a token asked for is not public; `is_observed`: observers have been told of it already."""

    def __init__(self, *, is_observed: bool) -> None:
        super().__init__("OPERATION_NOT_FOUND", "Not found, or a bearer token is required")
        self.is_observed = is_observed


class PublicServer(MCPServer):
    """A server of public operations: unknown names may exist for callers with a token."""

    async def respond(self, exchange: ClientExchange) -> AnyResponse:
        return _unless_unknown(await super().respond(exchange), is_observed=not self.is_quick(exchange.method))

    def respond_now(self, exchange: ClientExchange) -> AnyResponse:
        return _unless_unknown(super().respond_now(exchange))


def _unless_unknown(answer: AnyResponse, *, is_observed: bool = False) -> AnyResponse:
    """Return the response, unless it says that something is unknown; an operation's failure keeps its error."""
    if (
        isinstance(answer, RPCErrorResponse)
        and answer.error.code in _UNKNOWN
        and ERROR_KEY not in (answer.error.data or {})
    ):
        raise NotPublicError(is_observed=is_observed)
    return answer
