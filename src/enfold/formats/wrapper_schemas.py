"""JSON Schemas of the wrappers that formats write around a result."""

from __future__ import annotations

import re
from typing import Any, Final, Literal, TypeAlias

import msgspec

from enfold.schema import json_pointer
from enfold.schema.keywords import object_schema, with_references
from enfold.schema.nodes.reference import unquote

__all__ = ["WRAPPED", "around", "around_all_but_objects", "moved_below"]

Schema: TypeAlias = dict[str, Any]

WRAPPED: Final = "x-fastmcp-wrap-result"  # marks a schema whose only property wraps the value; FastMCP unwraps it


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


# --- objects as they are ------------------------------------------------------------------------------------------

_ANNOTATIONS: Final = frozenset({"$schema", "title", "description", "default", "examples", "deprecated"})
Objecthood: TypeAlias = Literal["always", "never", "sometimes"]


def around_all_but_objects(name: str, output: Any) -> Schema:
    """Return the schema of an output where objects are written as they are and only other values are wrapped."""
    match _is_object(output, output):
        case "always":
            return {"type": "object", **output}
        case "never":
            return {**around(name, output), WRAPPED: True}
    if not isinstance(output, dict) or "$id" in output or output.keys() <= _ANNOTATIONS:
        return {"type": "object"}  # any object, and any wrapper
    return _split_union(name, output) or _either(name, output)


def _split_union(name: str, output: Schema) -> Schema | None:
    """Return a union with its objects as they are and the others wrapped; None if a variant may be both."""
    variants = output.get("anyOf") or []
    is_alone = output.keys() - _ANNOTATIONS <= {"anyOf", "$defs"}
    kinds = [_is_object(variant, output) for variant in variants]
    if not is_alone or "sometimes" in kinds or _MOVING.search(msgspec.json.encode(output)) is not None:
        return None
    objects = [variant for variant, kind in zip(variants, kinds, strict=True) if kind == "always"]
    others = [variant for variant, kind in zip(variants, kinds, strict=True) if kind == "never"]
    wrapper = object_schema({name: others[0] if len(others) == 1 else {"anyOf": others}})
    kept = {key: value for key, value in output.items() if key not in ("$schema", "default", "examples")}
    return {"type": "object", **kept, "anyOf": [*objects, wrapper]}


def _either(name: str, output: Schema) -> Schema:
    """Return the output where it is an object, or a wrapper of it where it is none."""
    definitions = output.get("$defs", {})
    own = next(each for each in ("Output", "Output_", *map("Output{}".format, range(1000))) if each not in definitions)
    place = f"#/$defs/{own}"
    moved: Schema = with_references(output, lambda reference: moved_below(place, reference))
    definitions = moved.pop("$defs", {})
    moved.pop("$schema", None)
    wrapper = object_schema({name: {"$ref": place, "not": {"type": "object"}}})
    either = [{"$ref": place, "type": "object"}, wrapper]
    return {"type": "object", "anyOf": either, "$defs": {**definitions, own: moved}}


def _is_object(schema: Any, root: Any, known: dict[str, Objecthood] | None = None) -> Objecthood:
    """Whether the values that a schema allows are objects, as far as types and variants tell."""
    if not isinstance(schema, dict):
        return "sometimes"
    known = {} if known is None else known
    told: list[Objecthood] = []
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        told.append(_all_or_none([kind == "object" for kind in kinds]))
    if "enum" in schema or "const" in schema:
        told.append(_all_or_none([isinstance(each, dict) for each in schema.get("enum", [schema.get("const")])]))
    if isinstance(schema.get("$ref"), str):
        told.append(_is_object_at(schema["$ref"], root, known))
    for variants in (schema.get("anyOf"), schema.get("oneOf")):
        if variants:
            found = {_is_object(variant, root, known) for variant in variants}
            told.append(found.pop() if len(found) == 1 else "sometimes")
    told += [_is_object(part, root, known) for part in schema.get("allOf", ())]
    return "never" if "never" in told else "always" if "always" in told else "sometimes"


def _is_object_at(reference: str, root: Any, known: dict[str, Objecthood]) -> Objecthood:
    """Return the same for the schema that a reference names; each is read once, because they may form a cycle."""
    if reference not in known:
        known[reference] = "sometimes"
        known[reference] = _is_object(_resolved(reference, root), root, known)
    return known[reference]


def _all_or_none(are_objects: list[bool]) -> Objecthood:
    return "always" if all(are_objects) else "sometimes" if any(are_objects) else "never"


def _resolved(reference: str, root: Any) -> Any:
    """Return the part of a schema that a reference names; anything if it leads elsewhere."""
    if not reference.startswith("#") or (isinstance(root, dict) and "$id" in root):
        return {}
    try:
        return json_pointer.follow(root, unquote(reference[1:]))
    except LookupError:
        return {}
