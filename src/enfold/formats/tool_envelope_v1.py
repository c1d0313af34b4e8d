"""Format `tool_envelope_v1`: two text blocks, Markdown for people and the payload as `__ENVELOPE_V1__:` + base64.

The wire value is `{"content": [block, block], "isError": bool}`, as an MCP result has it. Blocks that follow the two are kept.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from enfold.envelope import (
    LocalResponseMeta,
    MCPResponseMeta,
    ResponseEnvelope,
    ResultWarning,
    error_of,
    local_envelope,
    wire_data,
)
from enfold.envelope.content import json_text
from enfold.envelope.foreign import BLOCK_VERSION as VERSION
from enfold.envelope.foreign import (
    ErrorPayload,
    ToolEnvelope,
    UnknownVersionError,
    failure_of_payload,
    parse_block,
    read_error_payload,
)
from enfold.errors import CallError, FormatError

if TYPE_CHECKING:
    from enfold.operations import OperationSpec


__all__ = [
    "ErrorPayload", "ToolEnvelope", "WorkflowModel", "WorkflowPayload", "WorkflowStep", "parse_block", "read",
    "success_schema", "summarize", "write", "write_error",
]  # fmt: skip

PREFIX: Final = "__ENVELOPE_V1__:"

_TEXT_BLOCK: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
ERROR_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "content": {
            "type": "array",
            "prefixItems": [_TEXT_BLOCK, _TEXT_BLOCK],
            "items": {"type": "object"},
            "minItems": 2,
        },
        "isError": {"type": "boolean"},
    },
    "required": ["content", "isError"],
}
IS_CONTENT: Final = True

_ERROR_TOOL: Final = "mcp"


def write(envelope: ResponseEnvelope[Any], operation: OperationSpec | None = None) -> dict[str, Any]:
    """Write the data as text and as a payload; a result that already is a ToolEnvelope is passed through."""
    own = _own_wire(envelope)
    if own is not None:
        return own
    if envelope.is_error:
        return _write_failure(_failed_result(envelope))
    payload = wire_data(envelope.data)
    words = _author_text(envelope, operation) or summarize(payload, _title(payload, operation))
    more = envelope.more_content if isinstance(envelope, _BlockEnvelope) else ()
    return _wire(words, payload, _meta(_tool(envelope, operation), envelope), more, is_error=False)


def write_error(error: CallError, operation_id: str) -> dict[str, Any]:  # noqa: ARG001  # every format has these two
    """Write the failure as a message with an icon and as an error payload."""
    own = error.wire if isinstance(error, _BlockError) else None
    return own or _write_failure(error)


def read(wire: Any) -> ResponseEnvelope[Any]:
    """Read the payload from the wire value, its two blocks, or the text of the second block."""
    if isinstance(wire, str):
        return _read_payload(parse_block(wire), is_error=None, summary=None, more=())
    content = wire.get("content") if isinstance(wire, Mapping) else wire
    texts, more = _texts(content), tuple(content[2:] if isinstance(content, list | tuple) else ())
    flag = wire.get("isError") if isinstance(wire, Mapping) else None
    is_error = flag if isinstance(flag, bool) else None
    try:
        return _read_payload(parse_block(texts[1]), is_error, texts[0], more)
    except UnknownVersionError:
        raise
    except FormatError:
        return _read_summary(texts[0], is_error=is_error is True)


def success_schema(operation: OperationSpec) -> dict[str, Any]:  # noqa: ARG001  # every format is asked for an operation
    """Return the schema of two text blocks, which does not describe their content."""
    return ERROR_SCHEMA


# --- payloads with a type of their own ----------------------------------------------------------------------------


class WorkflowModel(msgspec.Struct, frozen=True):
    """The model that a workflow is intended for."""

    id: str
    label: str


class WorkflowStep(msgspec.Struct, frozen=True):
    """One step of a workflow."""

    kind: str
    label: str
    summary: str


class WorkflowPayload(msgspec.Struct, frozen=True, rename="camel"):
    """The result of a workflow instruction; recommendations and artifacts are open objects."""

    display_name: str
    instruction_id: str
    model: WorkflowModel
    steps: list[WorkflowStep] = []
    recommendations: list[dict[str, Any]] = []
    artifacts: list[dict[str, Any]] = []


# --- what is carried along, so that what was read can be written again as it was ----------------------------------


class _BlockEnvelope(ResponseEnvelope[Any], frozen=True):
    """An envelope that was read, with the meta of its block."""

    more_meta: dict[str, Any] = msgspec.field(default_factory=dict)
    more_content: tuple[Any, ...] = ()  # the blocks after the two
    _stamp: str = ""


class _BlockError(CallError):
    """A failure that was read, with its wire form; none where the tool says no more than that it failed."""

    wire: dict[str, Any] | None = None


# --- blocks -------------------------------------------------------------------------------------------------------


def _wire(
    summary: str, payload: Any, meta: dict[str, Any], more: tuple[Any, ...] = (), *, is_error: bool
) -> dict[str, Any]:
    block = PREFIX + b64encode(_encode({"payload": payload, "meta": meta})).decode()
    return {"content": [_text_block(summary), _text_block(block), *more], "isError": is_error}


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _meta(tool: str, envelope: ResponseEnvelope[Any] | None = None) -> dict[str, Any]:
    if isinstance(envelope, _BlockEnvelope):
        return {"tool": tool, "ts": envelope._stamp, "version": VERSION, **envelope.more_meta}
    stamp = envelope.meta.timestamp if envelope is not None and isinstance(envelope.meta, LocalResponseMeta) else None
    return {"tool": tool, "ts": _write_time(stamp), "version": VERSION}


def _write_time(milliseconds: int | None) -> str:
    try:
        moment = datetime.now(UTC) if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        moment = datetime.now(UTC)  # another server may send an invalid timestamp
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


def _author_text(envelope: ResponseEnvelope[Any], operation: OperationSpec | None) -> str:
    """Return the author's text: the result's text content unless it is JSON, or the operation's `summary`."""
    if isinstance(envelope.meta, MCPResponseMeta):
        text = envelope.text()
        return "" if text.lstrip()[:1] in ("{", "[") and _is_json(text) else text
    summary = None if operation is None else operation.meta.get("summary")
    return summary if isinstance(summary, str) else ""


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return False
    return True


def _own_wire(envelope: ResponseEnvelope[Any]) -> dict[str, Any] | None:
    """Return the wire value of a result that is a ToolEnvelope already, since wrapping it would hide its payload."""
    data = envelope.data
    wire = data if isinstance(data, Mapping) and data.keys() <= {"content", "isError"} else {"content": data}
    found = [wire.get("content")]
    if isinstance(envelope.meta, MCPResponseMeta):
        found.append([block.to_wire() for block in envelope.meta.content])
    content = next(filter(_is_tool_envelope, found), None)
    if content is None:
        return None
    return {"content": content, "isError": envelope.is_error or wire.get("isError") is True}


def _is_tool_envelope(content: Any) -> bool:
    try:
        parse_block(_texts(content)[1])
    except UnknownVersionError:
        return True
    except FormatError:
        return False
    return True


def _texts(content: Any) -> list[str]:
    """Return the texts of the two blocks; more blocks may follow."""
    if not isinstance(content, list | tuple) or len(content) < 2:
        raise FormatError("Not a ToolEnvelope: it must begin with two text blocks")
    texts = [block.get("text") if isinstance(block, Mapping) else None for block in content[:2]]
    if not all(isinstance(text, str) for text in texts):
        raise FormatError("Not a ToolEnvelope: its blocks must be text")
    return [str(text) for text in texts]


def _encode(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # an unpaired surrogate, which JSON can only escape
        import json  # for the few payloads that msgspec rejects

        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


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

# Error details with their own field in the payload.
_ADVICE: Final = {"suggested_action": "suggestedAction", "next_tool": "nextTool"}


def _write_failure(error: CallError) -> dict[str, Any]:
    payload = _error_payload(error)
    return _wire(_error_summary(payload, retry_is_safe=error.retryable), payload, _meta(_ERROR_TOOL), is_error=True)


def _failed_result(envelope: ResponseEnvelope[Any]) -> CallError:
    """Return the failure that a result describes; additional data stays in the details."""
    error = error_of(envelope)
    if not error.details:
        error.details["data"] = envelope.data
    return error


def _error_payload(error: CallError) -> dict[str, Any]:
    details = {**_suggestion(error.details), **error.details}
    advice = {_ADVICE[name]: text for name in _ADVICE if isinstance(text := details.get(name), str)}
    rest = {name: value for name, value in details.items() if _ADVICE.get(name) not in advice}
    payload: dict[str, Any] = {"category": error.row.category, "code": error.code, "message": error.message}
    if rest:
        payload["details"] = _details_text(rest)
    return {**payload, "recoverable": error.row.recoverable or error.retryable, **advice}


def _details_text(details: dict[str, Any]) -> str:
    """Return details as JSON text; a single text is kept unless it looks like JSON."""
    alone = details["details"] if details.keys() == {"details"} else None
    if isinstance(alone, str) and not alone.lstrip().startswith("{"):
        return alone
    return json_text(details)


def _suggestion(details: Mapping[str, Any]) -> dict[str, str]:
    """Add a suggestion to the details where an argument was rejected."""
    name, expected = details.get("argument"), details.get("expected")
    what = f'"{name}"' if name else "the input"
    sentences = {
        "missing": f"Pass {what} ({expected}) and call again.",
        "unknown": f"Omit {what} and call again.",
        "type": f"Pass {what} as {expected} and call again.",
        "constraint": f"Pass {what} as {expected} and call again.",
    }
    sentence = sentences.get(str(details.get("reason"))) if "argument" in details else None
    return {} if sentence is None else {"suggested_action": sentence}


def _error_summary(payload: Mapping[str, Any], *, retry_is_safe: bool) -> str:
    kind = _ICONS.get(payload["category"], _ICONS["execution"])
    lines = [f"{kind} [{payload['code']}]: {payload['message']}"]
    lines += [f"Details: {payload['details']}"] if "details" in payload else []
    lines += [f"Suggestion: {payload['suggestedAction']}"] if "suggestedAction" in payload else []
    lines += [f"Next: call `{payload['nextTool']}`"] if "nextTool" in payload else []
    lines += ["Retry is safe."] if retry_is_safe else []
    return "\n".join(lines)


# --- reading ------------------------------------------------------------------------------------------------------


def _read_payload(
    block: ToolEnvelope, is_error: bool | None, summary: str | None, more: tuple[Any, ...]
) -> ResponseEnvelope[Any]:
    """Return the payload's envelope or raise its error, depending on `isError` or, where unknown, the payload's form."""
    payload = read_error_payload(block.payload)
    if is_error is True or (is_error is None and payload is not None):
        raise _read_error(block, payload, summary, more)
    meta = LocalResponseMeta(block.meta["tool"], _read_time(block.meta["ts"]))
    more_meta = {name: value for name, value in block.meta.items() if name not in ("tool", "ts", "version")}
    return _BlockEnvelope(block.payload, meta, more_meta=more_meta, more_content=more, _stamp=block.meta["ts"])


def _read_time(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = datetime.now(UTC)
    zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(zoned.timestamp() * 1000)


def _read_error(
    block: ToolEnvelope, payload: ErrorPayload | None, summary: str | None, more: tuple[Any, ...]
) -> CallError:
    failure = _BlockError("EXECUTION_ERROR", summary or "The tool failed")
    if payload is not None:
        found = failure_of_payload(payload)
        failure = _BlockError(found.code, found.message, found.details, found.retryable)
        failure.row = found.row
    if block.payload is not None:
        words = summary if summary is not None else _error_summary(block.payload, retry_is_safe=failure.retryable)
        failure.wire = _wire(words, block.payload, block.meta, more, is_error=True)
    return failure


def _read_summary(text: str, *, is_error: bool) -> ResponseEnvelope[Any]:
    """Return the first block as the data, with a warning that the second block cannot be read."""
    if is_error:
        raise CallError("EXECUTION_ERROR", text)
    warning = ResultWarning("envelope_block", "/content/1")
    return msgspec.structs.replace(local_envelope(text, ""), warnings=(warning,))


MAX_ROWS: Final = 20
MAX_COLUMNS: Final = 8
MAX_FIELDS: Final = 30
MAX_CELL: Final = 80
MAX_TEXT: Final = 2000


def summarize(payload: Any, title: str = "") -> str:
    """Return the payload as Markdown: a table of records, a list of an object's fields, or the text."""
    heading = f"## {_line(title, MAX_CELL)}\n\n" if title else ""
    if isinstance(payload, list) and payload and all(isinstance(item, Mapping) and item for item in payload):
        return heading + _table(payload)
    if isinstance(payload, Mapping):
        return heading + _fields(payload)
    if isinstance(payload, list):
        return heading + _list(payload)
    return heading + _scalar(payload)


def _table(records: list[Mapping[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for record in records[:MAX_ROWS] for name in record))
    shown = columns[:MAX_COLUMNS]
    rows = [[_cell(record[name]) if name in record else "" for name in shown] for record in records[:MAX_ROWS]]
    lines = [_row([_line(name, MAX_CELL) for name in shown]), _row(["---"] * len(shown)), *map(_row, rows)]
    return (
        "\n".join(lines) + _left_out(len(records) - MAX_ROWS, "row") + _left_out(len(columns) - MAX_COLUMNS, "column")
    )


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _fields(payload: Mapping[str, Any]) -> str:
    shown = list(payload.items())[:MAX_FIELDS]
    lines = [f"- **{_line(name, MAX_CELL)}**: {_cell(value)}" for name, value in shown]
    return ("\n".join(lines) or "(empty)") + _left_out(len(payload) - MAX_FIELDS, "field")


def _list(items: list[Any]) -> str:
    lines = [f"- {_cell(item)}" for item in items[:MAX_FIELDS]]
    return ("\n".join(lines) or "(empty)") + _left_out(len(items) - MAX_FIELDS, "item")


def _left_out(count: int, word: str) -> str:
    return f"\n\n… {count} more {word}{'' if count == 1 else 's'}" if count > 0 else ""


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT else f"{value[:MAX_TEXT]}…"
    return "Done." if value is None else _json_text(value)


def _cell(value: Any) -> str:
    """Return a value on one line; a long list or object is represented by its size."""
    if isinstance(value, str):
        return _line(value, MAX_CELL)
    if isinstance(value, list | Mapping) and value:
        text = _json_text(value)
        return _line(text, MAX_CELL) if len(text) <= MAX_CELL else _counted(value)
    return _json_text(value)


def _counted(value: Any) -> str:
    word = "item" if isinstance(value, list) else "field"
    return f"({len(value)} {word}{'' if len(value) == 1 else 's'})"


def _line(text: str, length: int) -> str:
    """Escape text so that it cannot end its line or table cell."""
    flat = " ".join(text.split())
    shown = flat if len(flat) <= length else f"{flat[: length - 1]}…"
    return shown.replace("\\", "\\\\").replace("|", "\\|")


def _json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode(errors="replace")
