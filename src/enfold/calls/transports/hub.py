"""The hub: a router that clients reach by WebSocket, each with the name and grants of its token.

A client may send requests for any operation under its own name; the operation checks access. It may offer what its token grants.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import msgspec

from enfold.auth.tokens import Authenticator, Client, Verifier, bearer_token, is_loopback, verified, while_admitted
from enfold.calls.protocol.transport import (
    WORKERS,
    Message,
    OverloadedError,
    Signal,
    TransportError,
    discovery_subject,
    is_token,
    lies_in,
    new_boot,
    operation_of,
    peer_name,
)
from enfold.calls.transports.frames import (
    CONNECTION_SETTINGS,
    MAX_UNSENT,
    SUBPROTOCOL,
    Frame,
    Op,
    Outbox,
    listen,
    read_frame,
    require_websockets,
    write_frame,
)
from enfold.calls.transports.memory import MAX_PAYLOAD, Listener, MemoryTransport, Router
from enfold.calls.transports.websocket import BOOT_HEADER
from enfold.errors import CallError, FormatError
from enfold.operations import Identity, with_hash
from enfold.operations.access import words

if TYPE_CHECKING:
    import ssl

    from websockets.asyncio.server import Server, ServerConnection
    from websockets.http11 import Request, Response


PEERS_SCOPE: Final = "enfold:peers"  # permits queries of worker statistics
MAX_BOOT: Final = 32
MAX_SUBSCRIPTIONS: Final = 10_000
MAX_SUBJECT: Final = 255  # long enough for the longest id


class Wire(Protocol):
    """The hub's side of a connection; `write` never waits, and raises a TransportError."""

    def write(self, frame: bytes) -> None: ...


class HubCounts(msgspec.Struct):
    """Messages that the hub has dropped."""

    malformed: int = 0
    denied: int = 0
    undelivered: int = 0  # the client was too slow, or gone


class Hub:
    """Routes messages between all clients and the peers in the hub's own process."""

    def __init__(
        self, identity: Identity | None = None, *, max_payload: int = MAX_PAYLOAD, is_open: bool = False
    ) -> None:
        """An open hub requires no tokens: every client may offer anything, and none has an identity."""
        self.is_open = is_open
        self.counts = HubCounts()
        self.max_payload = max_payload
        self.router = Router()
        self.transport = MemoryTransport(
            "hub", identity, max_payload=max_payload, router=self.router, has_identities=not is_open
        )
        self.clients: set[HubClient] = set()

    def attach(self, wire: Wire, identity: Identity | None, boot: str = "") -> HubClient:
        """Add a client and send it its name; without a token the name comes from `boot`, so it survives a reconnection."""
        own = boot if is_token(boot) and len(boot) <= MAX_BOOT else new_boot()
        name = f"anonymous-{own}" if identity is None else peer_name(identity.id)
        if name == self.transport.name:  # reserved
            name = with_hash(name, name)
        client = HubClient(self, wire, name, identity)
        self.clients.add(client)
        wire.write(write_frame(Frame(Op.HELLO, self.max_payload, name, peer=None if identity is None else name)))
        return client

    def connections_of(self, identity: Identity) -> int:
        """Return the number of clients of an identity."""
        return sum(client.identity is not None and client.identity.id == identity.id for client in self.clients)

    def detach(self, client: HubClient) -> None:
        self.clients.discard(client)
        client.leave()

    def return_to_sender(self, message: Message) -> None:
        """Signal GONE to the caller of a request that could not be delivered to its worker."""
        if message.reply is not None and message.subject.startswith("op."):
            self.router.route(Message(message.reply, signal=Signal.GONE))


class HubClient:
    """One connected client: its subscriptions and permissions."""

    def __init__(self, hub: Hub, wire: Wire, name: str, identity: Identity | None) -> None:
        self.name = name
        self.identity = identity
        self.may_offer = None if hub.is_open else _namespaces(identity)
        self.may_serve = self.may_offer is None or bool(self.may_offer)
        self.own = ("ctl.", f"op.{name}.")  # subjects it may publish to as a caller
        self._hub = hub
        self._wire = wire
        self._listeners: dict[int, Listener] = {}

    def receive(self, data: Any) -> None:
        """Handle a frame; invalid ones are counted and dropped."""
        try:
            frame, payload = read_frame(data)
        except FormatError:
            self._hub.counts.malformed += 1
            return
        op = frame.op
        if op is Op.SEND or op is Op.PUBLISH:
            self._carry(frame, payload)
        elif op is Op.SUBSCRIBE:
            self._subscribe(frame)
        elif op is Op.UNSUBSCRIBE:
            self._unsubscribe(frame)
        else:
            self._hub.counts.malformed += 1

    def leave(self) -> None:
        for listener in self._listeners.values():
            self._hub.router.remove(listener)
        self._listeners.clear()

    # frames

    def _carry(self, frame: Frame, payload: bytes) -> None:
        subject, reply, router = frame.subject, frame.reply, self._hub.router
        if not may_publish(self, subject) or len(reply or "") > MAX_SUBJECT:
            self._hub.counts.denied += 1
            self._write(Frame(Op.DENIED, subject=subject))
            return
        message = Message(subject, payload, reply, frame.headers, self.name, self.identity, None, self.may_offer)
        if not router.route(message) and frame.op is Op.SEND and reply is not None:
            self._write(_no_responders(reply, router.signal_without_listeners(subject)))

    def _subscribe(self, frame: Frame) -> None:
        reason = subscription_refusal(self, frame.subject, frame.reply, self._hub.router)
        if frame.id in self._listeners or len(self._listeners) >= MAX_SUBSCRIPTIONS:
            reason = "too many subscriptions, or a duplicate id"
        if reason is not None:
            self._hub.counts.denied += 1
            self._write(Frame(Op.REFUSED, frame.id, reason))
            return
        listener = Listener(frame.subject, self._delivering(frame.id), frame.reply, self)
        self._listeners[frame.id] = listener
        self._hub.router.add(listener)
        self._write(Frame(Op.OK, frame.id))

    def _unsubscribe(self, frame: Frame) -> None:
        listener = self._listeners.pop(frame.id, None)
        if listener is not None:
            self._hub.router.remove(listener)
        self._write(Frame(Op.OK, frame.id))

    # delivery

    def _delivering(self, number: int) -> Callable[[Message], None]:
        def deliver(message: Message) -> None:
            if message.signal is not None:
                self._write(_no_responders(message.subject, message.signal))
            elif not self._write(_carrying(number, message), message.data):
                self._hub.return_to_sender(message)

        return deliver

    def _write(self, frame: Frame, data: bytes = b"") -> bool:
        try:
            self._wire.write(write_frame(frame, data))
        except TransportError:
            self._hub.counts.undelivered += 1
            return False
        return True


def _no_responders(reply: str, signal: Signal) -> Frame:
    return Frame(Op.GONE if signal is Signal.GONE else Op.NO_RESPONDERS, subject=reply)


def _carrying(number: int, message: Message) -> Frame:
    """Build the frame of a message: requests carry the caller's identity, others the namespaces of the sender."""
    subject = message.subject
    headers = None if message.headers is None else dict(message.headers)
    if subject.startswith("op."):
        return Frame(Op.MESSAGE, number, subject, headers, message.reply, message.peer, message.identity)
    return Frame(Op.MESSAGE, number, subject, headers, message.reply, message.peer, None, message.may_offer)


# --- permissions ------------------------------------------------------------------------------------------


def may_publish(client: HubClient, subject: str) -> bool:
    """Whether a client may publish to a subject: as itself, control events, and, if it serves, responses."""
    if "*" in subject or ">" in subject or len(subject) > MAX_SUBJECT:
        return False
    if subject.startswith(client.own):
        return True
    if subject.startswith("_INBOX."):
        return client.may_serve
    if subject.startswith("$SRV."):
        return client.identity is not None and PEERS_SCOPE in client.identity.scopes
    return subject == f"evt._enfold.{client.name}"


def subscription_refusal(client: HubClient, subject: str, queue: str | None, router: Router) -> str | None:
    """Why a client may not subscribe to a subject; None if it may."""
    if len(subject) > MAX_SUBJECT or len(queue or "") > MAX_SUBJECT:
        return f"a subject has at most {MAX_SUBJECT} characters"
    if not subject.startswith("op."):
        return None if queue is None and _is_own(client, subject) else "not one of your subjects"
    if not client.may_serve or not subject.startswith("op.*."):
        return "your token does not permit offering operations"
    operation_id = operation_of(subject)
    if subject in (discovery_subject("*"), discovery_subject("*", client.name)) and queue is None:
        return None
    if queue != WORKERS or not all(is_token(token) for token in operation_id.split(".")):
        return "not an operation"
    if not lies_in(operation_id, client.may_offer):
        return f"your token does not permit offering {operation_id}"
    if any(not _is_same(client, listener.owner) for listener in router.listeners(subject)):
        return f"{operation_id} is already offered by another client"
    return None


def _is_own(client: HubClient, subject: str) -> bool:
    above, _, _ = subject.rpartition(".")
    if "*" in above or ">" in above:
        return False  # never needed, and each wildcard would double the cost of finding subscribers
    if subject.startswith(f"_INBOX.{client.name}."):
        return True
    if not client.may_serve:
        return subject == "evt._enfold.*"
    return subject.startswith((f"ctl.{client.name}.", "$SRV.")) or subject == "evt._enfold.*"


def _namespaces(identity: Identity | None) -> tuple[str, ...]:
    """Return the namespaces that a token permits to offer: resources like `{"namespace:shop": ["offer"]}`."""
    prefix = "namespace:"
    resources = ((identity and identity.resources) or {}).items()
    found = (key.removeprefix(prefix) for key, actions in resources if key.startswith(prefix) and "offer" in actions)
    return tuple(found)


def _is_same(client: HubClient, owner: object) -> bool:
    """Whether the owner is another process of the same service, which shares the work."""
    return isinstance(owner, HubClient) and owner.identity == client.identity


HEADROOM: Final = 64 * 1024  # for a frame's header
RECHECK: Final = 30.0
EXPIRED: Final = 4401
FULL: Final = 4429

Scope = MutableMapping[str, Any]
ASGIReceive = Callable[[], Awaitable[MutableMapping[str, Any]]]
ASGISend = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class _Refusal(msgspec.Struct, frozen=True):
    status: int
    text: str
    code: int  # of a WebSocket that is closed for it


class WebSocketHub:
    """A hub with its own server, or as an ASGI app mounted in another.

    `transport` is the hub's own peer: serve a registry on it, or import what clients offer.
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
        """`tokens` authenticates clients; `identity` is that of the hub's own calls.

        `connections` limits all connections, `per_token` those of one identity.
        """
        self.hub = Hub(identity, max_payload=max_payload, is_open=tokens is None)
        self.transport = self.hub.transport
        self.port = 0
        self._tokens = tokens
        self._authenticator = None if tokens is None else Authenticator(tokens)
        self._origins = frozenset(words(allowed_origins))
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
        """Listen on a port; other interfaces than loopback require tokens and TLS, unless `insecure`."""
        if not insecure and not is_loopback(host) and (self._tokens is None or tls is None):
            message = f"A hub on {host} needs tokens and TLS: pass both, or insecure=True"
            raise CallError("ACCESS_DENIED", message, {"reason": "insecure"})
        require_websockets()
        from websockets.asyncio.server import serve

        self._server = await serve(
            self._serve,
            host,
            port,
            ssl=tls,
            process_request=self._admit,
            subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]  # a NewType of str
            max_size=self.hub.max_payload + HEADROOM,
            server_header=None,
            **CONNECTION_SETTINGS,
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

    # own server

    async def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        address = connection.remote_address
        peer = str(address[0]) if address else ""
        identity = await self._enter(request.headers.get("Authorization"), peer, connection.wait_closed)
        refusal = self._refusal(identity, request.headers.get("Origin"))
        return None if refusal is None else connection.respond(refusal.status, refusal.text)

    def _refusal(self, identity: Identity | None, origin: str | None = None) -> _Refusal | None:
        """Why a client may not connect: its origin, its token, or too many connections."""
        if origin is not None and origin not in self._origins:
            return _Refusal(403, "Origin not allowed\n", EXPIRED)
        if self._tokens is not None and identity is None:
            return _Refusal(401, "A bearer token is required\n", EXPIRED)
        hub = self.hub
        is_too_many = identity is not None and hub.connections_of(identity) >= self._per_token
        if is_too_many or len(hub.clients) >= self._connections:
            return _Refusal(429, "Too many connections\n", FULL)
        return None

    async def _enter(
        self, authorization: str | None, client: Client, gone: Callable[[], Awaitable[object]]
    ) -> Identity | None:
        """Return the identity of a client; None without a valid token."""
        if self._authenticator is not None and authorization is not None:
            with suppress(CallError):
                return await self._authenticator.authenticate(authorization, client, gone)
        return None

    async def _serve(self, connection: ServerConnection) -> None:
        headers = {} if connection.request is None else connection.request.headers
        token = bearer_token(headers.get("Authorization", ""))
        identity = None if self._tokens is None or token is None else await verified(self._tokens, token)
        refusal = self._refusal(identity)  # the token may have been revoked meanwhile
        if refusal is not None:
            await connection.close(refusal.code)
            return
        client = self.hub.attach(Outbox(connection), identity, headers.get(BOOT_HEADER, ""))
        try:
            with while_admitted(self._tokens, token, identity, lambda: connection.close(EXPIRED), self._recheck):
                await listen(connection, client.receive)
        finally:
            self.hub.detach(client)

    # ASGI

    async def __call__(self, scope: Scope, receive: ASGIReceive, send: ASGISend) -> None:
        """Serve the hub as an ASGI app, mounted in another server."""
        if scope["type"] != "websocket":
            await send({"type": "http.response.start", "status": 426, "headers": [(b"upgrade", b"websocket")]})
            await send({"type": "http.response.body", "body": b"WebSocket connections only\n"})
            return
        await receive()  # websocket.connect
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        token = bearer_token(headers.get("authorization", ""))
        # The next event of a connection that is not accepted yet is its disconnect.
        identity = await self._enter(headers.get("authorization"), scope.get("client"), receive)
        refusal = self._refusal(identity, headers.get("origin"))
        if refusal is not None:
            await send({"type": "websocket.close", "code": refusal.code})
            return
        await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL})
        await self._serve_asgi(token, identity, headers.get(BOOT_HEADER, ""), receive, send)

    async def _serve_asgi(
        self, token: str | None, identity: Identity | None, boot: str, receive: ASGIReceive, send: ASGISend
    ) -> None:
        wire = _QueuedWire(send)
        client = self.hub.attach(wire, identity, boot)
        closing = {"type": "websocket.close", "code": EXPIRED}
        writing = asyncio.create_task(wire.run())
        try:
            with while_admitted(self._tokens, token, identity, lambda: send(closing), self._recheck):
                while (event := await receive())["type"] == "websocket.receive":
                    data = event.get("bytes") or b""
                    if len(data) <= self.hub.max_payload + HEADROOM:
                        client.receive(data)
        finally:
            writing.cancel()
            self.hub.detach(client)


class _QueuedWire:
    """Queues frames for an ASGI connection, whose `send` may wait; the queue is limited."""

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
