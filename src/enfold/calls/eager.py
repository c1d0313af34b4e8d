"""Work that begins at once, inside the call that starts it: what never waits needs no task and no turn of the loop."""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Callable, Coroutine
from opcode import opmap
from typing import Any, Final

from enfold.runtime import resume

__all__ = ["never_waits", "start"]


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


_YIELD: Final = opmap["YIELD_VALUE"]
_COROUTINE: Final = 0x0080  # the flag of an `async def`


def never_waits(function: Callable[..., Any] | None) -> bool:
    """Whether a function is an `async def` without an `await`: it is over when it has begun, and needs no task."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, types.CodeType) or not code.co_flags & _COROUTINE:
        return False
    return _YIELD not in code.co_code[::2]
