"""Warns about operations that block the event loop. A thread pings the loop, so calls have no overhead."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from time import monotonic
from types import FrameType
from typing import Final

from enfold.observability.log import Log

LIMIT: Final = 1.0  # seconds that the event loop may be blocked
TICK: Final = 0.1
_RUNTIME: Final = "enfold.runtime."  # modules whose frames have the running operation

_log: Final = Log("enfold.runtime")
_watches: Final[dict[asyncio.AbstractEventLoop, _LoopWatch]] = {}


def watch_running_loop() -> Callable[[], None]:
    """Warn once per operation that blocks the running loop. Returns a function that ends the watch; a loop has one."""
    loop = asyncio.get_running_loop()
    watch = _watches.get(loop)
    if watch is None:
        watch = _watches[loop] = _LoopWatch(loop)
        watch.start()
    watch.users += 1
    return lambda: _release(loop, watch)


def _release(loop: asyncio.AbstractEventLoop, watch: _LoopWatch) -> None:
    watch.users -= 1
    if not watch.users:
        watch.is_over.set()
        _watches.pop(loop, None)


class _LoopWatch(threading.Thread):
    """Checks on every tick whether the loop has responded."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name="enfold-loop-watch", daemon=True)
        self.users = 0
        self.is_over = threading.Event()
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._has_answered = True
        self._reported: set[str] = set()

    def run(self) -> None:
        asked_at, ticks = 0.0, 0
        while not self.is_over.wait(TICK):
            if self._has_answered:
                self._has_answered, asked_at, ticks = False, monotonic(), 0
                try:
                    self._loop.call_soon_threadsafe(self._answer)
                except RuntimeError:  # the loop is closed
                    return
                continue
            # Ticks are counted as well: in a process without CPU time this thread does not run either.
            ticks += 1
            if ticks * TICK >= LIMIT / 2 and monotonic() - asked_at >= LIMIT:
                self._report()

    def _answer(self) -> None:
        self._has_answered = True

    def _report(self) -> None:
        frame = sys._current_frames().get(self._loop_thread)  # documented, despite its name
        operation = _operation_of(frame)
        if frame is None or operation is None or operation in self._reported or self._has_answered:
            return
        self._reported.add(operation)
        _log.warning(
            "%s has blocked the event loop for more than a second (%s, line %s): no other call makes progress. "
            "Await blocking work, or use a plain def, which runs in a thread",
            operation,
            frame.f_code.co_filename,
            frame.f_lineno,
        )


def _operation_of(frame: FrameType | None) -> str | None:
    """Return the id of the innermost operation on a stack."""
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith(_RUNTIME):
            spec = getattr(frame.f_locals.get("self"), "spec", None)
            if spec is not None:
                return str(spec.id)
        frame = frame.f_back
    return None
