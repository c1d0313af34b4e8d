"""The calls that wait for a slot, shared fairly between callers. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from enfold.calls.worker.served import ServedCall
from enfold.operation.repeats import Owner


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
