"""A JSON Schema in the words of people: references opened, types named, limits said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from enfold.schema.keywords import properties_of
from enfold.schema.nodes.reference import local_schema

_MAX_REFERENCES: Final = 16
_MAX_CHOICES: Final = 12


def fields_of(part: Any) -> list[tuple[str, Any, bool]]:
    """The properties of an object: name, schema, and whether it is required."""
    properties = properties_of(part)
    required = part.get("required") if properties else None
    names = required if isinstance(required, list) else []
    return [(name, field, name in names) for name, field in properties.items()]


def opened(given: Any, root: dict[str, Any]) -> dict[str, Any]:
    """The part with its reference followed; what stands beside the reference goes before what is behind it."""
    part: dict[str, Any] = given if isinstance(given, dict) else {}
    for _ in range(_MAX_REFERENCES):
        only = part.get("allOf")
        if isinstance(only, list) and len(only) == 1 and isinstance(only[0], dict):
            part = {**only[0], **{key: value for key, value in part.items() if key != "allOf"}}
        if "$ref" not in part:
            return part
        beside = {key: value for key, value in part.items() if key != "$ref"}
        found = local_schema(root, part["$ref"])
        part = {**(found if isinstance(found, dict) else {}), **beside}
    return {}


def type_text(part: Any, root: dict[str, Any], depth: int = 0) -> str:
    """A short word for a type: `integer`, `"low" | "high"`, `array of string`."""
    name = _name_of(part)
    part = opened(part, root)
    if "const" in part:
        return _json(part["const"])
    if isinstance(part.get("enum"), list):
        shown = [_json(value) for value in part["enum"][:_MAX_CHOICES]]
        return " | ".join(shown + ["…"] * (len(part["enum"]) > _MAX_CHOICES))
    if depth > 4:
        return name or "any"
    for union in ("anyOf", "oneOf"):
        if isinstance(part.get(union), list):
            return " | ".join(dict.fromkeys(type_text(each, root, depth + 1) for each in part[union]))
    kind = part.get("type", "object" if "properties" in part else "any")
    if kind == "array" and isinstance(part.get("items"), dict):
        return f"array of {type_text(part['items'], root, depth + 1)}"
    if isinstance(kind, list):
        return " | ".join(str(each) for each in kind)
    return name if name and kind == "object" else str(kind)


def _name_of(part: Any) -> str:
    """The name of a referenced type: `Address` of `#/$defs/Address`."""
    reference = part.get("$ref") if isinstance(part, dict) else None
    return reference.rpartition("/")[2] if isinstance(reference, str) else ""


_LIMITS: Final = {
    "format": "{}",
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "pattern": "pattern {}",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "contentEncoding": "{}",
}


def limits_of(part: dict[str, Any]) -> Iterator[str]:
    """What a value has to keep to, a few words each."""
    for key, words in _LIMITS.items():
        if isinstance(part.get(key), str | int | float):
            yield words.format(part[key])


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
