"""The subjects of messages, and the names of peers in them. No I/O."""

from __future__ import annotations

import os
import re
from typing import Final

from enfold.operation import legal_name
from enfold.operation.names import sha256

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
