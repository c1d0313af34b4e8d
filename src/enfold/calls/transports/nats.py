"""The NATS transport: core NATS by nats-py, configured so that nothing is sent late and no failure is silent.

The private attributes of nats-py that it needs are used only in the functions at the end of this module.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
    request_subject,
)
from enfold.errors import CallError, missing_package, sentence_of
from enfold.observability.log import Log
from enfold.operations import Identity

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription as ClientSubscription

_CREDENTIALS: Final = "check the user, password or token"
HEADROOM: Final = 4096  # the server counts headers, nats-py's own check does not
MAX_UNSENT: Final = 8 * 1024 * 1024
MAX_VIOLATIONS: Final = 1000
REBUILD_PAUSE: Final = 0.25
CLOSING: Final = 2.0  # seconds for flushing unsent messages

Identify = Callable[[str], Identity | None]

_log: Final = Log("enfold.calls.nats")
_VIOLATION: Final = re.compile(r'permissions violation for (publish|subscription) to "?([^"\s]+)"?', re.IGNORECASE)


class NATSTransport:
    """A peer on a NATS server or cluster.

    The sender is the second token of the subject, which the server's permissions bind to the user. If a probe shows that
    the server has no such permissions, messages carry no identity.
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
        """`name` is the NATS user, if there is one; `options` are passed to nats-py: user, password, tls, credentials…

        `identities` maps peers to identities. `identity_from="account"` uses the account that the server adds to requests of
        a shared service import. `insecure` permits a remote server without authentication. The first connection must
        succeed within `connect_within` seconds (None: no limit); a lost one is retried forever.
        """
        self._servers = [servers] if isinstance(servers, str) else list(servers)
        self.name = name or options.get("user") or urlsplit(self._servers[0]).username or f"peer-{new_boot()}"
        if not is_token(self.name):
            raise ValueError(f"{self.name!r} is not a valid NATS user: use 1 to 64 of A-Z a-z 0-9 _ -")
        is_by_account = identity_from == "account"
        self.capabilities = Capabilities(peer_identity=False, rewrites_replies=is_by_account, keeps_state=True)
        self.slow = 0  # messages that nats-py dropped because this process was too slow
        self._identify = identities.get if isinstance(identities, Mapping) else identities or Identity
        self._insecure = insecure
        self._connect_within = connect_within
        self._refusal: Exception | None = None  # why the last attempt failed
        self._options = {"ping_interval": ping_interval, **options}
        self._inbox = inbox_of(self.name, new_boot())
        self._client: Client | None = None
        self._attempt: Client | None = None  # the last client that tried to connect
        self._failures: tuple[type[Exception], ...] = (OSError,)
        self.replies = ReplyAddresses()
        self._subscriptions: set[NATSSubscription] = set()
        self._violations: set[str] = set()
        self._connecting = ConnectOnce(self._connect)
        self._rebuilding: asyncio.Task[None] | None = None
        self._refused: asyncio.Future[None] | None = None  # done when the server rejects the credentials
        self._shown = address_name(",".join(self._servers))
        self._outage = Outage(_log, f"NATS at {self._shown}")
        self._is_closed = False

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Connect; publishing and subscribing also do."""
        if self._client is None:
            await self._connecting()

    @property
    def client(self) -> Client:
        """The current nats-py client, also for streams and buckets; raises DisconnectedError if there is none."""
        if self._client is None or self._is_closed:
            raise DisconnectedError
        return self._client

    @property
    def why(self) -> str:
        """Why there is no connection; "" if there is one."""
        return self._outage.reason

    def inbox(self) -> str:
        return self._inbox

    async def publish(
        self, subject: str, data: bytes, *, reply: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        client = self._client
        if client is None:
            await self.connect()
            client = self.client
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

    # The server reports missing subscribers, so sending is publishing.
    send = publish

    async def subscribe(self, subject: str, receive: Receive, *, queue: str | None = None) -> NATSSubscription:
        await self.connect()
        subscription = NATSSubscription(self, subject, self.replies.recording(subject, receive), queue)
        client = self.client
        self._violations.discard(subject)
        try:
            await subscription.open(client)
            await _flush(client)
        except BaseException:
            await subscription.close()
            raise
        if subject in self._violations:
            await subscription.close()
            raise DeniedError(f"The server does not permit {self.name} to subscribe to {subject}")
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
            limit, is_guarded = client.max_payload - HEADROOM, await self._is_guarded(client)
            self.capabilities = msgspec.structs.replace(self.capabilities, max_payload=limit, peer_identity=is_guarded)
        except BaseException:
            await _close_client(client)
            raise
        self._client = client

    async def _first_client(self) -> Client:
        """Return a connected client; raise UNAVAILABLE if no server responds in time, ACCESS_DENIED for bad credentials."""
        connecting = asyncio.ensure_future(self._new_client())
        refused = self._refused = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait((connecting, refused), timeout=self._connect_within, return_when=asyncio.FIRST_COMPLETED)
            if connecting.done():
                return connecting.result()
        finally:
            if not connecting.done():
                if self._attempt is not None:
                    # nats-py may swallow the cancellation and retry forever: let its next failure be final.
                    self._attempt.options.update(allow_reconnect=False, max_reconnect_attempts=0)
                connecting.cancel()
                await asyncio.wait((connecting,), timeout=1.0)
        if refused.done():
            message = f"NATS at {self._shown} refuses the connection: {_CREDENTIALS}"
            raise CallError("ACCESS_DENIED", message, {"reason": "no_identity"})
        reason = "" if self._refusal is None else f": {sentence_of(self._refusal)}"
        message = f"NATS at {self._shown} cannot be reached within {self._connect_within:g} s{reason}"
        raise CallError("UNAVAILABLE", message, {"started": False})

    async def _new_client(self) -> Client:
        try:
            from nats.aio.client import Client
            from nats.errors import Error
        except ImportError:
            raise missing_package("NATS needs nats-py", "nats") from None
        self._failures = (Error, OSError)
        client = self._attempt = Client()
        settings: dict[str, Any] = {
            "pending_size": 0,  # buffer nothing while disconnected: it would be sent too late
            "max_outstanding_pings": 2,
            "reconnect_time_wait": 0.25,
            "max_reconnect_attempts": -1,
            "connect_timeout": 2,
            **self._options,
        }

        async def lost() -> None:
            _drop_unsent(client)
            if self._client is client:
                self._on_lost()

        async def closed() -> None:
            if self._client is client:
                self._rebuild()

        try:
            await client.connect(
                servers=self._servers,
                name=f"enfold {self.name}",
                inbox_prefix=f"_INBOX.{self.name}",
                error_cb=self._on_error,
                disconnected_cb=lost,
                reconnected_cb=self._on_restored,
                closed_cb=closed,
                allow_reconnect=True,
                **settings,
            )
        except asyncio.CancelledError:
            await _close_client(client)
            raise
        except Exception as error:
            await _close_client(client)  # the TCP connection may be open
            raise CallError("UNAVAILABLE", f"NATS at {self._shown} cannot be reached: {error}") from error
        return client

    def _check_server(self, client: Client) -> None:
        """Refuse a server without TLS behind `tls://`, and a remote one without authentication, unless `insecure`."""
        url = client.connected_url
        if url is not None and url.scheme == "tls" and not server_has(client, "tls_required"):
            message = f"NATS at {self._shown} does not support TLS: enable it, or use nats://"
            raise CallError("ACCESS_DENIED", message, {"reason": "insecure"})
        is_local = url is not None and is_loopback(url.hostname or "")
        if self._insecure or is_local or server_has(client, "auth_required"):
            return
        message = f"NATS at {self._shown} requires no credentials: enable authentication, or pass insecure=True"
        raise CallError("ACCESS_DENIED", message, {"reason": "insecure"})

    async def _is_guarded(self, client: Client) -> bool:
        """Whether permissions prevent peers from publishing as others; sends a probe that should be refused."""
        if self.capabilities.rewrites_replies:
            return True
        if not server_has(client, "auth_required"):
            return False
        subject = request_subject(f"not-{new_boot()}", "_enfold.probe")
        await client.publish(subject, b"")
        await _flush(client)
        return subject in self._violations

    # connection state

    def _on_lost(self) -> None:
        if not self._outage.is_on and not self._is_closed:
            self._outage.begin()
            self._signal(Message("", signal=Signal.LOST))

    async def _on_restored(self) -> None:
        if self._outage.is_on:
            self._outage.end()
            self._signal(Message("", signal=Signal.RESTORED))

    def _rebuild(self) -> None:
        """Replace a client that nats-py has closed for good."""
        if not self._is_closed and (self._rebuilding is None or self._rebuilding.done()):
            self._on_lost()
            self._rebuilding = asyncio.create_task(self._build_again())

    async def _build_again(self) -> None:
        while not self._is_closed:
            try:
                self._client = await self._new_subscribed_client()
            except (CallError, TransportError) as error:
                _log.debug("%s", error)
                await asyncio.sleep(REBUILD_PAUSE)
            else:
                await self._on_restored()
                return

    async def _new_subscribed_client(self) -> Client:
        client = await self._new_client()
        try:
            for subscription in list(self._subscriptions):
                await subscription.open(client)
            await _flush(client)
        except BaseException as error:
            await _close_client(client)  # it would reconnect by itself, and receive every message a second time
            if isinstance(error, self._failures):
                raise DisconnectedError from error
            raise
        return client

    async def _on_error(self, error: Exception) -> None:
        """Handle errors of server and client; a missing permission must not look like a timeout."""
        from nats.errors import SlowConsumerError

        if self._client is None:
            self._refusal = error
            if _is_refusal(error) and self._refused is not None and not self._refused.done():
                self._refused.set_result(None)
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
            _log.warning("A message on %s was dropped: this process is too slow", error.subject)
        else:
            _log.debug("nats: %s", error)

    def _signal(self, message: Message) -> None:
        for subscription in list(self._subscriptions):
            subscription.receive(message)

    # messages

    async def _deliver(self, receive: Receive, wire: Msg) -> None:
        subject, headers, peer, identity = wire.subject, wire.headers, None, None
        if headers is not None and not wire.data and headers.get("Status") == "503":
            receive(Message(subject, signal=Signal.NO_RESPONDERS))
            return
        if subject.startswith("op."):
            peer = _account(headers) if self.capabilities.rewrites_replies else subject.split(".", 2)[1]
            identity = self._identify(peer) if peer is not None and self.capabilities.peer_identity else None
        receive(Message(subject, wire.data, wire.reply or None, headers, peer, identity))


class NATSSubscription(msgspec.Struct, eq=False):
    """A subscription that survives the replacement of its client."""

    transport: NATSTransport
    subject: str
    receive: Receive
    queue: str | None
    inner: ClientSubscription | None = None

    async def open(self, client: Client) -> None:
        deliver = partial(self.transport._deliver, self.receive)
        self.inner = await client.subscribe(self.subject, queue=self.queue or "", cb=deliver)

    async def close(self, *, drain: bool = False) -> None:
        from nats.errors import Error

        self.transport._subscriptions.discard(self)
        inner, client = self.inner, self.transport._client
        self.inner = None
        if inner is None or client is None:
            return
        try:
            if drain:
                await _drain(client, inner)
            else:
                await inner.unsubscribe()
        except (Error, OSError, TimeoutError, DisconnectedError) as error:
            _log.debug("%s was not closed: %s", self.subject, error)


async def _drain(client: Client, subscription: Any) -> None:
    """Unsubscribe after the last message; nats-py's own drain may stop one message too early."""
    await client._send_unsubscribe(subscription._id)
    await _flush(client)
    await subscription.drain()


def _drop_connection(client: Client | None) -> None:
    """Abort the connection without waiting for the server; unsent messages are lost."""
    transport = None if client is None else client._transport
    writer = getattr(transport, "_io_writer", None)
    if writer is not None:
        writer.transport.abort()
    elif transport is not None:  # a WebSocket
        transport.close()  # type: ignore[no-untyped-call]  # of nats-py


def _drop_unsent(client: Client) -> None:
    """Discard unsent messages: after the reconnection they would be too late."""
    client._pending.clear()
    client._pending_data_size = 0


async def _flush(client: Client) -> None:
    """Wait until the server has processed everything, and its errors have arrived."""
    from nats.errors import Error

    try:
        # The first ping may overtake buffered messages; the second cannot.
        await client.flush(timeout=5)
        await client.flush(timeout=5)
    except (Error, OSError, TimeoutError) as error:
        raise DisconnectedError from error


def server_has(client: Client, feature: str) -> bool:
    """Whether the server said so when we connected: `auth_required`, `tls_required`, `jetstream`."""
    return bool(client._server_info.get(feature))


def _account(headers: Mapping[str, str] | None) -> str | None:
    """Return the account that the server added to a request; only the exact header name counts, others may be forged."""
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
    except Exception:  # noqa: BLE001  # a timeout, or one of many errors of a broken connection
        _drop_connection(client)
    except asyncio.CancelledError:  # nats-py raises it for a client that the server disconnected
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise  # this task is being cancelled
