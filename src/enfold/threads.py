"""A bounded set of worker threads for handlers that block. A thread that overruns is left to end, and counts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

__all__ = ["Threads"]


class Threads:
    """Threads are made when needed, up to the limit, and kept; they never keep the process from ending."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._busy = 0
        self._started = 0
        self._lock = threading.Lock()
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()

    @property
    def busy(self) -> int:
        return self._busy

    def run(self, function: Callable[[], Any], loop: AbstractEventLoop) -> Future[Any] | None:
        """Run a function in a thread; the future belongs to the loop. None: every thread is busy."""
        with self._lock:
            if self._busy >= self.limit:
                return None
            self._busy += 1
            needs_thread = self._busy > self._started
            self._started += needs_thread
        if needs_thread:
            threading.Thread(target=self._serve, name="enfold-worker", daemon=True).start()
        future: Future[Any] = loop.create_future()
        context = copy_context()
        self._work.put(lambda: _settle(loop, future, *_outcome(context.run, function)))
        return future

    def _serve(self) -> None:
        while True:
            work = self._work.get()
            try:
                work()
            finally:
                with self._lock:
                    self._busy -= 1
                # A waiting thread holds nothing of the call it has finished.
                del work


def _outcome(run: Callable[..., Any], function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return run(function), None
    except BaseException as error:  # noqa: BLE001  # whatever ends the handler belongs to its caller
        return None, error


def _settle(loop: AbstractEventLoop, future: Future[Any], result: Any, error: BaseException | None) -> None:
    # A closed loop refuses: nobody waits for the answer any more.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(_set, future, result, error)


def _set(future: Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration) or not isinstance(error, Exception):
        # These mean something else to the loop than to a handler: an end of it, or of the whole program.
        future.set_exception(RuntimeError(f"the handler raised {type(error).__name__}"))
    else:
        future.set_exception(error)
