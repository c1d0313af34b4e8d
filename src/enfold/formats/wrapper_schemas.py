"""JSON Schemas of what formats write around a result, and their references."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

__all__ = ["around", "object_schema", "with_references"]

Schema: TypeAlias = dict[str, Any]


def around(name: str, output: Any) -> Schema:
    """An object with the output as its one property; what the output defines moves to the new root."""
    if not isinstance(output, dict) or "$id" in output:
        return object_schema({name: output})  # with an address of its own it stays whole: its references start there
    kept = output.get("$defs") if _refer_to_each_other(output.get("$defs")) else None
    bare = output if kept is None else {key: value for key, value in output.items() if key != "$defs"}
    moved: Schema = with_references(bare, lambda reference: _moved(reference, f"#/properties/{name}"))
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


def _moved(reference: str, place: str) -> str:
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
    if key == "discriminator" and isinstance(value, dict) and isinstance(value.get("mapping"), dict):
        return {**value, "mapping": {name: _branch(branch, change) for name, branch in value["mapping"].items()}}
    if key in _BY_NAME and isinstance(value, dict):
        return {name: with_references(schema, change) for name, schema in value.items()}
    return with_references(value, change)


def _branch(named: Any, change: Callable[[str], str]) -> Any:
    """A branch that a discriminator names: by a reference, which is changed, or by a schema's bare name."""
    return change(named) if isinstance(named, str) and named.startswith("#") else named
