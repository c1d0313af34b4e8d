"""Connections, timers and background tasks of both ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, Final

from enfold.observability.log import Log

PATIENCE: Final = 2.0  # seconds for what is cancelled to end


class ConnectOnce:
    """Connects when first awaited; concurrent callers share the attempt, and a failed one is repeated by the next caller."""

    __slots__ = ("_connect", "_task")

    def __init__(self, connect: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._connect = connect
        self._task: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        """Wait until connected; cancelling one waiter does not cancel the attempt of the others."""
        task = self._task
        if task is None or (task.done() and _has_failed(task)):
            task = self._task = asyncio.get_running_loop().create_task(self._connect())
            task.add_done_callback(_has_failed)  # marks the exception as retrieved
        await asyncio.shield(task)

    async def forget(self) -> None:
        """Cancel a running attempt, so that the next await connects again."""
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait((task,), timeout=PATIENCE)


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.cancelled() or task.exception() is not None


class Outage:
    """Tracks whether a connection is lost, and logs each change once."""

    def __init__(self, log: Log, place: str) -> None:
        """`place` is its name in the log, without credentials: `NATS at nats://edge:4222`."""
        self._log = log
        self._place = place
        self._logged_reason = ""  # the refusal that was logged last
        self._reason = ""  # why the connection is refused now
        self.is_on = False

    @property
    def reason(self) -> str:
        """Why there is no connection; "" if there is one."""
        if not self.is_on:
            return ""
        return f"the connection is refused: {self._reason}" if self._reason else "it cannot be reached"

    def begin(self) -> None:
        """Note that the connection is lost."""
        if not self.is_on:
            self.is_on = True
            self._log.warning("%s is lost: reconnecting", self._place)

    def refused(self, why: str) -> bool:
        """Note why the server refuses us ("" if it is unreachable). Returns whether the reason changed.

        Ignored while connected: a refusal of the first connection raises instead.
        """
        if not self.is_on:
            return False
        is_news, self._reason = why != self._reason, why
        if why and why != self._logged_reason:
            self._logged_reason = why
            self._log.warning("%s refuses the connection: %s", self._place, why)
        return is_news

    def end(self) -> None:
        """Note that the connection is restored."""
        if self.is_on:
            self.is_on, self._logged_reason, self._reason = False, "", ""
            self._log.warning("%s is back", self._place)


def address_name(addresses: str) -> str:
    """Comma-separated addresses without users and passwords."""
    return ", ".join(map(_without_secrets, addresses.split(",")))


def _without_secrets(address: str) -> str:
    scheme, mark, rest = address.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}" if mark else address.rpartition("@")[2]


class Ticker:
    """Calls `tick(now)` at an interval, once started, for as long as it returns True.

    `blocked_for` is how long the event loop was blocked before this tick: what came meanwhile has not been read yet.
    """

    __slots__ = ("_due_at", "_interval", "_tick", "_timer", "blocked_for")

    def __init__(self, interval: float, tick: Callable[[float], bool]) -> None:
        self._interval = interval
        self._tick = tick
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        self.blocked_for = 0.0

    def start(self) -> None:
        if self._timer is None:
            self._due_at = monotonic() + self._interval
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._fire)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer, now = None, monotonic()
        late = now - self._due_at
        self.blocked_for = late if late > self._interval else 0.0
        if self._tick(now):
            self.start()


class Background:
    """Tasks that are not awaited, referenced until they are done."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settle(self) -> None:
        """Wait up to a second for running tasks."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
