"""User middleware: run where the handler runs, once per attempt, and within the operation's time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError, invalid_argument
from enfold.operations.call import StreamMiddleware
from enfold.operations.outcomes import Suspension

if TYPE_CHECKING:
    from enfold.operations.call import Call, Middleware, Next, NextStream
    from enfold.operations.context import CallState
    from enfold.operations.outcomes import Outcome
    from enfold.runtime.funnel import Funnel

T = TypeVar("T")


def user_steps(middleware: Sequence[Middleware], funnel: Funnel) -> list[Middleware]:
    """Return the steps that run user middleware; empty if there is none."""
    if not middleware:
        return []
    return [BeginTime(funnel), *(UserMiddleware(each, funnel) for each in middleware), NoteResult()]


class BeginTime:
    """Begins the operation's time before user middleware, so that a retry cannot take longer than one call may."""

    def __init__(self, funnel: Funnel) -> None:
        self._funnel = funnel

    async def __call__(self, call: Call, next: Next) -> Outcome:
        call = self._begun(call)
        limit = self._funnel.limit(call.context)
        has_passed = False
        try:
            return await next(call)
        except BaseException as error:
            has_passed = limit is not None and limit.end()
            if has_passed and not isinstance(error, CallError):
                raise self._funnel.failures.failure_of(error, call.context, has_passed) from None
            raise
        finally:
            if limit is not None and not has_passed:
                limit.end()

    async def stream(self, call: Call, next: NextStream) -> AsyncGenerator[ResponseEnvelope[Any]]:
        async with aclosing(next(self._begun(call))) as items:
            async for envelope in items:
                yield envelope

    def _begun(self, call: Call) -> Call:
        if type(call.input) is not dict and not isinstance(call.input, Mapping):
            raise invalid_argument("", "type", "object", "The input must be an object of named arguments")
        context = self._funnel.begin(call.context)
        context.keeps_result = True  # a middleware sees plain data
        return call.replace(context=context, input=dict(call.input))  # a copy: the mapping may be the caller's own


class UserMiddleware:
    """One middleware of a user: what it raises is an error like a handler's, what it returns is finished like a result."""

    def __init__(self, middleware: Middleware, funnel: Funnel) -> None:
        self._middleware = middleware
        self._funnel = funnel

    async def __call__(self, call: Call, next: Next) -> Outcome:
        try:
            outcome = await self._middleware(call, next)
            state = _state(call)
            if outcome is not state.result:
                outcome = state.result = await self._finished(outcome)
        except CallError as error:
            raise self._funnel.failures.with_ids(error, call.context) from error.__cause__
        except Suspension as suspension:  # it has asked the caller itself
            return suspension.outcome
        except BaseException as error:
            raise self._funnel.failures.failure_of(error, call.context) from error
        return outcome

    async def stream(self, call: Call, next: NextStream) -> AsyncGenerator[ResponseEnvelope[Any]]:
        opened: list[AsyncGenerator[ResponseEnvelope[Any]]] = []

        def take(inner: Call) -> AsyncGenerator[ResponseEnvelope[Any]]:
            opened.append(next(inner))
            return opened[-1]

        wrap = self._middleware.stream if isinstance(self._middleware, StreamMiddleware) else None
        try:
            async with aclosing(_generator(take(call) if wrap is None else wrap(call, take))) as items:
                async for envelope in items:
                    yield envelope if wrap is None else await self._finished(envelope)
        except CallError as error:
            raise self._funnel.failures.with_ids(error, call.context) from error.__cause__
        except (GeneratorExit, Suspension):
            raise
        except BaseException as error:
            raise self._funnel.failures.failure_of(error, call.context) from error
        finally:
            for each in opened:
                await each.aclose()

    async def _finished(self, outcome: Any) -> ResponseEnvelope[Any]:
        """Check an envelope that middleware made or changed against the output schema, like a result."""
        if not isinstance(outcome, ResponseEnvelope):
            name = getattr(self._middleware, "__name__", type(self._middleware).__name__)
            what = f"returned {type(outcome).__name__}"
            raise TypeError(f"the middleware {name} {what}: return what next(call) gives, or local_envelope(data, id)")
        return await self._funnel.results.finish_plainly(outcome)


class NoteResult:
    """Notes each result that user middleware is given: one that it returns as it is needs no second look."""

    async def __call__(self, call: Call, next: Next) -> Outcome:
        state = _state(call)
        if state.has_started:
            await _let_timers_fire()
        state.result = outcome = await next(call)
        return outcome


def _state(call: Call) -> CallState:
    state = call.context.call
    if state is None:
        raise TypeError("A middleware passes on the context that it was given")
    return state


async def _let_timers_fire() -> None:
    """Let a middleware that calls `next` again and again meet its deadline, also where nothing below it waits."""
    import asyncio  # loaded already where anything waits

    await asyncio.sleep(0)


async def _generator(items: AsyncIterator[T]) -> AsyncGenerator[T]:
    """Yield the items of any async iterator, and close it with its consumer."""
    try:
        async for each in items:
            yield each
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            await close()
