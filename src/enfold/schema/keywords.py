"""The keywords of JSON Schema by the kind of their value (schema, list, map, plain values), and functions that map them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

SCHEMAS: Final = frozenset({
    "additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not",
    "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
})  # fmt: skip
LISTS: Final = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
MAPS: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"})
# Plain values, not schemas: an `$id` or a `$ref` inside has no meaning.
VALUES: Final = frozenset({"enum", "const", "default", "example", "examples"})


def properties_of(schema: Any) -> dict[str, Any]:
    """Return the `properties` of a third-party schema; empty where it has none."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return properties if isinstance(properties, dict) else {}


def object_schema(properties: dict[str, Any], definitions: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a closed object schema with these properties, all required."""
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {**schema, "$defs": dict(definitions)} if definitions else schema


def is_deprecated(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("deprecated") is True


def with_parts(keyword: str, value: Any, change: Callable[[Any], Any]) -> Any:
    """Apply a function to every schema below a keyword; return the same object where nothing changes."""
    if isinstance(value, dict) and keyword in MAPS:
        made = {name: change(each) for name, each in value.items()}
        return value if all(made[name] is value[name] for name in value) else made
    if isinstance(value, dict):
        return change(value) if keyword in SCHEMAS else value
    if isinstance(value, list) and keyword in LISTS:
        changed = [change(each) for each in value]
        return value if all(one is other for one, other in zip(changed, value, strict=True)) else changed
    return value


def with_references(schema: Any, change: Callable[[str], str]) -> Any:
    """Rewrite each reference in a schema; a subschema with an `$id` is unchanged because its references start there."""
    if isinstance(schema, list):
        return [with_references(item, change) for item in schema]
    if not isinstance(schema, dict) or "$id" in schema:
        return schema
    return {key: _member(key, value, change) for key, value in schema.items()}


def references(schema: Any) -> Iterator[str]:
    """Yield the references that `with_references` would rewrite."""
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, list):
            waiting += each
        elif isinstance(each, dict) and "$id" not in each:
            for key, value in each.items():
                if key in ("$ref", "$dynamicRef") and isinstance(value, str):
                    yield value
                elif key == "discriminator":
                    mapping = value.get("mapping") if isinstance(value, dict) else None
                    named = mapping.values() if isinstance(mapping, dict) else ()
                    yield from (target for target in named if isinstance(target, str) and target.startswith("#"))
                elif key in MAPS and isinstance(value, dict):
                    waiting += value.values()
                elif key not in VALUES:
                    waiting.append(value)


def _member(key: str, value: Any, change: Callable[[str], str]) -> Any:
    if key in ("$ref", "$dynamicRef") and isinstance(value, str):
        return change(value)
    if key in VALUES:
        return value
    if key == "discriminator" and isinstance(value, dict) and isinstance(value.get("mapping"), dict):
        return {**value, "mapping": {name: _branch(branch, change) for name, branch in value["mapping"].items()}}
    if key in MAPS and isinstance(value, dict):
        return {name: with_references(schema, change) for name, schema in value.items()}
    return with_references(value, change)


def _branch(named: Any, change: Callable[[str], str]) -> Any:
    """Rewrite the target of a discriminator mapping if it is a reference and not a bare name."""
    return change(named) if isinstance(named, str) and named.startswith("#") else named


_TYPES: Final = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_MAX_VISITED: Final = 1_000


def schema_fault(schema: Any) -> str | None:
    """Return the first construct of a third-party schema that is invalid in JSON Schema, such as an unknown type."""
    waiting = [schema]
    for each in waiting:  # grows during iteration
        if isinstance(each, bool):
            continue
        if not isinstance(each, dict):
            return "a schema must be an object or a boolean"
        types = each.get("type", [])
        if not all(
            isinstance(kind, str) and kind in _TYPES for kind in (types if isinstance(types, list) else [types])
        ):
            return f"unknown type {types!r:.50}"
        for keyword in sorted(MAPS & each.keys()):
            if not isinstance(each[keyword], dict):
                return f"{keyword} must be an object"
        if len(waiting) < _MAX_VISITED:
            waiting += [part for keyword, value in each.items() for part in _parts(keyword, value)]
    return None


def _parts(keyword: str, value: Any) -> list[Any]:
    """Return the schemas below a keyword."""
    found: list[Any] = []

    def look(part: Any) -> Any:
        found.append(part)
        return part

    with_parts(keyword, value, look)
    return [part for part in found if isinstance(part, dict)]
