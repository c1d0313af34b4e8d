"""Tasks kept in the memory of one process: for tests, and where no file can be written. They die with it."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from enfold.operation import Progress
from enfold.tasks.kept_bytes import OVERHEAD, TaskLimits, check_kept_bytes, hour_of, is_much, not_forgotten
from enfold.tasks.store import (
    Claim,
    Claims,
    Ending,
    FencedError,
    Served,
    Signal,
    after_ending,
    after_signal,
    limit_reached,
    listed,
    now_ms,
    same_order,
)
from enfold.tasks.task import Order, Task
from enfold.tasks.transitions import accepted, claimed, frees_key, is_forgotten, noted, overdue
from enfold.tasks.wakeups import WORK, Wakeups


class MemoryTasks:
    """A store in memory. Its verbs never wait, but for work and for changes."""

    beat = 0.25

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}
        self._queued: dict[str, str] = {}  # the operations of what waits for a worker, in its order
        self._unfinished: dict[str, set[str]] = {}  # the ids of each owner
        self._keys: dict[tuple[str, str, str], str] = {}
        self._kept: dict[
            str, dict[int, int]
        ] = {}  # bytes of each owner's finished tasks, by the hour they are forgotten
        self._wakeups = Wakeups()

    async def accept(self, order: Order, limits: TaskLimits, *, claims: bool = False) -> Task | Claim:
        first = self._now(self._keys.get((order.owner, order.operation, order.key or ""), ""))
        if first is not None and not frees_key(first):
            return same_order(first, order)
        if len(self._unfinished_of(order.owner)) >= limits.unfinished:
            raise limit_reached(limits.unfinished)
        kept, now = self._kept.get(order.owner, {}), now_ms()
        if is_much(kept, limits, now):
            in_all = sum(sum(each.values()) for each in self._kept.values())
            check_kept_bytes(kept, in_all, limits, now)
        if order.key is not None:
            self._keys[order.owner, order.operation, order.key] = order.id
        # What is kept must not change with the caller's own objects.
        task = accepted(msgspec.json.decode(msgspec.json.encode(order), type=Order))
        return Claim(self._claim_one(task)) if claims else self._put(task)

    async def get(self, owner: str | None, task_id: str) -> Task | None:
        task = self._now(task_id)
        return task if task is not None and owner in (None, task.owner) else None

    def _now(self, task_id: str) -> Task | None:
        """The task as the clock has it; one that has come to its deadline ends."""
        task, now = self._tasks.get(task_id), now_ms()
        if task is None or is_forgotten(task, now):
            return None
        after = overdue(task, now)
        return task if after is task else self._put(after)

    def _unfinished_of(self, owner: str) -> Sequence[Task]:
        found = [self._now(task_id) for task_id in tuple(self._unfinished.get(owner, ()))]
        return [task for task in found if task is not None and not task.is_ended]

    async def list(self, owner: str | None, limit: int = 100) -> list[Task]:
        # They stand in the order in which they were accepted.
        found = map(self._now, reversed(tuple(self._tasks)))
        newest = (task for task in found if task is not None and owner in (None, task.owner))
        return [listed(task) for task in islice(newest, limit)]

    async def claim(self, served: Served, n: int, wait: float, *, but: Collection[str] = ()) -> Claims:
        moment = self._wakeups.expect(WORK)
        found = self._claim(served, n, but)
        if found:
            moment.cancel()
            return found
        return self._claim(served, n, but) if await self._wakeups.wait(moment, wait) else []

    def _claim(self, served: Served, n: int, but: Collection[str]) -> Claims:
        if not self._queued:
            return []
        ids = served()
        queued = (self._tasks[task_id] for task_id, operation in self._queued.items() if operation in ids)
        found = list(islice((task for task in queued if task.owner not in but), n))
        return [Claim(self._claim_one(task)) for task in found]

    async def take(self, task_id: str) -> Claim | None:
        task = self._tasks.get(task_id)
        return None if task is None or not task.is_queued else Claim(self._claim_one(task))

    def _claim_one(self, task: Task) -> Task:
        return self._put(claimed(task, os.urandom(8).hex(), now_ms()))

    async def has_worker(self) -> bool | None:
        return None

    async def hold(
        self, claim: Claim, progress: Progress | None = None, notes: Mapping[str, Any] | None = None
    ) -> bool:
        task = self._held(claim)
        if progress is not None or notes:
            self._put(noted(task, now_ms(), progress, notes))
        return task.is_cancelling

    async def record(self, claim: Claim, ending: Ending) -> Task:
        return self._put(after_ending(self._held(claim), ending, now_ms()))

    def _count(self, task: Task) -> None:
        kept, hour = self._kept.setdefault(task.owner, {}), hour_of(task.order)
        kept[hour] = kept.get(hour, 0) + len(msgspec.json.encode(task)) + OVERHEAD

    def _held(self, claim: Claim) -> Task:
        task = self._tasks.get(claim.id)
        if task is None or task.fence != claim.task.fence:
            raise FencedError
        return task

    async def signal(self, owner: str | None, task_id: str, signal: Signal) -> Task | None:
        task = await self.get(owner, task_id)
        return None if task is None else self._put(after_signal(task, signal, now_ms()))

    def watch(self, owner: str | None, task_id: str) -> AsyncGenerator[Task]:
        return self._wakeups.watch(task_id, partial(self.get, owner, task_id), None)

    async def expire(self) -> None:
        now = now_ms()
        for task in tuple(self._tasks.values()):
            if (after := overdue(task, now)) is not task:
                self._put(after)
            if is_forgotten(task, now):
                del self._tasks[task.id]
                key = (task.owner, task.operation, task.order.key or "")
                if self._keys.get(key) == task.id:
                    del self._keys[key]
        left = {owner: not_forgotten(kept, now) for owner, kept in self._kept.items()}
        self._kept = {owner: kept for owner, kept in left.items() if kept}

    async def close(self) -> None:
        self._wakeups.wake()

    def _put(self, task: Task) -> Task:
        before = self._tasks.get(task.id)
        if task.is_ended and before is not None and not before.is_ended:
            self._count(task)
        self._tasks[task.id] = task
        if task.is_queued:
            self._queued[task.id] = task.operation
        else:
            self._queued.pop(task.id, None)
        unfinished = self._unfinished.setdefault(task.owner, set())
        unfinished.discard(task.id) if task.is_ended else unfinished.add(task.id)
        if not unfinished:
            del self._unfinished[task.owner]
        self._wakeups.wake([task.id, WORK] if task.is_queued else [task.id])
        return task
