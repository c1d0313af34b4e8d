"""A bounded set of worker threads for handlers that block. One that outlives its deadline still counts as busy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context as Variables
from contextvars import copy_context
from functools import cache
from queue import SimpleQueue
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from enfold.errors import CallError
from enfold.operations import Context
from enfold.operations.outcomes import Suspension

T = TypeVar("T")

POLL_INTERVAL: Final = 0.05  # seconds between two checks for a free thread

_Work: TypeAlias = tuple[Callable[[], Any], Variables, asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class RunsThreads(Protocol):
    """Runs functions in worker threads: `Threads`, or what keeps track of those of one call."""

    def run(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run a function in a thread; the future belongs to the running loop."""


class Threads:
    """Threads are started when needed, up to the limit, and reused; being daemons, they never block the program's end."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._busy = 0
        self._started = 0
        self._lock = threading.Lock()
        self._work: SimpleQueue[_Work] = SimpleQueue()

    @property
    def busy(self) -> int:
        return self._busy

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
                # An idle thread must not keep the objects of its last call alive.
                del work


def _do(
    function: Callable[[], Any], variables: Variables, loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any]
) -> None:
    result, error = None, None
    try:
        result = variables.run(function)
    except BaseException as raised:  # noqa: BLE001  # the caller gets whatever the handler raises
        error = raised
    # A closed loop raises: the result is no longer needed.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(_settle, future, result, error)


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration) or not isinstance(error, (Exception, Suspension)):
        # A future refuses StopIteration, and SystemExit or KeyboardInterrupt would end the loop.
        future.set_exception(RuntimeError(f"the handler raised {type(error).__name__}"))
    else:
        future.set_exception(error)


async def run_apart(work: Callable[[], T]) -> T:
    """Do work that takes long beside the event loop: one at a time, so that the loop gets every other turn."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # a call without a loop has nothing beside it
        return work()
    return await loop.run_in_executor(_apart(), work)


@cache
def _apart() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "enfold-apart")


class NestedCalls:
    """The calls that a `def` makes from its worker thread: they run on the loop while the thread waits."""

    __slots__ = ("_context", "_loop", "_waiting")

    def __init__(self, context: Context) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._waiting: list[ThreadFuture[Any]] = []
        if context.call is not None:
            context.call.wait_for = self._wait_for
            context.call.deliver = self._loop.call_soon_threadsafe

    def _wait_for(self, call: Coroutine[Any, Any, Any], needs_loop: bool) -> Any:
        del needs_loop  # there is a loop
        if asyncio._get_running_loop() is not None:  # in an `async def` that uses the same context after the `def`
            return call
        waiting = asyncio.run_coroutine_threadsafe(call, self._loop)
        self._waiting.append(waiting)
        if self._context.cancelled:  # `cancel_all` ran before this call was added
            waiting.cancel()
        return waiting.result()

    def cancel_all(self) -> None:
        for waiting in self._waiting:
            waiting.cancel()


_END: Final = object()


class BlockingStream(AsyncIterator[Any]):
    """The items of a blocking generator; each `next` runs in a worker thread, or in place if there are no threads."""

    def __init__(self, items: Iterator[Any], threads: RunsThreads | None, context: Context) -> None:
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
        """Close the generator, unless it is still running."""
        if self._nested is not None:
            self._nested.cancel_all()
        close = getattr(self._items, "close", None)
        if close is None:
            return
        with suppress(ValueError, CallError):  # it is running, or no thread is free
            if self._threads is None:
                close()
            else:
                await self._threads.run(close)
