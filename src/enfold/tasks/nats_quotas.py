"""What each owner has on NATS: a key for each unfinished task, and sums of bytes, by hour, for the finished ones.

Processes count by themselves: together they may let in a few tasks too many, and nobody waits for another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final
from weakref import WeakValueDictionary

from enfold.calls.protocol.transport import TransportError
from enfold.errors import CallError
from enfold.tasks.kept_bytes import OVERHEAD, TaskLimits, check_kept_bytes, hour_of, is_large_share, unexpired
from enfold.tasks.nats_bucket import Streams
from enfold.tasks.nats_names import slot_key, slot_pattern, state_of_slot, sum_key, sum_pattern
from enfold.tasks.store import limit_reached, now_ms
from enfold.tasks.task import Order, Task

ABANDONED_AFTER: Final = 60.0  # seconds after which a slot without a task is free
LOOK_AGAIN: Final = 0.25  # seconds after which the slots of an owner who has none left are read again
READ_AGAIN: Final = 5.0  # seconds after which the sums of other processes are read again
MAX_REMEMBERED: Final = 10_000

IsUnfinished = Callable[[str], Awaitable[bool]]  # whether the task of a state's key is unfinished
_Sums = dict[int, int]  # bytes, by the hour in which they are forgotten


class Seldom:
    """Limits how often something is done for each key: `is_due` is true at most once in so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last: dict[str, float] = {}

    def is_due(self, key: str) -> bool:
        now = time.monotonic()
        if now - self._last.get(key, -self._seconds) < self._seconds:
            return False
        if len(self._last) >= MAX_REMEMBERED:
            self._last.clear()
        self._last[key] = now
        return True


class Slots:
    """The slots of all owners' unfinished tasks; `is_unfinished` looks at one task."""

    def __init__(self, streams: Streams, is_unfinished: IsUnfinished) -> None:
        self._streams = streams
        self._is_unfinished = is_unfinished
        self._counting: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._ended: dict[str, None] = {}  # freed here, the oldest first: the server lists them for another second
        self._looked = Seldom(LOOK_AGAIN)
        self._cleaned = Seldom(ABANDONED_AFTER)

    async def take(self, order: Order, limit: int) -> None:
        """Reserve a slot for a new task; RESOURCE_EXHAUSTED where its owner has none left."""
        owner = order.owner
        lock = self._counting.setdefault(owner, asyncio.Lock())
        async with lock:
            taken = await self._streams.keys(slot_pattern(owner))
            taken = [key for key in taken if key not in self._ended]
            if len(taken) >= limit and not await self._has_freed(owner, taken, limit):
                raise limit_reached(limit)
            seconds = (order.deadline - now_ms()) / 1000
            await self._streams.write(slot_key(order), str(now_ms()).encode(), None, seconds)

    async def end(self, order: Order) -> None:
        await self._free(slot_key(order))

    async def _free(self, key: str) -> None:
        await self._streams.remove(key)
        self._ended[key] = None
        if len(self._ended) > MAX_REMEMBERED:
            del self._ended[next(iter(self._ended))]

    async def _has_freed(self, owner: str, taken: list[str], limit: int) -> bool:
        """Whether one of these slots is free: its task has ended elsewhere, or was never stored. Seldom: it reads them all."""
        if not self._looked.is_due(owner):
            return False
        slots = dict(zip(taken, await asyncio.gather(*map(self._streams.read, taken)), strict=True))
        left = {key: slot.value for key, slot in slots.items() if slot is not None}
        if len(left) >= limit and self._cleaned.is_due(owner):
            await self._free_abandoned(left)
        return sum(key not in self._ended for key in left) < limit

    async def _free_abandoned(self, taken: dict[str, bytes]) -> None:
        """Free slots of tasks that were never stored or have ended."""
        before = now_ms() - ABANDONED_AFTER * 1000
        for key, taken_at in taken.items():
            is_old = not taken_at.isdigit() or int(taken_at) < before
            if is_old and not await self._is_unfinished(state_of_slot(key)):
                await self._free(key)


class Ledger:
    """The bytes of all owners' finished tasks. Every process writes sums of its own, under its `name`, and reads everybody's."""

    def __init__(self, streams: Streams, name: str) -> None:
        self._streams = streams
        self._name = name
        self._own: dict[str, dict[str, _Sums]] = {}  # by owner and operation
        self._read: dict[str, tuple[float, _Sums]] = {}  # what others had, and when

    async def add(self, task: Task, size: int, seconds: float) -> None:
        """Count a task that has ended, and is kept for so many seconds."""
        from nats.errors import Error

        hour = hour_of(task.order)
        if task.owner not in self._own and len(self._own) >= MAX_REMEMBERED:
            self._own.clear()  # and with it the name under which they were written
            self._name = f"{self._name}a"
        own = self._own.setdefault(task.owner, {})
        sums = own[task.operation] = unexpired(own.get(task.operation, {}), now_ms())
        sums[hour] = sums.get(hour, 0) + size + OVERHEAD
        with suppress(Error, TransportError, CallError, OSError, TimeoutError):  # the next one writes the sum of both
            await self._streams.write(sum_key(task.order, self._name, hour), str(sums[hour]).encode(), None, seconds)

    async def check(self, order: Order, limits: TaskLimits) -> None:
        """RESOURCE_EXHAUSTED where too much is kept of the owner's tasks."""
        now = now_ms()
        kept = await self._kept(order.owner)
        if is_large_share(kept, limits, now):
            check_kept_bytes(kept, await self._streams.held_bytes(), limits, now)

    async def _kept(self, owner: str) -> _Sums:
        read_at, others = self._read.get(owner, (-READ_AGAIN, {}))
        if time.monotonic() - read_at >= READ_AGAIN:
            if len(self._read) >= MAX_REMEMBERED:
                self._read.clear()
            others = await self._of_others(owner)
            self._read[owner] = time.monotonic(), others
        kept = dict(others)
        for sums in self._own.get(owner, {}).values():
            for hour, size in sums.items():
                kept[hour] = kept.get(hour, 0) + size
        return kept

    async def _of_others(self, owner: str) -> _Sums:
        keys = await self._streams.keys(sum_pattern(owner))
        keys = [key for key in keys if key.split(".")[3] != self._name]
        sums: _Sums = {}
        for key, version in zip(keys, await asyncio.gather(*map(self._streams.read, keys)), strict=True):
            hour = key.rpartition(".")[2]
            if version is not None and version.value.isdigit() and hour.isdigit():
                sums[int(hour)] = sums.get(int(hour), 0) + int(version.value)
        return sums
