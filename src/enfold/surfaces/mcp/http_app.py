"""A registry as an MCP server over HTTP: an ASGI app with one endpoint, on which clients of every revision are served."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import cached_property, partial
from typing import Any, Final

from enfold.identities.tokens import Verifier
from enfold.introspection import introduce
from enfold.log import Log
from enfold.mcp.json_rpc import HEADER_MISMATCH, INTERNAL_ERROR, INVALID_REQUEST, ProtocolError, encode, error_message
from enfold.operation import Identity, Policy
from enfold.registry import Registry
from enfold.surfaces.asgi.exchange import BODY_TIMEOUT, Presence
from enfold.surfaces.asgi.hosts import Hosts
from enfold.surfaces.asgi.messages import IDENTITY, IS_CLOSED, JSON, Receive, Scope, Send, respond
from enfold.surfaces.mcp.authorization import Authorization
from enfold.surfaces.mcp.changes import KINDS, ChangeListener
from enfold.surfaces.mcp.event_stream import event_place
from enfold.surfaces.mcp.mcp_service import MCPSettings
from enfold.surfaces.mcp.post import Headers, Post, SharedByPosts
from enfold.surfaces.mcp.public import PublicServer
from enfold.surfaces.mcp.reply import EVENTS, HTTPReply, RefusalError
from enfold.surfaces.mcp.server import MCPServer
from enfold.surfaces.mcp.sessions import HTTPSession

__all__ = ["MCPApp", "to_mcp"]

MAX_BODY: Final = 8 * 1024 * 1024

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
    """Serve a registry as an ASGI app; `settings` are the fields of `Settings`.

    With `tokens` every caller needs one, but for operations that are public; `allow_anonymous` opens what has no rules.
    `authorization_servers` are where tokens come from, `allowed_hosts` the names this server goes by (the loopback and
    its own address if none are given), `allowed_origins` whose pages may call.
    """
    served = registry if expose_errors else registry.with_policy(Policy(expose_errors=False))
    introduce(registry, {"mcp": "mcp"}, settings.get("recorder"))
    shared = SharedByPosts(MCPServer(served, MCPSettings(**settings), has_identities=tokens is not None), max_body)
    servers = tuple(authorization_servers)
    authorization = Authorization(registry, tokens, servers, allow_anonymous=allow_anonymous)
    return MCPApp(shared, authorization, Hosts(allowed_hosts, allowed_origins))


class MCPApp:
    """An MCP server over HTTP. It lives as long as the program that serves it; `stop` ends its open streams."""

    def __init__(self, shared: SharedByPosts, authorization: Authorization, hosts: Hosts) -> None:
        self._shared = shared
        self._authorization = authorization
        self._hosts = hosts
        self._observers = shared.server.registry.observers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request: every MCP message over HTTP comes this way."""
        if scope["type"] != "http":
            await self._answer_other(scope, receive, send)
            return
        lines = scope["headers"]
        headers: Headers = dict(lines)
        reply = HTTPReply(send, headers.get(b"accept", b""))
        shared, identity = self._shared, scope.get(IDENTITY)
        is_mounted = IDENTITY in scope  # then its host and origin have been looked at
        try:
            is_known = is_mounted or (b"origin" not in headers and headers.get(b"host") in self._hosts.passed)
            if not is_known or len(headers) != len(lines):
                self._check(scope, headers)
            if scope["method"] == "GET" and self._authorization.is_metadata(scope):
                await respond(send, 200, self._authorization.metadata(scope, headers), [JSON])
                return
            if self._authorization.has_door or scope.get(IS_CLOSED):
                identity = await self._authorization.identify(scope, headers)
                if identity is None and self._authorization.is_closed(scope):
                    shared = self._for_strangers(scope, headers)
            if scope["method"] != "POST":
                await self._answer(shared, scope["method"], headers, identity, receive, send)
                return
            post = Post(shared, headers, send, identity, reply, scope.get("client"))
            await post.run(Presence(receive, BODY_TIMEOUT))
        except RefusalError as refusal:
            if shared is not self._shared and refusal.status in (404, 405):
                is_told = refusal.is_told
                refusal = self._authorization.challenge(scope, headers)  # a token may find it
                refusal.is_told = is_told
            await respond(send, refusal.status, refusal.body, refusal.headers)
            if not refusal.is_told:
                code, caller = _CODES.get(refusal.status, "VALIDATION_ERROR"), None if identity is None else identity.id
                self._observers.refused("mcp", code, caller=caller)
        except BaseException as fault:  # whatever went wrong in here, the client gets an answer and no stack
            if not isinstance(fault, asyncio.CancelledError):
                _log.error("The answer failed", error=fault)
            if not reply.is_begun:  # else only the connection can tell of it
                error = ProtocolError(INTERNAL_ERROR, "The server failed to answer")
                await respond(send, 500, encode(error_message(None, error)), [JSON])
            if not isinstance(fault, Exception):
                raise

    def stop(self) -> None:
        """End every stream and session, so that the program can end."""
        for shared in self._parts():
            shared.stop()

    @property
    def sessions(self) -> int:
        """How many sessions are open."""
        return sum(len(shared.sessions) for shared in self._parts())

    def _parts(self) -> list[SharedByPosts]:
        """What is served: everything, and what is public, once somebody without a token has come."""
        return [self._shared, *([self._public] if "_public" in self.__dict__ else [])]

    @cached_property
    def _public(self) -> SharedByPosts:
        server = self._shared.server
        return SharedByPosts(PublicServer(server.registry.public(), server.settings), self._shared.max_body)

    def _for_strangers(self, scope: Scope, headers: Headers) -> SharedByPosts:
        """What callers without a token get where one is needed: what is public, if anything is."""
        if not len(self._public.server.registry):
            raise self._authorization.challenge(scope, headers)
        return self._public

    def resource_updated(self, uri: str) -> None:
        """Tell the clients that follow a resource that it has changed; any thread may."""
        for shared in self._parts():
            changes = shared.server.changes
            changes.schedule(partial(changes.resource_updated, uri))

    async def _answer_other(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The server's life, from its start to its end; a websocket is refused."""
        while scope["type"] == "lifespan":
            message = await receive()
            lifetime = self._shared.server.registry.lifetime
            if message["type"] == "lifespan.startup":
                await lifetime.start()
            else:
                self.stop()
                await lifetime.stop()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return
        await receive()
        await send({"type": "websocket.close", "code": 1008})

    async def _answer(
        self,
        shared: SharedByPosts,
        method: str,
        headers: Headers,
        identity: Identity | None,
        receive: Receive,
        send: Send,
    ) -> None:
        """Anything but a message: a stream of news, the end of a session."""
        if method == "GET":
            await self._get(shared.server, _session(shared, headers, identity), headers, receive, send)
        elif method == "DELETE":
            shared.sessions.close(_session(shared, headers, identity))
            await respond(send, 204)
        else:
            raise RefusalError(405, headers=[(b"allow", b"GET, POST, DELETE")])

    def _check(self, scope: Scope, headers: Headers) -> None:
        if len(headers) != len(scope["headers"]):
            _check_twins(scope["headers"])
        # Whoever mounts us has looked at the host and the origin.
        refused = None if IDENTITY in scope else self._hosts.refusal(scope, headers)
        if refused is not None:
            raise RefusalError(403, ProtocolError(INVALID_REQUEST, refused.sentence))

    # GET: the stream of what belongs to no request, or one that is taken up again

    async def _get(
        self, server: MCPServer, session: HTTPSession, headers: Headers, receive: Receive, send: Send
    ) -> None:
        if EVENTS not in headers.get(b"accept", b""):
            raise RefusalError(406, ProtocolError(INVALID_REQUEST, "A GET is answered with text/event-stream"))
        place = event_place(headers.get(b"last-event-id", b""))
        stream = None if place is None else session.streams.get(place[0])
        if stream is not None and stream.is_lost:  # it was too much to keep
            stream = None
        with Presence(receive, has_body=False):
            if stream is not None and place is not None:
                await HTTPReply(send).carry(stream, place[1])
            else:
                await self._tell_news(server, session, send)

    async def _tell_news(self, server: MCPServer, session: HTTPSession, send: Send) -> None:
        stream = session.new_stream()
        if session.news is not None:
            session.news.end()  # the newest connection gets the news
        session.news = stream
        changes = server.changes
        changes.schedule = asyncio.get_running_loop().call_soon_threadsafe
        stop = changes.listen(_listener(session, server))
        try:
            await HTTPReply(send).carry(stream)
        finally:
            stop()
            if session.news is stream:
                session.news = None


def _session(shared: SharedByPosts, headers: Headers, identity: Identity | None) -> HTTPSession:
    session_id = headers.get(b"mcp-session-id")
    if session_id is None:
        raise RefusalError(405, headers=[(b"allow", b"POST")])
    return shared.session(session_id, identity)


# What a refusal by HTTP means in our table.
_CODES: Final = {
    401: "ACCESS_DENIED",
    403: "ACCESS_DENIED",
    404: "OPERATION_NOT_FOUND",
    408: "TIMEOUT",
    413: "PAYLOAD_TOO_LARGE",
    429: "RESOURCE_EXHAUSTED",
    499: "ABORTED",
    500: "UNKNOWN_ERROR",
    503: "UNAVAILABLE",
    504: "TIMEOUT",
}


def _listener(session: HTTPSession, server: MCPServer) -> ChangeListener:
    return ChangeListener(
        session.tell, KINDS, session.followed, may_hear_of=lambda uri: server.may_hear_of(session.identity, uri)
    )


def _check_twins(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuse a header that comes twice and must not: who reads the first and who reads the last would disagree."""
    names = [name for name, _ in headers if name.startswith(b"mcp-") or name == b"authorization"]
    if len(set(names)) != len(names):
        told = "Header mismatch: an Mcp header, or Authorization, comes twice"
        raise RefusalError(400, ProtocolError(HEADER_MISMATCH, told))
