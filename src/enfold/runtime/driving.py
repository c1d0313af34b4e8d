"""Driving coroutines: one that never waits needs no event loop; and whether a call was ended by its handler or from outside."""

from __future__ import annotations

import sys
import types
from collections.abc import Coroutine
from typing import Any

from enfold.errors import CallError
from enfold.operation import is_coroutine_function


def drive(coroutine: Coroutine[Any, Any, Any], needs_loop: bool = False) -> Any:
    """Run a coroutine that never waits without an event loop; with `needs_loop` it gets a loop if none runs."""
    if needs_loop and not loop_is_running():
        import asyncio  # only where something waits

        return asyncio.run(coroutine)
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    coroutine.close()
    raise CallError("EXECUTION_ERROR", "A `def` run in place cannot wait for an `async def`: make it `async def` too")


def is_cancellation(error: BaseException) -> bool:
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and isinstance(error, asyncio.CancelledError)


def comes_from_outside(error: BaseException) -> bool:
    """Whether an exception ends the call from outside: a cancellation, a close or Ctrl-C that the handler did not raise."""
    if is_cancellation(error):
        # Unless this task was cancelled, the handler awaited something that was cancelled.
        asyncio = sys.modules["asyncio"]
        task = asyncio.current_task() if loop_is_running() else None
        return task is not None and task.cancelling() > 0
    if isinstance(error, GeneratorExit):
        # Closing a coroutine raises it at our own `await`, not in a frame of the handler.
        return error.__traceback__ is None or error.__traceback__.tb_next is None
    # A loop turns Ctrl-C into a cancellation; without a loop it arrives wherever the program is.
    return isinstance(error, KeyboardInterrupt) and not loop_is_running() and not _is_raised_in_python(error)


def _is_raised_in_python(error: BaseException) -> bool:
    """Whether the exception began at a `raise`; a signal interrupts at any other instruction."""
    from opcode import opmap  # only needed when a call is interrupted

    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is not None and place.tb_frame.f_code.co_code[place.tb_lasti] == opmap["RAISE_VARARGS"]


def loop_is_running() -> bool:
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


def never_waits(handler: Any) -> bool:
    """Whether it is an `async def` without an `await`: it cannot be cancelled, so it needs no time limit.

    Setting none saves a fifth of a small call in process.
    """
    code = getattr(handler, "__code__", None)
    if not isinstance(code, types.CodeType) or not is_coroutine_function(handler):
        return False
    from opcode import opmap  # which asyncio has loaded already

    return opmap["YIELD_VALUE"] not in code.co_code[::2]
