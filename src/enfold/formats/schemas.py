"""What each format looks like, as JSON Schema: the success of an operation, and a failure. Surfaces advertise these."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from enfold.envelope import RESPONSE_META_SCHEMA
from enfold.operation import OperationSpec

__all__ = ["error_schema", "success_schema", "with_references"]

Schema: TypeAlias = dict[str, Any]


def success_schema(format: str, operation: OperationSpec) -> Schema:
    """The schema of what `write` gives for a result that fits."""
    return _SUCCESS[format](operation)


def error_schema(format: str) -> Schema:
    """The schema of what `write_error` gives."""
    return _FAILURE[format]


def _result(operation: OperationSpec) -> Schema:
    output = operation.output_schema
    if operation.values == 0:
        return {"type": "object", "additionalProperties": False}
    if operation.values > 1:
        values = {f"result{index}": schema for index, schema in enumerate(output["prefixItems"])}
        return _object(values, output.get("$defs"))
    return _around("result", output)


def _envelope(operation: OperationSpec) -> Schema:
    schema = _around("data", operation.output_schema)
    definitions: Schema = schema.setdefault("$defs", {})
    name = "ResponseMeta" if "ResponseMeta" not in definitions else "EnvelopeResponseMeta"
    definitions[name] = RESPONSE_META_SCHEMA
    schema["properties"]["meta"] = {"$ref": f"#/$defs/{name}"}
    schema["required"] = ["data", "meta"]
    return schema


def _around(name: str, output: Any) -> Schema:
    """An object with the output as its one property; what the output defines moves to the new root."""
    if not isinstance(output, dict) or "$id" in output:
        return _object({name: output})  # with an address of its own it stays whole: its references start there
    kept = output.get("$defs") if _stays(output.get("$defs")) else None
    bare = output if kept is None else {key: value for key, value in output.items() if key != "$defs"}
    moved: Schema = with_references(bare, lambda reference: _moved(reference, f"#/properties/{name}"))
    definitions = moved.pop("$defs", kept)
    moved.pop("$schema", None)
    return _object({name: moved}, definitions)


# A reference in the text of a schema that is not to a definition by its name.
_MOVING: Final = re.compile(rb'"\$(?:dynamicR|r)ef":"#(?!/\$defs/)')


def _stays(definitions: Any) -> bool:
    """Whether definitions refer only to each other, as most do.

    One look at their text is cheaper than a walk: operations of a large document may share hundreds of them.
    """
    return isinstance(definitions, dict) and _MOVING.search(msgspec.json.encode(definitions)) is None


def _moved(reference: str, place: str) -> str:
    is_pointer = reference == "#" or reference.startswith("#/")
    return place + reference[1:] if is_pointer and not reference.startswith("#/$defs/") else reference


def _object(properties: Schema, definitions: Schema | None = None) -> Schema:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {**schema, "$defs": dict(definitions)} if definitions else schema


_RESULT_ERROR: Final[Schema] = {
    "type": "object",
    "properties": {"error": {"type": "string"}},
    "required": ["error"],
    "additionalProperties": False,
}

_ENVELOPE_ERROR: Final[Schema] = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "code": {"type": "string"},
                "message": {"type": "string"},
                "details": {"type": "object"},
                "retryable": {"type": "boolean"},
            },
            "required": ["code", "message", "details", "retryable"],
            "additionalProperties": False,
        }
    },
    "required": ["error"],
    "additionalProperties": False,
}


def _mcp_envelope(operation: OperationSpec) -> Schema:
    schema = _around("result", operation.output_schema)
    schema["properties"] = {**_MCP_ENVELOPE["properties"], **schema["properties"]}
    schema["required"] = ["schema_version", "result"]
    return schema


_OBJECTS: Final[Schema] = {"type": "array", "items": {"type": "object"}}
_MCP_ENVELOPE: Final[Schema] = {
    "type": "object",
    "properties": {
        "schema_version": {"const": "mcp.envelope.v0.1"},
        "result": {},
        "provenance": {"type": ["object", "null"]},
        "warnings": _OBJECTS,
        "errors": _OBJECTS,
        "meta": {"type": "object"},
    },
    "required": ["schema_version", "result"],
    "additionalProperties": False,
}

_TEXT_BLOCK: Final[Schema] = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_TOOL_ENVELOPE: Final[Schema] = {
    "type": "object",
    "properties": {
        "content": {"type": "array", "items": _TEXT_BLOCK, "minItems": 2, "maxItems": 2},
        "isError": {"type": "boolean"},
    },
    "required": ["content", "isError"],
}

_SUCCESS: Final[dict[str, Callable[[OperationSpec], Schema]]] = {
    "result": _result,
    "envelope": _envelope,
    "mcp_envelope_v0_1": _mcp_envelope,
    "tool_envelope_v1": lambda _: _TOOL_ENVELOPE,
}
_FAILURE: Final[dict[str, Schema]] = {
    "result": _RESULT_ERROR,
    "envelope": _ENVELOPE_ERROR,
    "mcp_envelope_v0_1": {**_MCP_ENVELOPE, "required": ["schema_version", "result", "errors"]},
    "tool_envelope_v1": _TOOL_ENVELOPE,
}


# --- references ---------------------------------------------------------------------------------------------------

# Below the first stand values, whatever they look like; below the second, schemas by names that are the user's.
_VALUES: Final = frozenset({"enum", "const", "default", "example", "examples"})
_BY_NAME: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})


def with_references(schema: Any, change: Callable[[str], str]) -> Any:
    """The schema with each of its references changed; a part with an `$id` stays whole, its references start there."""
    if isinstance(schema, list):
        return [with_references(item, change) for item in schema]
    if not isinstance(schema, dict) or "$id" in schema:
        return schema
    return {key: _member(key, value, change) for key, value in schema.items()}


def _member(key: str, value: Any, change: Callable[[str], str]) -> Any:
    if key in ("$ref", "$dynamicRef") and isinstance(value, str):
        return change(value)
    if key in _VALUES:
        return value
    if key in _BY_NAME and isinstance(value, dict):
        return {name: with_references(schema, change) for name, schema in value.items()}
    return with_references(value, change)
