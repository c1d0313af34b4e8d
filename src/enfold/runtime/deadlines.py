"""Time limits for calls on an event loop, at almost no cost for short calls.

One timer for everything that runs on a loop. It fires every 20 ms; whatever it finds for the second time is called slow.
Only then is a timer of its own set for its deadline, or a disconnect of its client watched for. Loaded with the first call that may wait.
"""

from __future__ import annotations

import asyncio
import threading
import time
from asyncio import current_task
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

if TYPE_CHECKING:
    from enfold.operations import Context

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


def running_task() -> tuple[Timekeeper, asyncio.Task[Any]]:
    """Return the timekeeper of the running loop, with its timer started, and the current task."""
    # A thread runs one loop at a time, so each thread has one timekeeper. Asking for the running loop costs as much as all
    # the rest: while the timer is set, its loop ran a moment ago, and if that loop has a current task, it runs now.
    keeper = this_thread.keeper
    if keeper is not None and not keeper.is_stopped and (task := current_task(keeper.loop)) is not None:
        return keeper, task
    loop = asyncio.get_running_loop()
    if keeper is None or keeper.loop is not loop:
        keeper = this_thread.keeper = Timekeeper(loop)
    task = current_task(loop)
    if task is None:
        raise RuntimeError("A timeout needs a running asyncio task")
    if keeper.is_stopped:
        keeper.start()
    return keeper, task


class TimeLimit(msgspec.Struct, eq=False):
    """Limits the running task to a deadline: `with TimeLimit(...)` cancels what it awaits, and raises the error of `failed`."""

    deadline: float  # by `time.monotonic()`
    failed: Callable[[Context | None], Exception]
    context: Context | None = None
    _keeper: Timekeeper | None = None
    _task: asyncio.Task[Any] | None = None
    _cancelling: int = 0
    _timer: asyncio.TimerHandle | None = None
    _has_passed: bool = False

    def __enter__(self) -> None:
        self._keeper, self._task = running_task()
        self._cancelling = self._task.cancelling()
        if self.deadline - time.monotonic() < 2 * INTERVAL:
            self.become_slow(self._keeper.loop)
        else:
            self._keeper.running.add(self)

    def become_slow(self, loop: asyncio.AbstractEventLoop) -> None:
        # The loop may have another clock than ours, so only the remaining time can be compared.
        self._timer = loop.call_later(max(0.0, self.deadline - time.monotonic()), self._pass)

    def _pass(self) -> None:
        self._has_passed = True
        if self._task is not None:
            self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._keeper is not None:
            self._keeper.running.discard(self)
        if self._timer is None:
            return
        self._timer.cancel()
        is_ours = self._has_passed and self._task is not None and self._task.uncancel() <= self._cancelling
        if is_ours and isinstance(error, asyncio.CancelledError):
            raise self.failed(self.context) from None
