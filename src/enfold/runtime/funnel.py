"""The innermost step of every call: read the arguments, run the handler within its time, finish the result."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final

from enfold.errors import CallError, DecodeError, LargeMisfitError
from enfold.operations import Context, Operation, OperationType, Policy
from enfold.operations.context import CallState
from enfold.operations.outcomes import Suspension, outcome_in
from enfold.runtime.application import Services
from enfold.runtime.arguments import Arguments
from enfold.runtime.failures import Failures
from enfold.runtime.handlers import Handler, go_on
from enfold.runtime.results import Results, finish_apart

if TYPE_CHECKING:
    from enfold.envelope import ResponseEnvelope
    from enfold.operations.call import Call
    from enfold.operations.outcomes import Outcome
    from enfold.runtime.deadlines import TimeLimit
    from enfold.runtime.env import Env


class Funnel:
    """One operation, ready to run: what is known before a call is worked out once."""

    __slots__ = (
        "_decode",
        "_handler",
        "_lifetime",
        "_limit",
        "_policy",
        "_results",
        "_services",
        "_start",
        "arguments",
        "failures",
        "id",
        "is_remote",
        "is_stream",
        "is_upstream",
        "needs_loop",
        "results",
        "spec",
        "takes_context",
    )

    def __init__(self, operation: Operation, policy: Policy, services: Services, *, for_writing: bool) -> None:
        """With `for_writing` the `data` of a result may be a struct or JSON text."""
        self.spec = operation.spec
        self.id = operation.spec.id
        self.is_remote = operation.origin.kind == "calls"  # another Enfold process runs it
        self.is_upstream = operation.origin.kind in ("mcp", "openapi")
        self.is_stream = operation.spec.type is OperationType.SUBSCRIPTION
        self.arguments = Arguments(operation, policy, is_remote=self.is_remote)
        self.results = Results(operation, policy, for_writing=for_writing, are_finished=self.is_remote)
        self.failures = Failures(operation.spec, policy, is_remote=self.is_remote)
        self._handler, self._results = Handler(operation, services), self.results
        if operation.dependencies:
            from enfold.runtime.dependencies import DependentHandler  # which few programs need

            self._handler = DependentHandler(operation, services, self.results)
            self._results = Results(operation, policy, for_writing=for_writing, are_finished=True)
        self.needs_loop = self._handler.needs_loop
        self.takes_context = self._handler.takes_context
        self._decode = self.arguments.decode_quickly
        self._start = self._handler.start
        self._policy = policy
        self._services = services
        self._lifetime = services.lifetime
        self._limit: Callable[..., TimeLimit] = self._first_limit

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
            raise CallError("INVALID_OPERATION_TYPE", f"{self.id} is a subscription: use subscribe()")
        try:
            arguments = self._decode(input) if type(input) is dict else self.arguments.read(input)[1]
        except (DecodeError, RecursionError):
            arguments = self.arguments.read(input)[1]
        own = context  # the handler's: another one where a middleware runs the handler again
        try:
            if not self._lifetime.is_ready:
                await self._lifetime.make_ready()
            if context is not None or self.takes_context:
                own = self._enter(context)
                if own.call is not None and own.call.is_repeated:
                    await _let_timers_fire()
            result = self._start(arguments, own)
            if self.is_remote:  # it always waits, and ends by the deadline itself
                result = await result
            elif type(result) is CoroutineType:
                try:
                    waits_for = result.send(None)
                except StopIteration as done:  # it has ended without a wait: there is nothing to limit
                    result = done.value
                else:
                    with self.time_limit(own):
                        result = await go_on(result, waits_for)
            else:
                while hasattr(result, "__await__"):  # a thread, or what a decorator or a `def` gives
                    with self.time_limit(own):
                        result = await result
            is_kept = context is not None and context.keeps_result
            try:
                envelope = self._results.wrap(result) if is_kept else self._results.write(result)
            except LargeMisfitError as misfit:
                envelope = await finish_apart(misfit)
            return context.note(envelope) if context is not None and is_kept else envelope
        except CallError as error:
            raise self.failures.with_ids(error, own) from error.__cause__
        except BaseException as error:
            outcome = outcome_in(error)
            if outcome is None:
                raise self.failures.failure_of(error, own) from error
            return outcome if context is None else context.note(outcome)

    async def follow(self, input: Any, context: Context) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """Run a subscription: each item is finished by itself; the producer is closed with the consumer."""
        if not self.is_stream:
            raise CallError("INVALID_OPERATION_TYPE", f"{self.id} is a {self.spec.type.value}: use execute()")
        arguments = input if self.is_remote and type(input) is dict else self.arguments.read(input)[1]
        items: AsyncIterator[Any] | None = None
        try:
            if not self._lifetime.is_ready:
                await self._lifetime.make_ready()
            given, context = context, self._enter(context)
            with self.time_limit(context):
                items = await self._handler.open_stream(arguments, context)
            while True:
                try:
                    with self.time_limit(context):
                        item = await anext(items)
                except StopAsyncIteration:
                    return
                yield given.note(await self.results.finish(item))
        except CallError as error:
            raise self.failures.with_ids(error, context) from error.__cause__
        except BaseException as error:
            outcome = outcome_in(error)
            if outcome is None:
                raise self.failures.failure_of(error, context) from error
            raise Suspension(outcome) from None  # items have no place for an outcome: `collect` returns it
        finally:
            context.cancel()
            close = getattr(items, "aclose", None)
            if close is not None:
                await close()

    # the context and the time of a call

    def begin(self, context: Context) -> Context:
        """Start the clock of a call and return its context: a copy, if another call has begun with this one.

        Raises TIMEOUT if the caller's deadline has passed.
        """
        now, timeout, deadline = time.monotonic(), self.spec.timeout, context.caller_deadline
        if deadline is not None and deadline <= now:
            raise self.failures.with_ids(self.failures.timed_out(context), context)
        if timeout is not None and (deadline is None or now + timeout < deadline):
            deadline = now + timeout
        context = context if context.call is None else context.copy()
        context.call = CallState(self._env, deadline)
        return context

    def _enter(self, context: Context | None) -> Context:
        """Return the context for the handler; a middleware may have started it, and run the handler before."""
        context = context or Context()
        begun = context.call
        if begun is None or begun.has_started:
            context = self.begin(context)
            if begun is not None and begun.is_limited and context.call is not None:
                context.call.deadline, context.call.is_limited, context.call.is_repeated = begun.deadline, True, True
        if context.call is not None:
            context.call.has_started = True
        return context

    def _env(self, context: Context) -> Env:
        return self._services.make_env(context, self._policy)

    def time_limit(self, context: Context | None, *, is_outermost: bool = False) -> AbstractContextManager[None]:
        """Limit a wait to the deadline of the call; `is_outermost`: also the steps between it and the handler."""
        state = None if context is None else context.call
        if state is not None:
            deadline = None if state.is_limited and not is_outermost else state.deadline
        else:
            timeout = self.spec.timeout
            deadline = None if timeout is None else time.monotonic() + timeout
        return _UNLIMITED if deadline is None else self._limit(deadline, self.failures.timed_out, context)

    def _first_limit(self, *facts: Any) -> TimeLimit:
        """Import `deadlines`, and so asyncio, with the first call that waits: a `def` run in place needs neither."""
        from enfold.runtime.deadlines import TimeLimit  # which needs asyncio

        self._limit = TimeLimit
        return TimeLimit(*facts)


_UNLIMITED: Final = nullcontext()


async def _let_timers_fire() -> None:
    """Let a middleware that runs the call again and again meet its deadline, also where nothing below it waits."""
    import asyncio  # loaded already where anything waits

    await asyncio.sleep(0)
