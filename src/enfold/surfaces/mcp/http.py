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
from enfold.operations import Policy
from enfold.runtime.registry import Registry
from enfold.surfaces.asgi import (
    BODY_TIMEOUT,
    IDENTITY,
    IS_CLOSED,
    JSON,
    Receive,
    Scope,
    Send,
    answer_other,
    with_headers,
)
from enfold.surfaces.authentication import Authentication
from enfold.surfaces.hosts import Hosts
from enfold.surfaces.introspection import introduce
from enfold.surfaces.mcp.exchange import ClientExchange
from enfold.surfaces.mcp.post import STATUSES, answer_post
from enfold.surfaces.mcp.request import EVENTS, MCPEndpoint, MCPRequest
from enfold.surfaces.mcp.server import OBSERVED, MCPServer, code_of_protocol
from enfold.surfaces.mcp.sessions import HTTPSession, Sessions
from enfold.surfaces.mcp.settings import MCPSettings
from enfold.surfaces.responses import MAX_BODY, error_headers, not_acceptable, not_allowed, status_of

_METHODS: Final = ("GET", "POST", "DELETE")

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
    registry.services.listed_tool = server.listed_tool
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
        self._endpoints = [endpoint]
        self._authentication = endpoint.authentication
        self._observers = endpoint.server.registry.services.observers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request: hosts -> authentication -> method."""
        if scope["type"] != "http":
            await answer_other(scope, receive, send, self._endpoint.server.registry.services.lifetime, self.stop)
            return
        method, identity = scope["method"], scope.get(IDENTITY)
        request = MCPRequest(
            receive,
            BODY_TIMEOUT,
            method == "POST",
            scope=scope,
            send=send,
            headers=dict(scope["headers"]),
            endpoint=self._endpoint,
            identity=identity,
        )
        try:
            needs_token = self._check_hosts(request)
            if method in ("GET", "OPTIONS") and await self._answer_anyone(request):
                return
            if identity is None and b"authorization" in request.headers:
                request.identity = await self._authentication.authenticate(scope, request.headers, receive)
            if request.identity is None and needs_token:
                request.endpoint = self._public_or_401()
            match method:
                case "POST":  # carries a message
                    await answer_post(request)
                case "GET":  # opens a stream, or resumes one
                    await _carry_stream(request)
                case "DELETE":
                    request.endpoint.sessions.close(_session(request))
                    await request.answer(204)
                case _:
                    await self._refuse(not_allowed(method, _METHODS), request)
        except (ProtocolError, CallError) as refused:
            await self._refuse(refused, request)
        except BaseException as fault:
            await _answer_fault(fault, request)
            if not isinstance(fault, Exception):
                raise

    def _check_hosts(self, request: MCPRequest) -> bool:
        """Refuse another host, a page of another origin or site, and headers that come twice.

        Returns whether callers without a token may use public operations only.
        """
        scope, headers, authentication = request.scope, request.headers, self._authentication
        if len(headers) != len(scope["headers"]):
            _check_repeated_headers(scope["headers"])
        is_mounted = IDENTITY in scope  # an app above us has checked host, origin and token
        if not is_mounted and (cors := authentication.hosts.check(scope, headers)):
            request.send = with_headers(request.send, cors)
        needs_token = authentication.is_closed or scope.get(IS_CLOSED, False)
        is_allowed = needs_token or (is_mounted and b"origin" in headers)
        if b"sec-fetch-site" in headers and not is_allowed:
            authentication.hosts.check_site(headers)
        return needs_token

    async def _answer_anyone(self, request: MCPRequest) -> bool:
        """Answer what needs no token: a preflight of a browser, and who issues tokens."""
        authentication, scope, headers = self._authentication, request.scope, request.headers
        if scope["method"] == "OPTIONS":
            preflight = authentication.hosts.preflight_headers(headers, _METHODS)
            if preflight:
                await request.answer(204, headers=preflight)
            return bool(preflight)
        if authentication.authenticator is None or WELL_KNOWN not in scope["path"]:
            return False
        resource, name = scope["path"].partition(WELL_KNOWN)[2], self._endpoint.server.info["name"]
        await request.answer(200, authentication.metadata(scope, headers, resource, name), [JSON])
        return True

    def stop(self) -> None:
        """End every stream and session, so that the program can shut down."""
        for endpoint in self._endpoints:
            endpoint.stop()

    @property
    def sessions(self) -> int:
        """The number of open sessions."""
        return sum(len(endpoint.sessions) for endpoint in self._endpoints)

    @cached_property
    def _public(self) -> MCPEndpoint:
        """The endpoint for callers without a required token."""
        server = self._endpoint.server
        public = PublicServer(server.registry.public(), server.settings)
        self._endpoints.append(endpoint := _endpoint(public, self._authentication, self._endpoint.max_body))
        return endpoint

    def _public_or_401(self) -> MCPEndpoint:
        """Return the public operations for a caller without a required token; raise 401 if there are none."""
        if not len(self._public.server.registry):
            raise no_identity()
        return self._public

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
        await request.answer(status, encode(error_response(told.request_id, told)), challenged)
        if not is_observed:
            self._observers.refused("mcp", code, caller=None if identity is None else identity.id)

    def resource_updated(self, uri: str) -> None:
        """Notify clients that follow a resource of a change. Thread-safe."""
        for endpoint in self._endpoints:
            changes = endpoint.server.changes
            changes.schedule(partial(changes.resource_updated, uri))


async def _answer_fault(fault: BaseException, request: MCPRequest) -> None:
    """Whatever went wrong in here, the client gets an answer and no stack."""
    if not isinstance(fault, asyncio.CancelledError):
        _log.error("Failed to respond", error=fault)
    if not request.is_started:  # else only the connection can report it
        error = ProtocolError(INTERNAL_ERROR, "The server failed to respond")
        await request.answer(500, encode(error_response(None, error)), [JSON])


# --- GET: the stream of notifications that belong to no request, or one that is resumed -------------------------------


async def _carry_stream(request: MCPRequest) -> None:
    session = _session(request)
    if EVENTS not in request.headers.get(b"accept", b""):
        raise not_acceptable("text/event-stream")
    with request, request.while_admitted(request.end_stream):
        stream, after = session.interrupted_stream(request.headers.get(b"last-event-id", b""), request.identity)
        if stream is None:
            await _stream_notifications(request, session)
        else:
            await request.carry(stream, after)


async def _stream_notifications(request: MCPRequest, session: HTTPSession) -> None:
    server, identity, stream = request.endpoint.server, request.identity, session.new_stream(request.identity)
    if session.notifications is not None:
        session.notifications.end()  # the newest connection gets the notifications
    session.notifications = stream
    server.changes.schedule = asyncio.get_running_loop().call_soon_threadsafe
    stop = server.notify_of_changes(session, identity, session.notify)
    try:
        await request.carry(stream)
    finally:
        stop()
        if session.notifications is stream:
            session.notifications = None


def _session(request: MCPRequest) -> HTTPSession:
    session = request.caller()
    if not isinstance(session, HTTPSession):
        raise not_allowed(request.scope["method"], ("POST",))
    return session


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
        answer = await super().respond(exchange)
        error = answer.error if isinstance(answer, RPCErrorResponse) else None
        if error is not None and error.code in _UNKNOWN and ERROR_KEY not in (error.data or {}):
            raise NotPublicError(is_observed=exchange.method in OBSERVED)
        return answer  # an operation's failure keeps its error
