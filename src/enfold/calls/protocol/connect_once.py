"""Connects once, however many need the connection at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

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
