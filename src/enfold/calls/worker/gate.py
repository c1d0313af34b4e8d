"""What a worker lets in: requests that are well addressed, new, in time, and not too many."""

from __future__ import annotations

import time
from typing import Final

from enfold.calls.protocol import outcomes
from enfold.calls.protocol.call_settings import WorkerLimits
from enfold.calls.protocol.events import Requested
from enfold.calls.protocol.transport import Message, leads_back
from enfold.calls.worker.served import Counts, Owner, ServedCall
from enfold.errors import CallError
from enfold.operation import OperationSpec, OperationType

__all__ = ["FROZEN", "Gate", "is_addressed"]

FROZEN: Final = 0.5  # a loop that stood still for longer does not know how long messages have waited


def is_addressed(message: Message, request: Requested, *, rewritten: bool) -> bool:
    """Whether the answer would go to the sender's own inbox: to send it anywhere else would be to lend our hand."""
    if rewritten:
        return leads_back(message, rewritten=True)
    reply, peer = message.reply, message.peer
    if reply is None or peer is None:
        return False
    return reply[reply.rfind(".") + 1 :] == request.request_id and reply.startswith(f"_INBOX.{peer}.")


class Gate:
    """Remembers what has come, how much is under way, and whether the loop stood still."""

    def __init__(self, limits: WorkerLimits, counts: Counts) -> None:
        self.limits = limits
        self.vouches = False  # whether the transport says who calls
        self._counts = counts
        self._remembered: set[tuple[str | None, str]] = set()
        self._remembered_longer: set[tuple[str | None, str]] = set()
        self._slots: dict[Owner, int] = {}  # taken by each caller
        self._alive_at = float("inf")  # until the first `wake` nobody can say that we stood still
        self._frozen_for = 0.0
        self._suspect_until = 0.0

    def is_new(self, peer: str | None, request_id: str) -> bool:
        """Whether a request has not come before: a second delivery must not run it again."""
        key = (peer, request_id)
        if key in self._remembered or key in self._remembered_longer:
            self._counts.duplicates += 1
            return False
        self._remembered.add(key)
        if len(self._remembered) >= self.limits.remembered:
            self._remembered, self._remembered_longer = set(), self._remembered
        return True

    def deadline(self, message: Message, request: Requested, spec: OperationSpec, now: float) -> float | None:
        """Until when a request may run; raises what can be said against it besides what the registry checks."""
        subject = message.subject
        if subject[subject.find(".", 3) + 1 :] != request.operation_id:
            raise CallError("VALIDATION_ERROR", "The request names another operation than it was sent to")
        if request.credits is not None:
            _check_credits(spec, request.credits)
        if request.ttl_ms is not None:
            deadline = now + request.ttl_ms / 1000
        elif request.deadline is not None:
            deadline = now + request.deadline / 1000 - time.time()  # by the caller's clock, for want of a better one
        else:
            return None
        if now - self._alive_at > FROZEN or now < self._suspect_until:
            deadline -= self._waited(now)
        if deadline <= now:
            self._counts.expired += 1
            details = {"reason": "late", "started": False}
            raise CallError("UNAVAILABLE", f"The call of {spec.id} came too late to be run", details)
        return deadline

    def enter(self, call: ServedCall, running: int, waiting: int, *, is_taken: bool = False) -> None:
        """Give a call its slot; raises where there are too many, of all or of this caller, or where its id is taken."""
        if is_taken:
            raise CallError("VALIDATION_ERROR", "Another call has this request id")
        limits, slots = self.limits, self._slots
        owned = slots.get(call.owner, 0)
        # Names that nobody vouches for are free to choose: to count them would only hinder the honest.
        has_enough = owned >= limits.per_peer and (self.vouches or call.identity is not None)
        if (running >= limits.running and waiting >= limits.waiting) or has_enough:
            self._counts.shed += 1
            whose = "of yours " if has_enough else ""
            raise outcomes.overloaded(f"There are too many calls {whose}to take {call.operation_id} on")
        slots[call.owner] = owned + 1

    def leave(self, call: ServedCall) -> None:
        left = self._slots.pop(call.owner, 1) - 1
        if left:
            self._slots[call.owner] = left

    def wake(self, now: float) -> None:
        """Called again and again; whether it was not for long is how the loop knows that it stood still."""
        if now - self._alive_at > FROZEN:
            self._frozen_for, self._suspect_until = now - self._alive_at, now + FROZEN
        self._alive_at = now

    def _waited(self, now: float) -> float:
        """How long a message may have waited for us while we stood still: no clock of another machine can tell."""
        stood_still = now - self._alive_at
        if stood_still > FROZEN:
            return stood_still
        return self._frozen_for if now < self._suspect_until else 0.0


def _check_credits(spec: OperationSpec, room: int) -> None:
    if spec.type is not OperationType.SUBSCRIPTION:
        raise CallError("INVALID_OPERATION_TYPE", f"{spec.id} is a {spec.type.value}: call it")
    if room < 1:
        raise CallError("VALIDATION_ERROR", "A stream needs a window of at least one item")
