"""The line that tells of one call, for people; and its fields, for programs. Names from outside can neither forge nor flood it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from enfold.log import bounded_line
from enfold.observing.call_record import CallRecord

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
