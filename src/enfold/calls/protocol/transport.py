"""The transport port: messages, signals and six methods. No I/O.

A transport carries bytes from peer to peer and vouches for who sent them; it knows nothing of calls.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final, Protocol, TypeAlias, TypeGuard

import msgspec

from enfold.operations import Identity, legal_name
from enfold.operations.spec import sha256

MAX_REPLIES: Final = 10_000  # requests whose answers a peer may still give


class Signal(StrEnum):
    """What a transport says of itself, as a message without data."""

    NO_RESPONDERS = "no_responders"  # nobody listens: the subject is the reply that will not come
    GONE = "gone"  # the same, and the transport knows that somebody did, within the last hour
    DENIED = "denied"  # the server refuses what we sent to the subject
    LOST = "lost"  # the connection is gone: what was under way may be lost
    REFUSED = "refused"  # it is lost, and why that is has changed: we are not let in, or nobody is there
    RESTORED = "restored"  # it is back, and every subscription stands again


class Message(msgspec.Struct, frozen=True):
    """What arrives; `peer` and `identity` come from the transport, never from the sender's own words."""

    subject: str
    data: bytes = b""
    reply: str | None = None
    headers: Mapping[str, str] | None = None
    peer: str | None = None  # the name the sender goes by on this transport
    identity: Identity | None = None  # whom the transport vouches for
    signal: Signal | None = None
    may_offer: tuple[str, ...] | None = None  # namespaces the sender is bound to; None where nothing binds it


def leads_back(message: Message, *, rewritten: bool) -> bool:
    """Whether the reply subject of a message is its sender's own inbox, or one that the server has rewritten to it."""
    if message.reply is None or message.peer is None:
        return False
    return message.reply.startswith("_R_." if rewritten else f"_INBOX.{message.peer}.")


Receive: TypeAlias = Callable[[Message], None]


class ReplyAddresses:
    """Where answers go to the requests that this peer has received, by request id; the oldest are forgotten."""

    def __init__(self) -> None:
        self._replies: dict[str, str] = {}

    def noting(self, subject: str, receive: Receive) -> Receive:
        """Wrap a receiver so that the reply addresses of its requests are remembered."""
        if not takes_requests(subject):
            return receive

        def note(message: Message) -> None:
            if message.reply is not None and leads_back(message, rewritten=False):
                if len(self._replies) >= MAX_REPLIES:
                    del self._replies[next(iter(self._replies))]
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
    no_responders: bool = True  # it says when nobody listens
    peer_identity: bool = True  # it vouches for who sends
    rewrites_replies: bool = False  # reply addresses are the transport's own, and lead only to the sender
    keeps_state: bool = False  # its servers keep streams and buckets, for tasks and first results


class Subscription(Protocol):
    """Messages of one subject, until it is closed."""

    async def close(self, *, drain: bool = False) -> None:
        """End it; with `drain` everything already sent to us is received first."""


class Transport(Protocol):
    """The port itself. `receive` is called on the event loop, must not wait, and also gets the transport's signals.

    Sending does not wait for a slow peer: what cannot be taken raises, so that no call outlives its time in a queue.
    """

    name: str  # under which other peers see us; known once connected
    capabilities: Capabilities

    async def connect(self) -> None:
        """Connect; a second time does nothing."""

    def inbox(self) -> str:
        """The prefix of subjects only we may listen to; the same for the life of the transport."""

    async def publish(
        self, subject: str, data: bytes, *, reply: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """To everybody who listens; raises a TransportError."""

    async def send(
        self, subject: str, data: bytes, *, reply: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """To one member of the queue group; where nobody listens, the reply subject gets a NO_RESPONDERS or GONE signal."""

    async def subscribe(self, subject: str, receive: Receive, *, queue: str | None = None) -> Subscription:
        """Listen; when this returns, nothing sent afterwards is missed."""

    async def close(self) -> None: ...


async def publish_if_possible(transport: Transport, subject: str, data: bytes) -> None:
    """Publish what may get lost: whoever misses it asks, or is sent it, again."""
    with suppress(TransportError):
        await transport.publish(subject, data)


class KeepingTransport(Transport, Protocol):
    """A transport whose servers keep streams and buckets."""

    @property
    def client(self) -> Any:
        """The client of the transport's own library, connected: it knows JetStream as nats-py does."""


def keeps_state(transport: Transport) -> TypeGuard[KeepingTransport]:
    return transport.capabilities.keeps_state


# --- what can go wrong --------------------------------------------------------------------------------------------


class TransportError(Exception):
    """The transport could not do what it was asked."""


class DisconnectedError(TransportError):
    """There is no connection; `sent` says whether the message may have left."""

    def __init__(self, *, sent: bool = False) -> None:
        super().__init__("There is no connection")
        self.sent = sent


class PayloadTooLargeError(TransportError):
    """The message is larger than the transport carries."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"{size} bytes are more than the {limit} that can be sent")
        self.size = size
        self.limit = limit


class OverloadedError(TransportError):
    """Too much waits to be sent already."""

    def __init__(self) -> None:
        super().__init__("Too much waits to be sent already")


class DeniedError(TransportError):
    """This peer may not do that."""


SERVICES: Final = "$SRV"  # where NATS services are asked who they are
WORKERS: Final = "workers"  # the queue group of everybody who offers the same operation
MAX_PEER: Final = 48  # so that the longest id still fits a subject of 255 bytes
_HASH_DIGITS: Final = 16  # with 8 a caller who chooses their own id could find one with the name of another
_HASHED: Final = re.compile(r"_[0-9a-f]{8,}\Z")
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


def is_token(text: str) -> bool:
    """Whether a text may stand between two dots of a subject."""
    return _TOKEN.match(text) is not None


def peer_name(identity_id: str) -> str:
    """The name of an identity in subjects; no two identities have the same.

    An id that has to be changed gets a hash, and so does one that looks as if it had one already.
    """
    if is_token(identity_id) and len(identity_id) <= MAX_PEER and _HASHED.search(identity_id) is None:
        return identity_id
    digest = sha256(identity_id.encode("utf-8", "surrogatepass"))[:_HASH_DIGITS]
    return f"{legal_name(identity_id)[: MAX_PEER - _HASH_DIGITS - 1]}_{digest}"


def new_boot() -> str:
    """A random name for one run of a peer: a restarted one has another."""
    return os.urandom(8).hex()


def request_subject(peer: str, operation_id: str) -> str:
    return f"op.{peer}.{operation_id}"


def offer_subject(operation_id: str) -> str:
    """What a worker listens to: the operation, called by anybody."""
    return f"op.*.{operation_id}"


def takes_requests(pattern: str) -> bool:
    """Whether a subscription to this pattern is given requests of calls."""
    return pattern.startswith(("op.", "*", ">")) and pattern != ask_subject("*")


def operation_of(subject: str) -> str:
    """The operation that a request's subject names."""
    return subject[subject.find(".", 3) + 1 :]


def peer_of(subject: str) -> str:
    """The caller that a request's subject names."""
    return subject.split(".", 2)[1]


def inbox_of(peer: str, boot: str) -> str:
    return f"_INBOX.{peer}.{boot}"


def lies_in(operation_id: str, namespaces: tuple[str, ...] | None) -> bool:
    """Whether an operation is one of those a peer is bound to."""
    if namespaces is None:
        return True
    return any(namespace == "*" or operation_id.startswith(f"{namespace}.") for namespace in namespaces)


def control_subject(worker: str, boot: str, request_id: str) -> str:
    """Where a caller sends control events of its call; the request id in it is the secret."""
    return f"ctl.{worker}.{boot}.{request_id}"


def ask_subject(peer: str) -> str:
    """Where a peer asks every worker what it may call."""
    return f"op.{peer}._enfold.peers"


def announcement_subject(worker: str) -> str:
    return f"evt._enfold.{worker}"
