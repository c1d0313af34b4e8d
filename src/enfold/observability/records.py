"""The record of a call that has ended, its log line, and the protocol of its span. Names from outside cannot forge or flood a line."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from enfold.envelope import LocalResponseMeta, error_of
from enfold.errors import safe_code
from enfold.log import bounded_line
from enfold.operations import Origin

if TYPE_CHECKING:
    from enfold.envelope import ResponseEnvelope, ResultWarning
    from enfold.operations import Identity, Operation


OK: Final = "OK"
INPUT_REQUIRED: Final = "INPUT_REQUIRED"  # the code of a call whose client is to answer questions first
NOBODY: Final = Origin("", "")  # of a call that found no operation
# The caller was wrong, or came too often: the operation was not run for that.
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
    """A call that has ended, as an operator may see it: never its arguments, never its result.

    `operation` is empty where none was found; `code` is that of the error, or OK; sizes are those of bodies, and None where
    nobody knows them; `items` is the number of a stream's items.
    """

    time: float  # when it ended, in Unix seconds
    surface: str  # http, mcp, cgi, shell, calls; process for a call made in this one
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


def ended_call(
    surface: str,
    operation: Operation | None,
    code: str,
    began: float,
    request_id: str,
    parent_request_id: str | None,
    identity: Identity | None,
    warnings: Sequence[ResultWarning],
    request_bytes: int | None,
    response_bytes: int | None,
    items: int | None,
) -> CallRecord:
    """The record of a call that ends now, and began at a `time.perf_counter()`."""
    return CallRecord(
        time.time(),
        surface,
        "" if operation is None else operation.spec.id,
        NOBODY if operation is None else operation.origin,
        code,
        time.perf_counter() - began,
        request_id,
        parent_request_id,
        None if identity is None else identity.id,
        len(warnings),
        warnings[0].code if warnings else None,
        request_bytes,
        response_bytes,
        items,
    )


class SpanStart(msgspec.Struct, frozen=True):
    """What is known of a call when it begins, for its span; `carrier` is where the caller's trace may be found."""

    name: str
    kind: str = "server"  # or client, internal
    attributes: Mapping[str, Any] = {}
    carrier: Mapping[Any, Any] | None = None


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


def code_of(envelope: ResponseEnvelope[Any]) -> str:
    """OK, or the code of a result that tells of an error."""
    if type(envelope.meta) is LocalResponseMeta or not envelope.is_error:
        return OK
    return safe_code(error_of(envelope).code)


MAX_TEXT: Final = 120  # characters of what a stranger chose


def call_line(record: CallRecord) -> str:
    """`http shop.add OK 1.2 ms request=…`, with what else there is to say."""
    words = [record.surface, record.operation or "-", record.code, _duration(record.duration)]
    return " ".join([*words, *(f"{name}={_word(value)}" for name, value in _optional_fields(record).items())])


def call_fields(record: CallRecord) -> dict[str, Any]:
    """What `call_line` says, as fields for logs in JSON; what is not known is left out."""
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
    """One word: text with a space, a quote or a sign of equality in it is written as a JSON string."""
    text = str(bounded_line(value, MAX_TEXT))
    is_plain = text and not any(each in text for each in ' "=\\')
    return text if is_plain else msgspec.json.encode(text).decode()
