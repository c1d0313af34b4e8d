"""The innermost step of every call: read the arguments, run the handler within its time, finish the result.

A coroutine that never waits is driven by hand, so that a `def` run in place needs no event loop.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from types import CoroutineType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError, DecodeError, LargeMisfitError, invalid_argument
from enfold.operations import Context, Operation, OperationSpec, OperationType, Policy, is_coroutine_function
from enfold.operations.outcomes import Suspension
from enfold.runtime.coroutines import drive, go_on
from enfold.runtime.failures import Failures, is_cancellation
from enfold.runtime.services import Services
from enfold.schema.budget import shared_budget

if TYPE_CHECKING:
    from enfold.operations.call import Call
    from enfold.operations.outcomes import Outcome
    from enfold.runtime.deadlines import Limit
    from enfold.runtime.env import Env
    from enfold.runtime.pipeline import Finish

# Imports inside functions: what a first call without faults, threads and limits does not need.

T = TypeVar("T")


class Funnel:
    """One operation, ready to run: what is known before a call is worked out once."""

    __slots__ = (
        "_context_parameter",
        "_decode",
        "_decode_quickly",
        "_finish",
        "_for_writing",
        "_handler",
        "_limit",
        "_plain_finish",
        "_policy",
        "_services",
        "_takes_input",
        "failures",
        "id",
        "is_async",
        "is_remote",
        "is_stream",
        "is_upstream",
        "operation",
        "spec",
        "takes_context",
    )

    def __init__(self, operation: Operation, policy: Policy, services: Services, *, for_writing: bool) -> None:
        """With `for_writing` the `data` of a result may be a struct or JSON text."""
        signature = operation.signature
        self.operation = operation
        self.spec = operation.spec
        self.id = operation.spec.id
        self.is_remote = operation.origin.kind == "calls"  # another Enfold process runs it
        self.is_upstream = operation.origin.kind in ("mcp", "openapi")
        self.failures = Failures(operation.spec, policy, is_remote=self.is_remote)
        self.is_stream = operation.spec.type is OperationType.SUBSCRIPTION
        self.is_async = signature.kind == "async" if signature else is_coroutine_function(operation.handler)
        self._policy = policy
        self._services = services
        self._for_writing = for_writing
        self._handler = operation.handler or _no_handler
        self._takes_input = signature is None
        self._context_parameter = None if signature is None else signature.context_parameter
        self.takes_context = self._takes_input or self._context_parameter is not None
        self._decode = _checked_against(operation.spec) if signature is None else signature.decode
        self._decode_quickly = self._decode if signature is None else signature.decode_quickly
        if self.is_remote:  # the worker validates the input of its own version, and checks the result
            self._decode_quickly = _unchanged
        self._finish: Finish = _unchanged if self.is_remote else self._first_finish
        # Gives plain data; built for the first result that has to be plain.
        self._plain_finish: Finish | None = _unchanged if self.is_remote else None
        self._limit: Callable[[float], Limit] = self._first_limit

    # calls and streams

    def __call__(self, call: Call) -> Coroutine[Any, Any, Outcome]:
        """Run a call that has passed its middleware."""
        return self.run(call.input, call.context)

    def stream(self, call: Call) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """Run a subscription that has passed its middleware."""
        return self.follow(call.input, call.context)

    async def run(self, input: Any, context: Context | None) -> Outcome:
        """Run a query or mutation."""
        if self.is_stream:
            raise CallError("INVALID_OPERATION_TYPE", f"{self.id} is a subscription: subscribe to it")
        decode = self._decode_quickly
        try:
            arguments = decode(input) if type(input) is dict else self.read(input)[1]
        except (DecodeError, RecursionError):
            arguments = self.read(input)[1]
        try:
            if not self._services.lifetime.is_ready:
                await self._services.lifetime.make_ready()
            if context is not None or self.takes_context:
                context = self._enter(context)
            if not self.is_async:
                result = await self._run_def(arguments, context)
            else:
                running = self._start(arguments, context)
                if type(running) is CoroutineType:
                    try:
                        waits_for = running.send(None)
                    except StopIteration as done:  # it has ended without a wait: there is nothing to limit
                        result = done.value
                    else:
                        result = await self._in_time(go_on(running, waits_for), context)
                else:
                    result = await self._in_time(running, context)
            if context is None or not context.keeps_result:
                try:
                    return self._finish(result)
                except LargeMisfitError as misfit:
                    return await _finish_apart(misfit)
            return await self.finish_plainly(result)
        except CallError as error:
            raise self.failures.with_ids(error, context) from error.__cause__
        except Suspension as suspension:
            return suspension.outcome
        except BaseException as error:
            raise self.failures.failure_of(error, context) from error

    async def follow(self, input: Any, context: Context) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """Run a subscription: each item is finished by itself; the producer is closed with the consumer."""
        if not self.is_stream:
            raise CallError("INVALID_OPERATION_TYPE", f"{self.id} is a {self.spec.type.value}: execute it")
        arguments = input if self.is_remote and type(input) is dict else self.read(input)[1]
        items: AsyncIterator[Any] | None = None
        try:
            if not self._services.lifetime.is_ready:
                await self._services.lifetime.make_ready()
            context = self._enter(context)
            items = await self._in_time(self._open_stream(arguments, context), context)
            while True:
                try:
                    item = await self._in_time(anext(items), context)
                except StopAsyncIteration:
                    return
                try:
                    envelope = self._finish(item)
                except LargeMisfitError as misfit:
                    envelope = await _finish_apart(misfit)
                yield envelope
        except CallError as error:
            raise self.failures.with_ids(error, context) from error.__cause__
        except Suspension:
            raise  # its items have no place for an outcome: whoever collects them takes it
        except BaseException as error:
            raise self.failures.failure_of(error, context) from error
        finally:
            context.cancel()
            await _close_stream(items)

    # reading the input

    def read(self, input: Any) -> tuple[Mapping[str, Any], Any]:
        """The input as it is read, and the handler's arguments, or a VALIDATION_ERROR."""
        if not isinstance(input, Mapping):
            raise invalid_argument("", "type", "object", "The input must be an object of named arguments")
        given = dict(input)
        with shared_budget():  # whatever has to be tried, its patterns take no more time together
            try:
                return input, self._decode(given)
            except DecodeError:
                return self._read_again(given)

    def _read_again(self, input: dict[str, Any]) -> tuple[Mapping[str, Any], Any]:
        """Convert text that stands for its type, or say exactly what is wrong."""
        from enfold.schema.arguments import coerce, faults, type_faults, validation_error

        schema = self.spec.input_schema
        value = input if self._policy.coerce is False else coerce(schema, input)
        if value is not input:
            with suppress(DecodeError):
                return value, self._decode(value)
        found = faults(schema, value)
        raise validation_error([*found, *type_faults(self._decode, value, found)], schema)

    # the context and the time of a call

    def begin(self, context: Context) -> Context:
        """The context of one call, whose time begins now; TIMEOUT if its caller's time is over."""
        context = context.enter(self.spec.timeout, self._env)
        if context.is_late:
            raise self.failures.with_ids(self.failures.timed_out(context), context)
        return context

    def limit(self, context: Context) -> Limit | None:
        """Keep the time of a call that has begun from here on, for the steps around the handler too."""
        state, deadline = context.call, context.deadline
        if state is None or deadline is None:
            return None
        state.is_limited = True
        return self._limit(deadline)

    def _enter(self, context: Context | None) -> Context:
        """The context that the handler gets: a middleware may have begun it already, and run the handler before."""
        context = context or Context()
        begun = context.call
        if begun is None or begun.has_started:
            context = self.begin(context)
            if begun is not None and begun.is_limited and context.call is not None:
                context.call.deadline, context.call.is_limited = begun.deadline, True
        if context.call is not None:
            context.call.has_started = True
        return context

    def _env(self, context: Context) -> Env:
        return self._services.make_env(context, self._policy)

    def _own_limit(self, context: Context | None) -> float | None:
        """The deadline of the handler; None where there is none, or a step around it keeps it."""
        if context is not None:
            return None if context.call is not None and context.call.is_limited else context.deadline
        timeout = self.spec.timeout
        return None if timeout is None else time.monotonic() + timeout

    def _first_limit(self, deadline: float) -> Limit:
        """Import `timekeeping`, and so asyncio, with the first call that may wait: a `def` run in place needs neither."""
        from enfold.runtime.deadlines import limit_running_task

        self._limit = limit_running_task
        return limit_running_task(deadline)

    async def _in_time(self, awaitable: Awaitable[T], context: Context | None) -> T:
        """Await something until the deadline of the call; TIMEOUT after it."""
        deadline = self._own_limit(context)
        if deadline is None:
            return await awaitable
        limit, has_passed = self._limit(deadline), False
        try:
            return await awaitable
        except BaseException as error:
            has_passed = limit.end()
            if has_passed and is_cancellation(error):
                raise self.failures.timed_out(context) from None
            raise
        finally:
            if not has_passed:
                limit.end()

    # running the handler

    def _start(self, arguments: Any, context: Context | None) -> Any:
        if self._takes_input:
            return self._handler(arguments, context)
        if self._context_parameter is not None:
            arguments = {**arguments, self._context_parameter: context}  # a copy: it may be the caller's own dict
        return self._handler(**arguments)

    async def _open_stream(self, arguments: Any, context: Context) -> AsyncIterator[Any]:
        """The items of a stream; those of a `def` with `yield` come from worker threads, unless it runs in place."""
        opened = self._start(arguments, context)
        stream = await opened if hasattr(opened, "__await__") else opened
        if hasattr(stream, "__next__"):
            from enfold.runtime.threads import BlockingStream

            threads = None if self.operation.inline or context.inline else self._services.threads()
            return BlockingStream(stream, threads, context)
        if not hasattr(stream, "__aiter__"):
            raise TypeError(f"a subscription gives an async iterator, not {type(stream).__name__}")
        return aiter(stream)

    async def _run_def(self, arguments: Any, context: Context | None) -> Any:
        """Run a `def`: in this thread if the operation or the caller says `inline`, else in a worker thread."""
        if self.operation.inline or (context is not None and context.inline):
            if context is not None and context.call is not None:
                context.call.wait_for, context.call.runs_in_place = drive, True
            result = self._start(arguments, context)
        else:
            result = await self._run_in_thread(arguments, context or self._enter(None))
        if hasattr(result, "__await__"):  # a handler may give a coroutine although it is no `async def`
            return await self._in_time(result, context or self._enter(None))
        return result

    async def _run_in_thread(self, arguments: Any, context: Context) -> Any:
        from enfold.runtime.threads import NestedCalls

        threads = self._services.threads()
        nested = NestedCalls(context) if self.takes_context else None
        own = {**arguments}  # a copy: the caller may change theirs before a thread is free

        def start() -> Any:
            return self._start(own, context)

        try:
            pending = threads.run(start)
        except CallError:
            if context.task is None or context.is_nested:
                raise
            await threads.wait_for_room(context)  # a task was accepted already: it waits instead of failing
            pending = threads.run(start)
        try:
            return await self._in_time(pending, context)
        finally:
            # If the caller has given up, the calls that the `def` still waits for end too.
            if nested is not None:
                nested.cancel_all()

    # the result

    async def finish_plainly(self, result: Any) -> ResponseEnvelope[Any]:
        """Finish a result as plain data, which a record, a key, a selection or a middleware needs."""
        finish = self._plain_finish if self._for_writing else self._finish
        if finish is None:
            from enfold.runtime.pipeline import build_pipeline

            finish = self._plain_finish = build_pipeline(self.spec, self._policy, self.operation.signature)
        try:
            return finish(result)
        except LargeMisfitError as misfit:
            return await _finish_apart(misfit)

    def _first_finish(self, result: Any) -> ResponseEnvelope[Any]:
        """Build the pipeline when the first result comes: most operations of a large import are never called."""
        from enfold.runtime.pipeline import build_pipeline, build_writing_pipeline

        build = build_writing_pipeline if self._for_writing else build_pipeline
        self._finish = build(self.spec, self._policy, self.operation.signature)
        return self._finish(result)


def _unchanged(value: Any) -> Any:
    """Takes the place of validation for operations of other Enfold processes."""
    return value


async def _finish_apart(misfit: LargeMisfitError) -> ResponseEnvelope[Any]:
    """Finish a large result beside the event loop."""
    from enfold.runtime.threads import run_apart

    envelope: ResponseEnvelope[Any] = await run_apart(misfit.finish)
    return envelope


def _no_handler(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("the registry runs no operation without a handler")


def _checked_against(spec: OperationSpec) -> Callable[[Any], Any]:
    check: Callable[[Any], bool] | None = None

    def convert(input: Any) -> Any:
        nonlocal check
        if check is None:
            from enfold.schema.compiled import compile_schema

            check = compile_schema(spec.input_schema).check
        if check(input):
            return input
        raise DecodeError("", "what the input schema says")

    return convert


async def _close_stream(items: Any) -> None:
    close = getattr(items, "aclose", None)
    if close is not None:
        await close()
