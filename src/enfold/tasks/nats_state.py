"""The states of tasks in the bucket: reading them, and writing them over a known version.

A large outcome is kept in parts. An entry that cannot be read is DATA_LOSS, for its own task alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar
from weakref import WeakValueDictionary

import msgspec

from enfold.calls.protocol.transport import TransportError
from enfold.errors import CallError
from enfold.tasks import transitions
from enfold.tasks.model import Order, Outcome, Task
from enfold.tasks.nats_streams import (
    Conflict,
    Streams,
    slot_key,
    slot_pattern,
    state_of_slot,
    sum_key,
    sum_pattern,
    task_key,
    task_pattern,
)
from enfold.tasks.store import (
    DATA_LOSS,
    OVERHEAD,
    TaskLimits,
    check_kept_bytes,
    hour_of,
    is_large_share,
    limit_reached,
    now_ms,
    unexpired,
    unreadable,
)

T = TypeVar("T")

INLINE: Final = 64 * 1024  # bytes of a result that is kept beside the state
ROOM: Final = 8 * 1024  # bytes that are left in a state for what its attempts write there
UNSURE_FOR: Final = 10.0  # seconds for which a write that was not confirmed is tried again
PAUSE: Final = 0.1


class _StateEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task as the bucket has it; a large outcome is kept in parts."""

    task: Task
    parts: str = ""  # the key of the parts
    size: int = 0
    digest: str = ""


class FoundTask(msgspec.Struct, frozen=True):
    """A task as the clock has it, as the bucket has it, and the revision that the bucket has."""

    task: Task
    kept: _StateEntry
    revision: int


class States:
    """The states of all tasks of a store."""

    def __init__(self, streams: Streams, ledger: Ledger) -> None:
        self._streams = streams
        self._ledger = ledger
        self._known: dict[tuple[str | None, str], str] = {}  # the keys of tasks that were asked for

    async def find(self, order: Order) -> FoundTask | None:
        return await self.find_at(task_key(order))

    async def search(self, owner: str | None, task_id: str) -> FoundTask | None:
        """A task by its id: its operation is looked up once."""
        place = (owner, task_id)
        if place not in self._known:
            keys = await self._streams.keys(task_pattern(owner, task_id))
            if not keys:
                return None
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            self._known[place] = keys[0]
        return await self.find_at(self._known[place])

    async def find_at(self, key: str) -> FoundTask | None:
        version = await self._streams.read(key)
        if version is None:
            return None
        kept = read_entry(_StateEntry, version.value)
        return FoundTask(transitions.end_if_overdue(kept.task, now_ms()), kept, version.revision)

    async def put(self, task: Task, follows: int, fence: str = "") -> None:
        """Write a state over the revision that it follows. What has ended with it is counted."""
        outcome = b"" if task.outcome is None else msgspec.json.encode(task.outcome)
        text = encoded(task)
        size = len(text)
        if outcome and (len(outcome) > INLINE or size > self._streams.most):
            # Under the name of the attempt: a fenced one cannot overwrite the parts of another.
            parts = task_key(task.order, f"part.{fence.replace('.', '_')}")
            digest = await self._streams.write_parts(parts, outcome, seconds_kept(task))
            kept = _StateEntry(msgspec.structs.replace(task, outcome=None), parts, len(outcome), digest)
            text, size = msgspec.json.encode(kept), len(outcome)
        await self._write_surely(task, text, follows)
        if task.is_ended:
            await self._ledger.add(task, size, seconds_kept(task))

    async def check_size(self, task: Task) -> None:
        """PAYLOAD_TOO_LARGE where the server cannot hold the task with what a worker writes beside it."""
        await self._streams.open()
        self._streams.check_size(encoded(task), ROOM)

    async def _write_surely(self, task: Task, value: bytes, follows: int) -> None:
        """Write a state; where the server does not confirm it in time, look whether it has it, and try again."""
        from nats.errors import Error

        ends_at = time.monotonic() + UNSURE_FOR
        while True:
            try:
                await self._streams.write(task_key(task.order), value, follows, seconds_kept(task))
            except Conflict:
                found = await self._streams.read(task_key(task.order))
                if found is None or found.value != value:
                    raise
            except (Error, OSError, TimeoutError):
                if time.monotonic() > ends_at:
                    raise
                self._streams.forget()
                await asyncio.sleep(PAUSE)
                continue
            return  # it is there, though perhaps only the confirmation of an earlier write was lost

    async def whole(self, found: FoundTask) -> Task:
        """The task with its outcome, however large."""
        kept = found.kept
        if not kept.parts or found.task.outcome is not None:
            return found.task
        text = await self._streams.read_parts(kept.parts, kept.size, kept.digest)
        if text is None:
            raise CallError(DATA_LOSS, "The result of the task is not complete any more")
        return msgspec.structs.replace(found.task, outcome=msgspec.json.decode(text, type=Outcome))


def encoded(task: Task) -> bytes:
    return msgspec.json.encode(_StateEntry(task))


def read_entry(kind: type[T], value: bytes) -> T:
    """What an entry of the bucket holds; DATA_LOSS if it cannot be read."""
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.MsgspecError as error:
        raise unreadable(error) from error


def seconds_kept(task: Task) -> float:
    """How long what belongs to a task is kept: for some time after its end even where our clock is ahead of the edge's."""
    return max((task.order.expires - now_ms()) / 1000, task.order.keep)


ABANDONED_AFTER: Final = 60.0  # seconds after which a slot without a task is free
LOOK_AGAIN: Final = 0.25  # seconds after which a taken slot of an owner who has none left is read again
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
        self._note_free(key)

    def _note_free(self, key: str) -> None:
        self._ended[key] = None
        if len(self._ended) > MAX_REMEMBERED:
            del self._ended[next(iter(self._ended))]

    async def _has_freed(self, owner: str, taken: list[str], limit: int) -> bool:
        """Whether one of these slots is free: its task has ended in another process, or was never stored.

        A slot that was found taken is read again only after `LOOK_AGAIN` seconds, however often its owner is refused.
        """
        unsure = [key for key in taken if self._looked.is_due(key)]
        for key, is_freed in zip(unsure, await asyncio.gather(*map(self._streams.is_removed, unsure)), strict=True):
            if is_freed:
                self._note_free(key)
        taken = [key for key in taken if key not in self._ended]
        if len(taken) >= limit and self._cleaned.is_due(owner):
            await self._free_abandoned(taken)
        return sum(key not in self._ended for key in taken) < limit

    async def _free_abandoned(self, taken: list[str]) -> None:
        """Free slots of tasks that were never stored or have ended."""
        before = now_ms() - ABANDONED_AFTER * 1000
        for key, slot in zip(taken, await asyncio.gather(*map(self._streams.read, taken)), strict=True):
            is_old = slot is not None and (not slot.value.isdigit() or int(slot.value) < before)
            if is_old and not await self._is_unfinished(state_of_slot(key)):
                await self._free(key)


class Ledger:
    """The bytes of all owners' finished tasks. Every process writes its own sums, under its `name`, and reads those of all."""

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
