"""The handler of an operation, and the ways to run it: on the event loop, in a worker thread, in place, as a stream.

And how a coroutine that never waits is run without a task or an event loop.
"""

from __future__ import annotations

import sys
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from enfold.errors import CallError
from enfold.operations import is_coroutine_function

if TYPE_CHECKING:
    import asyncio

    from enfold.operations import Context, Operation
    from enfold.runtime.application import Services
    from enfold.runtime.threads import RunsThreads, Threads
    from enfold.schema.signature import Signature

Start: TypeAlias = "Callable[[Any, Context | None], Any]"


class Handler:
    """One handler, ready to be started with arguments that have been read.

    `start(arguments, context)` gives the result of a `def` that runs in place, and something to await for all others.
    """

    __slots__ = (
        "_call",
        "_is_inline",
        "_services",
        "is_async",
        "needs_loop",
        "start",
        "takes_context",
    )

    def __init__(self, operation: Operation, services: Services) -> None:
        signature = operation.signature
        self._call = _caller(operation.handler or _no_handler, signature)
        self._services = services
        self._is_inline = operation.inline
        self.is_async = signature.kind == "async" if signature else is_coroutine_function(operation.handler)
        self.needs_loop = self.is_async
        self.takes_context = signature is None or signature.context_parameter is not None
        self.start = self._call if self.is_async else self._run_def

    def _run_def(self, arguments: Any, context: Context | None) -> Any:
        """Run a `def`: in place, or in a worker thread, which is to be awaited."""
        if self._is_inline or (context is not None and context.inline):
            if context is not None and context.call is not None:
                context.call.wait_for, context.call.runs_in_place = drive, True
            return self._call(arguments, context)
        own = partial(
            self._call, {**arguments}, context
        )  # a copy: the caller may change theirs before a thread is free
        if context is None or not (self.takes_context or context.invocation.task):
            return self._services.threads.run(own)
        return self._run_in_thread(own, context)

    async def _run_in_thread(self, function: Callable[[], Any], context: Context) -> Any:
        from enfold.runtime.threads import NestedCalls  # which needs asyncio

        nested = NestedCalls(context) if self.takes_context else None
        pending = await take_thread(self._services.threads, function, context)
        try:
            result = await pending
            return await result if hasattr(result, "__await__") else result
        finally:
            # If the caller has given up, the calls that the `def` still waits for end too.
            if nested is not None:
                nested.cancel_all()

    async def open_stream(self, arguments: Any, context: Context) -> AsyncIterator[Any]:
        """The items of a stream; those of a `def` with `yield` come from worker threads, unless it runs in place."""
        return await self._open_items(self._call(arguments, context), context, self._threads_for(context))

    def _threads_for(self, context: Context) -> Threads | None:
        """Return the worker threads; None for a call that runs on its caller's thread."""
        return None if self._is_inline or context.inline else self._services.threads

    async def _open_items(self, opened: Any, context: Context, threads: RunsThreads | None) -> AsyncIterator[Any]:
        stream = await opened if hasattr(opened, "__await__") else opened
        if hasattr(stream, "__next__"):
            from enfold.runtime.threads import BlockingStream  # which needs asyncio

            return BlockingStream(stream, threads, context)
        if not hasattr(stream, "__aiter__"):
            raise TypeError(f"a subscription must return an async iterator, not {type(stream).__name__}")
        return aiter(stream)


async def take_thread(
    threads: RunsThreads, function: Callable[[], Any], context: Context | None, *, is_patient: bool = False
) -> asyncio.Future[Any]:
    """Start a function in a worker thread; one that `is_patient`, or is part of a task, waits until a thread is free."""
    import asyncio  # this and the next: a `def` that runs in place needs neither

    from enfold.runtime.threads import POLL_INTERVAL

    while True:
        try:
            return threads.run(function)
        except CallError:
            is_task = context is not None and context.task is not None and not context.is_nested
            if not is_patient and not (is_task and context is not None and context.remaining() != 0):
                raise
        await asyncio.sleep(POLL_INTERVAL)


def _caller(function: Callable[..., Any], signature: Signature | None) -> Start:
    """Return what calls a function with its arguments: an `async def` gives its coroutine, a `def` its result."""
    if signature is None:
        return function
    name = signature.context_parameter
    if name is None:
        return lambda arguments, _: function(**arguments)
    return lambda arguments, context: function(**{**arguments, name: context})


def _no_handler(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("the registry runs no operation without a handler")


class Interrupt(KeyboardInterrupt):
    """Ctrl-C while a call runs without an event loop. A KeyboardInterrupt of another class is the handler's own."""


_INLINE: Final = "A `def` that runs inline cannot await an `async def`: make it `async def` too"


def drive(coroutine: Coroutine[Any, Any, Any], needs_loop: bool = False, advice: str = _INLINE) -> Any:
    """Run a coroutine that never waits without an event loop; with `needs_loop` it gets a loop if none runs.

    `advice` is the error of a coroutine that has to wait for the loop of its caller.
    """
    if needs_loop and not loop_is_running():
        import asyncio  # only where something waits

        return asyncio.run(coroutine)
    try:
        with _marked_interrupts():
            coroutine.send(None)
    except StopIteration as done:
        return done.value
    coroutine.close()
    raise CallError("EXECUTION_ERROR", advice)


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
