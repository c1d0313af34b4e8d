"""JSON Schemas of what formats write around a result."""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias

import msgspec

from enfold.schema.keywords import with_references

__all__ = ["around", "moved_below", "object_schema"]

Schema: TypeAlias = dict[str, Any]


def around(name: str, output: Any) -> Schema:
    """An object with the output as its one property; what the output defines moves to the new root."""
    if not isinstance(output, dict) or "$id" in output:
        return object_schema({name: output})  # with an address of its own it stays whole: its references start there
    kept = output.get("$defs") if _refer_to_each_other(output.get("$defs")) else None
    bare = output if kept is None else {key: value for key, value in output.items() if key != "$defs"}
    moved: Schema = with_references(bare, lambda reference: moved_below(f"#/properties/{name}", reference))
    definitions = moved.pop("$defs", kept)
    moved.pop("$schema", None)
    return object_schema({name: moved}, definitions)


# A reference in the text of a schema that is not to a definition by its name.
_MOVING: Final = re.compile(rb'"\$(?:dynamicR|r)ef":"#(?!/\$defs/)')


def _refer_to_each_other(definitions: Any) -> bool:
    """Whether definitions refer only to each other, as most do.

    One look at their text is cheaper than a walk: operations of a large document may share hundreds of them.
    """
    return isinstance(definitions, dict) and _MOVING.search(msgspec.json.encode(definitions)) is None


def moved_below(place: str, reference: str) -> str:
    """A reference of a schema that now stands at a place of another; definitions by name have moved to the new root."""
    is_pointer = reference == "#" or reference.startswith("#/")
    return place + reference[1:] if is_pointer and not reference.startswith("#/$defs/") else reference


def object_schema(properties: Schema, definitions: Schema | None = None) -> Schema:
    """A closed object with these properties, all of them required."""
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {**schema, "$defs": dict(definitions)} if definitions else schema
