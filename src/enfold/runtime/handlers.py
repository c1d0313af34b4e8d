"""The handler of an operation, and the ways to run it: on the event loop, in a worker thread, in place, as a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from enfold.errors import CallError
from enfold.operations import is_coroutine_function
from enfold.runtime.coroutines import drive

if TYPE_CHECKING:
    import asyncio

    from enfold.operations import Context, Operation
    from enfold.runtime.threads import RunsThreads, Threads


class Handler:
    """One handler, ready to be started with arguments that have been read."""

    __slots__ = (
        "_context_parameter",
        "_function",
        "_is_inline",
        "_takes_input",
        "_threads",
        "is_async",
        "needs_loop",
        "takes_context",
    )

    def __init__(self, operation: Operation, threads: Callable[[], Threads]) -> None:
        signature = operation.signature
        self._function = operation.handler or _no_handler
        self._threads = threads
        self._is_inline = operation.inline
        self._takes_input = signature is None
        self._context_parameter = None if signature is None else signature.context_parameter
        self.is_async = signature.kind == "async" if signature else is_coroutine_function(operation.handler)
        self.needs_loop = self.is_async
        self.takes_context = self._takes_input or self._context_parameter is not None

    def call(self, arguments: Any, context: Context | None) -> Any:
        """Call the function: an `async def` gives its coroutine, a `def` its result."""
        if self._takes_input:
            return self._function(arguments, context)
        if self._context_parameter is not None:
            arguments = {**arguments, self._context_parameter: context}  # a copy: it may be the caller's own dict
        return self._function(**arguments)

    def run_def(self, arguments: Any, context: Context | None) -> Any:
        """Run a `def`: in place, or in a worker thread, which is to be awaited."""
        if self.runs_in_place(context):
            if context is not None and context.call is not None:
                context.call.wait_for, context.call.runs_in_place = drive, True
            return self.call(arguments, context)
        own = partial(self.call, {**arguments}, context)  # a copy: the caller may change theirs before a thread is free
        return self._threads().run(own) if context is None else self._run_in_thread(own, context)

    def runs_in_place(self, context: Context | None) -> bool:
        """Whether a `def` runs on the caller's thread: the operation or the caller says `inline`."""
        return self._is_inline or (context is not None and context.inline)

    async def _run_in_thread(self, function: Callable[[], Any], context: Context) -> Any:
        from enfold.runtime.threads import NestedCalls  # which needs asyncio

        nested = NestedCalls(context) if self.takes_context else None
        pending = await take_thread(self._threads(), function, context)
        try:
            result = await pending
            return await result if hasattr(result, "__await__") else result
        finally:
            # If the caller has given up, the calls that the `def` still waits for end too.
            if nested is not None:
                nested.cancel_all()

    async def open_stream(self, arguments: Any, context: Context) -> AsyncIterator[Any]:
        """The items of a stream; those of a `def` with `yield` come from worker threads, unless it runs in place."""
        threads = None if self.runs_in_place(context) else self._threads()
        return await self.open_items(self.call(arguments, context), context, threads)

    async def open_items(self, opened: Any, context: Context, threads: RunsThreads | None) -> AsyncIterator[Any]:
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


def _no_handler(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("the registry runs no operation without a handler")
