"""The result of a tool as an envelope: which part of it is the data, and how a payload in another envelope is unwrapped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET

from enfold.envelope import ResponseEnvelope, ResultWarning, mcp_envelope
from enfold.envelope.foreign import is_encoded_block, names_itself
from enfold.errors import FormatError
from enfold.formats import mcp_envelope_v0_1, tool_envelope_v1
from enfold.formats import result as result_format
from enfold.formats.wrapper_schemas import WRAPPED
from enfold.mcp.json_rpc import FORMAT_KEY, SHAPE_KEY, fields_of
from enfold.mcp.messages import read_loosely
from enfold.mcp.results import ToolResult
from enfold.schema.nodes.values import json_type
from enfold.sources.decoders import read_json
from enfold.sources.mcp.session import RepairedResult
from enfold.sources.mcp.settings import Reads

Schema: TypeAlias = dict[str, Any]

PARSED_TEXT: Final = "parsed_text"  # the data was JSON in a text block, and not structured content
CONTENT_BLOCK: Final = "content_block"  # the content was no list, and is one block of it now


class ResultShape(msgspec.Struct, frozen=True):
    """What a tool says of its results: the schema of the data, and whether that lies in a wrapper."""

    schema: Schema
    is_wrapped: bool = False
    is_plain: bool = False  # objects are not wrapped, and each result says whether it is
    null_is_data: bool = False  # whether structured content that is null is a value


def read_shape(advertised: Any, reads: Reads, *, null_is_data: bool, meta: Any = None) -> ResultShape:
    """The shape a tool's output schema describes; a wrapper that the schema or the tool's `_meta` names is taken off."""
    schema: Schema = advertised if isinstance(advertised, dict) else {}
    marks = fields_of(meta)
    is_plain = marks.get(FORMAT_KEY) == "plain"
    is_result = marks.get(FORMAT_KEY) in ("result", "problem") or marks.get(SHAPE_KEY) == "result"
    is_wrapped = schema.get(WRAPPED) is True or is_result
    if is_wrapped or (reads == "result" and not is_plain):
        return ResultShape(_inner_schema(schema), is_wrapped=True, is_plain=is_plain, null_is_data=null_is_data)
    if is_plain and "anyOf" in schema and (inner := _inner_union(schema)) is not None:
        return ResultShape(inner, is_wrapped=True, is_plain=True, null_is_data=null_is_data)
    is_anything = is_plain and schema == {"type": "object"}  # any object, or any other value in a wrapper
    return ResultShape({} if is_anything else schema, is_plain=is_plain, null_is_data=null_is_data)


def _inner_union(schema: Schema) -> Schema | None:
    """The schema of a union of which format `plain` wraps the last variant."""
    *objects, wrapper = schema["anyOf"]
    if fields_of(fields_of(wrapper).get("properties")).keys() != {"result"}:
        return None
    kept = {name: value for name, value in schema.items() if name != "type"}
    return {**kept, "anyOf": [*objects, wrapper["properties"]["result"]]}


def _inner_schema(schema: Schema) -> Schema:
    """The schema of what a wrapper holds, one value or several, with the definitions it may refer to."""
    properties = fields_of(schema.get("properties"))
    several = [properties[name] for index in range(len(properties)) if (name := f"result{index}") in properties]
    inner = properties.get("result")
    if several:
        inner = {"type": "array", "prefixItems": several, "minItems": len(several), "maxItems": len(several)}
    if not isinstance(inner, dict):
        return {}
    kept: Schema = {name: schema[name] for name in ("$schema", "$defs", "definitions") if name in schema}
    return kept | inner


class _UnwrappedResult(msgspec.Struct, frozen=True):
    """The data of a result, and the warnings and the record of an inner envelope."""

    data: Any
    warnings: tuple[ResultWarning, ...] = ()
    provenance: dict[str, Any] | None = None


def to_envelope(result: Mapping[str, Any], shape: ResultShape) -> ResponseEnvelope[Any]:
    """The envelope of a tool's result; its meta keeps the result as received."""
    read = read_loosely(result, ToolResult) or ToolResult()
    is_list = isinstance(read.content, list)
    content, content_warnings = (read.content, ()) if is_list else _as_blocks(read.content)
    structured, is_error = read.structured_content, read.is_error
    told = fields_of(read.meta).get(SHAPE_KEY) if shape.is_plain else None
    if told is not None:  # where the schema says nothing, each result does
        shape = msgspec.structs.replace(shape, is_wrapped=told != "object")
    has_structure = structured is not UNSET and (structured is not None or shape.null_is_data)
    if is_error:
        payload = _UnwrappedResult(structured if has_structure else content)
    elif has_structure:
        payload = _unwrapped(structured, shape)
    elif told == "text" and structured is UNSET and len(content) == 1:
        payload = _UnwrappedResult(_text(content[0]))
    else:
        payload = _block_payload(content) or _text_payload(content, shape) or _UnwrappedResult(content)
    warnings = (*content_warnings, *payload.warnings)
    if isinstance(result, RepairedResult):
        in_data = "/content" if payload.data is content else "/structuredContent"
        warnings = (*content_warnings, *_repairs(result, in_data), *payload.warnings)
    envelope = mcp_envelope(
        payload.data,
        is_error=is_error,
        content=content,
        structured_content=structured,
        _meta=read.meta,
    )
    if not warnings and payload.provenance is None:
        return envelope
    return msgspec.structs.replace(envelope, warnings=warnings, provenance=payload.provenance)


def _as_blocks(content: Any) -> tuple[list[Any], tuple[ResultWarning, ...]]:
    """Content that is no list as one block, with a warning; none for null."""
    if content is None:
        return [], ()
    warning = ResultWarning(CONTENT_BLOCK, "", type=json_type(content))
    if isinstance(content, dict):
        return [content], (warning,)
    text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
    return [{"type": "text", "text": text}], (warning,)


def _repairs(result: RepairedResult, in_data: str) -> Iterator[ResultWarning]:
    """What was replaced when the result was read; of its data by the place in the data."""
    for warning in result.warnings:
        yield msgspec.structs.replace(warning, path=warning.path.removeprefix(in_data))


def _text_payload(content: list[Any], shape: ResultShape) -> _UnwrappedResult | None:
    """The JSON of the only text block, if it names its format or the tool has an output schema."""
    parsed, replaced = _parsed_text(content)
    if names_itself(parsed):
        return _read_envelope(parsed)
    if parsed is UNSET or not (shape.schema or shape.is_wrapped or shape.is_plain):
        return None
    warning = ResultWarning(PARSED_TEXT, "", type="string", size=len(content[0]["text"]))
    return msgspec.structs.replace(_unwrapped(parsed, shape), warnings=(warning, *replaced))


# --- payloads in other envelopes ----------------------------------------------------------------------------------


def _unwrapped(data: Any, shape: ResultShape) -> _UnwrappedResult:
    if names_itself(data):
        return _read_envelope(data)
    if not shape.is_wrapped or not isinstance(data, Mapping) or data.keys() == {"error"}:
        return _UnwrappedResult(data)
    try:
        return _UnwrappedResult(result_format.read(data).data)
    except FormatError:
        return _UnwrappedResult(data)


def _read_envelope(data: Mapping[str, Any]) -> _UnwrappedResult:
    """The payload of an `mcp.envelope.v0.1`, or the first of its `errors`, raised; an invalid one is data, with a warning."""
    try:
        read = mcp_envelope_v0_1.read(data)
    except FormatError:
        return _UnwrappedResult(data, (ResultWarning("envelope_invalid", "", type="object"),))
    return _UnwrappedResult(read.data, read.warnings, read.provenance)


def _block_payload(content: list[Any]) -> _UnwrappedResult | None:
    """The payload of a ToolEnvelope V1; of one that cannot be read the blocks, with a warning."""
    if len(content) < 2 or not is_encoded_block(_text(content[1])):
        return None
    try:
        read = tool_envelope_v1.read({"content": content, "isError": False})
    except FormatError:  # of an unknown version
        return _UnwrappedResult(content, (ResultWarning("envelope_version", "/content/1"),))
    return _UnwrappedResult(content, read.warnings) if read.warnings else _UnwrappedResult(read.data)


def _parsed_text(content: list[Any]) -> tuple[Any, tuple[ResultWarning, ...]]:
    """The JSON in the one text block there is, and what was replaced in it; UNSET where there is another, or none."""
    text = _text(content[0]) if len(content) == 1 else ""
    try:
        return read_json(text) if text else (UNSET, ())
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return UNSET, ()


def _text(block: Any) -> str:
    fields = fields_of(block)
    text = fields.get("text") if fields.get("type") == "text" else None
    return text if isinstance(text, str) else ""
