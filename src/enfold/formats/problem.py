"""Format `problem`: results as in format `result`, failures as problem details (RFC 9457)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError, status_phrase
from enfold.formats import result
from enfold.schema.json_pointer import escape

__all__ = ["read", "success_schema", "write", "write_error"]

MEDIA_TYPE: Final = "application/problem+json"
ERROR_MEDIA_TYPE: Final = MEDIA_TYPE
HOLDS_ERRORS: Final = False
TAKES_STRUCTS: Final = True
IS_WRAPPER: Final = True

_FAULT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "argument": {"type": "string"},
        "pointer": {"type": "string", "description": "A JSON Pointer to the argument, as a URI fragment"},
        "reason": {"enum": ["missing", "unknown", "type", "constraint"]},
        "expected": {"type": ["string", "null"]},
    },
    "required": ["argument", "pointer", "reason", "expected"],
}
ERROR_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "format": "uri-reference"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "retryable": {"type": "boolean"},
        "errors": {"type": "array", "items": _FAULT},
        "details": {"type": "object"},
        "request_id": {"type": "string"},
    },
    "required": ["type", "title", "status", "detail", "code", "retryable"],
}

write = result.write
success_schema = result.success_schema

_REASONS: Final = frozenset({"missing", "unknown", "type", "constraint"})
_BY_ARGUMENT: Final = ("argument", "reason", "expected", "more")


def write_error(error: CallError, operation_id: str) -> dict[str, Any]:  # noqa: ARG001  # every format has these two
    """Write the problem details; surfaces set the status in `error.row`, and `error.request_id`."""
    status = error.row.http_status
    faults = _faults(error.details)
    others = {name: value for name, value in error.details.items() if not faults or name not in _BY_ARGUMENT}
    return {
        "type": "about:blank",  # the title is then the phrase of the status; `code` says more
        "title": status_phrase(status) or "Error",
        "status": status,
        "detail": error.message,
        "code": error.code,
        "retryable": error.retryable,
        **({"errors": faults} if faults else {}),
        **({"details": others} if others else {}),
        **({} if error.request_id is None else {"request_id": error.request_id}),
    }


def _faults(details: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the faults of arguments, of which the first is in the details themselves."""
    more = details.get("more")
    listed = [details, *(more if isinstance(more, list) else [])]
    return [
        {
            "argument": each["argument"],
            "pointer": pointer(each["argument"]),
            "reason": each["reason"],
            "expected": each.get("expected"),
        }
        for each in listed
        if isinstance(each, Mapping) and isinstance(each.get("argument"), str) and each.get("reason") in _REASONS
    ]


_PART: Final = re.compile(r"\[(\d+)\]|([^.\[]+)")


def pointer(argument: str) -> str:
    """Return the place of an argument, such as `items[1].due`, as the fragment of a URI: `#/items/1/due`."""
    from urllib.parse import quote  # slow to import, and only for failures

    parts = [index or escape(name) for index, name in _PART.findall(argument)]
    return "#" + "".join(f"/{quote(part, safe='~')}" for part in parts)


def read(wire: Any) -> ResponseEnvelope[Any]:
    """Read the value, or raise the error that problem details describe; a `code` or a `status` is sufficient."""
    if not isinstance(wire, Mapping) or not wire.keys() & {"code", "status", "title", "detail"}:
        return result.read(wire)
    code, detail = wire.get("code"), wire.get("detail") or wire.get("title")
    details = dict(wire["details"]) if isinstance(wire.get("details"), Mapping) else {}
    faults = wire.get("errors")
    if isinstance(faults, list) and faults and all(isinstance(each, Mapping) for each in faults):
        first, *more = ({name: each.get(name) for name in _BY_ARGUMENT[:3]} for each in faults)
        details |= first | ({"more": more} if more else {})
    retryable = wire.get("retryable")
    error = CallError(
        code if isinstance(code, str) else "EXECUTION_ERROR",
        str(detail or "The server gave no reason"),
        details,
        retryable if isinstance(retryable, bool) else None,
    )
    if isinstance(wire.get("request_id"), str):
        error.request_id = wire["request_id"]
    raise error
