"""Time limits for what runs on an event loop, at almost no cost for what is over soon.

One timer looks at everything that is running. What it meets a second time is slow, and is told so once; only then is
a timer set for its deadline, or a listener started for its client. Loaded with the first call that may wait.
"""

from __future__ import annotations

import asyncio
import threading
import time
from asyncio import current_task
from typing import Any, Final, Protocol

import msgspec

# Nearly everything is over by then.
SOON: Final = 0.02


class Running(Protocol):
    """Something under way that wants to know when it has become slow."""

    def become_slow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called once, 20 to 40 ms after it has begun, if it is still in the timekeeper's set."""


class Timekeeper:
    """The one timer of a loop. What begins is added to `running`, while the timer is set."""

    __slots__ = ("_met", "is_stopped", "loop", "running")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.running: set[Running] = set()
        self._met: set[Running] = set()
        self.is_stopped = True

    def start(self) -> None:
        self.is_stopped = False
        self.loop.call_later(SOON, self._look)

    def _look(self) -> None:
        slow = self._met & self.running
        self.running -= slow
        self._met = set(self.running)
        self.is_stopped = True
        if self.running:
            self.start()
        for each in slow:
            each.become_slow(self.loop)


class _Thread(threading.local):
    keeper: Timekeeper | None = None


this_thread: Final = _Thread()


def timekeeper() -> Timekeeper:
    """The timekeeper of the running loop: a thread runs one loop at a time, and has one timekeeper."""
    loop = asyncio.get_running_loop()
    keeper = this_thread.keeper
    if keeper is None or keeper.loop is not loop:
        keeper = this_thread.keeper = Timekeeper(loop)
    return keeper


def running_task() -> tuple[Timekeeper, asyncio.Task[Any]]:
    """The timekeeper of the running loop, its timer set, and the task that runs.

    Asking which loop runs takes as long as all the rest, so callers look first at what this thread knows: while the
    timer of a loop is set, it ran here a moment ago, and if a task of it runs now, it still does.
    """
    keeper = timekeeper()
    task = current_task(keeper.loop)
    if task is None:
        raise RuntimeError("Only a task can be ended when its time is over")
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
        # The loop's clock may be another than ours, so the time that is left is what counts.
        self._timer = loop.call_later(max(0.0, self._deadline - time.monotonic()), self._pass)

    def _pass(self) -> None:
        self._has_passed = True
        self._task.cancel()

    def end(self) -> bool:
        """Forget the deadline, because the work is over; True where it has passed and alone cancelled the task.

        A second time it does nothing: a cancellation of somebody else's is not taken back.
        """
        self._keeper.running.discard(self)
        timer, self._timer = self._timer, None
        if timer is None:
            return False
        timer.cancel()
        return self._has_passed and self._task.uncancel() <= self._cancelling


def limit_running_task(deadline: float) -> Limit:
    """Begin a limit, by `time.monotonic()`; whoever begins it also ends it."""
    keeper = this_thread.keeper
    task = None if keeper is None or keeper.is_stopped else current_task(keeper.loop)
    if keeper is None or task is None:
        keeper, task = running_task()
    limit = Limit(keeper, task, deadline, task.cancelling())
    if deadline - time.monotonic() < 2 * SOON:
        limit.become_slow(keeper.loop)
    else:
        keeper.running.add(limit)
    return limit
