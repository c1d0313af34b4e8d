"""User middleware: runs in the process of the handler, once per attempt, and within the operation's timeout."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeVar

from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError, invalid_argument
from enfold.middleware.selection import MAX_SELECTIONS
from enfold.operations.call import Call, StreamMiddleware
from enfold.operations.outcomes import NeedsInput, Suspension, outcome_in
from enfold.operations.questions import Question
from enfold.runtime.handlers import go_on
from enfold.runtime.results import Results

if TYPE_CHECKING:
    from enfold.envelope import ResultWarning
    from enfold.middleware.selection import Select
    from enfold.operations import Context, Operation, OperationSpec, Policy
    from enfold.operations.call import Middleware, Next, NextStream
    from enfold.operations.outcomes import Outcome
    from enfold.runtime.funnel import Funnel
    from enfold.search.selection import Selection

T = TypeVar("T")


class UserMiddleware:
    """One middleware of a user: what it raises is an error like a handler's, what it returns is finished like a result.

    The outermost one begins the operation's time, so that a retry cannot take longer than one call may.
    """

    def __init__(
        self, middleware: Middleware, funnel: Funnel, results: MiddlewareResults, *, is_outermost: bool
    ) -> None:
        self._middleware = middleware
        self._funnel = funnel
        self._results = results
        self._is_outermost = is_outermost

    async def __call__(self, call: Call, next: Next) -> Outcome:
        if self._is_outermost:
            call = self._begun(call)
        context = call.context
        if self._is_outermost and context.call is not None:
            context.call.is_limited = True  # the handler needs no limit of its own
        outcome: Outcome
        try:
            running = self._middleware(call, next)
            if not self._is_outermost:
                outcome = await running
            elif type(running) is not CoroutineType:
                with self._funnel.time_limit(context, is_outermost=True):
                    outcome = await running
            else:
                try:
                    waits_for = running.send(None)
                except StopIteration as done:  # it has ended without a wait: there is nothing to limit
                    outcome = done.value
                else:
                    with self._funnel.time_limit(context, is_outermost=True):
                        outcome = await go_on(running, waits_for)
            known = None if context.call is None else context.call.result
            if known is None or outcome is not known:
                is_asked = isinstance(outcome, NeedsInput) and _is_answerable(outcome, context)
                outcome = context.note(outcome if is_asked else await self._finished(outcome, call))
        except CallError as error:
            raise self._funnel.failures.with_ids(error, context) from error.__cause__
        except BaseException as error:
            asked = outcome_in(error)  # the middleware has asked the caller itself
            if asked is None:
                raise self._funnel.failures.failure_of(error, context) from error
            return context.note(asked)
        return outcome

    def _begun(self, call: Call) -> Call:
        """Start the clock of the call; it is the same for all middleware."""
        given = call.input
        if type(given) is not dict:
            if not isinstance(given, Mapping):
                raise invalid_argument("", "type", "object", "The input must be an object of named arguments")
            given = dict(given)
        context = self._funnel.begin(call.context)
        context.keeps_result = True  # a middleware sees plain data
        if given is call.input and context is call.context and call.idempotency_key is None:
            return call
        return Call(call.operation, given, context, call.surface, None, call.select, call.record)

    async def stream(self, call: Call, next: NextStream) -> AsyncGenerator[ResponseEnvelope[Any]]:
        opened: list[AsyncGenerator[ResponseEnvelope[Any]]] = []
        if self._is_outermost:
            call = self._begun(call)

        def take(inner: Call) -> AsyncGenerator[ResponseEnvelope[Any]]:
            opened.append(next(inner))
            return opened[-1]

        wrap = self._middleware.stream if isinstance(self._middleware, StreamMiddleware) else None
        try:
            async with aclosing(_generator(take(call) if wrap is None else wrap(call, take))) as items:
                async for envelope in items:
                    known = None if call.context.call is None else call.context.call.result
                    is_unchanged = wrap is None or envelope is known
                    yield envelope if is_unchanged else call.context.note(await self._finished(envelope, call))
        except CallError as error:
            raise self._funnel.failures.with_ids(error, call.context) from error.__cause__
        except GeneratorExit:
            raise
        except BaseException as error:
            asked = outcome_in(error)
            if asked is None:
                raise self._funnel.failures.failure_of(error, call.context) from error
            raise Suspension(asked) from None
        finally:
            for each in opened:
                await each.aclose()

    async def _finished(self, outcome: Any, call: Call) -> ResponseEnvelope[Any]:
        """Check an envelope that middleware made or changed against the output schema, like a result."""
        if not isinstance(outcome, ResponseEnvelope):
            name = getattr(self._middleware, "__name__", type(self._middleware).__name__)
            what = f"returned {type(outcome).__name__}"
            raise TypeError(f"the middleware {name} {what}: return what next(call) gives, or local_envelope(data, id)")
        return await self._results.finish(outcome, call.select)


class MiddlewareResults:
    """Finishes what the middleware of an operation makes or changes, as far as the caller has selected it."""

    def __init__(self, operation: Operation, policy: Policy, select: Select) -> None:
        self._operation = operation
        self._policy = policy
        self._select = select
        self._whole = self._results(operation.spec)
        self._plain: Results | None = None  # made with the first selection
        self._selected: dict[str | None, tuple[Selection, Results]] = {}  # by the text that asked for it

    async def finish(self, envelope: ResponseEnvelope[Any], text: str | None) -> ResponseEnvelope[Any]:
        """Finish a result; `text` is the selection of its call."""
        needs_no_selection = text is None and not self._select.has_default
        selected = None if needs_no_selection else self._selection(text)
        if selected is None:
            finished = await self._whole.finish(envelope)
        else:
            selection, results = selected
            self._plain = self._plain or self._results(self._operation.spec.replace(output_schema={}))
            finished = await results.finish(selection.of(await self._plain.finish(envelope)))
        return _without_repeats(finished, envelope.warnings)

    def _selection(self, text: str | None) -> tuple[Selection, Results] | None:
        from enfold.search.selection import narrowed_by  # most calls select nothing

        selection = self._select.compiled(text)
        if selection is None:
            return None
        found = self._selected.get(text)
        if found is None or found[0] is not selection:
            if len(self._selected) >= MAX_SELECTIONS:
                self._selected.clear()
            found = self._selected[text] = selection, self._results(narrowed_by(selection, self._operation.spec))
        return found

    def _results(self, spec: OperationSpec) -> Results:
        is_own = spec is self._operation.spec
        operation = self._operation if is_own else self._operation.replace(spec=spec, signature=None)
        return Results(operation, self._policy, for_writing=False, are_finished=False)


def _without_repeats(finished: ResponseEnvelope[Any], told: Sequence[ResultWarning]) -> ResponseEnvelope[Any]:
    """Leave out new warnings that repeat one of those `told` when the result was finished before."""
    if not told or len(finished.warnings) == len(told):
        return finished
    known = {(each.code, each.path) for each in told}
    new = [each for each in finished.warnings[len(told) :] if (each.code, each.path) not in known]
    return finished.replace(warnings=(*told, *new))


def _is_answerable(asked: NeedsInput, context: Context) -> bool:
    """Whether a middleware gave questions, such as those of an earlier `next`, or what a detached handler gives."""
    if not asked.questions:
        return context.accepts_task
    return all(isinstance(each, Question) for each in asked.questions.values())


async def _generator(items: AsyncIterator[T]) -> AsyncGenerator[T]:
    """Yield the items of any async iterator, and close it with its consumer."""
    try:
        async for each in items:
            yield each
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            await close()
