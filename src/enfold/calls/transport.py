"""The port between calls and whatever carries them: messages, five verbs, and the names messages travel under. No I/O.

A transport carries bytes from peer to peer and vouches for who sent them; it knows nothing of calls.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final, Protocol, TypeAlias

import msgspec

from enfold.operation import Identity, legal_name, with_hash

__all__ = [
    "WORKERS",
    "Capabilities",
    "DeniedError",
    "DisconnectedError",
    "Message",
    "OverloadedError",
    "PayloadTooLargeError",
    "Receive",
    "Signal",
    "Subscription",
    "Transport",
    "TransportError",
    "announcement_subject",
    "ask_subject",
    "control_subject",
    "inbox_of",
    "is_token",
    "leads_back",
    "lies_in",
    "new_boot",
    "offer_subject",
    "operation_of",
    "peer_name",
    "peer_of",
    "request_subject",
]

WORKERS: Final = "workers"  # the queue group of everybody who offers the same operation
MAX_PEER: Final = 48  # so that the longest id still fits a subject of 255 bytes


class Signal(StrEnum):
    """What a transport says of itself, as a message without data."""

    NO_RESPONDERS = "no_responders"  # nobody listens: the subject is the reply that will not come
    DENIED = "denied"  # the server refuses what we sent to the subject
    LOST = "lost"  # the connection is gone: what was under way may be lost
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


Receive: TypeAlias = Callable[[Message], None]


class Capabilities(msgspec.Struct, frozen=True):
    """What a transport can do."""

    max_payload: int = 1024 * 1024  # of data and headers together
    no_responders: bool = True  # it says when nobody listens
    peer_identity: bool = True  # it vouches for who sends
    durable: bool = False
    rewrites_replies: bool = False  # reply addresses are the transport's own, and lead only to the sender


class Subscription(Protocol):
    """Messages of one subject, until it is closed."""

    async def close(self, *, drain: bool = False) -> None:
        """End it; with `drain` everything already sent to us is received first."""


class Transport(Protocol):
    """The five verbs. `receive` is called on the event loop, must not wait, and also gets the transport's signals.

    Sending does not wait for a slow peer: what cannot be taken raises, so that no call outlives its time in a queue.
    """

    name: str  # under which other peers see us; known once connected
    capabilities: Capabilities

    async def connect(self) -> None:
        """Be ready for the verbs; a second time does nothing."""

    def inbox(self) -> str:
        """The prefix of subjects only we may listen to; the same for the life of the transport."""

    async def publish(
        self, subject: str, data: bytes, *, reply: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """To everybody who listens; raises a TransportError."""

    async def send(
        self, subject: str, data: bytes, *, reply: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """To one member of the queue group; where nobody listens, the reply subject gets a NO_RESPONDERS signal."""

    async def subscribe(self, subject: str, receive: Receive, *, queue: str | None = None) -> Subscription:
        """Listen; when this returns, nothing sent afterwards is missed."""

    async def close(self) -> None: ...


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


# --- names --------------------------------------------------------------------------------------------------------

_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


def is_token(text: str) -> bool:
    """Whether a text may stand between two dots of a subject."""
    return _TOKEN.match(text) is not None


def peer_name(identity_id: str) -> str:
    """The name an identity goes by in subjects; one that had to be changed gets a hash, so that no two are the same."""
    if is_token(identity_id) and len(identity_id) <= MAX_PEER:
        return identity_id
    return with_hash(legal_name(identity_id)[: MAX_PEER - 9], identity_id)


def new_boot() -> str:
    """A name for this life of a peer, which a restarted one does not share."""
    return os.urandom(8).hex()


def request_subject(peer: str, operation_id: str) -> str:
    return f"op.{peer}.{operation_id}"


def offer_subject(operation_id: str) -> str:
    """What a worker listens to: the operation, called by anybody."""
    return f"op.*.{operation_id}"


def operation_of(subject: str) -> str:
    """The operation that a request's subject names."""
    return subject[subject.find(".", 3) + 1 :]


def peer_of(subject: str) -> str:
    """The caller that a request's subject names."""
    return subject.split(".", 2)[1]


def inbox_of(peer: str, boot: str) -> str:
    return f"_INBOX.{peer}.{boot}"


def leads_back(message: Message, *, rewritten: bool) -> bool:
    """Whether the reply address of a message is its sender's own; a rewritten one leads to nobody else."""
    if message.reply is None or message.peer is None:
        return False
    return message.reply.startswith("_R_." if rewritten else f"_INBOX.{message.peer}.")


def lies_in(operation_id: str, namespaces: tuple[str, ...] | None) -> bool:
    """Whether an operation is one of those a peer is bound to."""
    if namespaces is None:
        return True
    return any(namespace == "*" or operation_id.startswith(f"{namespace}.") for namespace in namespaces)


def control_subject(worker: str, boot: str, request_id: str) -> str:
    """Where a caller speaks to the worker that runs its call; the id in it is the secret."""
    return f"ctl.{worker}.{boot}.{request_id}"


def ask_subject(peer: str) -> str:
    """Where a peer asks every worker what it may call."""
    return f"op.{peer}._enfold.peers"


def announcement_subject(worker: str) -> str:
    return f"evt._enfold.{worker}"
