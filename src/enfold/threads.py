"""A bounded set of worker threads for handlers that block. A thread that overruns is left to end, and counts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future as ThreadFuture
from contextlib import suppress
from contextvars import Context as Variables
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, Final, TypeAlias

from enfold.errors import CallError
from enfold.operation import Context

PAUSE: Final = 0.05  # seconds between two looks for a free thread

_Work: TypeAlias = tuple[Callable[[], Any], Variables, asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Threads:
    """Threads are made when needed, up to the limit, and kept; they never keep the process from ending."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._busy = 0
        self._started = 0
        self._lock = threading.Lock()
        self._work: SimpleQueue[_Work] = SimpleQueue()

    @property
    def busy(self) -> int:
        return self._busy

    async def wait_for_room(self, context: Context) -> None:
        """Wait until a thread is free, or the time of the call is over."""
        while self._busy >= self.limit and context.remaining() != 0:  # noqa: ASYNC110  # threads end outside of the loop
            await asyncio.sleep(PAUSE)

    def run(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run a function in a thread; the future belongs to the running loop."""
        with self._lock:
            if self._busy >= self.limit:
                raise self._no_thread()
            self._busy += 1
            needs_thread = self._busy > self._started
            self._started += needs_thread
        if needs_thread:
            self._start_thread()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._work.put((function, copy_context(), loop, future))
        return future

    def _start_thread(self) -> None:
        try:
            threading.Thread(target=self._serve, name="enfold-worker", daemon=True).start()
        except (RuntimeError, MemoryError):  # The system gives no thread now; it may do so later.
            with self._lock:
                self._busy -= 1
                self._started -= 1
            raise self._no_thread() from None

    def _no_thread(self) -> CallError:
        return CallError("RESOURCE_EXHAUSTED", f"All {self.limit} worker threads are busy")

    def _serve(self) -> None:
        while True:
            work = self._work.get()
            try:
                _do(*work)
            finally:
                with self._lock:
                    self._busy -= 1
                # A waiting thread holds nothing of the call it has finished.
                del work


def _do(
    function: Callable[[], Any], variables: Variables, loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any]
) -> None:
    result, error = None, None
    try:
        result = variables.run(function)
    except BaseException as raised:  # noqa: BLE001  # whatever ends the handler belongs to its caller
        error = raised
    # A closed loop refuses: nobody waits for the answer any more.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(_settle, future, result, error)


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration) or not isinstance(error, Exception):
        # These mean something else to the loop than to a handler: an end of it, or of the whole program.
        future.set_exception(RuntimeError(f"the handler raised {type(error).__name__}"))
    else:
        future.set_exception(error)


class NestedCalls:
    """The calls that a handler makes from its thread: they run on the loop, and its messages go there."""

    __slots__ = ("_context", "_loop", "_waiting")

    def __init__(self, context: Context) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._waiting: list[ThreadFuture[Any]] = []
        if context.call is not None:
            context.call.wait_for = self._wait_for
            context.call.carry = self._loop.call_soon_threadsafe

    def _wait_for(self, call: Coroutine[Any, Any, Any], needs_loop: bool) -> Any:
        del needs_loop  # The loop is there, and the call runs on it.
        waiting = asyncio.run_coroutine_threadsafe(call, self._loop)
        self._waiting.append(waiting)
        if self._context.cancelled:  # The caller gave up before they could see what we wait for.
            waiting.cancel()
        return waiting.result()

    def cancel_all(self) -> None:
        for waiting in self._waiting:
            waiting.cancel()


_END: Final = object()


class BlockingStream(AsyncIterator[Any]):
    """The items of a generator that blocks, each got in a worker thread; without threads, in place."""

    def __init__(self, items: Iterator[Any], threads: Threads | None, context: Context) -> None:
        self._items = items
        self._threads = threads
        self._nested = None if threads is None else NestedCalls(context)

    async def __anext__(self) -> Any:
        item = next(self._items, _END) if self._threads is None else await self._threads.run(self._next)
        if item is _END:
            raise StopAsyncIteration
        return item

    def _next(self) -> Any:
        return next(self._items, _END)

    async def aclose(self) -> None:
        """Close the generator; one that still runs is left to end."""
        if self._nested is not None:
            self._nested.cancel_all()
        close = getattr(self._items, "close", None)
        if close is None:
            return
        with suppress(ValueError, CallError):  # it is running, or no thread is to be had
            if self._threads is None:
                close()
            else:
                await self._threads.run(close)
