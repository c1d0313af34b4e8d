"""Which requests a worker accepts: addressed correctly, not seen before, in time, and within the limits."""

from __future__ import annotations

import time
from typing import Final

from enfold.calls.protocol import call_failures
from enfold.calls.protocol.call_settings import WorkerLimits
from enfold.calls.protocol.events import Requested
from enfold.calls.protocol.transport import Message, leads_back
from enfold.calls.worker.fair_queue import FairQueue
from enfold.calls.worker.served import Counts, ServedCall
from enfold.errors import CallError
from enfold.operation import OperationSpec, OperationType
from enfold.operation.repeats import Owner

FROZEN: Final = 0.5  # a loop that stood still for longer does not know how long messages have waited


class Gate:
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
        return call_failures.overloaded(f"There are too many calls {whose}to take {call.operation_id} on")

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
