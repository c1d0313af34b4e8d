"""Eager tasks: a coroutine runs at once up to its first wait; one that never waits needs no task and no loop turn."""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Callable, Coroutine, Generator
from contextvars import copy_context
from typing import Any


class Background:
    """Eager tasks that nobody awaits, referenced until they are done."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = start(work)
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def settle(self) -> None:
        """Wait at most a second for those that are running."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)


if sys.version_info >= (3, 12):

    def start(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any] | None:
        """Run a coroutine up to its first wait; the task that goes on, or None where it is over."""
        task = asyncio.Task(coroutine, loop=asyncio.get_running_loop(), eager_start=True)
        return None if task.done() else task

else:

    def start(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any] | None:
        """Run a coroutine up to its first wait; the task that goes on, or None where it is over.

        Until its first wait it runs inside the task that is current: not for users' code that waits. What it sets in
        context variables stays its own.
        """
        context = copy_context()
        try:
            waits_for = context.run(coroutine.send, None)
        except StopIteration:
            return None
        return asyncio.get_running_loop().create_task(_go_on(coroutine, waits_for), context=context)

    @types.coroutine
    def _go_on(coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
        """Go on with a coroutine that has been driven up to its first wait."""
        while True:
            try:
                sent = yield waits_for
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:  # noqa: BLE001  # whatever is thrown in belongs to the coroutine
                go_on: tuple[Callable[[Any], Any], Any] = coroutine.throw, error
            else:
                go_on = coroutine.send, sent
            try:
                waits_for = go_on[0](go_on[1])
            except StopIteration as done:
                return done.value
