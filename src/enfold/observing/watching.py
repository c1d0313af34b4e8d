"""One call while it is observed; when it ends, observers are given its record."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from enfold.errors import CallError, safe_code
from enfold.observing.call_record import OK, code_of, ended_call
from enfold.operation import new_request_id

if TYPE_CHECKING:
    from enfold.envelope import ResponseEnvelope, ResultWarning
    from enfold.observing.call_record import CallRecord, SpanStart
    from enfold.observing.observers import Observers
    from enfold.operation import Context, Identity, Operation


class Watch:
    """One call while it runs; `end` gives its record to the observers."""

    __slots__ = ("_began", "_is_stream", "_observers", "_trace", "code", "items", "request_bytes", "warnings")

    def __init__(self, observers: Observers, start: Callable[[], SpanStart], *, is_stream: bool = False) -> None:
        tracer = observers.tracer
        self._observers = observers
        self._began = time.perf_counter()
        self._is_stream = False
        self._trace = None if tracer is None else tracer.begin(start(), is_current=not is_stream)
        self.code = OK
        self.items: int | None = None
        self.request_bytes: int | None = None
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
        """Count the call among the open streams, and its items."""
        self._is_stream, self.items = True, 0
        self._observers.streams += 1

    def item(self) -> None:
        """The stream has given one more item."""
        self.items = (self.items or 0) + 1

    def fail(self, error: BaseException) -> None:
        """Take the code of the error that ended the call; a cancellation is ABORTED."""
        self.code = safe_code(error.code) if isinstance(error, CallError) else "ABORTED"

    def record_result(self, envelope: ResponseEnvelope[Any]) -> None:
        """Take code and warnings from the result."""
        self.code, self.warnings = code_of(envelope), envelope.warnings

    def end(
        self,
        surface: str,
        operation: Operation | None,
        context: Context | None,
        identity: Identity | None = None,
        outcome: Callable[[CallRecord], Mapping[str, Any]] | None = None,
    ) -> None:
        """Tell of the call; where it found no operation, or came to no context, `identity` is who called.

        `outcome` gives what the conventions of a surface say of it, for its span.
        """
        observers = self._observers
        observers.running -= 1
        observers.streams -= self._is_stream
        if self._trace is None and observers.end is None:
            return
        record = ended_call(
            surface,
            operation,
            self.code,
            self._began,
            new_request_id() if context is None else context.request_id,
            None if context is None else context.parent_request_id,
            identity if context is None else context.identity,
            self.warnings,
            self.request_bytes,
            None,
            self.items,
        )
        observers.tell(record, self._trace, None if self._trace is None or outcome is None else outcome(record))
