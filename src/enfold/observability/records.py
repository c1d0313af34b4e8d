"""The record of a finished call, its log line, and the span protocol. Untrusted names cannot forge or flood a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from enfold.envelope import LocalResponseMeta, error_of
from enfold.errors import safe_code
from enfold.observability.log import bounded_line
from enfold.operations import Origin

if TYPE_CHECKING:
    from enfold.envelope import ResponseEnvelope


OK: Final = "OK"
INPUT_REQUIRED: Final = "INPUT_REQUIRED"  # the code of a call that waits for answers from its client
UNKNOWN_ORIGIN: Final = Origin("", "")  # of a call without an operation
# Caller errors and rate limits, for which the operation did not run.
REFUSALS: Final = frozenset(
    {
        "OPERATION_NOT_FOUND",
        "INVALID_OPERATION_TYPE",
        "VALIDATION_ERROR",
        "ACCESS_DENIED",
        "RESOURCE_EXHAUSTED",
        "PAYLOAD_TOO_LARGE",
    }
)


class CallRecord(msgspec.Struct, frozen=True):
    """The record of a finished call, without its arguments and result.

    `operation` is empty if none was found; `code` is the error code, or OK; sizes are those of bodies, None if unknown;
    `items` is the number of a stream's items.
    """

    time: float  # of the end, in Unix seconds
    surface: str  # http, mcp, cgi, shell, calls; process for a call within the process
    operation: str
    origin: Origin
    code: str
    duration: float  # seconds
    request_id: str
    parent_request_id: str | None = None
    caller: str | None = None  # the id of the identity
    warnings: int = 0
    first_warning: str | None = None
    request_bytes: int | None = None
    response_bytes: int | None = None
    items: int | None = None


class SpanStart(msgspec.Struct, frozen=True):
    """The facts about a call at its start, for its span; `carrier` may contain the caller's trace."""

    name: str
    kind: str = "server"  # or client, internal
    attributes: Mapping[str, Any] = {}
    carrier: Mapping[Any, Any] | None = None


class Trace(Protocol):
    """The span of one call: the current span between `enter` and `leave`, and the parent of outgoing requests."""

    def enter(self) -> None: ...

    def leave(self) -> None: ...

    def end(self, record: CallRecord, attributes: Mapping[str, Any] | None = None) -> None:
        """End the span; `attributes` follow the conventions of the surface and may include another `name`."""


class Tracer(Protocol):
    """Starts the span of a call; with `is_current` it is entered until its end."""

    def begin(self, start: SpanStart, *, is_current: bool = True) -> Trace | None: ...

    def close(self) -> None: ...


def code_of(envelope: ResponseEnvelope[Any]) -> str:
    """Return OK, or the code of a failed result."""
    if type(envelope.meta) is LocalResponseMeta or not envelope.is_error:
        return OK
    return safe_code(error_of(envelope).code)


MAX_TEXT: Final = 120  # characters of untrusted text


def call_line(record: CallRecord) -> str:
    """Format a record: `http shop.add OK 1.2 ms request=…`."""
    words = [record.surface, record.operation or "-", record.code, _duration(record.duration)]
    return " ".join([*words, *(f"{name}={_word(value)}" for name, value in _optional_fields(record).items())])


def call_fields(record: CallRecord) -> dict[str, Any]:
    """Return the contents of `call_line` as fields for JSON logs, without unknown ones."""
    fields = {
        "surface": record.surface,
        "operation": record.operation,
        "code": record.code,
        "duration_ms": round(record.duration * 1000, 3),
        "source_kind": record.origin.kind,
    }
    return fields | {name: bounded_line(value, MAX_TEXT) for name, value in _optional_fields(record).items()}


def _optional_fields(record: CallRecord) -> dict[str, Any]:
    known = {
        "request_id": record.request_id,
        "parent_request_id": record.parent_request_id,
        "source": record.origin.name or None,
        "caller": record.caller,
        "warnings": record.warnings or None,
        "first_warning": record.first_warning,
        "request_bytes": record.request_bytes,
        "response_bytes": record.response_bytes,
        "items": record.items,
    }
    return {name: value for name, value in known.items() if value is not None}


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 10 else f"{seconds:.1f} s"


def _word(value: Any) -> str:
    """Return text as one token: with a space, quote or equals sign, as a JSON string."""
    text = str(bounded_line(value, MAX_TEXT))
    is_plain = text and not any(each in text for each in ' "=\\')
    return text if is_plain else msgspec.json.encode(text).decode()
