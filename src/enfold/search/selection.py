"""Selections of calls: read once per operation and text, applied to envelopes and specs."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET

from enfold.envelope import MCPResponseMeta, ResponseEnvelope, ResultWarning, has_own_schema
from enfold.envelope.content import TextContent, json_text
from enfold.errors import CallError
from enfold.observability.log import Log
from enfold.operations import OperationSpec
from enfold.search.fields import EVERY, Fields, check_fields, narrowed_schema, read_fields

LEFT_OUT: Final = "left_out"  # the code of the warning


def selection_of(spec: OperationSpec, text: str) -> Selection:
    """Compile a selection for the results of an operation; raise VALIDATION_ERROR for unknown fields."""
    fields = read_fields(text)
    check_fields(spec.output_schema, fields)
    return Selection(fields)


class Selection(msgspec.Struct, frozen=True):
    """A selection that is valid for the results of an operation."""

    fields: Fields

    def of(self, envelope: ResponseEnvelope[Any]) -> ResponseEnvelope[Any]:
        """Apply the selection; failures, bytes, and payloads with their own schema are unchanged."""
        data, meta = envelope.data, envelope.meta
        if envelope.is_error or isinstance(data, bytes) or has_own_schema(data):
            return envelope
        if isinstance(meta, MCPResponseMeta):
            return self._of_tool(envelope, meta)
        selected, left_out = select_fields(data, self.fields)
        return _with_count(msgspec.structs.replace(envelope, data=selected), left_out)

    def _of_tool(self, envelope: ResponseEnvelope[Any], meta: MCPResponseMeta) -> ResponseEnvelope[Any]:
        """Apply the selection to an MCP result with structured content or a single JSON text; others are unchanged."""
        data = envelope.data
        if meta.structured_content is UNSET and _is_content(data):
            data = _json_in(data)
            if data is UNSET or has_own_schema(data):
                return envelope
        selected, left_out = select_fields(data, self.fields)
        text = TextContent(text=json_text(selected))
        kept = tuple(block for block in meta.content if not isinstance(block, TextContent))
        structure = _structure(meta.structured_content, data, selected)
        meta = msgspec.structs.replace(meta, content=(text, *kept), structured_content=structure)
        return _with_count(msgspec.structs.replace(envelope, data=selected, meta=meta), left_out)


def _with_count(envelope: ResponseEnvelope[Any], left_out: int) -> ResponseEnvelope[Any]:
    """Add a warning with the number of omitted fields, if any."""
    if not left_out:
        return envelope
    warning = ResultWarning(LEFT_OUT, "", type="object", count=left_out)
    return msgspec.structs.replace(envelope, warnings=(*envelope.warnings, warning))


def _structure(given: Any, data: Any, selected: Any) -> Any:
    """Return the structured content after a selection; another server may have wrapped the data."""
    is_wrapped = isinstance(given, dict) and len(given) == 1 and given is not data and given.get("result") == data
    return UNSET if given is UNSET else {"result": selected} if is_wrapped else selected


def _is_content(data: Any) -> bool:
    """Whether the data of a tool's result is its content blocks."""
    return isinstance(data, list) and all(isinstance(each, dict) and isinstance(each.get("type"), str) for each in data)


def _json_in(blocks: list[dict[str, Any]]) -> Any:
    """Return the JSON of the single text block; UNSET where there is none."""
    texts = [block["text"] for block in blocks if block["type"] == "text" and isinstance(block.get("text"), str)]
    if len(texts) != 1:
        return UNSET
    try:
        found = msgspec.json.decode(texts[0])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return UNSET
    return found if isinstance(found, dict | list) else UNSET


def select_fields(value: Any, fields: Fields) -> tuple[Any, int]:
    """Return the selected part of a value, and the number of object entries omitted, without those inside an omitted one."""
    if type(value) is list:
        parts = [select_fields(each, fields) for each in value]
        return [part for part, _ in parts], sum(count for _, count in parts)
    if type(value) is not dict:
        return value, 0
    if EVERY in fields:
        names: Any = value
        fields = {name: fields.get(name, fields[EVERY]) for name in value}
    else:
        names = value if len(value) < len(fields) else fields
    kept: dict[str, Any] = {}
    left_out = 0
    for name in names:
        if name in value and name in fields:
            inner = fields[name]
            if inner is None:
                kept[name] = value[name]
            else:
                kept[name], count = select_fields(value[name], inner)
                left_out += count
    return kept, left_out + len(value) - len(kept)


DEFAULT: Final = "select"  # the key in the meta of a spec


def default_selection(spec: OperationSpec) -> Selection | None:
    """Return the default selection of an operation; log and ignore an invalid one."""
    text = spec.meta.get(DEFAULT)
    if not isinstance(text, str):
        return None

    try:
        return selection_of(spec, text)
    except CallError as error:
        Log("enfold.selection").warning("%s: its default selection is not used: %s", spec.id, error.message)
        return None


def narrowed(spec: OperationSpec) -> OperationSpec:
    """Return the spec as listed, with its output narrowed by the default selection."""
    chosen = default_selection(spec) if DEFAULT in spec.meta else None
    return spec if chosen is None else narrowed_by(chosen, spec)


def narrowed_by(selection: Selection, spec: OperationSpec) -> OperationSpec:
    """Return the spec with its output narrowed by a selection."""
    return spec.replace(output_schema=narrowed_schema(spec.output_schema, selection.fields))
