"""Admission of requests at a worker: slots per caller, the queue, duplicates and late requests."""

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
from enfold.calls.protocol.transport import Message, replies_to_sender
from enfold.calls.worker.answers import Producer
from enfold.errors import CallError
from enfold.operations import Context, Identity, OperationSpec, OperationType
from enfold.operations.idempotency import Owner
from enfold.runtime.prepared import PreparedOperation


class Counts(msgspec.Struct):
    """Requests received, and those not served."""

    received: int = 0
    malformed: int = 0  # not an event, or of another version
    refused: int = 0  # a reply subject that is not the sender's own
    duplicates: int = 0
    expired: int = 0
    shed: int = 0


class OperationCounts(msgspec.Struct):
    """Usage statistics of one operation."""

    requests: int = 0
    errors: int = 0
    seconds: float = 0.0
    last_error: str = ""


class ServedCall(msgspec.Struct, eq=False):
    """One request, kept as long as its caller may send control events."""

    request: Requested
    prepared: PreparedOperation
    counts: OperationCounts
    identity: Identity | None
    peer: str | None
    owner: Owner  # the caller that its slot counts for
    reply: str
    headers: Mapping[str, str] | None  # with the trace context of the caller
    size: int  # of the request, in bytes
    deadline: float | None
    arrived_at: float
    last_sent_at: float
    context: Context | None = None
    producer: Producer | None = None
    task: asyncio.Task[None] | None = None
    is_accepted: bool = False
    is_aborted: bool = False
    secret: str = ""  # of its control subject; "" until its caller gets it

    @property
    def operation_id(self) -> str:
        return self.request.operation_id

    def abort(self) -> None:
        """Stop the call: set the flag that is checked after every publish, and cancel the task to be quicker.

        A call under an idempotency key continues without its caller.
        """
        self.is_aborted = True
        self.cancel()

    def cancel(self) -> None:
        """Cancel what runs for the call."""
        if self.context is not None:
            self.context.cancel()
        if self.task is not None:
            self.task.cancel()


class FairQueue:
    """Gives a free slot to the caller with the fewest running calls; among equals, to the least recently served.

    If the queue is full, a new caller displaces a call of the caller with the most slots.
    """

    def __init__(self, slots: Mapping[Owner, int]) -> None:
        """`slots` counts the running and queued calls of each caller."""
        self._slots = slots
        self._waiting: dict[Owner, deque[ServedCall]] = {}  # least recently served caller first
        self.size = 0

    def put(self, call: ServedCall) -> None:
        self._waiting.setdefault(call.owner, deque()).append(call)
        self.size += 1

    def take(self) -> ServedCall:
        """Return the next call to run."""
        owner = min(self._waiting, key=self._running)
        calls = self._waiting.pop(owner)
        call = calls.popleft()
        self.size -= 1
        if calls:
            self._waiting[owner] = calls
        return call

    def remove(self, call: ServedCall) -> bool:
        """Remove a call; returns whether it was queued."""
        calls = self._waiting.get(call.owner)
        if calls is None or call not in calls:
            return False
        calls.remove(call)
        self.size -= 1
        if not calls:
            del self._waiting[call.owner]
        return True

    def displaced_by(self, owner: Owner) -> ServedCall | None:
        """Return the newest call of the caller with the most slots, if that leaves them as many as this one."""
        if not self._waiting:
            return None
        richest = max(self._waiting, key=self._slots.__getitem__)
        has_more = self._slots[richest] > self._slots.get(owner, 0) + 1
        return self._waiting[richest][-1] if has_more else None

    def _running(self, owner: Owner) -> int:
        return self._slots[owner] - len(self._waiting[owner])


STALL: Final = 0.5  # seconds after which the event loop counts as stalled: messages may have waited as long


class AdmissionControl:
    """Detects duplicates, shares slots and the queue fairly between callers, and notices a stalled event loop."""

    def __init__(self, limits: WorkerLimits, counts: Counts) -> None:
        self.limits = limits
        self.authenticates = False  # whether the transport authenticates callers
        self.rewritten = False  # whether the server rewrites reply subjects
        self._counts = counts
        self._remembered: set[tuple[str | None, str]] = set()
        self._remembered_longer: set[tuple[str | None, str]] = set()
        self._slots: dict[Owner, int] = {}  # running and queued calls by caller
        self.queue = FairQueue(self._slots)
        self._alive_at = float("inf")  # no stall is known before the first `wake`
        self._stalled_for = 0.0
        self._suspect_until = 0.0

    def accepts(self, message: Message, request_id: str) -> bool:
        """Whether a request is no duplicate and its reply subject is the sender's own inbox.

        Otherwise a sender could make the worker publish to another peer's inbox.
        """
        is_theirs = replies_to_sender(message, rewritten=self.rewritten)
        if not is_theirs or not (self.rewritten or (message.reply or "").endswith(f".{request_id}")):
            self._counts.refused += 1
            return False
        key = (message.peer, request_id)
        if key in self._remembered or key in self._remembered_longer:
            self._counts.duplicates += 1
            return False
        self._remembered.add(key)
        if len(self._remembered) >= self.limits.remembered:
            self._remembered, self._remembered_longer = set(), self._remembered
        return True

    def deadline(self, request: Requested, spec: OperationSpec, now: float) -> float | None:
        """Return the deadline of a request; raise CallError if it is late or has invalid credits."""
        if request.credits is not None:
            _check_credits(spec, request.credits)
        if request.ttl_ms is not None:
            deadline = now + request.ttl_ms / 1000
        elif request.deadline is not None:
            deadline = now + request.deadline / 1000 - time.time()  # on the caller's clock
        else:
            return None
        # The message may have waited while the loop was stalled; clocks of other machines are not trusted.
        if now - self._alive_at > STALL:
            deadline -= now - self._alive_at
        elif now < self._suspect_until:
            deadline -= self._stalled_for
        if deadline <= now:
            self._counts.expired += 1
            details = {"reason": "late", "started": False}
            raise CallError("UNAVAILABLE", f"The call of {spec.id} arrived after its deadline", details)
        return deadline

    def reserve(self, call: ServedCall, running: int) -> ServedCall | None:
        """Reserve a slot for a call. Returns the queued call that it displaces, if any.

        Raises RESOURCE_EXHAUSTED if there are too many calls of this caller, or of all and no caller has more than this one.
        """
        limits, slots = self.limits, self._slots
        owned = slots.get(call.owner, 0)
        # Unauthenticated names are free to choose: limiting them would only affect honest callers.
        has_enough = owned >= limits.per_peer and (self.authenticates or call.identity is not None)
        is_full = running >= limits.running and self.queue.size >= limits.waiting
        displaced = self.queue.displaced_by(call.owner) if is_full and not has_enough else None
        if has_enough or (is_full and displaced is None):
            raise self.refusal(call, "of yours " if has_enough else "")
        slots[call.owner] = owned + 1
        return displaced

    def refusal(self, call: ServedCall, whose: str = "") -> CallError:
        """Count a refused call and return its error."""
        self._counts.shed += 1
        return failures.overloaded(
            f"Too many calls {whose}are running or waiting: {call.operation_id} was not accepted, retry later"
        )

    def release(self, call: ServedCall) -> None:
        slots, owner = self._slots, call.owner
        left = slots[owner] - 1
        if left:
            slots[owner] = left
        else:
            del slots[owner]

    def wake(self, now: float) -> bool:
        """Note that the event loop runs, and ask for the next time; a long gap means that it was stalled."""
        if now - self._alive_at > STALL:
            self._stalled_for, self._suspect_until = now - self._alive_at, now + STALL
        self._alive_at = now
        return True


def _check_credits(spec: OperationSpec, room: int) -> None:
    if spec.type is not OperationType.SUBSCRIPTION:
        raise CallError("INVALID_OPERATION_TYPE", f"{spec.id} is a {spec.type.value}: use execute()")
    if room < 1:
        raise CallError("VALIDATION_ERROR", "A stream needs a window of at least one item")
