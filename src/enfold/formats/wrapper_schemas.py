"""JSON Schemas of the wrappers that formats write around a result."""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias

import msgspec

from enfold.schema.keywords import with_references

__all__ = ["around", "moved_below", "object_schema"]

Schema: TypeAlias = dict[str, Any]


def around(name: str, output: Any) -> Schema:
    """Return an object schema with the output as its single property; its definitions move to the new root."""
    if not isinstance(output, dict) or "$id" in output:
        return object_schema({name: output})  # its references are relative to its own `$id`
    kept = output.get("$defs") if _refer_to_each_other(output.get("$defs")) else None
    bare = output if kept is None else {key: value for key, value in output.items() if key != "$defs"}
    moved: Schema = with_references(bare, lambda reference: moved_below(f"#/properties/{name}", reference))
    definitions = moved.pop("$defs", kept)
    moved.pop("$schema", None)
    return object_schema({name: moved}, definitions)


# A reference in an encoded schema that does not name a definition.
_MOVING: Final = re.compile(rb'"\$(?:dynamicR|r)ef":"#(?!/\$defs/)')


def _refer_to_each_other(definitions: Any) -> bool:
    """Whether definitions refer only to each other.

    Searching their text is cheaper than a traversal: operations of a large document may share hundreds of them.
    """
    return isinstance(definitions, dict) and _MOVING.search(msgspec.json.encode(definitions)) is None


def moved_below(place: str, reference: str) -> str:
    """Adjust a reference of a schema embedded in another; named definitions have moved to the new root."""
    is_pointer = reference == "#" or reference.startswith("#/")
    return place + reference[1:] if is_pointer and not reference.startswith("#/$defs/") else reference


def object_schema(properties: Schema, definitions: Schema | None = None) -> Schema:
    """Return a closed object schema with these properties, all required."""
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {**schema, "$defs": dict(definitions)} if definitions else schema
