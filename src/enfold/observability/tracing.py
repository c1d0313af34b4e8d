"""Spans of calls through the OpenTelemetry API; imported only if an SDK is installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from opentelemetry import context as contexts
from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider, set_span_in_context

from enfold.observability import spans
from enfold.observability.records import OK, CallRecord, SpanStart
from enfold.observability.spans import record_attributes

MAX_TEXT: Final = 4096  # characters propagated; limits a caller's baggage
_KINDS: Final = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT, "internal": SpanKind.INTERNAL}


class SpanTracer:
    """Starts a span for each call, as a child of its caller's."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("enfold")
        _open.add(self)
        spans.inject = _inject

    def close(self) -> None:
        """Stop creating spans; the last tracer to close ends trace propagation."""
        _open.discard(self)
        if not _open:
            spans.inject = None

    def begin(self, start: SpanStart, *, is_current: bool = True) -> SpanTrace:
        parent = None if start.carrier is None else propagate.extract(start.carrier, getter=_CARRIER)
        span = self._tracer.start_span(start.name, parent, _KINDS[start.kind], dict(start.attributes))
        trace = SpanTrace(span, set_span_in_context(span, parent))
        if is_current:
            trace.enter()
        return trace


_open: Final[set[SpanTracer]] = set()


class SpanTrace:
    """The span of one call."""

    __slots__ = ("_context", "_span", "_token")

    def __init__(self, span: Span, context: Context) -> None:
        self._span = span
        self._context = context
        self._token: Any = None

    def enter(self) -> None:
        self._token = contexts.attach(self._context)

    def leave(self) -> None:
        if self._token is not None:
            contexts.detach(self._token)
            self._token = None

    def end(self, record: CallRecord, attributes: Mapping[str, Any] | None = None) -> None:
        span = self._span
        if span.is_recording():
            if attributes is None:  # a surface without conventions of its own
                attributes = {} if record.code == OK else {"error.type": record.code}
            own = record_attributes(record) | dict(attributes)
            if "name" in own:
                span.update_name(own.pop("name"))
            span.set_attributes(own)
            if "error.type" in own:
                span.set_status(Status(StatusCode.ERROR, record.code))
        span.end()
        self.leave()


class _Carrier(Getter[Mapping[Any, Any]]):
    """Reads a trace from HTTP headers (bytes), from `_meta`, or from message headers."""

    def get(self, carrier: Mapping[Any, Any], key: str) -> list[str] | None:
        found = carrier.get(key)
        if found is None:
            found = carrier.get(key.encode())
        if isinstance(found, bytes):
            found = found.decode("latin-1")
        return [found] if isinstance(found, str) else None

    def keys(self, carrier: Mapping[Any, Any]) -> list[str]:
        return [key.decode("latin-1") if isinstance(key, bytes) else str(key) for key in carrier]


_CARRIER: Final = _Carrier()


def _inject() -> dict[str, str]:
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return {name: value for name, value in carrier.items() if len(value) <= MAX_TEXT}
