"""Observing: a span and a record of each call made in this process. Surfaces report the calls that they receive."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from enfold.envelope import ResponseEnvelope
from enfold.observability.records import INPUT_REQUIRED
from enfold.operations.outcomes import NeedsInput

if TYPE_CHECKING:
    from enfold.observability.observers import Observers
    from enfold.observability.records import SpanStart
    from enfold.operations import Operation
    from enfold.operations.call import Call, Next, NextStream
    from enfold.operations.outcomes import Outcome


class Observe:
    """Tells the observers of each call that has ended."""

    def __init__(self, observers: Observers, operation: Operation) -> None:
        self._observers = observers
        self._operation = operation

    async def __call__(self, call: Call, next: Next) -> Outcome:
        watch = self._observers.begin(self._span)
        try:
            outcome = await next(call)
            if isinstance(outcome, ResponseEnvelope):
                watch.record_result(outcome)
            elif isinstance(outcome, NeedsInput):
                watch.code = INPUT_REQUIRED
        except BaseException as error:
            watch.fail(error)
            raise
        finally:
            watch.end("process", self._operation, call.context)
        return outcome

    async def stream(self, call: Call, next: NextStream) -> AsyncGenerator[ResponseEnvelope[Any]]:
        watch = self._observers.begin(self._span, is_stream=True)
        items = next(call)
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
            watch.end("process", self._operation, call.context)

    def _span(self) -> SpanStart:
        from enfold.observability.records import SpanStart  # only where calls are traced

        is_remote = self._operation.origin.kind not in ("functions", "")
        return SpanStart(self._operation.spec.id, "client" if is_remote else "internal")
