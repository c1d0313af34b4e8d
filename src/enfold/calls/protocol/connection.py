"""Connects once, however many need the connection at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from enfold.log import Log

PATIENCE: Final = 2.0  # seconds for what is cancelled to end


class ConnectOnce:
    """Awaited by all who need the connection; after a failure the next one to await it tries again."""

    __slots__ = ("_connect", "_task")

    def __init__(self, connect: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._connect = connect
        self._task: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        """Wait until connected; cancelling one waiter does not cancel the attempt of the others."""
        task = self._task
        if task is None or (task.done() and _has_failed(task)):
            task = self._task = asyncio.get_running_loop().create_task(self._connect())
            task.add_done_callback(_has_failed)  # whether anybody waits for it or not
        await asyncio.shield(task)

    async def forget(self) -> None:
        """Cancel an attempt that is under way, and let the next await connect anew."""
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait((task,), timeout=PATIENCE)


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.cancelled() or task.exception() is not None


class Outage:
    """Whether a connection is lost now, and what was logged of that."""

    def __init__(self, log: Log, place: str) -> None:
        """`place` names it in the log, without credentials: `NATS at nats://edge:4222`."""
        self._log = log
        self._place = place
        self._told = ""  # why it does not let us in
        self._why = ""  # the same, as it is now
        self.is_on = False

    @property
    def reason(self) -> str:
        """Why there is no connection at this moment; "" where there is one."""
        if not self.is_on:
            return ""
        return f"it does not let us in: {self._why}" if self._why else "it cannot be reached"

    def begin(self) -> None:
        """The connection is lost."""
        if not self.is_on:
            self.is_on = True
            self._log.warning("%s is lost: it is tried again until it is back", self._place)

    def refused(self, why: str) -> bool:
        """Note why it does not let us in ("" where it is not there); whether that is another reason than before.

        While the connection stands nothing is noted: a first refusal is an error of its own.
        """
        if not self.is_on:
            return False
        is_news, self._why = why != self._why, why
        if why and why != self._told:
            self._told = why
            self._log.warning("%s does not let us in: %s", self._place, why)
        return is_news

    def end(self) -> None:
        """The connection stands again."""
        if self.is_on:
            self.is_on, self._told, self._why = False, "", ""
            self._log.warning("%s is back", self._place)


def address_name(addresses: str) -> str:
    """Comma-separated addresses without users and passwords."""
    return ", ".join(map(_without_secrets, addresses.split(",")))


def _without_secrets(address: str) -> str:
    scheme, mark, rest = address.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}" if mark else address.rpartition("@")[2]


class Background:
    """Eager tasks that nobody awaits, referenced until they are done."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settle(self) -> None:
        """Wait at most a second for those that are running."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
