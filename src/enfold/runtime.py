"""How one operation runs: read the input, run the handler where it belongs and within its time, finish the result.

A coroutine that never waits is driven by hand, so that a `def` run in place needs no event loop.
"""

from __future__ import annotations

import sys
import time
import types
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Mapping
from typing import TYPE_CHECKING, Any, Final

from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError
from enfold.log import Log
from enfold.operation import Context, Operation, OperationSpec, OperationType, Policy
from enfold.schema.refusal import DecodeError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from enfold.env import Env
    from enfold.pipeline import Finish
    from enfold.threads import Threads

__all__ = ["Runner", "drive", "never_waits", "resume"]

MAX_MESSAGE: Final = 500

_STRAY: Final = "what the handler waited for was cancelled"

_CO_COROUTINE: Final = 0x0080  # of inspect, which is slow to import


class Runner:
    """One operation made ready to run under a policy."""

    __slots__ = (
        "_context_parameter",
        "_decode",
        "_decode_quickly",
        "_finish",
        "_for_writing",
        "_handler",
        "_inline",
        "_is_async",
        "_is_stream",
        "_make_env",
        "_never_waits",
        "_policy",
        "_takes_input",
        "_threads",
        "_wants_context",
        "operation",
        "spec",
    )

    def __init__(
        self,
        operation: Operation,
        policy: Policy,
        threads: Callable[[], Threads],
        make_env: Callable[[Context], Env],
        *,
        for_writing: bool = False,
    ) -> None:
        self.operation = operation
        self.spec = operation.spec
        signature = operation.signature
        self._policy = policy
        self._handler = operation.handler
        self._for_writing = for_writing
        self._inline = operation.inline
        self._threads = threads
        self._make_env = make_env
        self._takes_input = signature is None
        self._context_parameter = None if signature is None else signature.context_parameter
        self._is_stream = operation.spec.type is OperationType.SUBSCRIPTION
        self._is_async = signature.kind == "async" if signature else _is_coroutine_function(operation.handler)
        # Only an `async def` and a `def` run in place that ask for no context can do without one.
        runs_in_place = self._is_async or operation.inline
        self._wants_context = self._takes_input or self._context_parameter is not None or not runs_in_place
        self._never_waits = False  # as far as we know before its first result
        self._decode = _checked_against(operation.spec) if signature is None else signature.decode
        self._decode_quickly = self._decode if signature is None else signature.decode_quickly
        self._finish: Finish = self._first_finish

    def under(self, spec: OperationSpec, policy: Policy) -> Runner:
        """The same operation under another spec or policy, as a view shows it."""
        return Runner(self.operation.with_spec(spec), policy.over(self._policy), self._threads, self._make_env)

    def for_writing(self) -> Runner:
        """The same for a caller who only writes the result: its `data` may be a struct in place of a dict."""
        return Runner(self.operation, self._policy, self._threads, self._make_env, for_writing=True)

    @property
    def needs_loop(self) -> bool:
        """Whether running it takes an event loop, even when a `def` is run in place."""
        return self._is_async or self._is_stream

    async def execute(self, input: Any, context: Context | None) -> ResponseEnvelope[Any]:
        """The funnel: read the input, run the handler, finish the result."""
        if self._is_stream:
            raise CallError("INVALID_OPERATION_TYPE", f"{self.spec.id} is a subscription: subscribe to it")
        try:
            arguments = self._decode_quickly(input) if type(input) is dict else self._read(input)
        except (DecodeError, RecursionError):
            arguments = self._read(input)
        try:
            if context is not None or self._wants_context:
                context = self._entered(context)
            if self._never_waits:
                result = await self._handler(**arguments)  # type: ignore[misc]  # none is run without a handler
            else:
                started = time.monotonic()
                result = self._start(arguments, context) if self._is_async else await self._run_def(arguments, context)
                if type(result) is types.CoroutineType:
                    try:
                        waits_for = result.send(None)
                    except StopIteration as done:
                        result = done.value
                    else:
                        result = await self._within_time(resume(result, waits_for), context, started)
                elif hasattr(result, "__await__"):
                    result = await self._within_time(result, context, started)
            envelope = self._finish(result)
        except CallError as error:
            raise self._recorded(self._told(error, context), input, context) from error.__cause__
        except (Exception, SystemExit) as error:  # a handler that wants to end the program ends its own call
            raise self._recorded(self._failed(error, context), input, context) from error
        except BaseException as error:
            if not _is_stray(error):
                raise
            raise self._recorded(self._failed(RuntimeError(_STRAY), context), input, context) from error
        if context is None or context.recording is None:
            return envelope
        return context.recording.succeeded(self.spec, input, envelope)

    async def subscribe(self, input: Any, context: Context | None) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """The same funnel for a stream: each item is finished by itself; the producer is closed with the consumer."""
        if not self._is_stream:
            raise CallError("INVALID_OPERATION_TYPE", f"{self.spec.id} is a {self.spec.type.value}: execute it")
        arguments = self._read(input)
        context = context or Context()
        items: AsyncIterator[Any] | None = None
        try:
            context = self._entered(context)
            items = await self._within_time(_open_stream(self._start(arguments, context)), context)
            while True:
                try:
                    item = await self._within_time(anext(items), context)
                except StopAsyncIteration:
                    return
                yield self._finish(item)
        except CallError as error:
            raise self._told(error, context) from error.__cause__
        except (Exception, SystemExit) as error:  # as above
            raise self._failed(error, context) from error
        finally:
            context.cancel()
            await _close_stream(items)

    def _read(self, input: Any) -> Any:
        """The handler's arguments, or a VALIDATION_ERROR."""
        if not isinstance(input, Mapping):
            details = {"argument": "", "reason": "type", "expected": "object"}
            raise CallError("VALIDATION_ERROR", "The input must be an object of named arguments", details)
        given = dict(input)
        try:
            return self._decode(given)
        except DecodeError as refused:
            return self._read_again(given, refused)

    def _read_again(self, input: dict[str, Any], refused: DecodeError) -> Any:
        """The slow path: convert text that stands for its type, or say exactly what is wrong."""
        from enfold.schema.arguments import coerce, faults, validation_error

        schema = self.spec.input_schema
        value = input if self._policy.coerce is False else coerce(schema, input)
        if value is not input:
            try:
                return self._decode(value)
            except DecodeError as again:
                refused = again
        found = faults(schema, value)
        if found:
            raise validation_error(found)
        raise _refused_by_type(refused)

    def _first_finish(self, result: Any) -> ResponseEnvelope[Any]:
        """Build the pipeline when the first result comes: most operations of a large import are never called."""
        from enfold.pipeline import build_pipeline, build_writing_pipeline

        self._finish = (build_writing_pipeline if self._for_writing else build_pipeline)(self.spec, self._policy)
        self._never_waits = not self._wants_context and never_waits(self._handler)
        return self._finish(result)

    def _entered(self, context: Context | None) -> Context:
        """The context of this call; one whose time is over before it begins is not run at all."""
        context = (context or Context()).enter(self.spec.timeout, self._make_env)
        if context.remaining() == 0.0:
            raise self._timed_out()
        return context

    def _start(self, arguments: Any, context: Context | None) -> Any:
        if self._takes_input:
            return self._handler(arguments, context)  # type: ignore[misc]  # the registry runs no operation without one
        if self._context_parameter is not None:
            arguments[self._context_parameter] = context
        return self._handler(**arguments)  # type: ignore[misc]  # as above

    async def _within_time(self, awaitable: Any, context: Context | None, started: float = 0.0) -> Any:
        """Wait as long as the call may take; only a handler that really waits comes here and pays for a timer."""
        import asyncio

        limit = context.remaining() if context is not None else self._left_since(started)
        timer = asyncio.timeout(limit)
        try:
            async with timer:
                return await awaitable
        except TimeoutError:
            if timer.expired():
                raise self._timed_out() from None
            raise
        except asyncio.CancelledError as error:
            if _is_stray(error):
                raise RuntimeError(_STRAY) from error
            if context is not None:
                context.cancel()
            raise

    def _left_since(self, started: float) -> float | None:
        return None if self.spec.timeout is None else self.spec.timeout - (time.monotonic() - started)

    async def _run_def(self, arguments: Any, context: Context | None) -> Any:
        if context is None:
            return self._start(arguments, None)
        if self._inline or context.inline:
            context.wait_for, context.is_in_place = drive, True
            return self._start(arguments, context)
        return await self._run_in_thread(arguments, context)

    async def _run_in_thread(self, arguments: Any, context: Context) -> Any:
        import asyncio

        loop = asyncio.get_running_loop()
        nested: list[Future[Any]] = []

        def wait_for(call: Coroutine[Any, Any, Any], needs_loop: bool) -> Any:
            del needs_loop  # The loop is there, and the call runs on it.
            waiting = asyncio.run_coroutine_threadsafe(call, loop)
            nested.append(waiting)
            if context.cancelled:  # The caller gave up before he could see what we wait for.
                waiting.cancel()
            return waiting.result()

        context.wait_for = wait_for
        context.notify_through(loop.call_soon_threadsafe)
        threads = self._threads()
        pending = threads.run(lambda: self._start(arguments, context), loop)
        if pending is None:
            raise CallError("RESOURCE_EXHAUSTED", f"All {threads.limit} worker threads are busy")
        try:
            return await self._within_time(pending, context)
        finally:
            # Whoever gives up on a `def` gives up on what it waits for.
            for call in nested:
                call.cancel()

    def _timed_out(self) -> CallError:
        message = f"{self.spec.id} took longer than it may"
        return CallError("TIMEOUT", message, retryable=self.spec.idempotent)

    def _told(self, error: CallError, context: Context | None) -> CallError:
        """The error under the id that this caller got, whatever call inside it failed."""
        if context is not None:
            error.request_id = context.request_id
        return error

    def _recorded(self, error: CallError, input: Any, context: Context | None) -> CallError:
        if context is not None and context.recording is not None:
            error.provenance = context.recording.failed(self.spec, input, error)
        return error

    def _failed(self, error: BaseException, context: Context | None) -> CallError:
        """What the caller hears of an unexpected exception; the stack goes to our log, under the same request id."""
        context = context or Context()
        request_id = context.request_id
        of = f" of {context.parent_request_id}" if context.parent_request_id else ""
        Log("enfold").error("%s failed (request %s%s)", self.spec.id, request_id, of, error=error)
        told = CallError("EXECUTION_ERROR", self._message(error))
        told.request_id = request_id
        return told

    def _message(self, error: BaseException) -> str:
        if not self._policy.expose_errors:
            return f"Operation {self.spec.id} failed"
        return _text(error)[:MAX_MESSAGE]


def _text(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001  # an exception that cannot even be printed must not hide the failure
        return type(error).__name__


# --- reading the input --------------------------------------------------------------------------------------------


def _checked_against(spec: OperationSpec) -> Callable[[Any], Any]:
    check: Callable[[Any], bool] | None = None

    def convert(input: Any) -> Any:
        nonlocal check
        if check is None:
            from enfold.schema.check import compile_schema

            check = compile_schema(spec.input_schema).check
        if check(input):
            return input
        raise DecodeError("", "what the input schema says")

    return convert


def _refused_by_type(refused: DecodeError) -> CallError:
    """The schema finds no fault, but the type does: a validator of the user's own, a date that is none."""
    details = {"argument": refused.path, "reason": refused.reason, "expected": refused.expected}
    return CallError("VALIDATION_ERROR", f'Argument "{refused.path}" is refused: {refused.expected}', details)


# --- driving coroutines -------------------------------------------------------------------------------------------


def drive(coroutine: Coroutine[Any, Any, Any], needs_loop: bool = False) -> Any:
    """Run a coroutine that never waits, without an event loop; one that needs a loop gets its own, if none runs."""
    if needs_loop and not _loop_is_running():
        import asyncio

        return asyncio.run(coroutine)
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    coroutine.close()
    raise CallError("EXECUTION_ERROR", "A `def` run in place cannot wait for an `async def`: make it `async def` too")


def _is_stray(error: BaseException) -> bool:
    """Whether it is a cancellation, but not of this call: the handler waited for something that was cancelled."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or not isinstance(error, asyncio.CancelledError):
        return False
    task = asyncio.current_task() if _loop_is_running() else None
    return task is None or not task.cancelling()


def _loop_is_running() -> bool:
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


@types.coroutine
def resume(coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """Go on with a coroutine that has been driven up to its first wait."""
    while True:
        try:
            sent = yield waits_for
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as error:  # noqa: BLE001  # whatever is thrown in belongs to the coroutine
            go_on: tuple[Callable[[Any], Any], Any] = coroutine.throw, error
        else:
            go_on = coroutine.send, sent
        try:
            waits_for = go_on[0](go_on[1])
        except StopIteration as done:
            return done.value


def _is_coroutine_function(handler: Any) -> bool:
    while hasattr(handler, "func"):  # functools.partial
        handler = handler.func
    code = getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
    return code is not None and bool(code.co_flags & _CO_COROUTINE)


def never_waits(handler: Any) -> bool:
    """Whether it is an `async def` without an `await`: over when it has begun, it can neither be late nor given up."""
    code = getattr(handler, "__code__", None)
    if not isinstance(code, types.CodeType) or not code.co_flags & _CO_COROUTINE:
        return False
    from opcode import opmap  # which asyncio has loaded already

    return opmap["YIELD_VALUE"] not in code.co_code[::2]


async def _open_stream(opened: Any) -> AsyncIterator[Any]:
    stream = await opened if hasattr(opened, "__await__") else opened
    if not hasattr(stream, "__aiter__"):
        raise TypeError(f"a subscription gives an async iterator, not {type(stream).__name__}")
    return aiter(stream)


async def _close_stream(items: Any) -> None:
    close = getattr(items, "aclose", None)
    if close is not None:
        await close()
