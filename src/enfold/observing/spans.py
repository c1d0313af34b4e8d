"""What a tracer does, and the span that it gives: the two protocols behind which OpenTelemetry stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from enfold.observing.call_record import CallRecord, SpanStart


class Trace(Protocol):
    """The span of one call: between `enter` and `leave` it is the current one, and parent of what is asked of others."""

    def enter(self) -> None: ...

    def leave(self) -> None: ...

    def end(self, record: CallRecord, attributes: Mapping[str, Any] | None = None) -> None:
        """End it; `attributes` are what the conventions of a surface say of the outcome, and may hold another `name`."""


class Tracer(Protocol):
    """Begins the span of a call, which it enters where it `is_current` until its end."""

    def begin(self, start: SpanStart, *, is_current: bool = True) -> Trace | None: ...

    def close(self) -> None: ...
