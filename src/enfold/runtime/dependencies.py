"""Dependencies at run time: providers are called before the handler, and what they opened is closed after the call.

Dependencies of the application are opened once, with the first call that needs them, and closed when it stops.
"""

# Imports inside functions: asyncio, which a `def` run in place does not need.
from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Hashable, Iterator
from concurrent.futures import Future as SharedFuture
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from msgspec.structs import replace

from enfold.errors import CallError
from enfold.operations import Context
from enfold.operations.dependencies import Provider, read_provider
from enfold.runtime.handlers import Handler, drive, loop_is_running, take_thread

if TYPE_CHECKING:
    import asyncio

    from enfold.operations import Operation
    from enfold.operations.dependencies import Dependencies, DependencyScope
    from enfold.runtime.application import Services
    from enfold.runtime.results import Results
    from enfold.runtime.threads import Threads

Exit: TypeAlias = "Callable[[BaseException | None], Awaitable[object]]"


class DependentHandler(Handler):
    """A handler with dependencies. Its result is finished before they are closed: one that does not fit is an error to them."""

    __slots__ = ("_dependencies", "_results", "_runs_on_loop")

    def __init__(self, operation: Operation, services: Services, results: Results) -> None:
        super().__init__(operation, services)
        self._dependencies = operation.dependencies
        self._results = results
        self._runs_on_loop = self.is_async
        self.needs_loop = self.is_async or any(each.is_async for _, each in operation.dependencies)
        self.is_async = self.takes_context = True
        self.start = self._start_with_dependencies

    async def _start_with_dependencies(self, arguments: Any, context: Context | None) -> Any:
        context = context or Context()
        async with self._scope(context) as scope:
            filled = {**arguments, **await scope.values(self._dependencies)}
            start = partial(self._call, filled, context)
            result = start() if self._runs_on_loop else await scope.call(start, context)
            if hasattr(result, "__await__"):
                result = await result
            return await self._results.finish(result, is_plain=context.keeps_result)

    async def open_stream(self, arguments: Any, context: Context) -> AsyncIterator[Any]:
        return self._stream(arguments, context)

    async def _stream(self, arguments: Any, context: Context) -> AsyncGenerator[Any]:
        async with self._scope(context) as scope:
            filled = {**arguments, **await scope.values(self._dependencies)}
            items = await self._open_items(self._call(filled, context), context, scope.threads)
            try:
                async for item in items:
                    yield item
            finally:
                close = getattr(items, "aclose", None)
                if close is not None:
                    await close()

    def _scope(self, context: Context) -> CallScope:
        return CallScope(self._services, self._threads_for(context), context)


class WatchedThreads:
    """The worker threads of one call, and whether one that the call no longer waits for is still running."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._running = 0
        self._are_free: asyncio.Future[None] | None = None

    @property
    def is_busy(self) -> bool:
        return self._running > 0

    async def wait(self) -> None:
        """Wait until all functions have ended."""
        import asyncio

        if self.is_busy:
            self._are_free = asyncio.get_running_loop().create_future()
            await self._are_free

    def run(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run a function in a worker thread, as `Threads` does."""
        import asyncio

        loop = asyncio.get_running_loop()

        def run() -> Any:
            try:
                return function()
            finally:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(self._end)

        pending = self._threads.run(run)
        self._running += 1
        return pending

    def _end(self) -> None:
        self._running -= 1
        if not self._running and self._are_free is not None and not self._are_free.done():
            self._are_free.set_result(None)


class Opened:
    """What providers have opened, closed in reverse order. Blocking ones run in worker threads, if there are any."""

    def __init__(self, threads: Threads | None) -> None:
        self.threads = None if threads is None else WatchedThreads(threads)
        self._exits: list[tuple[str, Exit]] = []  # with the names of the providers

    async def open(self, provider: Provider, arguments: dict[str, Any], context: Context | None) -> Any:
        """The value of a provider; one with a `yield` is run up to it."""
        start = partial(provider.function, **arguments)
        try:
            if provider.kind == "generator":
                return await self.call(partial(self._enter, provider.name, start), context)
            if provider.kind == "stream":
                return await self._enter_async(provider.name, start)
        except RuntimeError as error:
            if (named := _named(error, provider.name)) is error:
                raise
            raise named from None
        value = start() if provider.kind == "async" else await self.call(start, context)
        return await value if hasattr(value, "__await__") else value

    def _enter(self, name: str, start: Callable[[], Any]) -> Any:
        started = start()
        # A function decorated with `contextmanager` gives a context manager, and not its generator.
        manager = started if hasattr(started, "__enter__") else contextmanager(lambda: started)()
        value = manager.__enter__()

        async def leave(error: BaseException | None) -> None:
            await self.call(partial(manager.__exit__, *_facts(error)), None, is_patient=True)

        self._exits.append((name, leave))  # here, since the call may have ended while this thread was waiting
        return value

    async def _enter_async(self, name: str, start: Callable[[], Any]) -> Any:
        started = start()
        manager = started if hasattr(started, "__aenter__") else asynccontextmanager(lambda: started)()
        value = await manager.__aenter__()
        self._exits.append((name, lambda error: manager.__aexit__(*_facts(error))))
        return value

    async def call(self, function: Callable[[], Any], context: Context | None, *, is_patient: bool = False) -> Any:
        """Call a function that may block; with `is_patient`, also one that has to wait for a free thread."""
        if self.threads is None:
            with _nested_calls_in_place(context):
                return function()
        from enfold.runtime.threads import NestedCalls

        nested = None if context is None else NestedCalls(context)
        pending = await take_thread(self.threads, function, context, is_patient=is_patient)
        try:
            return await pending
        finally:
            if nested is not None:
                nested.cancel_all()

    async def close(self, error: BaseException | None) -> BaseException | None:
        """Close everything; returns what the call fails with: its own error, or one raised while closing.

        A thread that the call no longer waits for still uses what was opened: then it is closed when the thread ends.
        """
        while self._exits:
            if self.threads is not None and self.threads.is_busy:
                self._close_later(self.threads, error)
                break
            name, leave = self._exits.pop()
            try:
                await leave(error)
            except BaseException as raised:  # noqa: BLE001  # the others are closed whatever one raises
                error = _named(raised, name)
        return error

    def _close_later(self, threads: WatchedThreads, error: BaseException | None) -> None:
        import asyncio

        async def close() -> None:
            await threads.wait()
            raised = await self.close(error)
            if raised is not None and raised is not error:
                from enfold.observability.log import Log  # only a fault is logged

                Log("enfold").error("A dependency failed to close after its call had ended", error=raised)

        task = asyncio.ensure_future(close())
        _closing.add(task)
        task.add_done_callback(_closing.discard)


_closing: Final[set[asyncio.Future[None]]] = set()  # keeps the tasks that wait for a thread alive


class CallScope(Opened):
    """The dependencies of one call: each provider is asked once, and closed when the call ends."""

    def __init__(self, services: Services, threads: Threads | None, context: Context) -> None:
        super().__init__(threads)
        self._services = services
        self._pool = threads
        self._context = context
        self._values: dict[Hashable, Any] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        raised = await self.close(error)
        if raised is not None and raised is not error:
            try:
                raise raised
            finally:
                del raised, error  # break the traceback/frame reference cycle so that the input is freed immediately

    async def values(self, dependencies: Dependencies) -> dict[str, Any]:
        """The value of each parameter."""
        return {name: await self._value(overridden(each)) for name, each in dependencies}

    async def _value(self, provider: Provider) -> Any:
        if provider.scope == "app":
            return await self._services.open_dependencies().value(provider, self._pool)
        if provider.is_shared and provider.key in self._values:
            return self._values[provider.key]
        arguments = {name: await self._value(each) for name, each in provider.needs}
        if provider.context_parameter is not None:
            arguments[provider.context_parameter] = self._context
        value = self._values[provider.key] = await self.open(provider, arguments, self._context)
        return value


class AppDependencies:
    """The dependencies with scope `app`: each is opened once, and all are closed together."""

    def __init__(self) -> None:
        self.orders = count(1)  # of opening
        self._held: dict[Hashable, Held] = {}

    async def value(self, provider: Provider, threads: Threads | None) -> Any:
        """The value of a provider, which is opened by the first caller. One that failed is opened again."""
        held = self._held.get(provider.key)
        if held is None:
            new = Held(self, provider, threads)
            held = self._held.setdefault(provider.key, new)  # other threads may have come first
            if held is new:
                await new.begin()
        return await held.value()

    async def open(self, provider: Provider, opened: Opened, threads: Threads | None) -> Any:
        """Open what a provider needs, and then what it provides itself."""
        arguments = {name: await self.value(each, threads) for name, each in provider.needs}
        return await opened.open(provider, arguments, None)

    def forget(self, held: Held) -> None:
        """Remove one that is closed, or could not be opened."""
        if self._held.get(held.key) is held:
            del self._held[held.key]

    async def close(self) -> None:
        """Close all in reverse order, so that each is closed before what it needs; raises the first error after the last."""
        errors: list[BaseException] = []
        while self._held:
            # The one that needs others was begun before them, but opened after them.
            held = max(self._held.values(), key=lambda each: each.order)
            self.forget(held)
            error = await held.close()
            if error is not None:
                errors.append(error)
        if errors:
            raise errors[0]


class Held:
    """One dependency of the application. On an event loop one task opens and closes it, as task groups require."""

    def __init__(self, owner: AppDependencies, provider: Provider, threads: Threads | None) -> None:
        self.key = provider.key
        self.order = 0  # 0 while it is not open
        self._owner = owner
        self._provider = provider
        self._threads = threads
        self._opened = Opened(threads)
        self._value: SharedFuture[Any] = SharedFuture()  # callers on other loops wait for it too
        self._ended: SharedFuture[BaseException | None] = SharedFuture()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._stop: asyncio.Event | None = None

    async def begin(self) -> None:
        if not loop_is_running():
            await self._open()
            return
        import asyncio

        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._task = self._loop.create_task(self._live(self._stop))

    async def value(self) -> Any:
        try:
            if self._value.done() or not loop_is_running():
                return self._value.result()
            import asyncio

            return await asyncio.shield(asyncio.wrap_future(self._value))
        except CallError as error:
            # Each call adds its own ids to an error.
            raise CallError(error.code, error.message, dict(error.details), error.retryable) from error

    async def _live(self, stop: asyncio.Event) -> None:
        import asyncio

        if not await self._open():
            return
        with suppress(asyncio.CancelledError):  # the loop ends without a stop of the application
            await stop.wait()
        self._owner.forget(self)
        self._ended.set_result(await self._opened.close(None))

    async def _open(self) -> bool:
        try:
            value = await self._owner.open(self._provider, self._opened, self._threads)
        except BaseException as error:  # noqa: BLE001  # the callers that wait get it
            self._owner.forget(self)
            await self._opened.close(error)
            is_plain = isinstance(error, Exception)
            self._value.set_exception(error if is_plain else RuntimeError(f"{self._provider.name}() was cancelled"))
            self._ended.set_result(None)
            return False
        self.order = next(self._owner.orders)
        self._value.set_result(value)
        return True

    async def close(self) -> BaseException | None:
        if self._loop is None or self._stop is None or self._task is None:
            return await self._opened.close(None)
        if self._loop.is_closed():
            return None
        import asyncio

        self._loop.call_soon_threadsafe(self._stop.set if self.order else self._task.cancel)
        return await asyncio.shield(asyncio.wrap_future(self._ended))


def _named(error: BaseException, name: str) -> BaseException:
    """The error of a provider that does not yield exactly once with its name, which the one of `contextlib` lacks."""
    is_miscounted = str(error) in ("generator didn't yield", "generator didn't stop")
    return RuntimeError(f"{name}() must yield exactly once: {error}") if is_miscounted else error


def _facts(error: BaseException | None) -> tuple[Any, ...]:
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


@contextmanager
def _nested_calls_in_place(context: Context | None) -> Iterator[None]:
    """Let a `def` that runs in place make nested calls, as a handler does; afterwards they are awaited again."""
    call = None if context is None else context.call
    if call is None:
        yield
        return
    before = call.wait_for, call.runs_in_place
    call.wait_for, call.runs_in_place = drive, True
    try:
        yield
    finally:
        call.wait_for, call.runs_in_place = before


# overrides in tests


class Override:
    """One provider that stands in for another, for as long as it is active."""

    def __init__(self, function: Callable[..., Any], replacement: Callable[..., Any]) -> None:
        self.function = function
        self.is_active = True
        self._replacement = replacement
        self._read: dict[DependencyScope, Provider] = {"call": self._provider("call")}  # raises what is wrong with it

    def provider(self, scope: DependencyScope) -> Provider:
        if scope not in self._read:
            self._read[scope] = self._provider(scope)
        return self._read[scope]

    def _provider(self, scope: DependencyScope) -> Provider:
        return replace(read_provider(self._replacement, scope), key=(self, self._replacement))


_everywhere: Final[list[Override]] = []
_here: Final[ContextVar[tuple[Override, ...]]] = ContextVar("enfold_overrides", default=())


@contextmanager
def override(provider: Callable[..., Any], replacement: Callable[..., Any]) -> Iterator[None]:
    """Call `replacement` instead of a provider inside the `with` block, on every surface of this process.

    If several overlap, code uses its own override, or else the latest one.
    """
    for each in (provider, replacement):
        if not callable(each):
            raise TypeError(f"override takes two providers, not {each!r}: write override(get_pool, lambda: fake)")
    made = Override(provider, replacement)
    _everywhere.append(made)
    _here.set((*(each for each in _here.get() if each.is_active), made))
    try:
        yield
    finally:
        made.is_active = False  # a task that began inside the block keeps its context
        _everywhere.remove(made)


def overridden(provider: Provider, beyond: tuple[Override, ...] = ()) -> Provider:
    """The provider to call instead; one that needs what it stands in for gets the original."""
    if not _everywhere:
        return provider
    found = next(
        (
            each
            for each in (*reversed(_here.get()), *reversed(_everywhere))
            if each.is_active and each.function == provider.function and each not in beyond
        ),
        None,
    )
    if found is not None:
        beyond = (*beyond, found)
        provider = replace(found.provider(provider.scope), is_shared=provider.is_shared)
    needs = tuple((name, overridden(each, beyond)) for name, each in provider.needs)
    if all(new is old for (_, new), (_, old) in zip(needs, provider.needs, strict=True)):
        return provider
    return replace(provider, needs=needs, key=(provider.key, *(each.key for _, each in needs)))
