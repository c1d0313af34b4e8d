"""A schema narrowed to a selection: whatever fits the schema fits, once it is selected from, what is left of it. Pure functions.

A name that the schema does not have is refused with the nearest one; where the schema says nothing, any name will do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain, count
from typing import Any, Final, TypeAlias

from enfold.nearest import nearest
from enfold.selection.grammar import EVERY, Fields, wrong_selection

__all__ = ["check_fields", "narrowed_schema"]

Schema: TypeAlias = Any  # an object, or true or false

# What stays true of a value from whose inside something is taken: nothing is said about its parts.
_KEPT: Final = frozenset(
    [
        "$schema",
        "type",
        "title",
        "description",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$comment",
        "format",
        "pattern",
        "minLength",
        "maxLength",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minItems",
        "maxItems",
        "contentEncoding",
        "contentMediaType",
    ]
)
_UNIONS: Final = ("anyOf", "oneOf")
_SCALARS: Final = frozenset({"string", "number", "integer", "boolean", "null"})
_SCHEMAS: Final = frozenset(
    [
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
    ]
)
_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
_MAPS: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies"})
_DEEPEST: Final = 200
_ODD: Final = re.compile(r"[^A-Za-z0-9_.-]")


def narrowed_schema(schema: Schema, fields: Fields) -> Schema:
    """The schema of what a selection leaves of a value that fits."""
    check_fields(schema, fields)
    return _Narrowing(schema).narrowed(fields)


def check_fields(schema: Schema, fields: Fields) -> None:
    """Refuse a selection with a name that the schema does not have."""
    _check(_Names(schema), [schema], fields, "")


# --- what names there are -----------------------------------------------------------------------------------------


def _check(names: _Names, schemas: list[Schema], fields: Fields, path: str) -> None:
    known = names.of(schemas)
    for name, inner in fields.items():
        place = f"{path}{name}"
        below = known.below(name)
        if name != EVERY and not below and not known.allows_others and not known.is_unknown:
            raise _unknown(place, [f"{path}{each}" for each in known.by_name], path)
        if inner is not None and below and not known.is_unknown:
            _check(names, below, inner, f"{place}/")


def _unknown(place: str, known: list[str], path: str) -> Exception:
    if not known:
        where = f"{path.rstrip('/')} has" if path else "the result has"
        return wrong_selection(f"{where} no fields: there is no {place[:200]}", reason="unknown")
    near = nearest(place, known)
    hint = f"did you mean {near}?" if near else f"use {', '.join(sorted(known)[:10])}"
    return wrong_selection(
        f"there is no {place[:200]}: {hint}", near or ", ".join(sorted(known)[:10]), reason="unknown"
    )


class _Known:
    """The names that objects may have at a place."""

    def __init__(self) -> None:
        self.by_name: dict[str, list[Schema]] = {}
        self.patterns: list[tuple[str, Schema]] = []
        self.allows_others = False  # besides these
        self.is_unknown = False  # nothing is said of some

    def below(self, name: str) -> list[Schema]:
        if name == EVERY:
            return [each for found in self.by_name.values() for each in found] + [each for _, each in self.patterns]
        return self.by_name.get(name) or [schema for pattern, schema in self.patterns if _matches(pattern, name)]


class _Names:
    """Finds the names of a schema, whatever it is composed of."""

    def __init__(self, root: Schema) -> None:
        self._root = root

    def of(self, schemas: list[Schema]) -> _Known:
        known = _Known()
        seen: set[int] = set()
        waiting = list(schemas)
        for schema in waiting:  # it grows while it is read
            if not isinstance(schema, dict):
                known.is_unknown |= schema is not False
            elif id(schema) not in seen:
                seen.add(id(schema))
                waiting += self._look_into(schema, known)
        return known

    def _look_into(self, schema: dict[str, Any], known: _Known) -> Iterator[Schema]:
        """Note the names of one schema, and give those that speak of the same value, or of the items of a list."""
        properties = _table(schema, "properties")
        for name, each in properties.items():
            known.by_name.setdefault(name, []).append(each)
        known.patterns += _table(schema, "patternProperties").items()
        others = schema.get("additionalProperties")
        if isinstance(others, dict):
            known.patterns.append(("", others))
        elif others is True and "additionalProperties" in schema:
            known.allows_others = True
        inner = list(self._composed(schema))
        yield from inner
        says_nothing = not inner and not properties and "additionalProperties" not in schema
        if says_nothing and not _table(schema, "patternProperties") and not _is_scalar(schema):
            known.is_unknown = True

    def _composed(self, schema: dict[str, Any]) -> Iterator[Schema]:
        for key in ("$ref", "$dynamicRef", "$recursiveRef"):
            if isinstance(schema.get(key), str):
                yield resolved(self._root, schema[key])
        for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            if isinstance(schema.get(key), list):
                yield from schema[key]
        for key in ("then", "else"):
            if key in schema:
                yield schema[key]
        yield from _table(schema, "dependentSchemas").values()
        items = schema.get("items")
        yield from items if isinstance(items, list) else [items] if "items" in schema else []


def _is_scalar(schema: dict[str, Any]) -> bool:
    """Whether what it describes can have no names."""
    said = schema.get("type")
    if said is None:
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        return isinstance(values, list) and not any(isinstance(each, dict | list) for each in values)
    return all(each in _SCALARS for each in said) if isinstance(said, list) else said in _SCALARS


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:  # a pattern of another dialect: it may
        return True


def _table(schema: dict[str, Any], key: str) -> dict[str, Any]:
    table = schema.get(key)
    return table if isinstance(table, dict) else {}


def resolved(root: Schema, reference: str) -> Schema:
    """What a reference inside a schema names; one that leads elsewhere allows anything."""
    if reference != "#" and not reference.startswith("#/"):
        return True
    found: Any = root
    for part in reference[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdigit() and int(key) < len(found):
            found = found[int(key)]
        else:
            return True
    return found if isinstance(found, dict | bool) else True


# --- what is left of a schema -------------------------------------------------------------------------------------


class _Narrowing:
    """Narrows one schema; what is referred to becomes a definition, once for each selection from it."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._definitions: dict[str, Schema] = {}
        self._named: dict[tuple[str, int], str] = {}
        self._waiting: list[tuple[str, Schema, Fields | None]] = []

    def narrowed(self, fields: Fields) -> Schema:
        made = self._narrow(self._root, fields)
        while self._waiting:  # one after the other: definitions refer to each other in long chains
            name, schema, inner = self._waiting.pop()
            self._definitions[name] = self._narrow(schema, inner)
        if isinstance(made, dict) and self._definitions:
            return {**made, "$defs": self._definitions}
        return made

    def _narrow(self, schema: Schema, fields: Fields | None, depth: int = 0) -> Schema:
        if not isinstance(schema, dict):
            return schema
        if depth > _DEEPEST or "$id" in schema:
            return {}
        if fields is None:
            return self._copied(schema, depth)
        made = {key: value for key, value in schema.items() if key in _KEPT}
        reference = schema.get("$ref")
        if isinstance(reference, str):
            self._refer(made, reference, fields)
        self._compose(made, schema, fields, depth)
        self._take(made, schema, fields, depth)
        return made

    def _refer(self, made: dict[str, Any], reference: str, fields: Fields | None) -> None:
        found = resolved(self._root, reference)
        if isinstance(found, dict):
            made["$ref"] = f"#/$defs/{self._definition(reference, found, fields)}"
        elif found is False:
            made["not"] = {}

    def _definition(self, reference: str, schema: Schema, fields: Fields | None) -> str:
        key = reference, id(fields)
        name = self._named.get(key)
        if name is None:
            name = self._named[key] = self._free_name(reference)
            self._definitions[name] = {}
            self._waiting.append((name, schema, fields))
        return name

    def _free_name(self, reference: str) -> str:
        wanted = _ODD.sub("_", reference.rpartition("/")[2].removeprefix("#")) or "root"
        others = (f"{wanted}_{number}" for number in count(2))
        return next(name for name in chain([wanted], others) if name not in self._definitions)

    def _compose(self, made: dict[str, Any], schema: dict[str, Any], fields: Fields, depth: int) -> None:
        for key in _UNIONS:
            parts = schema.get(key)
            if isinstance(parts, list):
                # What only one of them allowed may be allowed by several once it is selected from.
                narrow = [self._narrow(each, fields, depth + 1) for each in parts]
                made.update({"anyOf": narrow} if "anyOf" not in made else {"allOf": [{"anyOf": narrow}]})
        if isinstance(schema.get("allOf"), list):
            all_of = [self._narrow(each, fields, depth + 1) for each in schema["allOf"]]
            made["allOf"] = [*made.get("allOf", ()), *all_of]
        if "items" in schema:
            items = schema["items"]
            is_tuple = isinstance(items, list)
            key = "prefixItems" if is_tuple else "items"
            made[key] = self._narrow_each(items, fields, depth) if is_tuple else self._narrow(items, fields, depth + 1)
            if is_tuple and "additionalItems" in schema:
                made["items"] = self._narrow(schema["additionalItems"], fields, depth + 1)
        if isinstance(schema.get("prefixItems"), list):
            made["prefixItems"] = self._narrow_each(schema["prefixItems"], fields, depth)

    def _narrow_each(self, schemas: list[Schema], fields: Fields, depth: int) -> list[Schema]:
        return [self._narrow(each, fields, depth + 1) for each in schemas]

    def _take(self, made: dict[str, Any], schema: dict[str, Any], fields: Fields, depth: int) -> None:
        """The properties of an object that are selected, each as far as it is."""
        declared = _table(schema, "properties")
        names = [name for name in declared if name in fields or EVERY in fields]
        inner = {name: fields[name] if name in fields else fields[EVERY] for name in names}
        properties = {name: self._narrow(declared[name], inner[name], depth + 1) for name in names}
        others = schema.get("additionalProperties", True)
        patterns = _table(schema, "patternProperties")
        if isinstance(others, dict) and not patterns:
            missing = [name for name in fields if name not in declared and name != EVERY]
            properties |= {name: self._narrow(others, fields[name], depth + 1) for name in missing}
            if EVERY in fields:
                made["additionalProperties"] = self._narrow(others, fields[EVERY], depth + 1)
        if properties:
            made["properties"] = properties
        required = schema.get("required")
        if isinstance(required, list):
            kept = [name for name in required if name in fields or EVERY in fields]
            made |= {"required": kept} if kept else {}
        if _is_closed(schema) and EVERY not in fields:
            made["additionalProperties"] = False

    # --- what is taken whole

    def _copied(self, schema: Schema, depth: int) -> Schema:
        """A schema as it is, but for its references, whose targets may lie elsewhere now."""
        if not isinstance(schema, dict):
            return schema
        if depth > _DEEPEST or "$id" in schema or "$dynamicRef" in schema or "$recursiveRef" in schema:
            return {}
        copied = {key: self._part(key, value, depth) for key, value in schema.items() if key not in _PLACES}
        reference = schema.get("$ref")
        if isinstance(reference, str):
            self._refer(copied, reference, None)
        return copied

    def _part(self, key: str, value: Any, depth: int) -> Any:
        if isinstance(value, dict):
            if key in _MAPS:
                return {name: self._copied(each, depth + 1) for name, each in value.items()}
            return self._copied(value, depth + 1) if key in _SCHEMAS else value
        if isinstance(value, list) and key in _LISTS:
            return [self._copied(each, depth + 1) for each in value]
        return value


_PLACES: Final = frozenset({"$ref", "$defs", "definitions", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$schema"})
_COMPOSING: Final = ("$ref", "allOf", "anyOf", "oneOf", "patternProperties", "if", "dependentSchemas")


def _is_closed(schema: dict[str, Any]) -> bool:
    """Whether it names everything that an object may have, so that nothing else is left after a selection either."""
    return schema.get("additionalProperties") is False and not any(key in schema for key in _COMPOSING)
