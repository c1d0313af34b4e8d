"""How one operation runs: read the input, run the handler where it belongs and within its time, finish the result.

A coroutine that never waits is driven by hand, so that a `def` run in place needs no event loop.
"""

from __future__ import annotations

import sys
import time
import types
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from enfold.access import check_access
from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError, DecodeError, error_from, invalid_argument
from enfold.lifetime import Lifetime
from enfold.operation import (
    INHERIT,
    Context,
    Identity,
    Operation,
    OperationSpec,
    OperationType,
    Policy,
    is_coroutine_function,
)
from enfold.operation.context import DETACHABLE, TASK
from enfold.schema.nodes.budget import shared_budget

if TYPE_CHECKING:
    from enfold.env import Env
    from enfold.observing.call_record import SpanStart
    from enfold.observing.observers import Observers
    from enfold.operation.limits import CallLimits
    from enfold.operation.ports import CallPayload, PayloadLog
    from enfold.operation.repeats import DurableCalls, EntryKey, KeyedCall, OnceStore
    from enfold.pipeline import Finish
    from enfold.selection.selecting import Selection
    from enfold.threads import Threads
    from enfold.timekeeping import Limit

# Imports inside functions: what a first call without faults, threads and limits does not need.

T = TypeVar("T")

MAX_REPEAT_WAIT: Final = 3600.0  # seconds that a repeated call waits for the first one, if nothing else limits it
SETTLE: Final = 5.0  # seconds beyond the operation's own time in which a first call tells how it ended
CALLS: Final = "calls"  # the kind of an operation that another Enfold process runs
MAX_SELECTIONS: Final = 64  # compiled selections that one operation caches
_STRAY_CANCELLATION: Final = "what the handler waited for was cancelled"


class PreparedOperation:
    """One operation made ready to run: what is known before a call is worked out once, and kept by every surface.

    `is_open`: callers need no identity, and are not counted. `needs_context`: the handler takes one, or the payload log
    does. `needs_loop`: it needs an event loop, even where a `def` runs in place.
    """

    __slots__ = (
        "_context_parameter",
        "_decode",
        "_decode_quickly",
        "_enters_context",
        "_finish",
        "_for_writing",
        "_handler",
        "_is_async",
        "_is_bare",
        "_is_checked",
        "_is_guarded",
        "_is_task",
        "_lifetime",
        "_limit",
        "_limits",
        "_make_env",
        "_may_wait",
        "_observers",
        "_payloads",
        "_plain_finish",
        "_policy",
        "_selections",
        "_selects",
        "_takes_input",
        "_threads",
        "id",
        "is_open",
        "is_stream",
        "needs_context",
        "needs_loop",
        "operation",
        "spec",
    )

    def __init__(
        self,
        operation: Operation,
        policy: Policy,
        threads: Callable[[], Threads],
        make_env: Callable[[Context, Policy], Env],
        lifetime: Lifetime,
        *,
        is_guarded: bool = False,
        for_writing: bool = False,
        observers: Observers | None = None,
    ) -> None:
        """`is_guarded` checks access first; `for_writing` may give `data` as a struct or as JSON text.

        `observers` get a record of each call. A surface that makes its own records, also of what it refuses, passes none.
        """
        signature = operation.signature
        self.operation = operation
        self.spec = operation.spec
        self.id = operation.spec.id
        self._policy = policy
        self._handler = operation.handler or _no_handler
        self._is_guarded = is_guarded
        self._for_writing = for_writing
        self._threads = threads
        self._make_env = make_env
        self._lifetime = lifetime
        self._takes_input = signature is None
        self._context_parameter = None if signature is None else signature.context_parameter
        self._limits = policy.limits if is_guarded else None
        self._payloads = policy.payloads
        # A caller from outside who does not know tasks still gets the result: the call waits for its task.
        self._is_task = is_guarded and operation.spec.durable == "required"
        self._is_bare = self._limits is None and self._payloads is None and not self._is_task
        self._observers = observers
        self.is_open = operation.spec.access_control.is_open and policy.limits is None
        self._is_checked = is_guarded and not self.is_open
        self.is_stream = operation.spec.type is OperationType.SUBSCRIPTION
        self._is_async = signature.kind == "async" if signature else is_coroutine_function(operation.handler)
        self.needs_loop = self._is_async or self.is_stream or self._is_task
        takes_context = self._takes_input or self._context_parameter is not None
        self.needs_context = takes_context or self._payloads is not None or self._is_task
        self._decode = _checked_against(operation.spec) if signature is None else signature.decode
        self._decode_quickly = self._decode if signature is None else signature.decode_quickly
        self._may_wait = self._enters_context = True  # until the first result shows otherwise
        self._finish: Finish = self._first_finish
        self._plain_finish: Finish | None = None  # gives plain data; built for the first record, key or selection
        self._limit: Callable[[float], Limit] = self._first_limit
        self._selects = "select" in operation.spec.meta  # also when the caller asks for no selection
        self._selections: dict[str | None, Selection | None] = {}  # by the text that asked for them

    def variant(
        self,
        spec: OperationSpec | None = None,
        policy: Policy = INHERIT,
        *,
        is_guarded: bool | None = None,
        for_writing: bool | None = None,
        is_observed: bool = True,
    ) -> PreparedOperation:
        """The same operation with another spec, policy, guard or observation, or for a caller who only writes results."""
        return PreparedOperation(
            self.operation if spec is None else self.operation.replace(spec=spec),
            policy.over(self._policy),
            self._threads,
            self._make_env,
            self._lifetime,
            is_guarded=self._is_guarded if is_guarded is None else is_guarded,
            for_writing=self._for_writing if for_writing is None else for_writing,
            observers=self._observers if is_observed else None,
        )

    def check(self, input: Any, identity: Identity | None, select: str | None = None) -> Any:
        """Raise what the call would raise before its handler runs: no access, too many calls, an input that does not fit.

        Returns the input as it is read: text such as "5" is converted where a number is wanted.
        """
        if self._is_checked:
            check_access(self.spec, identity, input)
            if self._limits is not None:
                self._limits.release(self._limits.acquire(identity))
        read, _ = self._read_whole(input)
        if select is not None:
            self._selection(select)
        return read

    def execute(self, input: Any, context: Context | None) -> Coroutine[Any, Any, ResponseEnvelope[Any]]:
        """Run it: observed, logged, counted, as a task or once per idempotency key where that applies, then the funnel."""
        observers = self._observers
        if observers is not None and observers.is_on:
            return self._execute_observed(observers, input, context or Context())
        if self._is_bare and (context is None or context.unused_key is None):
            return self._run(input, context)
        return self._execute_logged(input, context)

    def subscribe(self, input: Any, context: Context | None) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """Follow a stream: observed, logged and counted where that applies, as in `execute`."""
        observers = self._observers
        if observers is not None and observers.is_on:
            return self._subscribe_observed(observers, input, context or Context())
        return self._follow(input, context) if self._is_bare else self._subscribe_logged(input, context)

    async def _run(self, input: Any, context: Context | None) -> ResponseEnvelope[Any]:
        """The funnel: check access where it is guarded, read the input, run the handler, finish the result."""
        if self.is_stream:
            raise CallError("INVALID_OPERATION_TYPE", f"{self.id} is a subscription: subscribe to it")
        if self._is_checked:
            check_access(self.spec, None if context is None else context.identity, input)
        decode, finish = self._decode_quickly, self._finish  # calling a local is faster than calling a field
        try:
            arguments = decode(input) if type(input) is dict else self._read(input)
        except (DecodeError, RecursionError):
            arguments = self._read(input)
        has_passed, selection = False, None
        if self._selects or (context is not None and context.select is not None):
            selection = self._selection(None if context is None else context.select)
        try:
            if not self._lifetime.is_ready:
                await self._lifetime.make_ready()
            if self._enters_context:
                if context is not None or self.needs_context:
                    context = self._enter_context(context)
            elif context is not None and context.is_late:
                raise self._timed_out(context)  # noqa: TRY301  # handled below like an error of the handler
            if not self._is_async:
                result = await self._run_def(arguments, context)
            elif self._may_wait and (deadline := self._deadline(context)) is not None:
                limit = self._limit(deadline)
                try:
                    result = await self._start(arguments, context)
                finally:
                    has_passed = limit.end()
            elif self.needs_context:
                result = await self._start(arguments, context)
            else:
                result = await self._handler(**arguments)
            if selection is None and (context is None or (context.recording is None and not context.keeps_result)):
                return finish(result)
            envelope = self._finish_plainly(result, selection)
        except CallError as error:
            raise await self._record_failure(self._with_ids(error, context), input, context) from error.__cause__
        except BaseException as error:
            raise await self._record_failure(self._failure_of(error, context, has_passed), input, context) from error
        if context is None or context.recording is None:
            return envelope
        return await context.recording.keep_success(self.spec, input, envelope, inline=context.inline)

    async def _follow(self, input: Any, context: Context | None) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """The same funnel for a stream: each item is finished by itself; the producer is closed with the consumer."""
        if not self.is_stream:
            raise CallError("INVALID_OPERATION_TYPE", f"{self.id} is a {self.spec.type.value}: execute it")
        if self._is_checked:
            check_access(self.spec, None if context is None else context.identity, input)
        arguments = self._read(input)
        context = context or Context()
        selection = self._selection(context.select) if self._selects or context.select is not None else None
        items: AsyncIterator[Any] | None = None
        try:
            if not self._lifetime.is_ready:
                await self._lifetime.make_ready()
            context = self._enter_context(context)
            items = await self._in_time(self._open_stream(arguments, context), context)
            while True:
                try:
                    item = await self._in_time(anext(items), context)
                except StopAsyncIteration:
                    return
                yield self._finish(item) if selection is None else selection.of(self._finish(item))
        except CallError as error:
            raise self._with_ids(error, context) from error.__cause__
        except BaseException as error:
            raise self._failure_of(error, context) from error
        finally:
            context.cancel()
            await _close_stream(items)

    # records for observers

    async def _execute_observed(self, observers: Observers, input: Any, context: Context) -> ResponseEnvelope[Any]:
        watch = observers.begin(self._span)
        try:
            envelope = await self._execute_logged(input, context)
            watch.record_result(envelope)
        except BaseException as error:
            watch.fail(error)
            raise
        finally:
            watch.end("process", self.operation, context)
        return envelope

    async def _subscribe_observed(
        self, observers: Observers, input: Any, context: Context
    ) -> AsyncGenerator[ResponseEnvelope[Any]]:
        watch = observers.begin(self._span, is_stream=True)
        items = self._subscribe_logged(input, context)
        try:
            while True:
                with watch:  # the span covers the handler's work, not what the consumer does between two items
                    try:
                        envelope = await anext(items)
                    except StopAsyncIteration:
                        return
                watch.item()
                yield envelope
        except GeneratorExit:  # the consumer stopped: not a failure
            raise
        except BaseException as error:
            watch.fail(error)
            raise
        finally:
            await items.aclose()
            watch.end("process", self.operation, context)

    def _span(self) -> SpanStart:
        from enfold.observing.call_record import SpanStart

        is_remote = self.operation.origin.kind not in ("functions", "")
        return SpanStart(self.id, "client" if is_remote else "internal")

    # the payload log, where the operator turned it on

    def _execute_logged(self, input: Any, context: Context | None) -> Coroutine[Any, Any, ResponseEnvelope[Any]]:
        if self._payloads is None:
            return self._execute_counted(input, context)
        return self._execute_and_log(self._payloads, input, context or Context())

    async def _execute_and_log(self, payloads: PayloadLog, input: Any, context: Context) -> ResponseEnvelope[Any]:
        context.keeps_result = True
        with self._log_payload(payloads, input, context) as payload:
            envelope = await self._execute_counted(input, context)
            payload.take(envelope)
        return envelope

    def _subscribe_logged(self, input: Any, context: Context | None) -> AsyncGenerator[ResponseEnvelope[Any]]:
        if self._payloads is not None:
            return self._subscribe_and_log(self._payloads, input, context or Context())
        return self._subscribe_counted(input, context)

    async def _subscribe_and_log(
        self, payloads: PayloadLog, input: Any, context: Context
    ) -> AsyncGenerator[ResponseEnvelope[Any]]:
        with self._log_payload(payloads, input, context) as payload:
            async with aclosing(self._subscribe_counted(input, context)) as items:
                async for envelope in items:
                    payload.take(envelope)
                    yield envelope

    @contextmanager
    def _log_payload(self, payloads: PayloadLog, input: Any, context: Context) -> Iterator[CallPayload]:
        """The log entry of one call; it is closed with the call, and gets its error."""
        payload = payloads.begin(self.spec, input, context)
        try:
            yield payload
        except CallError as error:
            payload.fail(error)
            raise
        finally:
            payload.end()

    # limits, tasks and idempotency keys

    def _execute_counted(self, input: Any, context: Context | None) -> Coroutine[Any, Any, ResponseEnvelope[Any]]:
        """Run it, counted against the limit of its caller where there is one."""
        if self._limits is not None:
            return self._execute_limited(self._limits, input, context)
        return self._execute_by_key(input, context)

    async def _execute_limited(self, limits: CallLimits, input: Any, context: Context | None) -> ResponseEnvelope[Any]:
        with self._count_call(limits, input, context):
            return await self._execute_by_key(input, context)

    def _execute_by_key(self, input: Any, context: Context | None) -> Coroutine[Any, Any, ResponseEnvelope[Any]]:
        """Run it as a task if it must be one, or has a key and may be one; with a key once; else directly."""
        key = None if context is None else context.unused_key
        tasks = self._tasks_for(context) if self._is_task or key is not None else None
        if tasks is not None:
            return self._execute_as_task(tasks, input, context or Context())
        return self._run(input, context) if context is None or key is None else self._execute_once(input, context, key)

    def _tasks_for(self, context: Context | None) -> DurableCalls | None:
        """The store of tasks if the call becomes one: it may be one, is none yet, and asks its caller nothing first."""
        tasks, meta = self._lifetime.tasks, None if context is None else context.meta
        is_begun = meta is not None and (TASK in meta or DETACHABLE in meta)
        may_be = tasks is not None and self.spec.durable != "never" and tasks.offers(self.id)
        return tasks if may_be and not is_begun else None

    async def _execute_once(self, input: Any, context: Context, key: str) -> ResponseEnvelope[Any]:
        """The result of this caller's first call with this key, which may be this one; queries ignore keys.

        The process that runs the handler owns the key: with a call of another Enfold process it is only passed on.
        """
        context.unused_key = None
        if self.spec.type is not OperationType.MUTATION:
            return await self._run(input, context)
        if self._is_guarded:
            check_access(self.spec, context.identity, input)  # also before a stored result is given
        from enfold.operation.repeats import EntryKey, owned_by  # only keys need it

        entry = EntryKey(owned_by(context.identity), self.id, key)
        if self.operation.origin.kind == CALLS:
            passed_on = context.copy()
            passed_on.idempotency_key = entry.digest()
            return await self._run(input, passed_on)
        try:
            call = self._keyed_call(entry, input, context)
            if not self._lifetime.is_ready:
                await self._lifetime.make_ready()
            return await self._once_store().once(call)
        except CallError as error:
            raise self._with_ids(error, context) from error.__cause__

    def _keyed_call(self, entry: EntryKey, input: Any, context: Context) -> KeyedCall:
        """The call as its idempotency store sees it; VALIDATION_ERROR for what would not be started."""
        import asyncio  # only keys need it here

        from enfold.operation.repeats import KeyedCall, input_digest

        if self._selects or context.select is not None:
            self._selection(context.select)
        own_time, left = self.spec.timeout, context.remaining()
        if left is None:  # the caller waits as long as it may run
            left = MAX_REPEAT_WAIT if own_time is None else own_time + SETTLE

        async def run() -> ResponseEnvelope[Any]:
            context.first_call, own = asyncio.current_task(), context.on_its_own()
            own.idempotency_key, own.keeps_result = entry.digest(), True
            return await self._run(input, own)

        return KeyedCall(
            entry,
            input_digest(self._read_whole(input)[0], context.select),
            run,
            time.monotonic() + left,
            own_time,
            self.spec.on_crash == "retry",
        )

    async def _execute_as_task(self, tasks: DurableCalls, input: Any, context: Context) -> ResponseEnvelope[Any]:
        """The result of the task that this call starts, or that an earlier call with the same key started."""
        try:
            return await tasks.run(self.id, input, context)
        except CallError as error:
            raise self._with_ids(error, context) from error.__cause__

    def _once_store(self) -> OnceStore:
        """The configured idempotency store, or one in memory that all surfaces of the registry share."""
        lifetime = self._lifetime
        store = lifetime.once
        if store is None and lifetime.new_store is not None:
            store = lifetime.once = lifetime.new_store()
        if store is None:
            from enfold.idempotency.first_results import MemoryOnceStore  # which needs asyncio

            store = lifetime.once = MemoryOnceStore()
        return store

    def _subscribe_counted(self, input: Any, context: Context | None) -> AsyncGenerator[ResponseEnvelope[Any]]:
        if self._limits is None:
            return self._follow(input, context)
        return self._subscribe_limited(self._limits, input, context)

    async def _subscribe_limited(
        self, limits: CallLimits, input: Any, context: Context | None
    ) -> AsyncGenerator[ResponseEnvelope[Any]]:
        with self._count_call(limits, input, context):
            async with aclosing(self._follow(input, context)) as items:
                async for envelope in items:
                    yield envelope

    @contextmanager
    def _count_call(self, limits: CallLimits, input: Any, context: Context | None) -> Iterator[None]:
        """Count one running call of this caller; a call that may not be made is refused first, and not counted."""
        identity = None if context is None else context.identity
        check_access(self.spec, identity, input)
        caller = limits.acquire(identity)
        try:
            yield
        finally:
            running = None if context is None else context.first_call
            if running is None or running.done():
                limits.release(caller)
            else:  # its caller has left, and it runs on
                running.add_done_callback(lambda _: limits.release(caller))

    # reading the input

    def _read(self, input: Any) -> Any:
        """The handler's arguments, or a VALIDATION_ERROR."""
        return self._read_whole(input)[1]

    def _read_whole(self, input: Any) -> tuple[Mapping[str, Any], Any]:
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

    # running the handler

    def _enter_context(self, context: Context | None) -> Context:
        """The context of this call; TIMEOUT if its deadline has passed before it starts."""
        context = (context or Context()).enter(self.spec.timeout, self._env)
        if context.is_late:
            raise self._timed_out(context)
        return context

    def _env(self, context: Context) -> Env:
        return self._make_env(context, self._policy)

    def _deadline(self, context: Context | None) -> float | None:
        if context is not None:
            return context.deadline
        timeout = self.spec.timeout
        return None if timeout is None else time.monotonic() + timeout

    def _start(self, arguments: Any, context: Context | None) -> Any:
        if self._takes_input:
            return self._handler(arguments, context)
        if self._context_parameter is not None:
            arguments = {**arguments, self._context_parameter: context}  # a copy: it may be the caller's own dict
        return self._handler(**arguments)

    def _first_limit(self, deadline: float) -> Limit:
        """Import `timekeeping`, and so asyncio, with the first call that may wait: a `def` run in place needs neither."""
        from enfold.timekeeping import limit_running_task

        self._limit = limit_running_task
        return limit_running_task(deadline)

    async def _in_time(self, awaitable: Awaitable[T], context: Context) -> T:
        """Await something until the deadline of the call; TIMEOUT after it."""
        deadline = context.deadline
        if deadline is None:
            return await awaitable
        limit, has_passed = self._limit(deadline), False
        try:
            return await awaitable
        except BaseException as error:
            has_passed = limit.end()
            if has_passed and is_cancellation(error):
                raise self._timed_out(context) from None
            raise
        finally:
            if not has_passed:
                limit.end()

    async def _open_stream(self, arguments: Any, context: Context) -> AsyncIterator[Any]:
        """The items of a stream; those of a `def` with `yield` come from worker threads, unless it runs in place."""
        opened = self._start(arguments, context)
        stream = await opened if hasattr(opened, "__await__") else opened
        if hasattr(stream, "__next__"):
            from enfold.threads import BlockingStream

            threads = None if self.operation.inline or context.inline else self._threads()
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
            result = await self._run_in_thread(arguments, context or self._enter_context(None))
        if hasattr(result, "__await__"):  # a handler may give a coroutine although it is no `async def`
            return await self._in_time(result, context or self._enter_context(None))
        return result

    async def _run_in_thread(self, arguments: Any, context: Context) -> Any:
        from enfold.threads import NestedCalls

        threads = self._threads()
        nested = NestedCalls(context) if self.needs_context else None
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

    def _finish_plainly(self, result: Any, selection: Selection | None) -> ResponseEnvelope[Any]:
        """Finish a result as plain data, which a record, an idempotency key or a selection needs."""
        finish = self._plain_finish if self._for_writing else self._finish
        if finish is None:
            from enfold.pipeline import build_pipeline

            finish = self._plain_finish = build_pipeline(self.spec, self._policy, self.operation.signature)
        envelope = finish(result)
        return envelope if selection is None else selection.of(envelope)

    def _selection(self, text: str | None) -> Selection | None:
        """The compiled selection that the caller asks for, else the operation's default one."""
        from enfold.selection.defaults import default_selection
        from enfold.selection.selecting import selection_of  # which most calls can do without

        if text not in self._selections:
            if len(self._selections) >= MAX_SELECTIONS:
                self._selections.clear()
            chosen = default_selection(self.spec) if text is None else selection_of(self.spec, text)
            self._selections[text] = chosen
        return self._selections[text]

    def _first_finish(self, result: Any) -> ResponseEnvelope[Any]:
        """Build the pipeline when the first result comes: most operations of a large import are never called."""
        from enfold.pipeline import build_pipeline, build_writing_pipeline

        build = build_writing_pipeline if self._for_writing else build_pipeline
        self._finish = build(self.spec, self._policy, self.operation.signature)
        self._may_wait = not never_waits(self._handler)
        # A handler that never waits and takes no context needs none.
        self._enters_context = self._may_wait or self.needs_context
        return self._finish(result)

    # failures

    def _timed_out(self, context: Context | None) -> CallError:
        if self.operation.origin.kind == CALLS and context is not None and context.idempotency_key is not None:
            from enfold.operation.repeats import in_progress  # only keys need it

            return in_progress()  # where it runs it has its own time
        return CallError("TIMEOUT", f"{self.id} took longer than it may", retryable=self.spec.idempotent)

    def error_for_caller(self, error: CallError) -> CallError:
        """The error as callers may see it: with the declared row of its code, and without words that are to be hidden."""
        error.row = self.spec.declared_row(error.code) or error.row
        if error.details:
            from enfold.schema.plain import plain_details  # which the first result loads, too

            error.details = plain_details(error.details)
        if not self._policy.expose_errors:
            error.hide_words()
        return error

    def _with_ids(self, error: CallError, context: Context | None) -> CallError:
        """The error with the ids of operation and request; one of a nested call keeps its operation id, and names it."""
        self.error_for_caller(error)
        if error.operation_id is None:
            error.operation_id = self.id
        elif error.operation_id not in (self.id, *error.message.split(": ", 1)[:1]):
            error.message = f"{error.operation_id}: {error.message}"
        if context is not None:
            error.request_id = context.request_id
        return error

    def _failure_of(self, error: BaseException, context: Context | None, has_passed: bool = False) -> CallError:
        """The error for whatever ended the handler; a cancellation or interrupt from outside is raised again."""
        if has_passed and is_cancellation(error):
            if context is not None:
                context.cancel()
            return self._with_ids(self._timed_out(context), context)
        if not isinstance(error, Exception) and _comes_from_outside(error):
            if context is not None:
                context.cancel()
            raise error
        return self._unexpected_error(RuntimeError(_STRAY_CANCELLATION) if is_cancellation(error) else error, context)

    async def _record_failure(self, error: CallError, input: Any, context: Context | None) -> CallError:
        if context is not None and context.recording is not None:
            error.provenance = await context.recording.keep_failure(self.spec, input, error, inline=context.inline)
        return error

    def _unexpected_error(self, error: BaseException, context: Context | None) -> CallError:
        """The error for an unexpected exception; the stack goes to the log under the same request id."""
        context = context or Context()
        of = f" of {context.parent_request_id}" if context.parent_request_id else ""
        facts = (self.id, context.request_id, of)
        from enfold.log import Log

        Log("enfold").error("%s failed (request %s%s)", *facts, error=error, request_id=context.request_id)
        found = error_from(error, f"Operation {self.id} failed")
        if found.code == "TIMEOUT":
            found.retryable = self.spec.idempotent
        return self._with_ids(found, context)


def _no_handler(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("the registry runs no operation without a handler")


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


# --- driving coroutines -------------------------------------------------------------------------------------------


def drive(coroutine: Coroutine[Any, Any, Any], needs_loop: bool = False) -> Any:
    """Run a coroutine that never waits without an event loop; with `needs_loop` it gets a loop if none runs."""
    if needs_loop and not _loop_is_running():
        import asyncio

        return asyncio.run(coroutine)
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    coroutine.close()
    raise CallError("EXECUTION_ERROR", "A `def` run in place cannot wait for an `async def`: make it `async def` too")


def is_cancellation(error: BaseException) -> bool:
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and isinstance(error, asyncio.CancelledError)


def _comes_from_outside(error: BaseException) -> bool:
    """Whether an exception ends the call from outside: a cancellation, a close or Ctrl-C that the handler did not raise."""
    if is_cancellation(error):
        # If nobody asked to cancel this task, the handler awaited something that was cancelled.
        asyncio = sys.modules["asyncio"]
        task = asyncio.current_task() if _loop_is_running() else None
        return task is not None and task.cancelling() > 0
    if isinstance(error, GeneratorExit):
        # Closing a coroutine raises it at our own `await`, not in a frame of the handler.
        return error.__traceback__ is None or error.__traceback__.tb_next is None
    # A loop turns Ctrl-C into a cancellation; without a loop it arrives wherever the program is.
    return isinstance(error, KeyboardInterrupt) and not _loop_is_running() and not _is_raised_in_python(error)


def _is_raised_in_python(error: BaseException) -> bool:
    """Whether the exception began at a `raise`; a signal interrupts at any other instruction."""
    from opcode import opmap  # only needed when a call is interrupted

    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is not None and place.tb_frame.f_code.co_code[place.tb_lasti] == opmap["RAISE_VARARGS"]


def _loop_is_running() -> bool:
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


def never_waits(handler: Any) -> bool:
    """Whether it is an `async def` without an `await`: it cannot be cancelled, so it needs no time limit.

    Setting none saves a fifth of a small call in process.
    """
    code = getattr(handler, "__code__", None)
    if not isinstance(code, types.CodeType) or not is_coroutine_function(handler):
        return False
    from opcode import opmap  # which asyncio has loaded already

    return opmap["YIELD_VALUE"] not in code.co_code[::2]


async def _close_stream(items: Any) -> None:
    close = getattr(items, "aclose", None)
    if close is not None:
        await close()
