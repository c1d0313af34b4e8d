"""The state of one request at its worker, and the counts of all."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from typing import Final

import msgspec

from enfold.calls.protocol import failures
from enfold.calls.protocol.events import Requested
from enfold.calls.protocol.settings import WorkerLimits
from enfold.calls.protocol.transport import Message, leads_back
from enfold.calls.worker.answers import Producer
from enfold.errors import CallError
from enfold.operations import Context, Identity, OperationSpec, OperationType
from enfold.operations.idempotency import Owner
from enfold.runtime.prepared import PreparedOperation


class Served(msgspec.Struct, frozen=True):
    """An operation as it is served, looked up once for all calls until the registry changes."""

    operation_id: str
    prepared: PreparedOperation
    counts: OperationCounts


class Counts(msgspec.Struct):
    """What has come in, and what was not served."""

    received: int = 0
    malformed: int = 0  # no event, or of another version
    refused: int = 0  # a reply address that is not the sender's own
    duplicates: int = 0
    expired: int = 0
    shed: int = 0


class OperationCounts(msgspec.Struct):
    """How one operation has been used."""

    requests: int = 0
    errors: int = 0
    seconds: float = 0.0
    last_error: str = ""


class ServedCall(msgspec.Struct, eq=False):
    """One request; kept as long as its caller may still send control events for it."""

    request: Requested
    served: Served
    identity: Identity | None
    peer: str | None
    owner: Owner  # whose slot it has
    reply: str
    deadline: float | None
    arrived_at: float
    spoke_at: float
    headers: Mapping[str, str] | None = None  # where its caller's trace may stand
    size: int | None = None  # of the request, in bytes
    context: Context | None = None
    producer: Producer | None = None
    task: asyncio.Task[None] | None = None
    is_accepted: bool = False
    is_aborted: bool = False

    @property
    def operation_id(self) -> str:
        return self.request.operation_id

    @property
    def prepared(self) -> PreparedOperation:
        return self.served.prepared

    def abort(self) -> None:
        """Stop the call. The flag is what counts, checked after every publish; cancelling its task only makes it quicker.

        What runs under an idempotency key goes on without a caller.
        """
        self.is_aborted = True
        if self.context is not None:
            self.context.cancel()
        if self.task is not None:
            self.task.cancel()


class FairQueue:
    """A free slot goes to the caller with the fewest running calls; among equals, to the one whose turn was longest ago.

    When the queue is full, a caller makes room at the expense of the one who has the most.
    """

    def __init__(self, slots: Mapping[Owner, int]) -> None:
        """`slots` are those of each caller, for calls that run and calls that wait."""
        self._slots = slots
        self._waiting: dict[Owner, deque[ServedCall]] = {}  # the caller whose turn was longest ago first
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, call: ServedCall) -> None:
        self._waiting.setdefault(call.owner, deque()).append(call)
        self._size += 1

    def take(self) -> ServedCall:
        """The next call to run."""
        owner = min(self._waiting, key=self._running)
        calls = self._waiting.pop(owner)
        call = calls.popleft()
        self._size -= 1
        if calls:
            self._waiting[owner] = calls
        return call

    def remove(self, call: ServedCall) -> bool:
        """Take out a call that is not wanted any more; whether it was waiting."""
        calls = self._waiting.get(call.owner)
        if calls is None or call not in calls:
            return False
        calls.remove(call)
        self._size -= 1
        if not calls:
            del self._waiting[call.owner]
        return True

    def displaced_by(self, owner: Owner) -> ServedCall | None:
        """The newest call of the caller with the most slots, if with one less they still have no fewer than this one."""
        if not self._waiting:
            return None
        richest = max(self._waiting, key=self._slots.__getitem__)
        has_more = self._slots[richest] > self._slots.get(owner, 0) + 1
        return self._waiting[richest][-1] if has_more else None

    def _running(self, owner: Owner) -> int:
        return self._slots[owner] - len(self._waiting[owner])


FROZEN: Final = 0.5  # a loop that stood still for longer does not know how long messages have waited


class AdmissionControl:
    """Remembers request ids, shares slots and the waiting line between callers, and notices when the event loop was blocked."""

    def __init__(self, limits: WorkerLimits, counts: Counts) -> None:
        self.limits = limits
        self.vouches = False  # whether the transport says who calls
        self.rewritten = False  # whether reply addresses are the transport's own
        self._counts = counts
        self._remembered: set[tuple[str | None, str]] = set()
        self._remembered_longer: set[tuple[str | None, str]] = set()
        self._slots: dict[Owner, int] = {}  # taken by each caller
        self.queue = FairQueue(self._slots)
        self._alive_at = float("inf")  # until the first `wake` nobody can say that we stood still
        self._frozen_for = 0.0
        self._suspect_until = 0.0

    def accepts(self, message: Message, request: Requested) -> bool:
        """Whether a request is addressed correctly and not a duplicate: a second delivery must not run it again.

        An answer goes to the sender's own inbox alone: else a sender could have us write to another's.
        """
        reply, peer, request_id = message.reply, message.peer, request.request_id
        if reply is None or peer is None:
            is_addressed = False
        elif self.rewritten:
            is_addressed = leads_back(message, rewritten=True)
        else:
            is_addressed = reply.endswith(f".{request_id}") and reply.startswith(f"_INBOX.{peer}.")
        if not is_addressed:
            self._counts.refused += 1
            return False
        key = (peer, request_id)
        if key in self._remembered or key in self._remembered_longer:
            self._counts.duplicates += 1
            return False
        self._remembered.add(key)
        if len(self._remembered) >= self.limits.remembered:
            self._remembered, self._remembered_longer = set(), self._remembered
        return True

    def deadline(self, request: Requested, spec: OperationSpec, now: float) -> float | None:
        """The deadline of a request; raises a CallError for one that is too late or asks for credits wrongly."""
        if request.credits is not None:
            _check_credits(spec, request.credits)
        if request.ttl_ms is not None:
            deadline = now + request.ttl_ms / 1000
        elif request.deadline is not None:
            deadline = now + request.deadline / 1000 - time.time()  # by the caller's clock, for want of a better one
        else:
            return None
        # While we stood still the message may have waited for us: no clock of another machine can tell how long.
        if now - self._alive_at > FROZEN:
            deadline -= now - self._alive_at
        elif now < self._suspect_until:
            deadline -= self._frozen_for
        if deadline <= now:
            self._counts.expired += 1
            details = {"reason": "late", "started": False}
            raise CallError("UNAVAILABLE", f"The call of {spec.id} came too late to be run", details)
        return deadline

    def reserve(self, call: ServedCall, running: int) -> ServedCall | None:
        """Reserve a slot for a call, perhaps in place of a waiting one, which is returned.

        RESOURCE_EXHAUSTED where there are too many calls, of this caller or of all, and no caller has more than this one.
        """
        limits, slots = self.limits, self._slots
        owned = slots.get(call.owner, 0)
        # Names that nobody vouches for are free to choose: to count them would only hinder the honest.
        has_enough = owned >= limits.per_peer and (self.vouches or call.identity is not None)
        is_full = running >= limits.running and len(self.queue) >= limits.waiting
        displaced = self.queue.displaced_by(call.owner) if is_full and not has_enough else None
        if has_enough or (is_full and displaced is None):
            raise self.refusal(call, "of yours " if has_enough else "")
        slots[call.owner] = owned + 1
        return displaced

    def refusal(self, call: ServedCall, whose: str = "") -> CallError:
        """Count a call that is not taken on, and tell its caller so."""
        self._counts.shed += 1
        return failures.overloaded(f"There are too many calls {whose}to take {call.operation_id} on")

    def release(self, call: ServedCall) -> None:
        slots, owner = self._slots, call.owner
        left = slots[owner] - 1
        if left:
            slots[owner] = left
        else:
            del slots[owner]

    def wake(self, now: float) -> None:
        """Note that the loop runs; a long time since the last note means that it was blocked."""
        if now - self._alive_at > FROZEN:
            self._frozen_for, self._suspect_until = now - self._alive_at, now + FROZEN
        self._alive_at = now


def _check_credits(spec: OperationSpec, room: int) -> None:
    if spec.type is not OperationType.SUBSCRIPTION:
        raise CallError("INVALID_OPERATION_TYPE", f"{spec.id} is a {spec.type.value}: call it")
    if room < 1:
        raise CallError("VALIDATION_ERROR", "A stream needs a window of at least one item")
