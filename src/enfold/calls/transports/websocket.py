"""The WebSocket transport: one connection to a hub, with automatic reconnection."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from enfold.calls.protocol.connection import ConnectOnce, Outage, address_name
from enfold.calls.protocol.transport import (
    Capabilities,
    DeniedError,
    DisconnectedError,
    Message,
    PayloadTooLargeError,
    Receive,
    ReplyAddresses,
    Signal,
    inbox_of,
    new_boot,
)
from enfold.calls.transports.frames import (
    CONNECTION_SETTINGS,
    SUBPROTOCOL,
    Frame,
    Op,
    Outbox,
    listen,
    read_frame,
    require_websockets,
    write_frame,
)
from enfold.errors import CallError, FormatError
from enfold.observability.log import Log

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

FIRST_PAUSE: Final = 0.1
MAX_PAUSE: Final = 5.0
PATIENCE: Final = 5.0
BOOT_HEADER: Final = "enfold-boot"  # identifies a client without a token after a reconnection

_SIGNALS: Final = {Op.NO_RESPONDERS: Signal.NO_RESPONDERS, Op.GONE: Signal.GONE, Op.DENIED: Signal.DENIED}

_log: Final = Log("enfold.calls.websocket")


class WebSocketTransport:
    """A client of a hub, which assigns its name."""

    def __init__(self, url: str, *, token: str | None = None, **options: Any) -> None:
        """`options` are passed to `websockets.connect`, such as `ssl`."""
        self.name = ""
        self.capabilities = Capabilities(peer_identity=True)
        self._url = url
        self._boot = new_boot()
        self._headers = {BOOT_HEADER: self._boot} if token is None else {"Authorization": f"Bearer {token}"}
        self._options = options
        self._connection: ClientConnection | None = None
        self._outbox: Outbox | None = None
        self._numbers = count(1)
        self.replies = ReplyAddresses()
        self._subscriptions: dict[int, WebSocketSubscription] = {}
        self._acks: dict[int, asyncio.Future[str | None]] = {}
        self._running: asyncio.Task[None] | None = None
        self._connecting = ConnectOnce(self._begin)
        self._outage = Outage(_log, f"The hub at {address_name(url)}")
        self._is_closed = False

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Connect; raises a CallError if the first attempt fails."""
        await self._connecting()

    @property
    def why(self) -> str:
        """Why there is no connection; "" if there is one."""
        return self._outage.reason

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
        recording = self.replies.recording(subject, receive)
        subscription = WebSocketSubscription(self, next(self._numbers), subject, recording, queue)
        self._subscriptions[subscription.number] = subscription
        try:
            await self._open(subscription)
        except BaseException:
            await subscription.close()  # the hub may have added it
            raise
        return subscription

    async def close(self) -> None:
        self._is_closed = True
        await self._connecting.forget()
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        if self._connection is not None:
            await self._connection.close()

    # connection state

    async def _begin(self) -> None:
        require_websockets()
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._running = asyncio.create_task(self._run(first))
        await first

    async def _run(self, first: asyncio.Future[None]) -> None:
        """Connect, listen until the connection breaks, and reconnect with backoff."""
        from websockets.exceptions import InvalidStatus, WebSocketException

        pause = FIRST_PAUSE
        while not self._is_closed:
            refusal = ""
            try:
                await self._live(first)
                pause = FIRST_PAUSE
            except (OSError, WebSocketException, TimeoutError, FormatError, DisconnectedError) as error:
                if not first.done():
                    first.set_exception(_unreachable(address_name(self._url), error))
                    return
                if isinstance(error, InvalidStatus):
                    refusal = str(error)
            self._on_lost()
            if self._outage.refused(refusal):
                self._signal(Signal.REFUSED)
            await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311  # jitter
            pause = min(MAX_PAUSE, pause * 2)

    async def _live(self, first: asyncio.Future[None]) -> None:
        from websockets.asyncio.client import connect

        options = {**CONNECTION_SETTINGS, "open_timeout": PATIENCE, "max_size": None, "proxy": None, **self._options}
        connection = await connect(
            self._url,
            additional_headers=self._headers,
            subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]  # a NewType of str
            user_agent_header=None,
            **options,
        )
        try:
            await self._read_hello(connection)
            # Runs beside `listen`, which receives the confirmations.
            restoring = asyncio.create_task(self._restore(first, connection))
            try:
                await listen(connection, self._receive)
            finally:
                restoring.cancel()
        finally:
            await connection.close()

    async def _read_hello(self, connection: ClientConnection) -> None:
        frame, _ = read_frame(await asyncio.wait_for(connection.recv(), PATIENCE))
        if frame.op is not Op.HELLO:
            raise FormatError("The hub sent no HELLO frame")
        self.name = frame.subject
        self.capabilities = Capabilities(frame.id, peer_identity=frame.peer is not None)
        self._connection, self._outbox = connection, Outbox(connection)

    async def _restore(self, first: asyncio.Future[None], connection: ClientConnection) -> None:
        for subscription in list(self._subscriptions.values()):
            try:
                await self._open(subscription)
            except DeniedError as error:
                _log.warning("%s", error)
            except DisconnectedError:  # or the hub does not confirm it
                await connection.close()
                return
        if not first.done():
            first.set_result(None)
        else:
            self._outage.end()
            self._signal(Signal.RESTORED)

    def _on_lost(self) -> None:
        self._connection = self._outbox = None
        for ack in self._acks.values():
            if not ack.done():
                ack.set_exception(DisconnectedError(sent=True))
        self._acks.clear()
        if not self._is_closed:
            self._outage.begin()
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
            _log.warning("The hub sent an invalid frame: %s", error)
            return
        if frame.op is Op.MESSAGE:
            subscription = self._subscriptions.get(frame.id)
            if subscription is not None:
                peer, identity, may_offer = frame.peer, frame.identity, frame.may_offer
                subscription.receive(
                    Message(frame.subject, data, frame.reply, frame.headers, peer, identity, None, may_offer)
                )
        elif frame.op in (Op.OK, Op.REFUSED):
            self._acknowledge(frame)
        elif frame.op in _SIGNALS:
            self._signal_inbox(Message(frame.subject, signal=_SIGNALS[frame.op]))

    def _acknowledge(self, frame: Frame) -> None:
        ack = self._acks.pop(frame.id, None)
        if ack is not None and not ack.done():
            ack.set_result(None if frame.op is Op.OK else frame.subject)

    def _signal_inbox(self, message: Message) -> None:
        for subscription in list(self._subscriptions.values()):
            if subscription.subject.startswith("_INBOX."):
                subscription.receive(message)

    async def _open(self, subscription: WebSocketSubscription) -> None:
        subject = subscription.subject
        reason = await self._ask_hub(Frame(Op.SUBSCRIBE, subscription.number, subject, None, subscription.queue))
        if reason is not None:
            raise DeniedError(f"The hub does not permit {self.name} to subscribe to {subject}: {reason}")

    async def _ask_hub(self, frame: Frame) -> str | None:
        """Send a frame and wait for its confirmation; returns the reason of a refusal, or None."""
        ack: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._acks[frame.id] = ack
        try:
            self._write(frame)
            return await asyncio.wait_for(ack, PATIENCE)
        except TimeoutError:
            raise DisconnectedError(sent=True) from None
        finally:
            self._acks.pop(frame.id, None)


class WebSocketSubscription(msgspec.Struct, eq=False):
    """A subscription of a client."""

    transport: WebSocketTransport
    number: int
    subject: str
    receive: Receive
    queue: str | None

    async def close(self, *, drain: bool = False) -> None:
        """Unsubscribe; with `drain`, wait for the confirmation, which follows all earlier messages."""
        transport = self.transport
        if self.number in transport._subscriptions and transport._connection is not None:
            with suppress(DisconnectedError):
                if drain:
                    await transport._ask_hub(Frame(Op.UNSUBSCRIBE, self.number))
                else:
                    transport._write(Frame(Op.UNSUBSCRIBE, self.number))
        transport._subscriptions.pop(self.number, None)


def _unreachable(url: str, error: Exception) -> CallError:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return CallError(
            "ACCESS_DENIED", f"The hub at {url} refuses the connection ({status})", {"reason": "no_identity"}
        )
    if status == 429:
        return CallError("RESOURCE_EXHAUSTED", f"The hub at {url} has too many connections with this token")
    return CallError("UNAVAILABLE", f"The hub at {url} cannot be reached: {error}")
