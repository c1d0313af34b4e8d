"""Hub and spokes over WebSockets: the hub's server and ASGI app, and the spoke's transport, which reconnects by itself."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from ipaddress import ip_address
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Self

from enfold.calls.frames import SUBPROTOCOL, Frame, Op, read_frame, write_frame
from enfold.calls.hub import Hub, Spoke
from enfold.calls.memory import MAX_PAYLOAD
from enfold.calls.transport import (
    Capabilities,
    DeniedError,
    DisconnectedError,
    Message,
    OverloadedError,
    PayloadTooLargeError,
    Receive,
    Signal,
    inbox_of,
    new_boot,
)
from enfold.errors import CallError, FormatError
from enfold.operation import Identity
from enfold.tokens import Verifier, bearer_token

if TYPE_CHECKING:
    import ssl

    from websockets.asyncio.client import ClientConnection
    from websockets.asyncio.connection import Connection
    from websockets.asyncio.server import Server, ServerConnection
    from websockets.http11 import Request, Response

__all__ = ["WebSocketHub", "WebSocketTransport"]

HEADROOM: Final = 64 * 1024  # for a frame's header
MAX_UNSENT: Final = 8 * 1024 * 1024
RECHECK: Final = 30.0
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
PATIENCE: Final = 5.0
EXPIRED: Final = 4401
OPEN: Final = 1  # the state of a connection that can be used
BOOT_HEADER: Final = "enfold-boot"  # by which a spoke without a token is known again

_log: Final = logging.getLogger("enfold.calls.websocket")

# Small queues, because a slow reader must slow its sender; a peer that is not heard for five seconds is gone.
_SETTINGS: Final[dict[str, Any]] = {
    "compression": None,
    "max_queue": 16,
    "write_limit": 32 * 1024,
    "ping_interval": 5,
    "ping_timeout": 5,
}


class _Outbox:
    """What leaves by a connection: all frames of one turn of the loop together, because each write costs a system call.

    Sending does not wait for a slow reader: a frame is taken at once, or there is too much before it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._frames: list[bytes] = []
        self._size = 0

    def write(self, frame: bytes) -> None:
        connection = self._connection
        if connection.protocol.state != OPEN:
            raise DisconnectedError
        if self._size + connection.transport.get_write_buffer_size() > MAX_UNSENT:
            raise OverloadedError
        if not self._frames:
            connection.loop.call_soon(self._flush)
        self._frames.append(frame)
        self._size += len(frame)

    def _flush(self) -> None:
        """Write by the library's own protocol, whose `send` would write each frame alone and wait for each."""
        frames, self._frames, self._size = self._frames, [], 0
        protocol = self._connection.protocol
        if protocol.state == OPEN:  # else they are lost with the connection, and those who wait are told
            for frame in frames:
                protocol.send_binary(frame)
            self._connection.transport.write(b"".join(protocol.data_to_send()))


# --- the hub ------------------------------------------------------------------------------------------------------

Scope = MutableMapping[str, Any]
ASGIReceive = Callable[[], Awaitable[MutableMapping[str, Any]]]
ASGISend = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class WebSocketHub:
    """A hub with its doors: a server of its own, or an ASGI app to be mounted in another.

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
    ) -> None:
        """`tokens` say who a spoke is; `identity` is what the hub itself calls spokes as."""
        self.hub = Hub(identity, max_payload=max_payload, is_open=tokens is None)
        self.transport = self.hub.transport
        self.port = 0
        self._tokens = tokens
        self._origins = frozenset(allowed_origins)
        self._recheck = recheck
        self._server: Server | None = None

    async def listen(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        tls: ssl.SSLContext | None = None,
        insecure: bool = False,
    ) -> None:
        """Open a door of its own; beyond this machine only with tokens and TLS, unless the user says otherwise."""
        if not insecure and not _is_loopback(host) and (self._tokens is None or tls is None):
            message = f"A hub on {host} needs tokens and TLS: give it both, or say insecure=True"
            raise CallError("ACCESS_DENIED", message, {"reason": "insecure"})
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
            **_SETTINGS,
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

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """Refuse whoever does not say who he is, and pages that are not ours."""
        origin = request.headers.get("Origin")
        if origin is not None and origin not in self._origins:
            return connection.respond(403, "This origin may not connect\n")
        token = bearer_token(request.headers.get("Authorization", ""))
        if self._tokens is not None and self._identity(token) is None:
            return connection.respond(401, "A token is needed\n")
        return None

    def _identity(self, token: str | None) -> Identity | None:
        return None if self._tokens is None or token is None else self._tokens.identify(token)

    async def _serve(self, connection: ServerConnection) -> None:
        from websockets.exceptions import ConnectionClosed

        headers = {} if connection.request is None else connection.request.headers
        token = bearer_token(headers.get("Authorization", ""))
        spoke = self.hub.attach(_Outbox(connection), self._identity(token), headers.get(BOOT_HEADER, ""))
        checking = asyncio.create_task(self._keep_checking(token, spoke, lambda: connection.close(EXPIRED)))
        try:
            with suppress(ConnectionClosed):
                while True:
                    spoke.receive(await connection.recv(decode=False))
        finally:
            checking.cancel()
            self.hub.detach(spoke)

    async def _keep_checking(self, token: str | None, spoke: Spoke, close: Callable[[], Awaitable[None]]) -> None:
        """A token that is withdrawn ends the connection it opened."""
        while self._tokens is not None:
            await asyncio.sleep(self._recheck)
            if self._identity(token) != spoke.identity:
                await close()
                return

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
        identity = self._identity(token)
        is_strange = "origin" in headers and headers["origin"] not in self._origins
        if is_strange or (self._tokens is not None and identity is None):
            await send({"type": "websocket.close", "code": EXPIRED})
            return
        await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL})
        await self._serve_asgi(token, identity, headers.get(BOOT_HEADER, ""), receive, send)

    async def _serve_asgi(
        self, token: str | None, identity: Identity | None, boot: str, receive: ASGIReceive, send: ASGISend
    ) -> None:
        wire = _QueuedWire(send)
        spoke = self.hub.attach(wire, identity, boot)
        closing = {"type": "websocket.close", "code": EXPIRED}
        tasks = [
            asyncio.create_task(wire.run()),
            asyncio.create_task(self._keep_checking(token, spoke, lambda: send(closing))),
        ]
        try:
            while (event := await receive())["type"] == "websocket.receive":
                data = event.get("bytes") or b""
                if len(data) <= self.hub.max_payload + HEADROOM:
                    spoke.receive(data)
        finally:
            for task in tasks:
                task.cancel()
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


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


# --- the spoke ----------------------------------------------------------------------------------------------------


class WebSocketTransport:
    """A spoke: one connection to a hub, made anew whenever it breaks. The hub gives it its name."""

    def __init__(self, url: str, *, token: str | None = None, **options: Any) -> None:
        """`options` are those of `websockets.connect`, such as `ssl`."""
        self.name = ""
        self.capabilities = Capabilities(peer_identity=True)
        self._url = url
        self._boot = new_boot()
        self._headers = {BOOT_HEADER: self._boot} if token is None else {"Authorization": f"Bearer {token}"}
        self._options = options
        self._connection: ClientConnection | None = None
        self._outbox: _Outbox | None = None
        self._numbers = count(1)
        self._subscriptions: dict[int, WebSocketSubscription] = {}
        self._acks: dict[int, asyncio.Future[str | None]] = {}
        self._running: asyncio.Task[None] | None = None
        self._first: asyncio.Future[None] | None = None
        self._is_closed = False

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Connect, once; a hub that cannot be reached or refuses us the first time is an error."""
        if self._first is None or (self._first.done() and self._first.exception() is not None):
            self._first = asyncio.get_running_loop().create_future()
            self._running = asyncio.create_task(self._run(self._first))
        await asyncio.shield(self._first)

    def inbox(self) -> str:
        return inbox_of(self.name, self._boot)

    async def publish(
        self, subject: str, data: bytes, *, reply: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        self._carry(Op.PUBLISH, subject, data, reply, headers)

    async def send(
        self, subject: str, data: bytes, *, reply: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        self._carry(Op.SEND, subject, data, reply, headers)

    async def subscribe(self, subject: str, receive: Receive, *, queue: str | None = None) -> WebSocketSubscription:
        await self.connect()
        subscription = WebSocketSubscription(self, next(self._numbers), subject, receive, queue)
        self._subscriptions[subscription.number] = subscription
        try:
            await self._open(subscription)
        except BaseException:
            self._subscriptions.pop(subscription.number, None)
            raise
        return subscription

    async def close(self) -> None:
        self._is_closed = True
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        if self._connection is not None:
            await self._connection.close()

    # the connection's life

    async def _run(self, first: asyncio.Future[None]) -> None:
        """Connect, listen until it breaks, and again, after pauses that grow."""
        from websockets.exceptions import InvalidStatus, WebSocketException

        pause = FIRST_PAUSE
        while not self._is_closed:
            try:
                await self._live(first)
                pause = FIRST_PAUSE
            except (OSError, WebSocketException, TimeoutError, FormatError) as error:
                if not first.done():
                    first.set_exception(_unreachable(self._url, error))
                    return
                if isinstance(error, InvalidStatus):
                    _log.warning("The hub at %s refuses us: %s", self._url, error)
            self._lose()
            await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311  # so that spokes do not come all at once
            pause = min(LONGEST_PAUSE, pause * 2)

    async def _live(self, first: asyncio.Future[None]) -> None:
        from websockets.asyncio.client import connect
        from websockets.exceptions import ConnectionClosed

        options = {**_SETTINGS, "open_timeout": PATIENCE, "max_size": None, "proxy": None, **self._options}
        connection = await connect(
            self._url,
            additional_headers=self._headers,
            subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]  # a NewType of str
            user_agent_header=None,
            **options,
        )
        try:
            await self._greet(connection)
            # Subscriptions are made again by frames that are answered in the loop below.
            restoring = asyncio.create_task(self._restore(first))
            try:
                with suppress(ConnectionClosed):
                    while True:
                        self._receive(await connection.recv(decode=False))
            finally:
                restoring.cancel()
        finally:
            await connection.close()

    async def _greet(self, connection: ClientConnection) -> None:
        frame, _ = read_frame(await asyncio.wait_for(connection.recv(decode=False), PATIENCE))
        if frame.op is not Op.HELLO:
            raise FormatError("The hub did not say hello")
        self.name = frame.subject
        self.capabilities = Capabilities(frame.id)
        self._connection, self._outbox = connection, _Outbox(connection)

    async def _restore(self, first: asyncio.Future[None]) -> None:
        for subscription in list(self._subscriptions.values()):
            try:
                await self._open(subscription)
            except DeniedError as error:
                _log.warning("%s", error)
        if not first.done():
            first.set_result(None)
        elif self._subscriptions:
            self._signal(Signal.RESTORED)

    def _lose(self) -> None:
        self._connection = self._outbox = None
        for ack in self._acks.values():
            if not ack.done():
                ack.set_exception(DisconnectedError(sent=True))
        self._acks.clear()
        self._signal(Signal.LOST)

    def _signal(self, signal: Signal) -> None:
        for subscription in list(self._subscriptions.values()):
            subscription.receive(Message("", signal=signal))

    # frames

    def _carry(self, op: Op, subject: str, data: bytes, reply: str | None, headers: Mapping[str, str] | None) -> None:
        limit = self.capabilities.max_payload
        if len(data) > limit:
            raise PayloadTooLargeError(len(data), limit)
        self._write(Frame(op, 0, subject, None if headers is None else dict(headers), reply), data)

    def _write(self, frame: Frame, data: bytes = b"") -> None:
        if self._outbox is None:
            raise DisconnectedError
        self._outbox.write(write_frame(frame, data))

    def _receive(self, wire: Any) -> None:
        try:
            frame, data = read_frame(wire)
        except FormatError as error:
            _log.warning("The hub sent what is no frame: %s", error)
            return
        if frame.op is Op.MESSAGE:
            subscription = self._subscriptions.get(frame.id)
            if subscription is not None:
                message = Message(frame.subject, data, frame.reply, frame.headers, frame.peer, frame.identity)
                subscription.receive(message)
        elif frame.op in (Op.OK, Op.REFUSED):
            self._acknowledge(frame)
        elif frame.op is Op.NOBODY:
            self._tell_inbox(Message(frame.subject, signal=Signal.NO_RESPONDERS))
        elif frame.op is Op.DENIED:
            self._tell_inbox(Message(frame.subject, signal=Signal.DENIED))

    def _acknowledge(self, frame: Frame) -> None:
        ack = self._acks.pop(frame.id, None)
        if ack is not None and not ack.done():
            ack.set_result(None if frame.op is Op.OK else frame.subject)

    def _tell_inbox(self, message: Message) -> None:
        for subscription in list(self._subscriptions.values()):
            if subscription.subject.startswith("_INBOX."):
                subscription.receive(message)

    async def _open(self, subscription: WebSocketSubscription) -> None:
        subject = subscription.subject
        reason = await self._asked(Frame(Op.SUBSCRIBE, subscription.number, subject, None, subscription.queue))
        if reason is not None:
            raise DeniedError(f"The hub does not let {self.name} listen to {subject}: {reason}")

    async def _asked(self, frame: Frame) -> str | None:
        """Ask the hub, and give its answer: None, or why not."""
        ack: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._acks[frame.id] = ack
        try:
            self._write(frame)
            return await asyncio.wait_for(ack, PATIENCE)
        except TimeoutError:
            raise DisconnectedError(sent=True) from None
        finally:
            self._acks.pop(frame.id, None)


class WebSocketSubscription:
    """One subject a spoke listens to."""

    def __init__(
        self, transport: WebSocketTransport, number: int, subject: str, receive: Receive, queue: str | None
    ) -> None:
        self.number = number
        self.subject = subject
        self.receive = receive
        self.queue = queue
        self._transport = transport

    async def close(self, *, drain: bool = False) -> None:
        """The hub's answer comes after everything it had sent before: when it is here, nothing is on the way."""
        transport = self._transport
        if self.number in transport._subscriptions and transport._connection is not None:
            with suppress(DisconnectedError):
                if drain:
                    await transport._asked(Frame(Op.UNSUBSCRIBE, self.number))
                else:
                    transport._write(Frame(Op.UNSUBSCRIBE, self.number))
        transport._subscriptions.pop(self.number, None)


def _unreachable(url: str, error: Exception) -> CallError:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return CallError("ACCESS_DENIED", f"The hub at {url} refuses us ({status})", {"reason": "no_identity"})
    return CallError("UNAVAILABLE", f"The hub at {url} cannot be reached: {error}")
