"""Schemas prepared for clients: portable patterns, reduced to what a model can use, and relaxed for upstream responses."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from enfold.schema.keywords import LISTS, is_deprecated, with_parts

Schema: TypeAlias = dict[str, Any]
T = TypeVar("T")

_DESCRIBING: Final = frozenset({"$ref", "title", "description", "deprecated", "contentEncoding", "contentMediaType"})


# A search in the encoded schema decides whether a rewrite is needed: encoding is far faster than a traversal.
_PATTERNS: Final = re.compile(rb'"pattern')
_UNUSED: Final = re.compile(rb'"examples?":|"deprecated":true')
_UNUSED_OR_LONG: Final = re.compile(rb'"examples?":|"deprecated":true|"description":')
_ENDS: Final = re.compile(r"[.!?](?=\s|$)|[。！？]")  # Chinese and Japanese punctuation
_PARAGRAPH: Final = re.compile(r"\n\s*\n")
_ABBREVIATIONS: Final = ("e.g", "i.e", "etc", "vs", "cf", "approx", "incl", "no", "min", "max")


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, or its first paragraph where that is shorter."""
    paragraph = " ".join(_PARAGRAPH.split(text.strip(), maxsplit=1)[0].split())
    for end in _ENDS.finditer(paragraph):
        word = paragraph[: end.start()].rpartition(" ")[2].lstrip("(").lower()
        if word not in _ABBREVIATIONS:
            return paragraph[: end.end()]
    return paragraph


class Advertising:
    """Rewrites schemas for listings; shared definitions are rewritten once and stay shared."""

    def __init__(self) -> None:
        self._portable = _Rewriter(_with_portable_pattern, _PATTERNS)
        self._useful = _Rewriter(_without_unused, _UNUSED)
        self._short = _Rewriter(_shortened, _UNUSED_OR_LONG)
        self._loosened_once = memoized(self._loosened)

    def portable(self, schema: Schema) -> Schema:
        """Rewrite every pattern for the `u` flag, or drop it; return the same object where nothing changes."""
        return self._portable.of(schema)

    def useful(self, schema: Schema, *, short: bool = False) -> Schema:
        """Drop what a model cannot use: examples, and optional properties that are deprecated.

        `short` reduces each description to its first sentence.
        """
        rewriting = self._short if short else self._useful
        return rewriting.of(schema)

    def loosened(self, schema: Schema) -> Schema:
        """Relax the schema of upstream responses: only the root has a type, nothing is required or excluded.

        The declared type of a part becomes its `$comment`. A response without content is null.
        """
        try:
            loose = self._loosened(schema)
        except RecursionError:
            loose = {}
        loose.pop("$comment", None)
        return {"type": _loose_type(schema["type"]), **loose} if "type" in schema else loose

    def _loosened(self, schema: Any) -> Schema:
        if not isinstance(schema, dict):
            return {}
        loose: Schema = {}
        for key, value in schema.items():
            if key in _DESCRIBING:
                loose[key] = value
            elif key == "type" and isinstance(value, str | list):
                loose["$comment"] = value if isinstance(value, str) else " or ".join(map(str, value))
            elif isinstance(value, dict):
                self._loosen_inside(key, value, loose)
            elif isinstance(value, list) and key in LISTS:
                loose["anyOf" if key == "oneOf" else key] = [self._loosened(each) for each in value]
        return loose

    def _loosen_inside(self, key: str, value: Schema, loose: Schema) -> None:
        if key == "properties":
            loose[key] = {name: self._loosened(each) for name, each in value.items()}
        elif key == "$defs":
            loose[key] = {name: self._loosened_once(each) for name, each in value.items()}
        elif key in ("items", "additionalProperties"):
            loose[key] = self._loosened(value)


def _loose_type(declared: Any) -> Any:
    """Return the type of a root or null; integers become numbers."""
    kinds = [
        "number" if each == "integer" else each for each in (declared if isinstance(declared, list) else [declared])
    ]
    return list(dict.fromkeys([*kinds, "null"])) if kinds != ["null"] else "null"


# --- rewriting ----------------------------------------------------------------------------------------------------


class _Rewriter:
    """Applies one rule to every subschema; unchanged schemas stay the same objects."""

    def __init__(self, rule: Callable[[Schema], Schema], needed: re.Pattern[bytes]) -> None:
        self._rule = rule
        self._needed = needed
        self._rewritten_once = memoized(self._rewritten)

    def of(self, schema: Schema) -> Schema:
        try:
            made: Schema = self._with_definitions(schema)
        except RecursionError:
            return {key: schema[key] for key in ("type", "description") if key in schema}
        return made

    def _with_definitions(self, schema: Schema) -> Any:
        shared = schema.get("$defs")
        if not isinstance(shared, dict):
            return self._rewritten(schema)
        own = {key: value for key, value in schema.items() if key != "$defs"}
        changed = self._rewritten(own)
        definitions = with_parts("$defs", shared, self._rewritten_once)
        if changed is own and definitions is shared:
            return schema
        return {
            key: definitions if key == "$defs" else changed[key] for key in schema if key in changed or key == "$defs"
        }

    def _rewritten(self, schema: Any) -> Any:
        return self._walk(schema) if self._is_needed(schema) else schema

    def _is_needed(self, schema: Any) -> bool:
        try:
            return self._needed.search(msgspec.json.encode(schema)) is not None
        except (TypeError, ValueError):  # a value outside JSON
            return True

    def _walk(self, schema: Any) -> Any:
        if not isinstance(schema, dict):
            return schema
        ruled = self._rule(schema)
        changed = {key: new for key, value in ruled.items() if (new := with_parts(key, value, self._walk)) is not value}
        return {**ruled, **changed} if changed else ruled


def _with_portable_pattern(schema: Schema) -> Schema:
    """Replace a pattern by one that every client can compile, or drop it."""
    from enfold.schema.regexp.syntax import portable_pattern  # most servers have no pattern

    if isinstance(pattern := schema.get("pattern"), str) and (found := portable_pattern(pattern)) != pattern:
        kept = {key: value for key, value in schema.items() if key != "pattern"}
        schema = kept if found is None else {**kept, "pattern": found}
    named = schema.get("patternProperties")
    if isinstance(named, dict) and any(portable_pattern(each) != each for each in named):
        made = {portable_pattern(pattern): each for pattern, each in named.items()}
        schema = {**schema, "patternProperties": {name: each for name, each in made.items() if name is not None}}
    return schema


def _without_unused(schema: Schema) -> Schema:
    kept = {key: value for key, value in schema.items() if key not in ("example", "examples")}
    properties = schema.get("properties")
    if isinstance(properties, dict):
        required = schema.get("required")
        needed = required if isinstance(required, list) else ()
        kept["properties"] = {
            name: each for name, each in properties.items() if name in needed or not is_deprecated(each)
        }
    is_same = len(kept) == len(schema) and kept.get("properties") == properties
    return schema if is_same else kept


def _shortened(schema: Schema) -> Schema:
    kept = _without_unused(schema)
    description = kept.get("description")
    if not isinstance(description, str) or (short := first_sentence(description)) == description:
        return kept
    return {**kept, "description": short}


def memoized(make: Callable[[Any], T]) -> Callable[[Any], T]:
    """Memoize a function of a definition by the identity of the definition."""
    # Results hold a reference to their definition so that its identity stays unique.
    known: dict[int, tuple[Any, T]] = {}

    def make_once(definition: Any) -> T:
        found = known.get(id(definition))
        if found is None:
            found = known[id(definition)] = definition, make(definition)
        return found[1]

    return make_once


# A reference in an encoded schema: to a definition by name, or elsewhere.
_REFERENCE: Final = re.compile(rb'"\$(?:dynamicRef|recursiveRef|ref)":"(?:#/\$defs/([A-Za-z0-9_.-]+)"|([^"]*)")')
_ANYTHING: Final = msgspec.Raw(b"{}")


class Packing:
    """Packs the schemas of one listing after rewriting them; the text of every definition is cached."""

    def __init__(self, rewrite: Callable[[Schema], Schema]) -> None:
        self._rewrite = rewrite
        self._definition = memoized(self._written_definition)

    def packed(self, schema: Schema, most: int | None = None) -> Schema:
        """Return the schema with the definitions it reaches, encoded; beyond `most` bytes, only the nearest.

        The others then allow anything, so use `most` only for schemas that make no promises about details.
        """
        definitions = schema.get("$defs")
        if not isinstance(definitions, dict) or not definitions or "$id" in schema:
            return self._rewrite(schema)
        root = self._rewrite({key: value for key, value in schema.items() if key != "$defs"})
        found = self._reached(_written(root).uses, definitions, most)
        if found is None:
            return self._rewrite(schema)
        return {**root, "$defs": found} if found else root

    def _reached(
        self, uses: tuple[str, ...] | None, definitions: Schema, most: int | None
    ) -> dict[str, msgspec.Raw] | None:
        """Return the definitions reachable from some names, nearest first; None where that cannot be determined."""
        if uses is None:
            return None
        found: dict[str, msgspec.Raw] = {}
        waiting = list(uses)
        size = 0
        for name in waiting:  # grows during iteration
            if name in found or name not in definitions:
                continue
            definition = self._definition(definitions[name])
            if definition.uses is None:
                return None
            size += len(definition.text)
            if most is not None and size > most:
                found[name] = _ANYTHING
            else:
                found[name] = msgspec.Raw(definition.text)
                waiting += definition.uses
        return found

    def _written_definition(self, definition: Any) -> _Definition:
        return _written(self._rewrite(definition) if isinstance(definition, dict) else definition)


class _Definition(msgspec.Struct, frozen=True):
    """An encoded schema and the names of the definitions it uses; None where it has other references."""

    text: bytes
    uses: tuple[str, ...] | None


def _written(schema: Any) -> _Definition:
    try:
        text = msgspec.json.encode(schema)
    except (TypeError, ValueError, RecursionError):  # a value outside JSON
        return _Definition(b"", None)
    found = _REFERENCE.findall(text)
    if any(other not in (b"", b"#") for _, other in found) or b'"$id":' in text or b'"$anchor":' in text:
        return _Definition(text, None)
    return _Definition(text, tuple(dict.fromkeys(name.decode() for name, _ in found if name)))
