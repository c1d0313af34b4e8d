"""Serves a hub: by a server of its own, or as an ASGI app inside another. Spokes connect by `WebSocketTransport`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self

from enfold.calls.protocol.transport import OverloadedError
from enfold.calls.transports.frames import SUBPROTOCOL
from enfold.calls.transports.hub import Hub
from enfold.calls.transports.line import LINE_SETTINGS, MAX_UNSENT, Outbox, listen, require_websockets, server_line
from enfold.calls.transports.memory_bus import MAX_PAYLOAD
from enfold.calls.transports.spoke import BOOT_HEADER
from enfold.errors import CallError
from enfold.identities.loopback import is_loopback
from enfold.identities.revocation import while_admitted
from enfold.identities.tokens import Authenticator, Client, Verifier, bearer_token, verified
from enfold.operation import Identity

if TYPE_CHECKING:
    import ssl

    from websockets.asyncio.server import Server, ServerConnection
    from websockets.http11 import Request, Response

HEADROOM: Final = 64 * 1024  # for a frame's header
RECHECK: Final = 30.0
EXPIRED: Final = 4401
FULL: Final = 4429

Scope = MutableMapping[str, Any]
ASGIReceive = Callable[[], Awaitable[MutableMapping[str, Any]]]
ASGISend = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class WebSocketHub:
    """A hub that is served: by a server of its own, or as an ASGI app mounted in another.

    `transport` is the hub's own place on the bus: serve a registry there, and import from there what spokes offer.
    """

    def __init__(
        self,
        tokens: Verifier | None = None,
        *,
        identity: Identity | None = None,
        max_payload: int = MAX_PAYLOAD,
        allowed_origins: Iterable[str] = (),
        recheck: float = RECHECK,
        connections: int = 1_000,
        per_token: int = 64,
    ) -> None:
        """`tokens` say who a spoke is; `identity` is what the hub itself calls spokes as.

        It takes so many `connections`, of which each identity may have `per_token`.
        """
        self.hub = Hub(identity, max_payload=max_payload, is_open=tokens is None)
        self.transport = self.hub.transport
        self.port = 0
        self._tokens = tokens
        self._authenticator = None if tokens is None else Authenticator(tokens)
        self._origins = frozenset(allowed_origins)
        self._recheck = recheck
        self._connections = connections
        self._per_token = per_token
        self._server: Server | None = None

    async def listen(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        tls: ssl.SSLContext | None = None,
        insecure: bool = False,
    ) -> None:
        """Listen on a port of its own; beyond this machine only with tokens and TLS, unless `insecure`."""
        if not insecure and not is_loopback(host) and (self._tokens is None or tls is None):
            message = f"A hub on {host} needs tokens and TLS: give it both, or say insecure=True"
            raise CallError("ACCESS_DENIED", message, {"reason": "insecure"})
        require_websockets()
        from websockets.asyncio.server import serve

        self._server = await serve(
            self._serve,
            host,
            port,
            ssl=tls,
            create_connection=server_line(),
            process_request=self._admit,
            subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]  # a NewType of str
            max_size=self.hub.max_payload + HEADROOM,
            server_header=None,
            **LINE_SETTINGS,
        )
        self.port = next(iter(self._server.sockets)).getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        await self.transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # its own server

    async def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """Refuse whoever has no token, pages that are not ours, and too many at once."""
        origin = request.headers.get("Origin")
        if origin is not None and origin not in self._origins:
            return connection.respond(403, "This origin may not connect\n")
        address = connection.remote_address
        peer = str(address[0]) if address else ""
        identity = await self._enter(request.headers.get("Authorization"), peer, connection.wait_closed)
        if self._tokens is not None and identity is None:
            return connection.respond(401, "A token is needed\n")
        if self._is_full(identity):
            return connection.respond(429, "There are too many connections\n")
        return None

    def _is_full(self, identity: Identity | None) -> bool:
        hub = self.hub
        is_too_many = identity is not None and hub.connections_of(identity) >= self._per_token
        return is_too_many or len(hub.spokes) >= self._connections

    async def _enter(
        self, authorization: str | None, client: Client, gone: Callable[[], Awaitable[object]]
    ) -> Identity | None:
        """Who connects; None without a token, and for one that is refused after a while, or when the client has `gone`."""
        if self._authenticator is not None and authorization is not None:
            with suppress(CallError):
                return await self._authenticator.authenticate(authorization, client, gone)
        return None

    async def _identity(self, token: str | None) -> Identity | None:
        return None if self._tokens is None or token is None else await verified(self._tokens, token)

    async def _serve(self, connection: ServerConnection) -> None:
        headers = {} if connection.request is None else connection.request.headers
        token = bearer_token(headers.get("Authorization", ""))
        identity = await self._identity(token)
        if self._tokens is not None and identity is None:  # it was withdrawn while we looked
            await connection.close(EXPIRED)
            return
        if self._is_full(identity):  # by others that came while this one was let in
            await connection.close(FULL)
            return
        spoke = self.hub.attach(Outbox(connection), identity, headers.get(BOOT_HEADER, ""))
        try:
            with while_admitted(self._tokens, token, identity, lambda: connection.close(EXPIRED), self._recheck):
                await listen(connection, spoke.receive)
        finally:
            self.hub.detach(spoke)

    # inside another server

    async def __call__(self, scope: Scope, receive: ASGIReceive, send: ASGISend) -> None:
        """The hub as an ASGI app, to be mounted where an HTTP server is already."""
        if scope["type"] != "websocket":
            await send({"type": "http.response.start", "status": 426, "headers": [(b"upgrade", b"websocket")]})
            await send({"type": "http.response.body", "body": b"This is a place for WebSockets\n"})
            return
        await receive()  # websocket.connect
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        token = bearer_token(headers.get("authorization", ""))
        # The next event of a connection that is not accepted yet is its end.
        identity = await self._enter(headers.get("authorization"), scope.get("client"), receive)
        is_strange = "origin" in headers and headers["origin"] not in self._origins
        if is_strange or (self._tokens is not None and identity is None):
            await send({"type": "websocket.close", "code": EXPIRED})
            return
        if self._is_full(identity):
            await send({"type": "websocket.close", "code": FULL})
            return
        await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL})
        await self._serve_asgi(token, identity, headers.get(BOOT_HEADER, ""), receive, send)

    async def _serve_asgi(
        self, token: str | None, identity: Identity | None, boot: str, receive: ASGIReceive, send: ASGISend
    ) -> None:
        wire = _QueuedWire(send)
        spoke = self.hub.attach(wire, identity, boot)
        closing = {"type": "websocket.close", "code": EXPIRED}
        writing = asyncio.create_task(wire.run())
        try:
            with while_admitted(self._tokens, token, identity, lambda: send(closing), self._recheck):
                while (event := await receive())["type"] == "websocket.receive":
                    data = event.get("bytes") or b""
                    if len(data) <= self.hub.max_payload + HEADROOM:
                        spoke.receive(data)
        finally:
            writing.cancel()
            self.hub.detach(spoke)


class _QueuedWire:
    """A connection of another server, which may make us wait: frames stand in line, and the line is not endless."""

    def __init__(self, send: ASGISend) -> None:
        self._send = send
        self._frames: asyncio.Queue[bytes] = asyncio.Queue()
        self._waiting = 0

    def write(self, frame: bytes) -> None:
        if self._waiting > MAX_UNSENT:
            raise OverloadedError
        self._waiting += len(frame)
        self._frames.put_nowait(frame)

    async def run(self) -> None:
        while True:
            frame = await self._frames.get()
            await self._send({"type": "websocket.send", "bytes": frame})
            self._waiting -= len(frame)
