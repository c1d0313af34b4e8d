"""The result of a tool as an envelope: which part of it is the data, and how a payload in another envelope is unwrapped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET

from enfold.envelope import ResponseEnvelope, ResultWarning, mcp_envelope
from enfold.errors import FormatError
from enfold.mcp.json_rpc import FORMAT_KEY
from enfold.self_named import is_encoded_block, names_itself

__all__ = ["PARSED_TEXT", "Reads", "ResultShape", "read_shape", "to_envelope"]

Reads: TypeAlias = Literal["result"] | None
Schema: TypeAlias = dict[str, Any]

PARSED_TEXT: Final = "parsed_text"  # the data was JSON in a text block, and not structured content
FASTMCP_WRAP: Final = "x-fastmcp-wrap-result"


class ResultShape(msgspec.Struct, frozen=True):
    """What a tool says of its results: the schema of the data, and whether that lies in a wrapper."""

    schema: Schema
    is_wrapped: bool = False
    null_is_data: bool = False  # whether structured content that is null is a value


def read_shape(advertised: Any, reads: Reads, *, null_is_data: bool, meta: Any = None) -> ResultShape:
    """The shape a tool's output schema describes; a wrapper that the schema or the tool's `_meta` names is taken off."""
    schema: Schema = advertised if isinstance(advertised, dict) else {}
    is_ours = isinstance(meta, Mapping) and meta.get(FORMAT_KEY) == "result"
    is_marked = schema.get(FASTMCP_WRAP) is True or is_ours
    if is_marked or reads == "result":
        return ResultShape(_inner_schema(schema), is_wrapped=True, null_is_data=null_is_data)
    return ResultShape(schema, null_is_data=null_is_data)


def _inner_schema(schema: Schema) -> Schema:
    """The schema of what a wrapper holds, one value or several, with the definitions it may refer to."""
    found = schema.get("properties")
    properties: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    several = [properties[name] for index in range(len(properties)) if (name := f"result{index}") in properties]
    inner = properties.get("result")
    if several:
        inner = {"type": "array", "prefixItems": several, "minItems": len(several), "maxItems": len(several)}
    if not isinstance(inner, dict):
        return {}
    kept: Schema = {name: schema[name] for name in ("$schema", "$defs", "definitions") if name in schema}
    return kept | inner


class _Payload(msgspec.Struct, frozen=True):
    """The data of a result, and the warnings and the record of an inner envelope."""

    data: Any
    warnings: tuple[ResultWarning, ...] = ()
    provenance: dict[str, Any] | None = None


def to_envelope(result: Mapping[str, Any], shape: ResultShape) -> ResponseEnvelope[Any]:
    """The envelope of a tool's result; its meta keeps the result as it came."""
    blocks, meta = result.get("content"), result.get("_meta")
    content: list[Any] = blocks if isinstance(blocks, list) else []
    structured = result.get("structuredContent", UNSET)
    is_error = result.get("isError") is True
    payload = _payload(content, structured, shape, is_error=is_error)
    envelope = mcp_envelope(
        payload.data,
        is_error=is_error,
        content=content,
        structured_content=structured,
        _meta=meta if isinstance(meta, dict) else UNSET,
    )
    if not payload.warnings and payload.provenance is None:
        return envelope
    return msgspec.structs.replace(envelope, warnings=payload.warnings, provenance=payload.provenance)


def _payload(content: list[Any], structured: Any, shape: ResultShape, *, is_error: bool) -> _Payload:
    has_structure = structured is not UNSET and (structured is not None or shape.null_is_data)
    if is_error:
        return _Payload(structured if has_structure else content)
    if has_structure:
        return _unwrapped(structured, shape)
    return _block_payload(content) or _text_payload(content, shape) or _Payload(content)


def _text_payload(content: list[Any], shape: ResultShape) -> _Payload | None:
    """The JSON of the one text block, where something says what it is: itself, or an output schema."""
    parsed = _parsed_text(content)
    if names_itself(parsed):
        return _read_envelope(parsed)
    if parsed is UNSET or not (shape.schema or shape.is_wrapped):
        return None
    told = ResultWarning(PARSED_TEXT, "", type="string", size=len(content[0]["text"]))
    return msgspec.structs.replace(_unwrapped(parsed, shape), warnings=(told,))


# --- payloads in other envelopes ----------------------------------------------------------------------------------


def _unwrapped(data: Any, shape: ResultShape) -> _Payload:
    if names_itself(data):
        return _read_envelope(data)
    if not shape.is_wrapped or not isinstance(data, Mapping) or data.keys() == {"error"}:
        return _Payload(data)
    from enfold.formats import result

    try:
        return _Payload(result.read(data).data)
    except FormatError:
        return _Payload(data)


def _read_envelope(data: Mapping[str, Any]) -> _Payload:
    """The payload of an `mcp.envelope.v0.1`; its failure is raised, and one that is malformed stays as it is."""
    from enfold.formats import mcp_envelope_v0_1

    try:
        read = mcp_envelope_v0_1.read(data)
    except FormatError:
        return _Payload(data)
    return _Payload(read.data, read.warnings, read.provenance)


def _block_payload(content: list[Any]) -> _Payload | None:
    """The payload of a ToolEnvelope V1; of one that cannot be read the blocks, with a warning."""
    if len(content) != 2 or not is_encoded_block(_text(content[1])):
        return None
    from enfold.formats import tool_envelope_v1

    try:
        read = tool_envelope_v1.read({"content": content, "isError": False})
    except FormatError:  # of a version that nobody here knows
        return _Payload(content, (ResultWarning("envelope_version", "/content/1"),))
    return _Payload(content, read.warnings) if read.warnings else _Payload(read.data)


def _parsed_text(content: list[Any]) -> Any:
    """The JSON in the one text block there is; UNSET where there is another, or none."""
    if len(content) != 1:
        return UNSET
    text = _text(content[0])
    try:
        return msgspec.json.decode(text) if text else UNSET
    except (msgspec.DecodeError, RecursionError):
        return UNSET


def _text(block: Any) -> str:
    is_text = isinstance(block, Mapping) and block.get("type") == "text"
    text = block.get("text") if is_text else None
    return text if isinstance(text, str) else ""
