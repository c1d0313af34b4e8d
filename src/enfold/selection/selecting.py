"""Selections as calls meet them: read and compiled once for an operation and a text, applied to envelopes and to specs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET

from enfold.envelope import MCPResponseMeta, ResponseEnvelope, ResultWarning, TextContent, json_text
from enfold.operation import OperationSpec
from enfold.selection.grammar import Fields, read_fields
from enfold.selection.narrowing import check_fields
from enfold.selection.values import compile_fields, count_left_out

__all__ = ["LEFT_OUT", "Selection", "selection_of"]

LEFT_OUT: Final = "left_out"  # the code of the warning


def selection_of(spec: OperationSpec, text: str) -> Selection:
    """What a text selects from the results of an operation; a VALIDATION_ERROR where they have no such fields."""
    fields = read_fields(text)
    check_fields(spec.output_schema, fields)
    return Selection(fields)


class Selection:
    """A selection that fits the results of an operation."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self._select = compile_fields(fields)

    def of(self, envelope: ResponseEnvelope[Any]) -> ResponseEnvelope[Any]:
        """The envelope with what is selected; failures, bytes, and payloads that go by a schema of their own stay whole."""
        data, meta = envelope.data, envelope.meta
        if envelope.is_error or isinstance(data, bytes) or _has_own_schema(data):
            return envelope
        if isinstance(meta, MCPResponseMeta):
            return self._of_tool(envelope, meta)
        selected = self._select(data)
        return self._with_count(msgspec.structs.replace(envelope, data=selected), data)

    def _of_tool(self, envelope: ResponseEnvelope[Any], meta: MCPResponseMeta) -> ResponseEnvelope[Any]:
        """The result of an MCP tool: its structure, or the JSON that is its one text; anything else stays whole."""
        data = envelope.data
        if meta.structured_content is UNSET and _is_content(data):
            data = _json_in(data)
            if data is UNSET or _has_own_schema(data):
                return envelope
        selected = self._select(data)
        text = TextContent(text=json_text(selected))
        kept = tuple(block for block in meta.content if not isinstance(block, TextContent))
        structure = _structure(meta.structured_content, data, selected)
        meta = msgspec.structs.replace(meta, content=(text, *kept), structured_content=structure)
        return self._with_count(msgspec.structs.replace(envelope, data=selected, meta=meta), data)

    def _with_count(self, envelope: ResponseEnvelope[Any], whole: Any) -> ResponseEnvelope[Any]:
        """The envelope with a warning that counts what was left out, if anything was."""
        count = count_left_out(whole, envelope.data, self.fields)
        if not count:
            return envelope
        warning = ResultWarning(LEFT_OUT, "", type="object", count=count)
        return msgspec.structs.replace(envelope, warnings=(*envelope.warnings, warning))


def _structure(given: Any, data: Any, selected: Any) -> Any:
    """The structured content after a selection: another server may have wrapped what is the data here."""
    is_wrapped = isinstance(given, dict) and len(given) == 1 and given is not data and given.get("result") == data
    return UNSET if given is UNSET else {"result": selected} if is_wrapped else selected


def _has_own_schema(data: Any) -> bool:
    return isinstance(data, Mapping) and isinstance(data.get("schema_version"), str)


def _is_content(data: Any) -> bool:
    """Whether the data of a tool's result is nothing but its content blocks."""
    return isinstance(data, list) and all(isinstance(each, dict) and isinstance(each.get("type"), str) for each in data)


def _json_in(blocks: list[dict[str, Any]]) -> Any:
    """The JSON that the one text among some blocks holds; UNSET where there is none."""
    texts = [block["text"] for block in blocks if block["type"] == "text" and isinstance(block.get("text"), str)]
    if len(texts) != 1:
        return UNSET
    try:
        found = msgspec.json.decode(texts[0])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return UNSET
    return found if isinstance(found, dict | list) else UNSET
