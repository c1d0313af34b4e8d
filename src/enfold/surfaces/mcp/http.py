"""A registry as an MCP server over HTTP: an ASGI app with one endpoint, on which clients of every revision are served."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from enfold.identities.door import address_of
from enfold.log import Log
from enfold.mcp.messages import HEADER_MISMATCH, INTERNAL_ERROR, INVALID_REQUEST, ProtocolError, encode, error_message
from enfold.operation import Identity, Policy
from enfold.registry import Registry
from enfold.surfaces.asgi.exchange import BODY_TIMEOUT, Presence
from enfold.surfaces.asgi.hosts import Hosts
from enfold.surfaces.asgi.messages import IDENTITY, JSON, Receive, Scope, Send, respond
from enfold.surfaces.mcp.authorization import Authorization
from enfold.surfaces.mcp.changes import KINDS, Listener
from enfold.surfaces.mcp.events import event_place
from enfold.surfaces.mcp.post import Headers, Post, Shared
from enfold.surfaces.mcp.reply import EVENTS, RefusalError, Reply
from enfold.surfaces.mcp.server import Server
from enfold.surfaces.mcp.service import Settings
from enfold.surfaces.mcp.sessions import HTTPSession
from enfold.tokens import Verifier

__all__ = ["MCPApp", "to_mcp"]

MAX_BODY: Final = 8 * 1024 * 1024

_log: Final = Log("enfold.mcp")


def to_mcp(
    registry: Registry,
    *,
    tokens: Verifier | None = None,
    authorization_servers: Iterable[str] = (),
    allowed_hosts: Iterable[str] = (),
    allowed_origins: Iterable[str] = (),
    max_body: int = MAX_BODY,
    expose_errors: bool = True,
    **settings: Any,
) -> MCPApp:
    """Serve a registry as an ASGI app; `settings` are the fields of `Settings`.

    With `tokens` every caller needs one; `authorization_servers` are where he may get it. `allowed_hosts` are the names
    this server goes by (the loopback and its own address if none are given), `allowed_origins` whose pages may call.
    """
    served = registry if expose_errors else registry.with_policy(Policy(expose_errors=False))
    shared = Shared(Server(served, Settings(**settings)), max_body)
    authorization = Authorization(registry, tokens, tuple(authorization_servers))
    return MCPApp(shared, authorization, Hosts(allowed_hosts, allowed_origins))


class MCPApp:
    """An MCP server over HTTP. It lives as long as the program that serves it; `stop` ends its open streams."""

    def __init__(self, shared: Shared, authorization: Authorization, hosts: Hosts) -> None:
        self._shared = shared
        self._authorization = authorization
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request: every MCP message over HTTP comes this way."""
        if scope["type"] != "http":
            await self._answer_other(scope, receive, send)
            return
        lines = scope["headers"]
        headers: Headers = dict(lines)
        reply = Reply(send, headers.get(b"accept", b""))
        is_mounted = IDENTITY in scope  # then its host and origin have been looked at
        try:
            is_known = is_mounted or (b"origin" not in headers and headers.get(b"host") in self._hosts.passed)
            if not is_known or len(headers) != len(lines):
                self._check(scope, headers)
            if scope["method"] != "POST":
                await self._answer(scope, headers, receive, send)
                return
            identity = scope.get(IDENTITY)
            if self._authorization.is_needed:
                identity = await self._authorization.identify(scope, headers)
            post = Post(self._shared, headers, send, identity, reply, address_of(scope))
            await post.run(Presence(receive, BODY_TIMEOUT))
        except RefusalError as refusal:
            await respond(send, refusal.status, refusal.body, refusal.headers)
        except Exception as fault:  # noqa: BLE001  # whatever went wrong in here, the client gets an answer and no stack
            _log.error("The answer failed", error=fault)
            if reply.is_begun:  # only the connection can tell of it
                return
            error = ProtocolError(INTERNAL_ERROR, "The server failed to answer")
            await respond(send, 500, encode(error_message(None, error)), [JSON])

    def stop(self) -> None:
        """End every stream and session, so that the program can end."""
        self._shared.stop()

    def resource_updated(self, uri: str) -> None:
        """Tell the clients that follow a resource that it has changed; any thread may."""
        server = self._shared.server
        changes = server.changes
        changes.schedule(lambda: changes.resource_updated(uri))

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

    async def _answer(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        """Anything but a message: metadata, a stream of news, the end of a session."""
        method = scope["method"]
        if method == "GET" and self._authorization.is_metadata(scope):
            await respond(send, 200, self._authorization.metadata(scope, headers), [JSON])
            return
        identity = await self._authorization.identify(scope, headers)
        if method == "GET":
            await self._get(headers, receive, send, identity)
        elif method == "DELETE":
            self._shared.sessions.close(self._session(headers, identity))
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

    async def _get(self, headers: Headers, receive: Receive, send: Send, identity: Identity | None) -> None:
        session = self._session(headers, identity)
        if EVENTS not in headers.get(b"accept", b""):
            raise RefusalError(406, ProtocolError(INVALID_REQUEST, "A GET is answered with text/event-stream"))
        place = event_place(headers.get(b"last-event-id", b""))
        stream = None if place is None else session.streams.get(place[0])
        if stream is not None and stream.is_lost:  # it was too much to keep
            stream = None
        with Presence(receive, has_body=False):
            if stream is not None and place is not None:
                await Reply(send).carry(stream, place[1])
            else:
                await self._tell_news(session, send)

    def _session(self, headers: Headers, identity: Identity | None) -> HTTPSession:
        session_id = headers.get(b"mcp-session-id")
        if session_id is None:
            raise RefusalError(405, headers=[(b"allow", b"POST")])
        return self._shared.session(session_id, identity)

    async def _tell_news(self, session: HTTPSession, send: Send) -> None:
        stream = session.new_stream()
        if session.news is not None:
            session.news.end()  # the newest connection gets the news
        session.news = stream
        server = self._shared.server
        changes = server.changes
        changes.schedule = asyncio.get_running_loop().call_soon_threadsafe
        stop = changes.listen(_listener(session, server))
        try:
            await Reply(send).carry(stream)
        finally:
            stop()
            if session.news is stream:
                session.news = None


def _listener(session: HTTPSession, server: Server) -> Listener:
    return Listener(
        session.tell, KINDS, session.followed, may_hear_of=lambda uri: server.may_hear_of(session.identity, uri)
    )


def _check_twins(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuse a header that comes twice and must not: who reads the first and who reads the last would disagree."""
    names = [name for name, _ in headers if name.startswith(b"mcp-") or name == b"authorization"]
    if len(set(names)) != len(names):
        told = "Header mismatch: an Mcp header, or Authorization, comes twice"
        raise RefusalError(400, ProtocolError(HEADER_MISMATCH, told))
