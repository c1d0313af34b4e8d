"""What a call was given and gave, kept for its operator: a port that the runtime tells, where the operator wants it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from enfold.envelope import ResponseEnvelope
    from enfold.errors import CallError
    from enfold.operation.context import Context
    from enfold.operation.spec import OperationSpec


class CallPayload(Protocol):
    """What one call gives; no method of it raises."""

    def take(self, envelope: ResponseEnvelope[Any]) -> None:
        """Its result, or the next item of a stream."""

    def fail(self, error: CallError) -> None:
        """How it failed."""

    def end(self) -> None:
        """It is over; whoever tells of the call comes after this."""


class PayloadLog(Protocol):
    """Who keeps what calls are given and give."""

    def begin(self, spec: OperationSpec, input: Any, context: Context) -> CallPayload:
        """A call with this input begins."""
