"""Time limits for calls on an event loop, at almost no cost for short calls.

One timer for everything that runs on a loop. It fires every 20 ms; whatever it finds for the second time is called slow.
Only then is a timer of its own set for its deadline, or a disconnect of its client watched for. Loaded with the first call that may wait.
"""

from __future__ import annotations

import asyncio
import threading
import time
from asyncio import current_task
from typing import Any, Final, Protocol

import msgspec

INTERVAL: Final = 0.02  # seconds; nearly every call has ended by then


class Running(Protocol):
    """A call or request that is notified when it has become slow."""

    def become_slow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called once, 20 to 40 ms after its start, if it is still in the timekeeper's set."""


class Timekeeper:
    """The shared timer of a loop. To start something, add it to `running`, and start the timer if it is stopped."""

    __slots__ = ("_found_once", "is_stopped", "loop", "running")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.running: set[Running] = set()
        self._found_once: set[Running] = set()
        self.is_stopped = True

    def start(self) -> None:
        self.is_stopped = False
        self.loop.call_later(INTERVAL, self._find_slow)

    def _find_slow(self) -> None:
        slow = self._found_once & self.running
        self.running -= slow
        self._found_once = set(self.running)
        self.is_stopped = True
        if self.running:
            self.start()
        for each in slow:
            each.become_slow(self.loop)


class _Thread(threading.local):
    keeper: Timekeeper | None = None


this_thread: Final = _Thread()


def timekeeper() -> Timekeeper:
    """Return the timekeeper of the running loop. A thread runs one loop at a time, so each thread has one."""
    loop = asyncio.get_running_loop()
    keeper = this_thread.keeper
    if keeper is None or keeper.loop is not loop:
        keeper = this_thread.keeper = Timekeeper(loop)
    return keeper


def running_task() -> tuple[Timekeeper, asyncio.Task[Any]]:
    """Return the timekeeper of the running loop, with its timer started, and the current task."""
    # Asking for the running loop costs as much as all the rest. While the timer of this thread's timekeeper is set, its
    # loop ran a moment ago, and if that loop has a current task, it runs now.
    keeper = this_thread.keeper
    if keeper is not None and not keeper.is_stopped and (task := current_task(keeper.loop)) is not None:
        return keeper, task
    keeper = timekeeper()
    task = current_task(keeper.loop)
    if task is None:
        raise RuntimeError("A timeout needs a running asyncio task")
    if keeper.is_stopped:
        keeper.start()
    return keeper, task


class Limit(msgspec.Struct, eq=False):
    """A deadline for the running task, which is cancelled when it passes."""

    _keeper: Timekeeper
    _task: asyncio.Task[Any]
    _deadline: float
    _cancelling: int
    _timer: asyncio.TimerHandle | None = None
    _has_passed: bool = False

    def become_slow(self, loop: asyncio.AbstractEventLoop) -> None:
        # The loop may have another clock than ours, so only the remaining time can be compared.
        self._timer = loop.call_later(max(0.0, self._deadline - time.monotonic()), self._pass)

    def _pass(self) -> None:
        self._has_passed = True
        self._task.cancel()

    def end(self) -> bool:
        """End the limit, because the work is over; True if the deadline has passed and nothing else cancelled the task.

        A second call does nothing, so that it cannot undo another cancellation.
        """
        self._keeper.running.discard(self)
        timer, self._timer = self._timer, None
        if timer is None:
            return False
        timer.cancel()
        return self._has_passed and self._task.uncancel() <= self._cancelling


def limit_running_task(deadline: float) -> Limit:
    """Limit the current task to a deadline of `time.monotonic()`; the caller must `end` the limit."""
    keeper, task = running_task()
    limit = Limit(keeper, task, deadline, task.cancelling())
    if deadline - time.monotonic() < 2 * INTERVAL:
        limit.become_slow(keeper.loop)
    else:
        keeper.running.add(limit)
    return limit
