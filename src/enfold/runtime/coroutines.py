"""Runs coroutines that never wait, without a task or an event loop."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from enfold.errors import CallError


class Interrupt(KeyboardInterrupt):
    """Ctrl-C while a call runs without an event loop. A KeyboardInterrupt of another class is the handler's own."""


def drive(coroutine: Coroutine[Any, Any, Any], needs_loop: bool = False) -> Any:
    """Run a coroutine that never waits without an event loop; with `needs_loop` it gets a loop if none runs."""
    if needs_loop and not loop_is_running():
        import asyncio  # only where something waits

        return asyncio.run(coroutine)
    try:
        with _marked_interrupts():
            coroutine.send(None)
    except StopIteration as done:
        return done.value
    coroutine.close()
    raise CallError("EXECUTION_ERROR", "A `def` that runs inline cannot await an `async def`: make it `async def` too")


def loop_is_running() -> bool:
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


@types.coroutine
def go_on(coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """Await a coroutine that has already run up to its first wait."""
    while True:
        try:
            sent = yield waits_for
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as error:  # noqa: BLE001  # whatever is thrown in belongs to the coroutine
            step: tuple[Callable[[Any], Any], Any] = coroutine.throw, error
        else:
            step = coroutine.send, sent
        try:
            waits_for = step[0](step[1])
        except StopIteration as done:
            return done.value


@contextmanager
def _marked_interrupts() -> Iterator[None]:
    """Raise Ctrl-C as `Interrupt`, where Python's own handler is installed; a loop turns it into a cancellation."""
    import signal  # this and the next: only programs without a loop need them
    import threading

    is_ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        and not loop_is_running()
    )
    if not is_ours:
        yield
        return
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(*_: object) -> NoReturn:
    raise Interrupt
