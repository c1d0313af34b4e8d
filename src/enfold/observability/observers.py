"""Observers of calls: surfaces and the runtime report each finished call, and every observer receives its record.

Without an observer or tracer a call only reads `is_on`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from enfold.errors import CallError, safe_code
from enfold.observability.log import Log
from enfold.observability.records import OK, UNKNOWN_ORIGIN, CallRecord, code_of
from enfold.operations import new_request_id

if TYPE_CHECKING:
    from enfold.envelope import ResponseEnvelope, ResultWarning
    from enfold.observability.records import SpanStart, Trace, Tracer
    from enfold.operations import Context, Identity, Operation


# Imports inside functions: needed only where calls are observed.

Observer: TypeAlias = "Callable[[CallRecord], object]"


class Observers:
    """The observers of a registry and its views.

    Every call reads `is_on`; `end` takes the record of a finished call, `tracer` starts its span; each is None if unused.
    `running` and `streams` count calls and streams in progress.
    """

    __slots__ = ("_observers", "end", "is_on", "running", "streams", "tracer")

    def __init__(self) -> None:
        self._observers: list[Observer] = []
        self.end: Observer | None = None
        # Checked with the first call, because programs install an SDK during their start-up.
        self.tracer: Tracer | None = _TracerLookup(self)
        self.is_on = True
        self.running = 0
        self.streams = 0

    def add(self, observer: Observer) -> Callable[[], None]:
        """Register a trusted observer that never raises. Returns an unsubscribe function."""
        self._observers.append(observer)
        self._changed()

        def end() -> None:
            if observer in self._observers:
                self._observers.remove(observer)
                self._changed()

        return end

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Register an observer whose exceptions are logged. Returns an unsubscribe function."""

        def observe(record: CallRecord) -> None:
            try:
                observer(record)
            except Exception as error:  # noqa: BLE001  # an observer must not disturb the call
                Log("enfold").error("An observer of calls failed", error=error)

        return self.add(observe)

    def trace(self, provider: Any) -> None:
        """Start a span for every call with an OpenTelemetry tracer provider; None stops tracing."""
        if self.tracer is not None:
            self.tracer.close()
        if provider is None:
            self.tracer = None
        else:
            from enfold.observability.tracing import SpanTracer  # requires OpenTelemetry

            self.tracer = SpanTracer(provider)
        self._changed()

    def look_for_tracer(self) -> None:
        """Trace calls if the program has installed an OpenTelemetry SDK."""
        loaded: Any = sys.modules.get("opentelemetry.trace")
        provider = None if loaded is None else loaded.get_tracer_provider()
        is_real = loaded is not None and not isinstance(
            provider, loaded.ProxyTracerProvider | loaded.NoOpTracerProvider
        )
        self.trace(provider if is_real else None)

    def refused(
        self,
        surface: str,
        code: str,
        *,
        operation_id: str = "",
        request_id: str | None = None,
        parent: str | None = None,
        caller: str | None = None,
    ) -> None:
        """Report a call that was rejected before it began; `operation_id` must be that of an existing operation."""
        if self.end is not None:
            own = request_id or new_request_id()
            self.end(
                CallRecord(
                    time.time(), surface, operation_id, UNKNOWN_ORIGIN, safe_code(code), 0.0, own, parent, caller
                )
            )

    def begin(self, start: Callable[[], SpanStart] | None, *, is_stream: bool = False) -> Watch:
        """Start observing a call; `start` is called only with a tracer, None for a call without a span.

        A stream is entered for each item.
        """
        return Watch(self, start, is_stream=is_stream)

    def _changed(self) -> None:
        observers = tuple(self._observers)
        self.end = _all_of(observers) if len(observers) > 1 else observers[0] if observers else None
        self.is_on = bool(observers) or self.tracer is not None


def _all_of(observers: Sequence[Observer]) -> Observer:
    def tell_all(record: CallRecord) -> None:
        for observer in observers:
            observer(record)

    return tell_all


class _TracerLookup:
    """Placeholder for the tracer until the first call, which looks for an OpenTelemetry SDK."""

    def __init__(self, observers: Observers) -> None:
        self._observers = observers

    def begin(self, start: SpanStart, *, is_current: bool = True) -> Trace | None:
        self._observers.look_for_tracer()
        found = self._observers.tracer
        return None if found is None else found.begin(start, is_current=is_current)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class Watch:
    """A running call; `end` passes its record to the observers."""

    __slots__ = (
        "_began",
        "_is_stream",
        "_observers",
        "_trace",
        "code",
        "items",
        "request_bytes",
        "request_id",
        "response_bytes",
        "warnings",
    )

    def __init__(self, observers: Observers, start: Callable[[], SpanStart] | None, *, is_stream: bool = False) -> None:
        tracer = None if start is None else observers.tracer
        self._observers = observers
        self._began = time.perf_counter()
        self._is_stream = False
        self._trace = None if tracer is None or start is None else tracer.begin(start(), is_current=not is_stream)
        self.code = OK
        self.items: int | None = None
        self.request_bytes: int | None = None
        self.response_bytes: int | None = None
        self.request_id: str | None = None  # that of the context, unless it is set
        self.warnings: Sequence[ResultWarning] = ()
        observers.running += 1
        if is_stream:
            self.stream()

    def __enter__(self) -> None:
        if self._trace is not None:
            self._trace.enter()

    def __exit__(self, *_: object) -> None:
        if self._trace is not None:
            self._trace.leave()

    def stream(self) -> None:
        """Count the call as an open stream, and count its items."""
        self._is_stream, self.items = True, 0
        self._observers.streams += 1

    def item(self) -> None:
        """Count another item of the stream."""
        self.items = (self.items or 0) + 1

    def fail(self, error: BaseException) -> None:
        """Take the code of the error that ended the call; a cancellation is ABORTED."""
        self.code = safe_code(error.code) if isinstance(error, CallError) else "ABORTED"

    def record_result(self, envelope: ResponseEnvelope[Any]) -> None:
        """Take code and warnings from the result."""
        self.code, self.warnings = code_of(envelope), envelope.warnings

    def drop(self) -> None:
        """End without a record: it was no call."""
        self._observers.running -= 1
        self._observers.streams -= self._is_stream
        if self._trace is not None:
            self._trace.leave()

    def end(
        self,
        surface: str,
        operation: Operation | None,
        context: Context | None,
        identity: Identity | None = None,
        outcome: Callable[[CallRecord], Mapping[str, Any]] | None = None,
    ) -> None:
        """Report the call; `identity` is the caller where there is no operation or context.

        `outcome` returns the span attributes of the surface's conventions.
        """
        observers = self._observers
        self.drop()
        if self._trace is None and observers.end is None:
            return
        caller = identity if context is None else context.identity
        record = CallRecord(
            time.time(),
            surface,
            "" if operation is None else operation.spec.id,
            UNKNOWN_ORIGIN if operation is None else operation.origin,
            self.code,
            time.perf_counter() - self._began,
            self.request_id or (new_request_id() if context is None else context.request_id),
            None if context is None else context.parent_request_id,
            None if caller is None else caller.id,
            len(self.warnings),
            self.warnings[0].code if self.warnings else None,
            self.request_bytes,
            self.response_bytes,
            self.items,
        )
        if self._trace is not None:
            self._trace.end(record, None if outcome is None else outcome(record))
        if observers.end is not None:
            observers.end(record)
