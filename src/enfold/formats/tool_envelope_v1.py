"""Format `tool_envelope_v1`: two text blocks, Markdown for people and the payload as `__ENVELOPE_V1__:` + base64.

The wire value is `{"content": [block, block], "isError": bool}`, as an MCP result has it.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from enfold.envelope import (
    LocalResponseMeta,
    MCPResponseMeta,
    ResponseEnvelope,
    ResultWarning,
    error_text,
    local_envelope,
)
from enfold.errors import CODES, CallError, FormatError, code_row
from enfold.formats.summary import summarize

if TYPE_CHECKING:
    from enfold.operation import OperationSpec

__all__ = [
    "ErrorPayload",
    "ToolEnvelope",
    "WorkflowModel",
    "WorkflowPayload",
    "WorkflowStep",
    "parse_block",
    "read",
    "write",
    "write_error",
]

VERSION: Final = 1
PREFIX: Final = "__ENVELOPE_V1__:"

_ANY_PREFIX: Final = re.compile(r"__ENVELOPE_V([0-9]{1,9})__:")
_ERROR_TOOL: Final = "mcp"


def write(envelope: ResponseEnvelope[Any], operation: OperationSpec | None = None) -> dict[str, Any]:
    """The data as a summary and as a payload; a result that is two such blocks already is passed on."""
    own = _own_wire(envelope)
    if own is not None:
        return own
    if isinstance(envelope.meta, MCPResponseMeta) and envelope.meta.is_error:
        return _write_failure(_failed_result(envelope), None)
    payload = b64encode(envelope.data).decode() if isinstance(envelope.data, bytes) else envelope.data
    meta = _meta(_tool(envelope, operation), envelope)
    return _wire(summarize(payload, _title(payload, operation)), payload, meta, is_error=False)


def write_error(error: CallError, operation_id: str, operation: OperationSpec | None = None) -> dict[str, Any]:  # noqa: ARG001  # every format has these two
    """The failure as a sentence with an icon and as an error payload; a spec's `error_schemas` may add advice."""
    if isinstance(error, _ReadError) and error.payload is not None:
        return _wire(error.summary, error.payload, error.wire_meta, is_error=True)
    return _write_failure(error, operation)


def read(wire: Any) -> ResponseEnvelope[Any]:
    """The envelope of the payload, from the wire value, its two blocks, or the text of the second alone."""
    if isinstance(wire, str):
        return _read_payload(parse_block(wire), is_error=None, summary=None)
    content = wire.get("content") if isinstance(wire, Mapping) else wire
    texts = _texts(content)
    flag = wire.get("isError") if isinstance(wire, Mapping) else None
    is_error = flag if isinstance(flag, bool) else None
    try:
        return _read_payload(parse_block(texts[1]), is_error, texts[0])
    except _UnknownVersionError:
        raise
    except FormatError:
        return _read_summary(texts[0], is_error=is_error is True)


def parse_block(text: str) -> ToolEnvelope:
    """The payload and meta of the second block; FormatError for another text, bad base64, an unknown version."""
    found = _ANY_PREFIX.match(text)
    if found is None:
        raise FormatError("Not a ToolEnvelope block: it does not begin with __ENVELOPE_V1__:")
    if int(found[1]) != VERSION:
        raise _UnknownVersionError(f"ToolEnvelope version {int(found[1])} is not known: this reader knows 1")
    return _checked(_decode(text[found.end() :].strip()))


class ToolEnvelope(msgspec.Struct, frozen=True):
    """What the second block holds; fields nobody knows are kept in both."""

    payload: Any
    meta: dict[str, Any]


class _UnknownVersionError(FormatError):
    """An envelope of a version this reader does not know: nothing of it may be guessed."""


# --- payloads with a type of their own ----------------------------------------------------------------------------


class WorkflowModel(msgspec.Struct, frozen=True):
    """The model a workflow is meant for."""

    id: str
    label: str


class WorkflowStep(msgspec.Struct, frozen=True):
    """One step of a workflow."""

    kind: str
    label: str
    summary: str


class WorkflowPayload(msgspec.Struct, frozen=True, rename="camel"):
    """What a workflow instruction returns; recommendations and artifacts are open objects."""

    display_name: str
    instruction_id: str
    model: WorkflowModel
    steps: list[WorkflowStep] = []
    recommendations: list[dict[str, Any]] = []
    artifacts: list[dict[str, Any]] = []


class ErrorPayload(msgspec.Struct, frozen=True, rename="camel"):
    """What a failed tool returns; a category nobody knows is no mistake."""

    category: str
    code: str
    message: str
    recoverable: bool
    details: str | UnsetType = UNSET
    suggested_action: str | UnsetType = UNSET
    next_tool: str | UnsetType = UNSET


# --- what is carried along, so that what was read can be written again as it was ----------------------------------


class _ReadEnvelope(ResponseEnvelope[Any], frozen=True):
    """An envelope that was read, with the meta of its block."""

    more_meta: dict[str, Any] = msgspec.field(default_factory=dict)
    _stamp: str = ""


class _ReadError(CallError):
    """A failure that was read, with the payload that told of it."""

    payload: Any = None
    summary: str = ""
    wire_meta: dict[str, Any]


# --- blocks -------------------------------------------------------------------------------------------------------


def _wire(summary: str, payload: Any, meta: dict[str, Any], *, is_error: bool) -> dict[str, Any]:
    block = PREFIX + b64encode(_encode({"payload": payload, "meta": meta})).decode()
    return {"content": [_text_block(summary), _text_block(block)], "isError": is_error}


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _meta(tool: str, envelope: ResponseEnvelope[Any] | None = None) -> dict[str, Any]:
    if isinstance(envelope, _ReadEnvelope):
        return {"tool": tool, "ts": envelope._stamp, "version": VERSION, **envelope.more_meta}
    stamp = envelope.meta.timestamp if envelope is not None and isinstance(envelope.meta, LocalResponseMeta) else None
    return {"tool": tool, "ts": _iso_time(stamp), "version": VERSION}


def _iso_time(milliseconds: int | None) -> str:
    try:
        moment = datetime.now(UTC) if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        moment = datetime.now(UTC)  # A timestamp no calendar has came from elsewhere.
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _tool(envelope: ResponseEnvelope[Any], operation: OperationSpec | None) -> str:
    if operation is not None:
        return operation.id
    return envelope.meta.operation_id if isinstance(envelope.meta, LocalResponseMeta) else ""


def _title(payload: Any, operation: OperationSpec | None) -> str:
    named = payload.get("displayName") if isinstance(payload, Mapping) else None
    if isinstance(named, str):
        return named
    return "" if operation is None else operation.title or operation.id


def _own_wire(envelope: ResponseEnvelope[Any]) -> dict[str, Any] | None:
    """The wire value of a result that is a ToolEnvelope V1 already: wrapping it again would hide its payload."""
    data = envelope.data
    wire = data if isinstance(data, Mapping) and data.keys() <= {"content", "isError"} else {"content": data}
    try:
        content = wire.get("content")
        parse_block(_texts(content)[1])
    except FormatError:
        return None
    return {"content": content, "isError": envelope.is_error or wire.get("isError") is True}


def _texts(content: Any) -> list[str]:
    if not isinstance(content, list | tuple) or len(content) != 2:
        raise FormatError("Not a ToolEnvelope: it has two text blocks")
    texts = [block.get("text") if isinstance(block, Mapping) else None for block in content]
    if not all(isinstance(text, str) for text in texts):
        raise FormatError("Not a ToolEnvelope: its blocks are text")
    return [str(text) for text in texts]


def _encode(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # a lone surrogate, which JSON can only escape
        import json

        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def _decode(text: str) -> Any:
    try:
        content = b64decode(text, validate=True)
    except ValueError as error:
        raise FormatError(f"Not a ToolEnvelope block: bad base64 ({error})") from error
    import json

    try:
        return json.loads(content.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"Not a ToolEnvelope block: its content is not JSON ({error})") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _checked(value: Any) -> ToolEnvelope:
    meta = value.get("meta") if isinstance(value, Mapping) else None
    if not isinstance(meta, Mapping) or "payload" not in value:
        raise FormatError("Not a ToolEnvelope block: it has `payload` and `meta`")
    version = meta.get("version")
    if not isinstance(version, int | float) or isinstance(version, bool):
        raise FormatError("Not a ToolEnvelope block: its meta has no version")
    if version != VERSION:
        raise _UnknownVersionError(f"ToolEnvelope version {version} is not known: this reader knows 1")
    if not isinstance(meta.get("tool"), str) or not isinstance(meta.get("ts"), str):
        raise FormatError("Not a ToolEnvelope block: its meta has `tool` and `ts`")
    return ToolEnvelope(value["payload"], dict(meta))


# --- failures -----------------------------------------------------------------------------------------------------

_ICONS: Final[dict[str, str]] = {
    "validation": "❌ Validation error",
    "execution": "⚠️ Execution error",
    "timeout": "⏱ Timeout",
    "model": "🤖 Model error",
    "network": "🌐 Network error",
    "authorization": "🔒 Authorization error",
    "rate_limit": "🚦 Rate limit exceeded",
    "not_found": "🔍 Not found",
    "internal": "💥 Internal error",
}

# Of an error's details, these two have a field of their own in the payload.
_ADVICE: Final = {"suggested_action": "suggestedAction", "next_tool": "nextTool"}


def _write_failure(error: CallError, operation: OperationSpec | None) -> dict[str, Any]:
    payload = _error_payload(error, operation)
    return _wire(_error_summary(payload, retry_is_safe=error.retryable), payload, _meta(_ERROR_TOOL), is_error=True)


def _failed_result(envelope: ResponseEnvelope[Any]) -> CallError:
    """The failure that a result of an MCP server tells of; its data stays in the details."""
    return CallError("EXECUTION_ERROR", error_text(envelope), {"data": envelope.data})


def _error_payload(error: CallError, operation: OperationSpec | None) -> dict[str, Any]:
    row = code_row(error.code)
    details = {**_declared_advice(error.code, operation), **error.details}
    advice = {_ADVICE[name]: text for name in _ADVICE if isinstance(text := details.get(name), str)}
    rest = {name: value for name, value in details.items() if _ADVICE.get(name) not in advice}
    payload: dict[str, Any] = {"category": row.category, "code": error.code, "message": error.message}
    if rest:
        payload["details"] = msgspec.json.encode(rest, enc_hook=str).decode()
    return {**payload, "recoverable": row.recoverable or error.retryable, **advice}


def _declared_advice(code: str, operation: OperationSpec | None) -> dict[str, str]:
    """What the spec says to do about a code: a `const` or `default` in the schema of its details."""
    for declared in () if operation is None else operation.error_schemas:
        properties = declared.schema.get("properties") if declared.code == code else None
        if isinstance(properties, Mapping):
            found = {name: properties.get(name) for name in _ADVICE}
            texts = {
                name: each.get("const", each.get("default")) for name, each in found.items() if isinstance(each, dict)
            }
            return {name: text for name, text in texts.items() if isinstance(text, str)}
    return {}


def _error_summary(payload: Mapping[str, Any], *, retry_is_safe: bool) -> str:
    kind = _ICONS.get(payload["category"], _ICONS["execution"])
    lines = [f"{kind} [{payload['code']}]: {payload['message']}"]
    lines += [f"Details: {payload['details']}"] if "details" in payload else []
    lines += [f"Suggestion: {payload['suggestedAction']}"] if "suggestedAction" in payload else []
    lines += [f"Next: call `{payload['nextTool']}`"] if "nextTool" in payload else []
    lines += ["Retry is safe."] if retry_is_safe else []
    return "\n".join(lines)


# --- reading ------------------------------------------------------------------------------------------------------


def _read_payload(block: ToolEnvelope, is_error: bool | None, summary: str | None) -> ResponseEnvelope[Any]:
    """The payload's envelope, or its error raised: `isError` decides, and where it is not known, the payload's form."""
    payload = _as_error(block.payload)
    if is_error is True or (is_error is None and payload is not None):
        raise _read_error(block, payload, summary)
    meta = LocalResponseMeta(block.meta["tool"], _milliseconds(block.meta["ts"]))
    more = {name: value for name, value in block.meta.items() if name not in ("tool", "ts", "version")}
    return _ReadEnvelope(block.payload, meta, more_meta=more, _stamp=block.meta["ts"])


def _as_error(payload: Any) -> ErrorPayload | None:
    try:
        return msgspec.convert(payload, ErrorPayload)
    except (msgspec.ValidationError, UnicodeEncodeError):  # the second for a lone surrogate, which is no field's name
        return None


def _milliseconds(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = datetime.now(UTC)
    zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(zoned.timestamp() * 1000)


def _read_error(block: ToolEnvelope, payload: ErrorPayload | None, summary: str | None) -> CallError:
    told = _failure(payload) if payload is not None else _ReadError("EXECUTION_ERROR", summary or "The tool failed")
    told.payload, told.wire_meta = block.payload, block.meta
    told.summary = summary if summary is not None else _error_summary(block.payload, retry_is_safe=told.retryable)
    return told


def _failure(payload: ErrorPayload) -> _ReadError:
    details = _read_details(payload.details)
    if payload.suggested_action is not UNSET:
        details["suggested_action"] = payload.suggested_action
    if payload.next_tool is not UNSET:
        details["next_tool"] = payload.next_tool
    # Of our own codes the table knows whether a retry is safe; `recoverable` there says that the caller can do something.
    retryable = None if payload.code in CODES else payload.recoverable
    return _ReadError(payload.code, payload.message, details, retryable)


def _read_details(text: str | UnsetType) -> dict[str, Any]:
    """Details that are JSON text of an object, as ours are; any other text stays one."""
    if text is UNSET:
        return {}
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"details": text}


def _read_summary(text: str, *, is_error: bool) -> ResponseEnvelope[Any]:
    """What is left when the second block is broken: the summary, with a warning that says so."""
    if is_error:
        raise CallError("EXECUTION_ERROR", text)
    warning = ResultWarning("envelope_block", "/content/1")
    return msgspec.structs.replace(local_envelope(text, ""), warnings=(warning,))
