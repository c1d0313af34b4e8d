"""Waking those who wait for a store to change, from their own loop or from another thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final

from enfold.tasks.store import now_ms
from enfold.tasks.task import Task

SHORTEST: Final = 0.001  # seconds
WORK: Final = ""  # what workers wait for; others wait for the id of a task


class Wakeups:
    """The waiters of one store, by subject; each has a future of its own, so that several loops may wait."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], str] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def expect(self, subject: str) -> asyncio.Future[None]:
        """A future that is done after the next change; get it before reading the store, so that no change is missed."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[changed] = subject
        changed.add_done_callback(self._forget)
        return changed

    def _forget(self, changed: asyncio.Future[None]) -> None:
        self._waiting.pop(changed, None)

    async def wait(self, changed: asyncio.Future[None], seconds: float | None) -> bool:
        """Whether the future was done within so many seconds."""
        # Not `wait_for`: up to Python 3.11 it takes a cancellation for the end of the waiting.
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await changed
                return True
        return False

    async def watch(
        self, task_id: str, look: Callable[[], Awaitable[Task | None]], again: float | None
    ) -> AsyncGenerator[Task]:
        """A task as `look` finds it, now and after every change, until it has ended or is gone.

        `again` is after how many seconds it is looked at although nobody has said that it changed.
        """
        seen: Task | None = None
        while True:
            changed = self.expect(task_id)
            try:
                task = await look()
                if task is None:
                    return
                if task != seen:
                    yield task
                    seen = task
                    if task.is_ended:
                        return
                else:
                    await self.wait(changed, _until_looked_at(task, again))
            finally:
                changed.cancel()

    def wake(self, subjects: Iterable[str] | None = None) -> None:
        """Wake those who wait for one of the subjects, or everybody; may be called from any thread."""
        wanted, here = None if subjects is None else set(subjects), asyncio._get_running_loop()
        for changed, subject in list(self._waiting.items()):
            if wanted is not None and subject not in wanted:
                continue
            loop = changed.get_loop()
            if loop is here:
                _end(changed)
            else:
                with suppress(RuntimeError):  # its loop is closed
                    loop.call_soon_threadsafe(_end, changed)


def _until_looked_at(task: Task, again: float | None) -> float:
    """Seconds; at its deadline a task has changed although nobody has written."""
    left = max(SHORTEST, (task.order.deadline - now_ms()) / 1000)
    return left if again is None else min(again, left)


def _end(changed: asyncio.Future[None]) -> None:
    if not changed.done():
        changed.set_result(None)
