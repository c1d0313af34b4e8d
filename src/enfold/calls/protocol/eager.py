"""Work that begins at once, inside the call that starts it: what never waits needs no task and no turn of the loop."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any

from enfold.runtime import resume

__all__ = ["start"]


if sys.version_info >= (3, 12):

    def start(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any] | None:
        """Run a coroutine of our own up to its first wait; the task that goes on, or None where it is over."""
        task = asyncio.Task(coroutine, loop=asyncio.get_running_loop(), eager_start=True)
        return None if task.done() else task

else:

    def start(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any] | None:
        """Run a coroutine of our own up to its first wait; the task that goes on, or None where it is over.

        Not for users' code: until its first wait it runs inside the task that is current, and must not ask which.
        """
        try:
            waits_for = coroutine.send(None)
        except StopIteration:
            return None
        return asyncio.get_running_loop().create_task(_go_on(coroutine, waits_for))

    async def _go_on(coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> Any:
        return await resume(coroutine, waits_for)
