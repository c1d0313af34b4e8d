"""Signals of a command: SIGTERM ends it like SIGINT, so that calls finish, sources close and child processes end."""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from signal import SIGINT, SIGTERM, Signals
from types import FrameType
from typing import Any, Final, TypeVar

T = TypeVar("T")

# Asks to read what can be read again; not every system has it.
HANGUP: Final = tuple(number for number in Signals if number.name == "SIGHUP")
EXIT_TIMEOUT: Final = 3.0  # seconds that cancelled calls have to end, when all else is closed


class Grace:
    """The seconds left for everything to finish, counted from the signal to stop."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self._ends_at: float | None = None

    def begin(self) -> None:
        """Start counting, unless that has happened."""
        if self._ends_at is None:
            self._ends_at = time.monotonic() + self.seconds

    @property
    def left(self) -> float:
        return self.seconds if self._ends_at is None else max(0.0, self._ends_at - time.monotonic())


def ignore_hangups() -> None:
    """Let no SIGHUP end this process; what it starts has it as it was. Who can read something again handles it later."""
    for number in HANGUP:
        signal.signal(number, _ignore)


def ignore_signals_at_exit() -> None:
    """Let no signal interrupt the very end of this process: it would count as killed by it."""
    for number in (SIGTERM, SIGINT):
        atexit.register(signal.signal, number, signal.SIG_IGN)


def run_server(work: Coroutine[Any, Any, None], loop_factory: Callable[[], Any] | None = None) -> None:
    """Run a server until a signal ends it; one more signal, when all is closed, ends the process at once."""
    exit_timer = threading.Timer(EXIT_TIMEOUT, _exit)
    exit_timer.daemon = True

    async def until_closed() -> None:
        await work
        exit_timer.start()  # a call may not let itself be cancelled, and the loop would wait for it

    try:
        _run(until_closed(), loop_factory)
    finally:
        exit_timer.cancel()
    for number in (SIGTERM, SIGINT):
        signal.signal(number, _exit)
    ignore_signals_at_exit()


def run_in_loop(work: Coroutine[Any, Any, T]) -> T | None:
    """Run some work and return its result; None if a signal ended it, after everything it opened was closed."""
    before = {number: signal.getsignal(number) for number in (SIGTERM, SIGINT, *HANGUP)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    return _run(work, None, restore)


def _run(
    work: Coroutine[Any, Any, T], loop_factory: Callable[[], Any] | None, closed: Callable[[], None] = lambda: None
) -> T | None:
    """Run some work; `closed` is called when it has ended, while cancelled calls may still be awaited."""

    async def until_ended() -> T | None:
        task = asyncio.ensure_future(work)
        with _woken_by_signals(), ended_by_signals(task.cancel):
            await asyncio.wait({task})
        return None if task.cancelled() else task.result()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        try:
            return runner.run(until_ended())
        finally:
            closed()


def _ignore(*_: object) -> None:
    """Ignore a signal that is not for us or comes too late."""


def _exit(*_: object) -> None:
    os._exit(0)


@contextmanager
def _woken_by_signals() -> Iterator[None]:
    """Let every signal wake the running loop, unless the loop sees to that by itself."""
    loop = asyncio.get_running_loop()
    read, written = socket.socketpair()
    with read, written:
        read.setblocking(False)
        written.setblocking(False)
        own = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
        if own != -1:
            signal.set_wakeup_fd(own)
        loop.add_reader(read, read.recv, 4096)
        try:
            yield
        finally:
            loop.remove_reader(read)
            if own == -1:
                signal.set_wakeup_fd(-1)


# --- while the loop runs ------------------------------------------------------------------------------------------


def ended_by_signals(end: Callable[[], object]) -> AbstractContextManager[None]:
    """Call `end` at every SIGTERM and SIGINT while the block runs."""
    return handling({SIGTERM: end, SIGINT: end})


@contextmanager
def handling(handlers: Mapping[Signals, Callable[[], object]]) -> Iterator[None]:
    """Have the running loop call these on signals; what handled them outside of the block does so again after it."""
    before = dict(_handlers)
    _install({**before, **handlers})
    try:
        yield
    finally:
        _install(before)


_handlers: Final[dict[Signals, Callable[[], object]]] = {}  # as they are now


def _install(wanted: Mapping[Signals, Callable[[], object]]) -> None:
    """Python's own handlers, not the loop's: those leave a moment between them in which a signal kills."""
    loop = asyncio.get_running_loop()

    def pass_on(number: int, _: FrameType | None) -> None:
        handle = _handlers.get(Signals(number))
        if handle is not None:
            with suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(handle)

    gone = _handlers.keys() - wanted.keys()
    _handlers.clear()
    _handlers.update(wanted)
    for number in wanted:
        signal.signal(number, pass_on)
    for number in gone:
        signal.signal(number, _ignore)
