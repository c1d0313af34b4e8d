"""Schemas as clients are shown them: patterns that every client can compile, and for an upstream's answers loosened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from enfold.schema.regexp.portable import portable_pattern

__all__ = ["Advertising"]

Schema: TypeAlias = dict[str, Any]
Make: TypeAlias = Callable[[Any], Any]

_SCHEMAS: Final = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
_LISTS: Final = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_MAPS: Final = frozenset({"properties", "$defs", "definitions", "dependentSchemas", "dependencies"})
_SAID: Final = frozenset({"$ref", "title", "description", "deprecated", "contentEncoding", "contentMediaType"})


class Advertising:
    """Rewrites schemas for listings; definitions that many schemas share are rewritten once, and stay shared."""

    def __init__(self) -> None:
        # Each with its original, so that no other definition can have the same identity meanwhile.
        self._portable: dict[int, tuple[Any, Any]] = {}
        self._loose: dict[int, tuple[Any, Any]] = {}

    def portable(self, schema: Schema) -> Schema:
        """The schema with every pattern rewritten for the `u` flag or left out; the same object where nothing changes."""
        try:
            if not _mentions_pattern(schema):
                return schema
            made: Schema = self._with_patterns(schema)
        except RecursionError:
            return {key: schema[key] for key in ("type", "description") if key in schema}
        return made

    def loosened(self, schema: Schema) -> Schema:
        """The schema of an upstream's answers: only the root has a type, nothing is required, nothing is ruled out.

        The type that was declared for a detail is its `$comment`.
        """
        try:
            loose = self._loosened(schema)
        except RecursionError:
            loose = {}
        loose.pop("$comment", None)
        return {"type": schema["type"], **loose} if "type" in schema else loose

    # --- patterns

    def _with_patterns(self, schema: Any) -> Any:
        if not isinstance(schema, dict):
            return schema
        changed = {key: new for key, value in schema.items() if (new := self._part(key, value)) is not value}
        if not changed:
            return schema
        return {key: new for key, each in schema.items() if (new := changed.get(key, each)) is not None or each is None}

    def _part(self, key: str, value: Any) -> Any:
        if key == "pattern" and isinstance(value, str):
            found = portable_pattern(value)
            return value if found == value else found
        if isinstance(value, dict):
            if key == "patternProperties":
                return self._by_pattern(value)
            if key in _MAPS:
                return _mapped(value, self._shared if key in ("$defs", "definitions") else self._with_patterns)
            return self._with_patterns(value) if key in _SCHEMAS else value
        if isinstance(value, list) and key in _LISTS:
            made = [self._with_patterns(each) for each in value]
            return value if all(one is other for one, other in zip(made, value, strict=True)) else made
        return value

    def _shared(self, definition: Any) -> Any:
        return _once(self._portable, definition, self._with_patterns)

    def _by_pattern(self, value: Schema) -> Schema:
        made = {portable_pattern(pattern): self._with_patterns(each) for pattern, each in value.items()}
        kept = {pattern: each for pattern, each in made.items() if pattern is not None}
        return value if list(kept) == list(value) and all(kept[each] is value[each] for each in value) else kept

    # --- loosening

    def _loosened(self, schema: Any) -> Schema:
        if not isinstance(schema, dict):
            return {}
        loose: Schema = {}
        for key, value in schema.items():
            if key in _SAID:
                loose[key] = value
            elif key == "type":
                loose["$comment"] = value if isinstance(value, str) else " or ".join(value)
            elif isinstance(value, dict):
                self._loosen_inside(key, value, loose)
            elif isinstance(value, list) and key in _LISTS:
                loose["anyOf" if key == "oneOf" else key] = [self._loosened(each) for each in value]
        return loose

    def _loosen_inside(self, key: str, value: Schema, loose: Schema) -> None:
        if key == "properties":
            loose[key] = {name: self._loosened(each) for name, each in value.items()}
        elif key == "$defs":
            loose[key] = {name: self._shared_loosely(each) for name, each in value.items()}
        elif key in ("items", "additionalProperties"):
            loose[key] = self._loosened(value)

    def _shared_loosely(self, definition: Any) -> Any:
        return _once(self._loose, definition, self._loosened)


def _mentions_pattern(schema: Schema) -> bool:
    """Whether there is anything to look for: most schemas have no pattern, and writing one is far quicker than a walk."""
    try:
        return b'"pattern' in msgspec.json.encode(schema)
    except (TypeError, ValueError):  # a value in it that JSON does not have
        return True


def _once(known: dict[int, tuple[Any, Any]], definition: Any, make: Make) -> Any:
    found = known.get(id(definition))
    if found is None:
        found = known[id(definition)] = definition, make(definition)
    return found[1]


def _mapped(value: Schema, make: Make) -> Schema:
    made = {name: make(each) for name, each in value.items()}
    return value if all(made[name] is value[name] for name in value) else made
