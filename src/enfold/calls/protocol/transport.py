"""The transport protocol: messages, signals and six methods. No I/O.

A transport carries bytes between peers and authenticates their senders; it does not interpret them.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final, Protocol, TypeAlias, TypeGuard

import msgspec

from enfold.operations import Identity, legal_name
from enfold.operations.spec import sha256

MAX_REPLIES: Final = 10_000  # requests that a peer may still answer


class Signal(StrEnum):
    """A notification of the transport itself, delivered as a message without data."""

    NO_RESPONDERS = "no_responders"  # no subscriber; the subject is the reply subject
    GONE = "gone"  # no subscriber any more, but there was one within the last hour
    DENIED = "denied"  # publishing to the subject is not permitted
    LOST = "lost"  # disconnected: messages in flight may be lost
    REFUSED = "refused"  # still disconnected, for another reason: refused, or unreachable
    RESTORED = "restored"  # reconnected, with every subscription


class Message(msgspec.Struct, frozen=True):
    """A received message; `peer` and `identity` come from the transport, never from the message itself."""

    subject: str
    data: bytes = b""
    reply: str | None = None
    headers: Mapping[str, str] | None = None
    peer: str | None = None  # the sender's name on this transport
    identity: Identity | None = None  # the authenticated sender
    signal: Signal | None = None
    may_offer: tuple[str, ...] | None = None  # namespaces the sender may offer; None for all


def replies_to_sender(message: Message, *, rewritten: bool) -> bool:
    """Whether the reply subject is the sender's own inbox, or one that the server rewrote to it."""
    if message.reply is None or message.peer is None:
        return False
    return message.reply.startswith("_R_." if rewritten else f"_INBOX.{message.peer}.")


Receive: TypeAlias = Callable[[Message], None]


class ReplyAddresses:
    """Reply subjects of received requests by request id, for a peer that answers them by hand; the oldest are dropped."""

    def __init__(self) -> None:
        self.are_wanted = False
        self._replies: OrderedDict[str, str] = OrderedDict()

    def recording(self, subject: str, receive: Receive) -> Receive:
        """Wrap a receiver so that the reply addresses of its requests are remembered, once they are wanted."""
        if not receives_requests(subject):
            return receive

        def note(message: Message) -> None:
            if self.are_wanted and message.reply is not None and replies_to_sender(message, rewritten=False):
                if len(self._replies) >= MAX_REPLIES:
                    self._replies.popitem(last=False)
                self._replies[message.reply.rpartition(".")[2]] = message.reply
            receive(message)

        return note

    def find(self, request_id: str) -> str | None:
        return self._replies.get(request_id)

    def forget(self, request_id: str) -> None:
        self._replies.pop(request_id, None)


class Capabilities(msgspec.Struct, frozen=True):
    """What a transport can do."""

    max_payload: int = 1024 * 1024  # of data and headers together
    no_responders: bool = True  # it signals that a subject has no subscriber
    peer_identity: bool = True  # it authenticates senders
    rewrites_replies: bool = False  # the server replaces reply subjects with its own
    keeps_state: bool = False  # its servers store streams and buckets, for tasks and idempotency keys


class Subscription(Protocol):
    """A subscription to one subject."""

    async def close(self, *, drain: bool = False) -> None:
        """Unsubscribe; with `drain`, after everything already sent to us is received."""


class Transport(Protocol):
    """Carries messages between peers. `receive` is called on the event loop, must not block, and also receives signals.

    Sending never waits for a slow peer: it raises instead, so that no call outlives its deadline in a queue.
    """

    name: str  # the name that other peers see; known once connected
    capabilities: Capabilities

    async def connect(self) -> None:
        """Connect; a second time does nothing."""

    def inbox(self) -> str:
        """Return the prefix of subjects that only this peer may subscribe to; constant for the life of the transport."""

    async def publish(
        self, subject: str, data: bytes, *, reply: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """Publish to all subscribers; raises a TransportError."""

    async def send(
        self, subject: str, data: bytes, *, reply: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send to one member of the queue group; without subscribers the reply subject receives NO_RESPONDERS or GONE."""

    async def subscribe(self, subject: str, receive: Receive, *, queue: str | None = None) -> Subscription:
        """Subscribe; everything sent after this returns is received."""

    async def close(self) -> None: ...


async def try_publish(transport: Transport, subject: str, data: bytes) -> None:
    """Publish on a best-effort basis."""
    with suppress(TransportError):
        await transport.publish(subject, data)


class KeepingTransport(Transport, Protocol):
    """A transport whose servers store streams and buckets."""

    @property
    def client(self) -> Any:
        """The connected nats-py client, for JetStream."""


def keeps_state(transport: Transport) -> TypeGuard[KeepingTransport]:
    return transport.capabilities.keeps_state


# --- what can go wrong --------------------------------------------------------------------------------------------


class TransportError(Exception):
    """The transport failed."""


class DisconnectedError(TransportError):
    """Not connected; `sent` says whether the message may have been sent."""

    def __init__(self, *, sent: bool = False) -> None:
        super().__init__("Not connected")
        self.sent = sent


class PayloadTooLargeError(TransportError):
    """The message is larger than the transport carries."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"{size} bytes exceed the limit of {limit} bytes per message")
        self.size = size
        self.limit = limit


class OverloadedError(TransportError):
    """The send buffer is full."""

    def __init__(self) -> None:
        super().__init__("The send buffer is full")


class DeniedError(TransportError):
    """The server does not permit this."""


SERVICES: Final = "$SRV"  # discovery of NATS services
WORKERS: Final = "workers"  # the queue group of all workers of an operation
MAX_PEER: Final = 48  # so that the longest id still fits a subject of 255 bytes
_HASH_DIGITS: Final = 16  # with 8, a caller who chooses their id could provoke a collision
_HASHED: Final = re.compile(r"_[0-9a-f]{8,}\Z")
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


def is_token(text: str) -> bool:
    """Whether a text is a valid token of a subject."""
    return _TOKEN.match(text) is not None


def peer_name(identity_id: str) -> str:
    """Return the name of an identity in subjects, unique per identity.

    An id that must be changed gets a hash, and so does one that looks as if it already had one.
    """
    if is_token(identity_id) and len(identity_id) <= MAX_PEER and _HASHED.search(identity_id) is None:
        return identity_id
    digest = sha256(identity_id.encode("utf-8", "surrogatepass"))[:_HASH_DIGITS]
    return f"{legal_name(identity_id)[: MAX_PEER - _HASH_DIGITS - 1]}_{digest}"


def new_boot() -> str:
    """Return a random id for one run of a peer; it changes with every restart."""
    return os.urandom(8).hex()


def request_subject(peer: str, operation_id: str) -> str:
    return f"op.{peer}.{operation_id}"


def offer_subject(operation_id: str) -> str:
    """Return the subject pattern of a worker: the operation, called by any peer."""
    return f"op.*.{operation_id}"


def receives_requests(pattern: str) -> bool:
    """Whether a subscription to this pattern receives requests."""
    return pattern.startswith(("op.", "*", ">")) and not pattern.startswith(discovery_subject("*"))


def operation_of(subject: str) -> str:
    """Return the operation of a request's subject."""
    return subject[subject.find(".", 3) + 1 :]


def inbox_of(peer: str, boot: str) -> str:
    return f"_INBOX.{peer}.{boot}"


def lies_in(operation_id: str, namespaces: tuple[str, ...] | None) -> bool:
    """Whether an operation lies in one of the namespaces; None stands for all."""
    if namespaces is None:
        return True
    return any(namespace == "*" or operation_id.startswith(f"{namespace}.") for namespace in namespaces)


def control_subject(worker: str, boot: str, secret: str) -> str:
    """Return the subject for control events of a call; only the caller gets the worker's secret."""
    return f"ctl.{worker}.{boot}.{secret}"


def discovery_subject(peer: str, worker: str | None = None) -> str:
    """The subject on which a peer asks what it may call: all workers, or those with this name."""
    return f"op.{peer}._enfold.peers" if worker is None else f"op.{peer}._enfold.peers.{worker}"


def announcement_subject(worker: str) -> str:
    return f"evt._enfold.{worker}"
