"""The transport of many machines: NATS core with nats-py, set so that nothing is sent late and nothing fails in silence."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Self
from urllib.parse import urlsplit

import msgspec

from enfold.auth.tokens import is_loopback
from enfold.calls.protocol.connection import ConnectOnce, Outage, address_name
from enfold.calls.protocol.transport import (
    Capabilities,
    DeniedError,
    DisconnectedError,
    Message,
    OverloadedError,
    PayloadTooLargeError,
    Receive,
    ReplyAddresses,
    Signal,
    TransportError,
    inbox_of,
    is_token,
    new_boot,
    peer_of,
    request_subject,
)
from enfold.errors import CallError, sentence_of
from enfold.log import Log
from enfold.operations import Identity
from enfold.version import install_command

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription as ClientSubscription

_CREDENTIALS: Final = "check the user, password or token"
HEADROOM: Final = 4096  # the server counts headers, the client's own check does not: stay clear of the limit
MAX_UNSENT: Final = 8 * 1024 * 1024
MAX_VIOLATIONS: Final = 1000
REBUILD_PAUSE: Final = 0.25
CLOSING: Final = 2.0  # seconds for a server to take what has not been sent yet

Identify = Callable[[str], Identity | None]

_log: Final = Log("enfold.calls.nats")
_VIOLATION: Final = re.compile(r'permissions violation for (publish|subscription) to "?([^"\s]+)"?', re.IGNORECASE)


class NATSTransport:
    """One peer on a NATS server or cluster.

    Who sends is read from the subject's second token, which the server's permissions bind to the user. A server that
    would let us speak for somebody else binds nothing: then no identity is claimed for anybody.
    """

    def __init__(
        self,
        servers: str | Sequence[str] = "nats://127.0.0.1:4222",
        *,
        name: str | None = None,
        identities: Mapping[str, Identity] | Identify | None = None,
        identity_from: Literal["subject", "account"] = "subject",
        insecure: bool = False,
        ping_interval: float = 4.0,
        connect_within: float | None = 5.0,
        **options: Any,
    ) -> None:
        """`name` is the NATS user, if there is one; `options` are those of nats-py: user, password, tls, credentials…

        `identities` says what each peer may do; `identity_from="account"` reads the account the server stamps on
        requests that come by a shared service import; `insecure` admits a distant server that asks for no credentials.
        The first connection must stand within `connect_within` seconds (None waits for ever); one that is lost later is
        made again for as long as it takes.
        """
        self._servers = [servers] if isinstance(servers, str) else list(servers)
        self.name = name or options.get("user") or urlsplit(self._servers[0]).username or f"peer-{new_boot()}"
        if not is_token(self.name):
            raise ValueError(f"{self.name!r} cannot be a name on NATS: use 1 to 64 of A-Z a-z 0-9 _ -")
        self.capabilities = Capabilities(peer_identity=False, keeps_state=True)
        self.slow = 0  # messages the client dropped because we were too slow
        self._identify = identities.get if isinstance(identities, Mapping) else identities or Identity
        self._by_account = identity_from == "account"
        self._insecure = insecure
        self._connect_within = connect_within
        self._refusal: Exception | None = None  # what kept us from connecting last
        self._options = {"ping_interval": ping_interval, **options}
        self._inbox = inbox_of(self.name, new_boot())
        self._client: Client | None = None
        self._attempt: Client | None = None  # that is connecting, or was the last to do so
        self._failures: tuple[type[Exception], ...] = (OSError,)
        self.replies = ReplyAddresses()
        self._subscriptions: set[NATSSubscription] = set()
        self._violations: set[str] = set()
        self._connecting = ConnectOnce(self._connect)
        self._rebuilding: asyncio.Task[None] | None = None
        self._refused: asyncio.Event | None = None  # set when a server does not accept our credentials
        self._shown = address_name(",".join(self._servers))
        self._outage = Outage(_log, f"NATS at {self._shown}")
        self._is_closed = False

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Connect, once; the verbs do so by themselves."""
        if self._client is None:
            await self._connecting()

    @property
    def client(self) -> Client:
        """The nats-py client of the moment, for what the port does not have: streams and buckets."""
        return self._connected()

    @property
    def why(self) -> str:
        """Why there is no connection at this moment; "" where there is one."""
        return self._outage.reason

    def inbox(self) -> str:
        return self._inbox

    async def publish(
        self, subject: str, data: bytes, *, reply: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        client = self._client
        if client is None:
            await self.connect()
            client = self._connected()
        size = len(data) if headers is None else len(data) + _header_size(headers)
        if size > self.capabilities.max_payload:
            raise PayloadTooLargeError(size, self.capabilities.max_payload)
        if not client.is_connected:
            raise DisconnectedError
        if client.pending_data_size > MAX_UNSENT:
            raise OverloadedError
        try:
            await client.publish(subject, data, reply or "", dict(headers) if headers else None)
        except self._failures as error:
            raise DisconnectedError from error

    # The server itself says when nobody listens, so sending is publishing.
    send = publish

    async def subscribe(self, subject: str, receive: Receive, *, queue: str | None = None) -> NATSSubscription:
        await self.connect()
        subscription = NATSSubscription(self, subject, self.replies.noting(subject, receive), queue)
        client = self._connected()
        self._violations.discard(subject)
        await subscription.open(client)
        await _flush(client)
        if subject in self._violations:
            await subscription.close()
            raise DeniedError(f"The server does not let {self.name} listen to {subject}")
        self._subscriptions.add(subscription)
        return subscription

    async def close(self) -> None:
        self._is_closed = True
        await self._connecting.forget()
        if self._rebuilding is not None:
            self._rebuilding.cancel()
        if self._client is not None and not self._client.is_closed:
            await _close_client(self._client)

    # connecting

    async def _connect(self) -> None:
        client = await self._first_client()
        try:
            self._check_server(client)
            limit = client.max_payload - HEADROOM
            is_guarded = await self._is_guarded(client)
            self.capabilities = Capabilities(
                limit, peer_identity=is_guarded, rewrites_replies=self._by_account, keeps_state=True
            )
        except BaseException:
            await _close_client(client)
            raise
        self._client = client

    async def _first_client(self) -> Client:
        """A connected client; UNAVAILABLE where no server answers in time, ACCESS_DENIED where it refuses our credentials."""
        connecting = asyncio.ensure_future(self._new_client())
        self._refused = asyncio.Event()
        refused = asyncio.ensure_future(self._refused.wait())
        try:
            await asyncio.wait((connecting, refused), timeout=self._connect_within, return_when=asyncio.FIRST_COMPLETED)
            if connecting.done():
                return connecting.result()
        finally:
            refused.cancel()
            if not connecting.done():
                if self._attempt is not None:
                    # The library may lose a cancellation, and would then go on for ever: its next failure is its last.
                    self._attempt.options.update(allow_reconnect=False, max_reconnect_attempts=0)
                connecting.cancel()
                await asyncio.wait((connecting,), timeout=1.0)
        if self._refused.is_set():
            message = f"NATS at {self._shown} does not let us in: {_CREDENTIALS}"
            raise CallError("ACCESS_DENIED", message, {"reason": "no_identity"})
        reason = "" if self._refusal is None else f": {sentence_of(self._refusal)}"
        message = f"NATS at {self._shown} cannot be reached within {self._connect_within:g} s{reason}"
        raise CallError("UNAVAILABLE", message, {"started": False})

    async def _new_client(self) -> Client:
        try:
            from nats.aio.client import Client
            from nats.errors import Error
        except ImportError:
            raise CallError("UNAVAILABLE", f"NATS needs nats-py: {install_command('nats')}") from None
        self._failures = (Error, OSError)
        client = self._attempt = Client()
        settings: dict[str, Any] = {
            "pending_size": 0,  # while there is no connection nothing is kept: it would be sent after its time
            "max_outstanding_pings": 2,
            "reconnect_time_wait": 0.25,
            "max_reconnect_attempts": -1,
            "connect_timeout": 2,
            **self._options,
        }

        async def lost() -> None:
            _drop_unsent(client)
            if self._client is client:
                self._lose()

        async def closed() -> None:
            if self._client is client:
                self._rebuild()

        try:
            await client.connect(
                servers=self._servers,
                name=f"enfold {self.name}",
                inbox_prefix=f"_INBOX.{self.name}",
                error_cb=self._hear_error,
                disconnected_cb=lost,
                reconnected_cb=self._recover,
                closed_cb=closed,
                allow_reconnect=True,
                **settings,
            )
        except asyncio.CancelledError:
            await _close_client(client)
            raise
        except Exception as error:
            await _close_client(client)  # its connection may stand: we were let in so far, and no farther
            raise CallError("UNAVAILABLE", f"NATS at {self._shown} cannot be reached: {error}") from error
        return client

    def _check_server(self, client: Client) -> None:
        """Refuse a server without TLS behind `tls://`, and a remote one that asks for no credentials, unless `insecure`."""
        url = client.connected_url
        if url is not None and url.scheme == "tls" and not client._server_info.get("tls_required"):
            message = f"NATS at {self._shown} does not speak TLS: turn it on there, or use nats://"
            raise CallError("ACCESS_DENIED", message, {"reason": "insecure"})
        if self._insecure or asks_for_credentials(client) or (url is not None and is_loopback(url.hostname or "")):
            return
        message = f"NATS at {self._shown} asks for no credentials: give it some, or say insecure=True"
        raise CallError("ACCESS_DENIED", message, {"reason": "insecure"})

    async def _is_guarded(self, client: Client) -> bool:
        """Whether the server's permissions keep peers from publishing as others: tried with a probe that should be refused."""
        if self._by_account:
            return True
        if not asks_for_credentials(client):
            return False
        subject = request_subject(f"not-{new_boot()}", "_enfold.probe")
        await client.publish(subject, b"")
        await _flush(client)
        return subject in self._violations

    def _connected(self) -> Client:
        if self._client is None or self._is_closed:
            raise DisconnectedError
        return self._client

    # the connection's life

    def _lose(self) -> None:
        if not self._outage.is_on and not self._is_closed:
            self._outage.begin()
            self._signal(Message("", signal=Signal.LOST))

    async def _recover(self) -> None:
        if self._outage.is_on:
            self._outage.end()
            self._signal(Message("", signal=Signal.RESTORED))

    def _rebuild(self) -> None:
        """Replace a client that has closed for good, as it does when the server cuts it off."""
        if not self._is_closed and (self._rebuilding is None or self._rebuilding.done()):
            self._lose()
            self._rebuilding = asyncio.create_task(self._build_again())

    async def _build_again(self) -> None:
        while not self._is_closed:
            try:
                client = await self._new_client()
                for subscription in list(self._subscriptions):
                    await subscription.open(client)
                await _flush(client)
            except (CallError, TransportError) as error:
                _log.debug("%s", error)
                await asyncio.sleep(REBUILD_PAUSE)
            else:
                self._client = client
                await self._recover()
                return

    async def _hear_error(self, error: Exception) -> None:
        """Take errors of server and client: a missing permission must not look like a slow answer."""
        from nats.errors import SlowConsumerError

        if self._client is None:
            self._refusal = error
            if _is_refusal(error) and self._refused is not None:
                self._refused.set()
        if _is_refusal(error) and self._outage.is_on:
            _drop_connection(self._attempt)
        if _is_refusal(error) or isinstance(error, OSError):
            why = _CREDENTIALS if _is_refusal(error) else ""
            if self._outage.refused(why):
                self._signal(Message("", signal=Signal.REFUSED))
        found = _VIOLATION.search(str(error))
        if found is not None:
            if len(self._violations) >= MAX_VIOLATIONS:
                self._violations.clear()
            self._violations.add(found[2])
            if found[1].lower() == "publish":
                self._signal(Message(found[2], signal=Signal.DENIED))
        elif isinstance(error, SlowConsumerError):
            self.slow += 1
            _log.warning("A message on %s was dropped: we are too slow", error.subject)
        else:
            _log.debug("nats: %s", error)

    def _signal(self, message: Message) -> None:
        for subscription in list(self._subscriptions):
            subscription.receive(message)

    # messages

    def _message(self, wire: Msg) -> Message:
        headers = wire.headers
        reply = wire.reply or None
        if headers is not None and not wire.data and headers.get("Status") == "503":
            return Message(wire.subject, signal=Signal.NO_RESPONDERS)
        if not wire.subject.startswith("op."):
            return Message(wire.subject, wire.data, reply, headers)
        peer = _account(headers) if self._by_account else peer_of(wire.subject)
        identity = self._identify(peer) if peer is not None and self.capabilities.peer_identity else None
        return Message(wire.subject, wire.data, reply, headers, peer, identity)


class NATSSubscription:
    """One subject; it outlives the client it was opened on."""

    def __init__(self, transport: NATSTransport, subject: str, receive: Receive, queue: str | None) -> None:
        self.receive = receive
        self._transport = transport
        self._subject = subject
        self._queue = queue
        self._inner: ClientSubscription | None = None

    async def open(self, client: Client) -> None:
        receive, read = self.receive, self._transport._message

        async def deliver(wire: Msg) -> None:
            receive(read(wire))

        self._inner = await client.subscribe(self._subject, queue=self._queue or "", cb=deliver)

    async def close(self, *, drain: bool = False) -> None:
        from nats.errors import Error

        self._transport._subscriptions.discard(self)
        inner, client = self._inner, self._transport._client
        self._inner = None
        if inner is None or client is None:
            return
        try:
            if drain:
                await _drain(client, inner)
            else:
                await inner.unsubscribe()
        except (Error, OSError, TimeoutError, DisconnectedError) as error:
            _log.debug("%s was not closed: %s", self._subject, error)


async def _drain(client: Client, subscription: Any) -> None:
    """End a subscription after its last message: nats-py's own drain may stop one message too early."""
    await client._send_unsubscribe(subscription._id)
    await _flush(client)
    await subscription.drain()


def _drop_connection(client: Client | None) -> None:
    """Abort the connection of a client without waiting for the server: what was not sent yet is lost."""
    transport = None if client is None else client._transport
    writer = getattr(transport, "_io_writer", None)
    if writer is not None:
        writer.transport.abort()
    elif transport is not None:  # a WebSocket
        transport.close()  # type: ignore[no-untyped-call]  # of nats-py


def _drop_unsent(client: Client) -> None:
    """Throw away what waits in the client: it would be sent after the reconnection, to callers who have given up."""
    client._pending.clear()
    client._pending_data_size = 0


async def _flush(client: Client) -> None:
    """Wait until the server has processed all we sent, and its errors have come back."""
    from nats.errors import Error

    try:
        # The first ping may overtake what the client still holds back; the second cannot.
        await client.flush(timeout=5)
        await client.flush(timeout=5)
    except (Error, OSError, TimeoutError) as error:
        raise DisconnectedError from error


def asks_for_credentials(client: Client) -> bool:
    """Whether the server has authentication."""
    return bool(client._server_info.get("auth_required"))


def _account(headers: Mapping[str, str] | None) -> str | None:
    """The account the server stamped on a request, read from its exact header: a twin in other letters is a forgery."""
    try:
        info = msgspec.json.decode((headers or {}).get("Nats-Request-Info", ""), type=dict[str, Any])
    except msgspec.DecodeError:
        return None
    account = info.get("acc")
    return account if isinstance(account, str) and is_token(account) else None


def _header_size(headers: Mapping[str, str]) -> int:
    return 12 + sum(len(key.encode()) + len(value.encode()) + 4 for key, value in headers.items())


def _is_refusal(error: Exception) -> bool:
    text = str(error).lower()
    return "authorization violation" in text or "authentication" in text


async def _close_client(client: Client) -> None:
    """Close a client, within `CLOSING` seconds even if its server does not answer."""
    try:
        async with asyncio.timeout(CLOSING):
            await client.close()
    except Exception:  # noqa: BLE001  # too late, or on a connection that has gone: asyncio has several words for that
        _drop_connection(client)
    except asyncio.CancelledError:  # which nats-py raises by itself for a client whose server has sent it away
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise  # somebody gave up on the closing
