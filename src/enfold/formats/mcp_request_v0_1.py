"""The request that goes with `mcp_envelope_v0_1`: an `mcp.request.v0.1` as a value, and its preferences on the answer.

It runs nothing: a surface reads the request, calls, writes the answer in that format, and fits it to the preferences.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError, invalid_argument
from enfold.formats import mcp_envelope_v0_1
from enfold.operation.context import Preferences
from enfold.operation.spec import OperationSpec
from enfold.provenance.capture_options import CaptureOptions, options_from_meta
from enfold.provenance.records import ArtifactRef

__all__ = ["ANSWER_FORMAT", "VERSION", "ToolRequest", "fit", "read_request", "write_answer"]

# The format of every answer to such a request.
ANSWER_FORMAT: Final = "mcp_envelope_v0_1"

VERSION: Final = "mcp.request.v0.1"

TRUNCATED: Final = "ENFOLD.OUTPUT.TRUNCATED"


class ToolRequest(msgspec.Struct, frozen=True):
    """Which tool to call with which arguments, and how the caller wants the answer."""

    tool: str
    version: str | None
    input: dict[str, Any]
    artifacts: tuple[ArtifactRef, ...]
    capture: CaptureOptions | None
    preferences: Preferences
    request_id: str | None


def read_request(wire: Any) -> ToolRequest:
    """The request a JSON value describes; a VALIDATION_ERROR says what is wrong with another one."""
    try:
        checked = msgspec.convert(wire, _Request)
    except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
        raise _refused("", f"an {VERSION} ({error})") from error
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
    """What the schema of `mcp.request.v0.1` says."""

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
    """The answer as the caller prefers it (`facts` are those of `fit`); what a tool gave as an envelope itself as it is."""
    own = mcp_envelope_v0_1.own_wire(outcome)
    if own is not None:
        return own
    if isinstance(outcome, CallError):
        return fit(mcp_envelope_v0_1.write_error(outcome, operation.id), request, **facts)
    return fit(mcp_envelope_v0_1.write(outcome, operation), request, **facts)


def fit(
    wire: Mapping[str, Any], request: ToolRequest, *, adapter: str, request_id: str | None = None, duration_ms: int = 0
) -> dict[str, Any]:
    """The answer as the caller prefers it: with `meta` unless they prefer determinism, and no longer than they can take."""
    answer = dict(wire)
    if not request.preferences.deterministic and "meta" not in answer:
        answer["meta"] = _meta(adapter, request_id or request.request_id, duration_ms)
    limit = request.preferences.max_output_bytes
    return answer if limit is None else _cut_answer(answer, limit)


def _meta(adapter: str, request_id: str | None, duration_ms: int) -> dict[str, Any]:
    named = {} if request_id is None else {"request_id": request_id[:200]}
    return {"adapter": adapter[:100], **named, "duration_ms": max(0, duration_ms)}


def _cut_answer(answer: dict[str, Any], limit: int) -> dict[str, Any]:
    """The answer with as much of its result as the limit allows; a limit below the frame itself cannot be kept."""
    size = _size(answer)
    if size <= limit:
        return answer
    warning = {
        "code": TRUNCATED,
        "message": f"The result was cut: the answer had {size} bytes, {limit} were allowed",
        "details": {"size": size, "limit": limit},
    }
    framed = {**answer, "result": None, "warnings": [*answer.get("warnings", ()), warning]}
    part = _cut(answer["result"], limit - _size(framed) + len("null"))
    return framed if part is UNSET else {**framed, "result": part}


def _size(value: Any) -> int:
    return len(msgspec.json.encode(value))


def _cut(value: Any, room: int) -> Any:
    """As much of a value, from its beginning, as fits into so many bytes of JSON; UNSET where nothing does."""
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
    while low < high:  # the longest beginning that fits: an escaped character takes up to six bytes
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _size(text[:middle]) <= room else (low, middle - 1)
    return text[:low] if low else UNSET


def _first_entries(entries: list[tuple[str, int, Any]], room: int) -> Iterator[tuple[str, Any]]:
    """The entries of a container, each with the bytes of its name, that fit; the last one cut, if a part of it fits."""
    left = room - len("[]")
    for name, name_bytes, item in entries:
        part = _cut(item, left - name_bytes)
        if part is not UNSET:
            yield name, part
        if part is not item:
            return
        left -= name_bytes + _size(item) + len(",")
