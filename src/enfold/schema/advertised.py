"""Schemas as clients are shown them: patterns that every client can compile, no more than a model can use, and for an
upstream's answers loosened. How they are written is told in `enfold.schema.advertised`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from enfold.schema.keywords import LISTS, is_deprecated, with_parts

Schema: TypeAlias = dict[str, Any]
T = TypeVar("T")

_DESCRIBING: Final = frozenset({"$ref", "title", "description", "deprecated", "contentEncoding", "contentMediaType"})


# What may have to be changed, as it stands in the text of a schema: most have nothing, and writing one is far quicker
# than a walk through it.
_PATTERNS: Final = re.compile(rb'"pattern')
_UNUSED: Final = re.compile(rb'"examples?":|"deprecated":true')
_UNUSED_OR_LONG: Final = re.compile(rb'"examples?":|"deprecated":true|"description":')
_ENDS: Final = re.compile(r"[.!?](?=\s|$)|[。！？]")  # the signs of Chinese and Japanese
_PARAGRAPH: Final = re.compile(r"\n\s*\n")
_ABBREVIATIONS: Final = ("e.g", "i.e", "etc", "vs", "cf", "approx", "incl", "no", "min", "max")


def first_sentence(text: str) -> str:
    """A text up to the end of its first sentence, or of its first paragraph where that comes sooner."""
    paragraph = " ".join(_PARAGRAPH.split(text.strip(), maxsplit=1)[0].split())
    for end in _ENDS.finditer(paragraph):
        word = paragraph[: end.start()].rpartition(" ")[2].lstrip("(").lower()
        if word not in _ABBREVIATIONS:
            return paragraph[: end.end()]
    return paragraph


class Advertising:
    """Rewrites schemas for listings; definitions that many schemas share are rewritten once, and stay shared."""

    def __init__(self) -> None:
        self._portable = _Rewriter(_with_portable_pattern, _PATTERNS)
        self._useful = _Rewriter(_without_unused, _UNUSED)
        self._short = _Rewriter(_shortened, _UNUSED_OR_LONG)
        self._loosened_once = memoized(self._loosened)

    def portable(self, schema: Schema) -> Schema:
        """The schema with every pattern rewritten for the `u` flag or left out; the same object where nothing changes."""
        return self._portable.of(schema)

    def useful(self, schema: Schema, *, short: bool = False) -> Schema:
        """The schema without what a model cannot use: examples, and optional properties that are deprecated.

        In `short` each description is no more than its first sentence.
        """
        rewriting = self._short if short else self._useful
        return rewriting.of(schema)

    def loosened(self, schema: Schema) -> Schema:
        """The schema of an upstream's answers: only the root has a type, nothing is required, nothing is ruled out.

        The type that was declared for a detail is its `$comment`. An answer without content is null.
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
    """The type of a root, or null; a number that should be whole may have a fraction, as below the root."""
    kinds = [
        "number" if each == "integer" else each for each in (declared if isinstance(declared, list) else [declared])
    ]
    return list(dict.fromkeys([*kinds, "null"])) if kinds != ["null"] else "null"


# --- rewriting ----------------------------------------------------------------------------------------------------


class _Rewriter:
    """Changes every schema inside a schema by one rule; what the rule leaves alone stays the same object."""

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
        except (TypeError, ValueError):  # a value in it that JSON does not have
            return True

    def _walk(self, schema: Any) -> Any:
        if not isinstance(schema, dict):
            return schema
        ruled = self._rule(schema)
        changed = {key: new for key, value in ruled.items() if (new := with_parts(key, value, self._walk)) is not value}
        return {**ruled, **changed} if changed else ruled


def _with_portable_pattern(schema: Schema) -> Schema:
    """The schema with a pattern that every client can compile, or with none."""
    from enfold.schema.regexp.syntax import portable_pattern  # with the first pattern: most servers start without one

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
    """The function with a memory: of each definition, known by its identity, it makes something once."""
    # Each with its original, so that no other definition can have the same identity meanwhile.
    known: dict[int, tuple[Any, T]] = {}

    def make_once(definition: Any) -> T:
        found = known.get(id(definition))
        if found is None:
            found = known[id(definition)] = definition, make(definition)
        return found[1]

    return make_once


# A reference in the text of a schema: to a definition by its name, or elsewhere.
_REFERENCE: Final = re.compile(rb'"\$(?:dynamicRef|recursiveRef|ref)":"(?:#/\$defs/([A-Za-z0-9_.-]+)"|([^"]*)")')
_ANYTHING: Final = msgspec.Raw(b"{}")


class Packing:
    """Packs the schemas of one listing, rewritten as it is told; it keeps the text of every definition it has seen."""

    def __init__(self, rewrite: Callable[[Schema], Schema]) -> None:
        self._rewrite = rewrite
        self._definition = memoized(self._written_definition)

    def packed(self, schema: Schema, most: int | None = None) -> Schema:
        """The schema with the definitions that it reaches, as text; where `most` bytes do not hold them all, the nearest.

        The others then allow anything, which only a schema may say that promises nothing about its details.
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
        """The definitions that some names reach, the nearest first; None where that cannot be told."""
        if uses is None:
            return None
        found: dict[str, msgspec.Raw] = {}
        waiting = list(uses)
        size = 0
        for name in waiting:  # it grows while it is read
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
    """The text of a schema, and the names of the definitions it uses; None where it refers to something else."""

    text: bytes
    uses: tuple[str, ...] | None


def _written(schema: Any) -> _Definition:
    try:
        text = msgspec.json.encode(schema)
    except (TypeError, ValueError, RecursionError):  # a value in it that JSON does not have
        return _Definition(b"", None)
    found = _REFERENCE.findall(text)
    if any(other not in (b"", b"#") for _, other in found) or b'"$id":' in text or b'"$anchor":' in text:
        return _Definition(text, None)
    return _Definition(text, tuple(dict.fromkeys(name.decode() for name, _ in found if name)))
