"""What operators see of calls: the record of a call that has ended, those who observe them, traces, counts and lines."""

from enfold.observing.observers import (
    NOBODY,
    OK,
    CallRecord,
    Observer,
    Observers,
    SpanStart,
    Trace,
    Tracer,
    Watch,
    code_of,
)

__all__ = ["NOBODY", "OK", "CallRecord", "Observer", "Observers", "SpanStart", "Trace", "Tracer", "Watch", "code_of"]
