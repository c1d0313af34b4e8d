"""Format `mcp_envelope_v0_1`: a payload in an `mcp.envelope.v0.1`, with errors, warnings and provenance.

An existing envelope is passed through, never wrapped again. Timestamps are omitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from enfold.envelope import (
    REPAIRS,
    MCPResponseMeta,
    ResponseEnvelope,
    ResultWarning,
    error_of,
    local_envelope,
    wire_data,
)
from enfold.envelope.content import TextContent, json_text
from enfold.envelope.foreign import ENVELOPE_VERSION as VERSION
from enfold.envelope.foreign import names_itself, own_code, parse_envelope
from enfold.errors import CallError, FormatError, invalid_argument
from enfold.operations.context import Preferences
from enfold.operations.spec import OperationSpec
from enfold.provenance.records import ArtifactRef, CaptureOptions, Evidence, Record, options_from_meta

if TYPE_CHECKING:
    from enfold.operations import OperationSpec


__all__ = [
    "ANSWER_FORMAT", "VERSION", "ToolRequest", "fit", "own_wire", "read", "read_request", "success_schema",
    "write", "write_answer", "write_error",
]  # fmt: skip

_OBJECTS: Final[dict[str, Any]] = {"type": "array", "items": {"type": "object"}}
ERROR_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "schema_version": {"const": VERSION},
        "result": {},
        "provenance": {"type": ["object", "null"]},
        "warnings": _OBJECTS,
        "errors": _OBJECTS,
        "meta": {"type": "object"},
    },
    "required": ["schema_version", "result", "errors"],
    "additionalProperties": False,
}

MAX_CODE: Final = 200
MAX_MESSAGE: Final = 2000
# Limits on the number of details and the length of each text.
MAX_DETAILS: Final = 50
MAX_DETAIL: Final = 2000

_PREFIX: Final = "ENFOLD."
_REPAIR_PREFIX: Final = "ENFOLD.REPAIR."


def write(envelope: ResponseEnvelope[Any], operation: OperationSpec | None = None) -> dict[str, Any]:  # noqa: ARG001  # every format has these two
    """Write the data as `result`; an envelope returned by the tool is passed through."""
    own = own_wire(envelope)
    if own is not None:
        return own
    wire: dict[str, Any] = {"schema_version": VERSION, "result": wire_data(envelope.data)}
    had = envelope if isinstance(envelope, _ReadEnvelope) else None
    errors = _result_errors(envelope) if had is None else had.errors
    if errors or (had and "errors" in had._fields):
        wire["errors"] = errors
    wire["provenance"] = envelope.provenance
    if envelope.warnings or (had and "warnings" in had._fields):
        wire["warnings"] = [_write_warning(warning) for warning in envelope.warnings]
    if had and "meta" in had._fields:
        wire["meta"] = had.adapter_meta
    return wire


def write_error(error: CallError, operation_id: str) -> dict[str, Any]:  # noqa: ARG001  # every format has these two
    """Write the failure as the single entry of `errors`, with `result` null or the partial output."""
    own = own_wire(error)
    if own is not None:
        return own
    partial = error.partial.data if isinstance(error.partial, ResponseEnvelope) else error.details.get("stdout")
    return {
        "schema_version": VERSION,
        "result": None if names_itself(partial) else wire_data(partial),
        "errors": [_write_failure(error)],
        "provenance": getattr(error, "provenance", None),
    }


def own_wire(outcome: ResponseEnvelope[Any] | CallError) -> dict[str, Any] | None:
    """Return the `mcp.envelope.v0.1` that the tool itself returned, if any."""
    if isinstance(outcome, CallError):
        return outcome.wire if isinstance(outcome, _ReadError) else None
    if names_itself(outcome.data):
        return dict(outcome.data)
    meta = outcome.meta
    if not isinstance(meta, MCPResponseMeta):
        return None
    if names_itself(meta.structured_content):
        return dict(meta.structured_content)
    return parse_envelope(block.text for block in meta.content if isinstance(block, TextContent))


def read(wire: Any) -> ResponseEnvelope[Any]:
    """Read the envelope with `result` as its data; raise the first of `errors`, if any."""
    checked = _check(wire)
    fields = frozenset(wire) & {"errors", "warnings", "meta"}
    meta = local_envelope(None, "").meta
    if not fields:
        return ResponseEnvelope(wire["result"], meta, provenance=wire.get("provenance"))
    warnings = tuple(_read_warning(warning) for warning in wire.get("warnings", ()))
    envelope = _ReadEnvelope(
        wire["result"],
        meta,
        warnings,
        wire.get("provenance"),
        errors=wire.get("errors", []),
        adapter_meta=wire.get("meta", {}),
        _fields=fields,
    )
    if checked.errors:
        raise _read_error(checked.errors[0], dict(wire), envelope)
    return envelope


def success_schema(operation: OperationSpec) -> dict[str, Any]:
    """Return the schema of the envelope around a valid result."""
    from enfold.formats.wrapper_schemas import around  # needed only for lists and documents

    schema = around("result", operation.output_schema)
    schema["properties"] = {**ERROR_SCHEMA["properties"], **schema["properties"]}
    schema["required"] = ["schema_version", "result"]
    return schema


# --- what is carried along, so that what was read can be written again as it was ----------------------------------


class _ReadEnvelope(ResponseEnvelope[Any], frozen=True):
    """An envelope that was read, with the fields specific to this format."""

    errors: list[dict[str, Any]] = msgspec.field(default_factory=list)
    adapter_meta: dict[str, Any] = msgspec.field(default_factory=dict)
    _fields: frozenset[str] = frozenset()


class _ReadWarning(ResultWarning, frozen=True):
    """A warning that was read, with its own message."""

    wire: dict[str, Any] = msgspec.field(default_factory=dict)


class _ReadError(CallError):
    """A failure that was read, with its wire form."""

    wire: dict[str, Any] | None = None


# --- writing ------------------------------------------------------------------------------------------------------


def _result_errors(envelope: ResponseEnvelope[Any]) -> list[dict[str, Any]]:
    """Return the `errors` of a failed result, which keeps its result."""
    if not envelope.is_error:
        return []
    error = _write_failure(error_of(envelope))
    return [{name: value for name, value in error.items() if name != "details" or value}]


def _write_failure(error: CallError) -> dict[str, Any]:
    return _entry(error.row.envelope_code, error.message, details=_flat(error.details), retryable=error.retryable)


def _entry(code: str, message: str, **fields: Any) -> dict[str, Any]:
    """Return an error or warning within the limits of the schema, which allows no empty text."""
    code = code[:MAX_CODE] or "UNKNOWN"
    return {"code": code, "message": message[:MAX_MESSAGE] or code, **fields}


def _flat(details: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten details: nested values become JSON text."""
    return {str(name): _flat_value(value) for name, value in list(details.items())[:MAX_DETAILS]}


def _flat_value(value: Any) -> str | float | bool | None:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else json_text(value)
    return text[:MAX_DETAIL]


def _write_warning(warning: ResultWarning) -> dict[str, Any]:
    if isinstance(warning, _ReadWarning):
        return warning.wire
    facts = warning.to_wire()
    code = facts.pop("code")
    return _entry(_warning_code(code), warning.sentence, details=_flat(facts))


def _warning_code(code: str) -> str:
    if code in REPAIRS:
        return _REPAIR_PREFIX + code.upper()
    return _PREFIX + code.upper() if code.islower() else code


# --- reading ------------------------------------------------------------------------------------------------------

Code: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_CODE)]
Message: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_MESSAGE)]
Details: TypeAlias = dict[str, str | float | int | bool | None]


class _Warning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    code: Code
    message: Message
    details: Details | UnsetType = UNSET
    evidence: list[Evidence] | UnsetType = UNSET


class _WireError(_Warning, frozen=True, forbid_unknown_fields=True):
    retryable: bool = False


class _Meta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    adapter: Annotated[str, Meta(max_length=100)] | UnsetType = UNSET
    request_id: Annotated[str, Meta(max_length=200)] | UnsetType = UNSET
    duration_ms: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    schema_hints: dict[str, Annotated[str, Meta(max_length=200)]] | UnsetType = UNSET


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The schema of `mcp.envelope.v0.1`, closed at the top level."""

    schema_version: Literal["mcp.envelope.v0.1"]
    result: Any
    provenance: Record | None = None
    errors: list[_WireError] = []
    warnings: list[_Warning] = []
    meta: _Meta | UnsetType = UNSET


def _check(wire: Any) -> _Envelope:
    if not isinstance(wire, Mapping):
        raise FormatError(f"Not an {VERSION}: it must be a JSON object")
    try:
        checked = msgspec.convert(wire, _Envelope)
    except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
        raise FormatError(f"Not an {VERSION}: {error}") from error
    if names_itself(checked.result):
        raise FormatError(f"Not an {VERSION}: it is wrapped twice")
    return checked


def _read_warning(wire: Mapping[str, Any]) -> ResultWarning:
    facts = wire.get("details", {})
    path, type_, size = facts.get("path"), facts.get("type"), facts.get("size")
    return _ReadWarning(
        _read_warning_code(wire["code"]),
        path if isinstance(path, str) else "",
        type=type_ if isinstance(type_, str) else "null",
        size=size if isinstance(size, int) else 0,
        wire=dict(wire),
    )


def _read_error(error: _WireError, wire: dict[str, Any], envelope: ResponseEnvelope[Any]) -> CallError:
    details: dict[str, Any] = {} if error.details is UNSET else dict(error.details)
    failure = _ReadError(own_code(error.code), error.message, details, error.retryable)
    failure.wire = wire
    failure.partial = envelope
    return failure


def _read_warning_code(code: str) -> str:
    """Return the code for a warning on the wire: `strip` for `ENFOLD.REPAIR.STRIP`, otherwise unchanged."""
    return code.removeprefix(_REPAIR_PREFIX).removeprefix(_PREFIX).lower() if code.startswith(_PREFIX) else code


# The format of every response to such a request.
ANSWER_FORMAT: Final = "mcp_envelope_v0_1"

REQUEST_VERSION: Final = "mcp.request.v0.1"

TRUNCATED: Final = "ENFOLD.OUTPUT.TRUNCATED"


class ToolRequest(msgspec.Struct, frozen=True):
    """The tool to call, its arguments, and the caller's preferences for the response."""

    tool: str
    version: str | None
    input: dict[str, Any]
    artifacts: tuple[ArtifactRef, ...]
    capture: CaptureOptions | None
    preferences: Preferences
    request_id: str | None


def read_request(wire: Any) -> ToolRequest:
    """Read a request from a JSON value; raise VALIDATION_ERROR if it is malformed."""
    try:
        checked = msgspec.convert(wire, _Request)
    except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
        raise _refused("", f"an {REQUEST_VERSION} ({error})") from error
    arguments = _arguments(checked.params)
    meta = arguments.pop("_meta", None)
    if meta is not None and not isinstance(meta, dict):
        raise _refused("params._meta", "object")
    wanted = checked.preferences
    return ToolRequest(
        checked.tool.name,
        _or_none(checked.tool.version),
        arguments,
        checked.artifacts,
        options_from_meta(meta),
        Preferences(wanted.deterministic, _or_none(wanted.max_output_bytes), _or_none(wanted.locale)),
        _or_none(checked.request_id),
    )


def _arguments(params: Any) -> dict[str, Any]:
    if params is None:
        return {}
    if not isinstance(params, Mapping):
        raise _refused("params", "object or null")
    return dict(params)


def _or_none(value: Any) -> Any:
    return None if value is UNSET else value


def _refused(argument: str, expected: str) -> CallError:
    return invalid_argument(argument, "type", expected, f"{argument or 'The request'} must be {expected}")


class _RequestedTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=200)]
    version: Annotated[str, Meta(max_length=100)] | UnsetType = UNSET


class _Preferences(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    deterministic: bool = True
    max_output_bytes: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    locale: Annotated[str, Meta(max_length=50)] | UnsetType = UNSET


class _Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The schema of `mcp.request.v0.1`."""

    schema_version: Literal["mcp.request.v0.1"]
    tool: _RequestedTool
    params: Any
    artifacts: tuple[ArtifactRef, ...]
    request_id: Annotated[str, Meta(max_length=200)] | UnsetType = UNSET
    preferences: _Preferences = _Preferences()
    time: str | UnsetType = UNSET


# --- the answer ---------------------------------------------------------------------------------------------------


def write_answer(
    outcome: ResponseEnvelope[Any] | CallError, request: ToolRequest, operation: OperationSpec, **facts: Any
) -> dict[str, Any]:
    """Write the response as the caller prefers it (`facts` as in `fit`); a tool's own envelope is passed through."""
    own = own_wire(outcome)
    if own is not None:
        return own
    if isinstance(outcome, CallError):
        return fit(write_error(outcome, operation.id), request, **facts)
    return fit(write(outcome, operation), request, **facts)


def fit(
    wire: Mapping[str, Any], request: ToolRequest, *, adapter: str, request_id: str | None = None, duration_ms: int = 0
) -> dict[str, Any]:
    """Return the response as the caller prefers it: with `meta` unless deterministic, and within the size limit."""
    answer = dict(wire)
    if not request.preferences.deterministic and "meta" not in answer:
        answer["meta"] = _meta(adapter, request_id or request.request_id, duration_ms)
    limit = request.preferences.max_output_bytes
    return answer if limit is None else _cut_answer(answer, limit)


def _meta(adapter: str, request_id: str | None, duration_ms: int) -> dict[str, Any]:
    named = {} if request_id is None else {"request_id": request_id[:200]}
    return {"adapter": adapter[:100], **named, "duration_ms": max(0, duration_ms)}


def _cut_answer(answer: dict[str, Any], limit: int) -> dict[str, Any]:
    """Truncate the result to the size limit; a limit below the size of the frame cannot be met."""
    size = _size(answer)
    if size <= limit:
        return answer
    warning = {
        "code": TRUNCATED,
        "message": f"The result was truncated: the response had {size} bytes, the limit is {limit}",
        "details": {"size": size, "limit": limit},
    }
    framed = {**answer, "result": None, "warnings": [*answer.get("warnings", ()), warning]}
    part = _cut(answer["result"], limit - _size(framed) + len("null"))
    return framed if part is UNSET else {**framed, "result": part}


def _size(value: Any) -> int:
    return len(msgspec.json.encode(value))


def _cut(value: Any, room: int) -> Any:
    """Return the longest prefix of a value that fits into the given bytes of JSON; UNSET where nothing fits."""
    if _size(value) <= room:
        return value
    if isinstance(value, str):
        return _cut_text(value, room)
    if not isinstance(value, list | tuple | Mapping) or room < len("[]"):
        return UNSET
    if isinstance(value, Mapping):
        return dict(_first_entries([(name, _size(name) + len(":"), item) for name, item in value.items()], room))
    return [part for _, part in _first_entries([("", 0, item) for item in value], room)]


def _cut_text(text: str, room: int) -> str | UnsetType:
    low, high = 0, min(len(text), max(0, room - 2))
    while low < high:  # binary search: an escaped character takes up to six bytes
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _size(text[:middle]) <= room else (low, middle - 1)
    return text[:low] if low else UNSET


def _first_entries(entries: list[tuple[str, int, Any]], room: int) -> Iterator[tuple[str, Any]]:
    """Return the entries of a container that fit, the last one truncated if a part of it fits."""
    left = room - len("[]")
    for name, name_bytes, item in entries:
        part = _cut(item, left - name_bytes)
        if part is not UNSET:
            yield name, part
        if part is not item:
            return
        left -= name_bytes + _size(item) + len(",")
