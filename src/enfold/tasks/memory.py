"""Tasks kept in the memory of one process: for tests, and where no file can be written. They die with it."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any

import msgspec

from enfold.operation import Progress
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
    now_ms,
    same_order,
)
from enfold.tasks.task import Order, Task
from enfold.tasks.transitions import accepted, claimed, noted, overdue
from enfold.tasks.wakeups import WORK, Wakeups

__all__ = ["MemoryTasks"]


class MemoryTasks:
    """A store in memory. Its verbs never wait, but for work and for changes."""

    beat = 0.25

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}
        self._keys: dict[tuple[str, str, str], str] = {}
        self._wakeups = Wakeups()

    async def accept(self, order: Order, limit: int) -> Task:
        first = None if order.key is None else self._keys.get((order.owner, order.operation, order.key))
        if first is not None:
            return same_order(self._tasks[first], order)
        if sum(not task.is_ended for task in self._of(order.owner)) >= limit:
            raise limit_reached(limit)
        if order.key is not None:
            self._keys[order.owner, order.operation, order.key] = order.id
        # What is kept must not change with the caller's own objects.
        stored = msgspec.json.decode(msgspec.json.encode(order), type=Order)
        return self._put(accepted(stored))

    async def get(self, owner: str | None, task_id: str) -> Task | None:
        task = self._tasks.get(task_id)
        return task if task is not None and owner in (None, task.owner) else None

    async def list(self, owner: str | None, limit: int = 100) -> list[Task]:
        newest = sorted(self._of(owner), key=lambda task: task.created, reverse=True)
        return [msgspec.structs.replace(task, outcome=None) for task in newest[:limit]]

    async def claim(self, served: Served, n: int, wait: float) -> Claims:
        moment = self._wakeups.expect(WORK)
        found = self._claim(served, n)
        if found:
            moment.cancel()
            return found
        await self._wakeups.wait(moment, wait)
        return self._claim(served, n)

    def _claim(self, served: Served, n: int) -> Claims:
        ids = served()
        queued = [task for task in self._tasks.values() if task.is_queued and task.operation in ids]
        return [Claim(self._put(claimed(task, os.urandom(8).hex(), now_ms()))) for task in queued[:n]]

    async def hold(
        self, claim: Claim, progress: Progress | None = None, notes: Mapping[str, Any] | None = None
    ) -> bool:
        task = self._held(claim)
        if progress is not None or notes:
            self._put(noted(task, now_ms(), progress, notes))
        return task.is_cancelling

    async def record(self, claim: Claim, ending: Ending) -> Task:
        return self._put(after_ending(self._held(claim), ending, now_ms()))

    def _held(self, claim: Claim) -> Task:
        task = self._tasks.get(claim.id)
        if task is None or task.fence != claim.task.fence:
            raise FencedError
        return task

    async def signal(self, owner: str | None, task_id: str, signal: Signal) -> Task | None:
        task = await self.get(owner, task_id)
        return None if task is None else self._put(after_signal(task, signal, now_ms()))

    async def watch(self, owner: str | None, task_id: str) -> AsyncGenerator[Task]:
        seen: Task | None = None
        while True:
            moment = self._wakeups.expect(task_id)
            task = await self.get(owner, task_id)
            if task is None or task is not seen:
                moment.cancel()
            if task is None:
                return
            if task is seen:
                await self._wakeups.wait(moment, None)
                continue
            yield task
            if task.is_ended:
                return
            seen = task

    async def expire(self) -> None:
        now = now_ms()
        for task in list(self._tasks.values()):
            if task.is_ended and task.order.expires <= now:
                del self._tasks[task.id]
                self._keys.pop((task.owner, task.operation, task.order.key or ""), None)
            elif not task.is_ended and task.order.deadline <= now:
                self._put(overdue(task, now))

    async def close(self) -> None:
        self._wakeups.wake()

    def _of(self, owner: str | None) -> Iterable[Task]:
        return (task for task in self._tasks.values() if owner in (None, task.owner))

    def _put(self, task: Task) -> Task:
        self._tasks[task.id] = task
        self._wakeups.wake([task.id])
        return task
