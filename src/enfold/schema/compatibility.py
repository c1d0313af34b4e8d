"""Whether all that fits one schema also fits another: what yesterday's callers send today's operation, and the reverse. Pure.

The comparison goes by structure and is careful: what it cannot compare it reports. It never says that two schemas go together when a
value that it understands would be refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import msgspec

from enfold.schema.check import compile_schema
from enfold.schema.nodes.reference import SchemaDocument, SchemaPlace

__all__ = ["Incompatibility", "incompatibilities"]

Node: TypeAlias = dict[str, Any]

MOST_TOLD: Final = 20
MOST_STEPS: Final = 20_000

_TYPES: Final = ("null", "boolean", "integer", "number", "string", "array", "object")
# Only these say something about values; every other keyword is a note for readers.
_CONDITIONS: Final = (
    *("not", "if", "then", "else", "contains", "minContains", "maxContains", "dependentRequired", "dependentSchemas"),
    *("patternProperties", "propertyNames", "unevaluatedProperties", "unevaluatedItems"),
)
_RULES: Final = frozenset(
    {
        *("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", *_CONDITIONS),
        *("properties", "required", "additionalProperties", "minProperties", "maxProperties"),
        *("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
        *("minLength", "maxLength", "pattern", "format", "contentEncoding"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    }
)
_NEVER: Final[Node] = {"not": {}}


class Incompatibility(msgspec.Struct, frozen=True):
    """A place where what is given may not be what is taken, and why, as the end of a sentence about that place."""

    path: str
    why: str

    def __str__(self) -> str:
        return f"{self.path or 'the whole'} {self.why}"


def incompatibilities(given: Any, taken: Any, *, ignores_extras: bool = False) -> list[Incompatibility]:
    """Why a value that fits `given` may not fit `taken`; none where it always does.

    `ignores_extras`: whoever takes it passes over properties that they do not know, as readers of answers do.
    """
    comparison = _Comparison(given, taken, ignores_extras=ignores_extras)
    try:
        return comparison.compare(given, taken, "")[:MOST_TOLD]
    except (_TooMuchError, RecursionError):
        return [Incompatibility("", "is too large to be compared")]


class _TooMuchError(Exception):
    pass


class _Comparison:
    """Two schemas held against each other; a pair of places that is met again within itself is taken to fit."""

    def __init__(self, given: Any, taken: Any, *, ignores_extras: bool) -> None:
        self._given = SchemaDocument(given)
        self._taken = SchemaDocument(taken)
        self._ignores_extras = ignores_extras
        self._met: set[tuple[int, int]] = set()
        self._kept: list[Any] = []  # what was met, so that no id is given twice
        self._steps = 0

    def compare(self, given: Any, taken: Any, path: str) -> list[Incompatibility]:
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise _TooMuchError
        pair = (id(given), id(taken))
        if pair in self._met:
            return []
        self._met.add(pair)
        self._kept += (given, taken)
        return self._compare(_opened(given, self._given), _opened(taken, self._taken), path)

    def _compare(self, given: Node, taken: Node, path: str) -> list[Incompatibility]:
        """The steps: alternatives of the given one, all that the taken one asks for, its alternatives, then by type."""
        if not taken or _is_never(given):
            return []
        if _is_never(taken):
            return [Incompatibility(path, "is not taken any more")]
        given = self._flat(given, self._given)
        for name in ("anyOf", "oneOf"):
            if name in given:
                rest, branches = _without(given, name), given[name]
                return [each for branch in branches for each in self._compare_branch(rest, branch, taken, path)]
        if "allOf" in taken:
            parts = [*taken["allOf"], _without(taken, "allOf")]
            return [each for part in parts for each in self.compare(given, part, path)]
        values = _values(given)
        if values is not None:
            return self._compare_values(values, taken, path)
        for name in ("anyOf", "oneOf"):
            if name in taken:
                found = self.compare(given, _without(taken, name), path)
                return found + self._compare_alternatives(given, taken[name], path)
        return self._compare_rules(given, taken, path)

    def _compare_branch(self, rest: Node, branch: Any, taken: Node, path: str) -> list[Incompatibility]:
        """One alternative of what is given; without rules beside it, it stays the object that may be met again."""
        return self.compare(_both(rest, _opened(branch, self._given)) if rest else branch, taken, path)

    def _flat(self, given: Node, document: SchemaDocument) -> Node:
        """The given schema with all that it must fulfil in one."""
        if "allOf" not in given:
            return given
        flat = _without(given, "allOf")
        for part in given["allOf"]:
            flat = _both(flat, self._flat(_opened(part, document), document))
        return flat

    def _compare_values(self, values: list[Any], taken: Node, path: str) -> list[Incompatibility]:
        definitions = self._taken.root.get("$defs", {}) if isinstance(self._taken.root, dict) else {}
        fits = compile_schema({"$defs": definitions, **taken}).check
        return [
            Incompatibility(path, f"may be {_short(value)}, which is not taken") for value in values if not fits(value)
        ]

    def _compare_alternatives(self, given: Node, branches: list[Any], path: str) -> list[Incompatibility]:
        found: list[Incompatibility] = []
        for kind in sorted(_kinds(given)):
            found += self._compare_kind({**given, "type": kind}, branches, path)
        return found

    def _compare_kind(self, given: Node, branches: list[Any], path: str) -> list[Incompatibility]:
        """The given schema for values of one type: some alternative must take them all."""
        near: list[list[Incompatibility]] = []
        for branch in branches:
            met = set(self._met)
            found = self.compare(given, branch, path)
            if not found:
                return []
            self._met = met  # what was taken to fit on the way may not
            if _takes_kind(given["type"], _opened(branch, self._taken)):
                near.append(found)
        if len(near) == 1:
            return near[0]
        return [Incompatibility(path, f"may be {_article(given['type'])} that none of the alternatives takes")]

    def _compare_rules(self, given: Node, taken: Node, path: str) -> list[Incompatibility]:
        if "enum" in taken or "const" in taken:
            listed = taken.get("enum", [taken.get("const")])
            return [
                Incompatibility(path, f"may be something else than {', '.join(_short(each) for each in listed[:5])}")
            ]
        found = [
            Incompatibility(path, f"has other conditions ({name}), which are not compared")
            for name in _CONDITIONS
            if name in taken and given.get(name) != taken[name]
        ]
        kinds, wanted = _kinds(given), _kinds(taken)
        foreign = sorted(kinds - wanted)
        if foreign:
            words = " or ".join(_article(each) for each in foreign)
            return [Incompatibility(path, f"may be {words} where {_wanted_words(taken)} is expected")]
        if kinds & {"integer", "number"}:
            found += _compare_numbers(given, taken, path)
        if "string" in kinds:
            found += _compare_texts(given, taken, path)
        if "array" in kinds:
            found += self._compare_arrays(given, taken, path)
        if "object" in kinds:
            found += self._compare_objects(given, taken, path)
        return found

    def _compare_arrays(self, given: Node, taken: Node, path: str) -> list[Incompatibility]:
        found = [
            *_limit(given, taken, path, "minItems", "may have fewer than {} items", lowest=True),
            *_limit(given, taken, path, "maxItems", "may have more than {} items", lowest=False),
        ]
        if taken.get("uniqueItems") and not given.get("uniqueItems"):
            found.append(Incompatibility(path, "may have an item twice"))
        first = max(len(given.get("prefixItems", ())), len(taken.get("prefixItems", ())))
        for place in range(first):
            found += self.compare(_item(given, place), _item(taken, place), f"{path}/{place}")
        return found + self.compare(_item(given, first), _item(taken, first), f"{path}/*")

    def _compare_objects(self, given: Node, taken: Node, path: str) -> list[Incompatibility]:
        found = [
            *_limit(given, taken, path, "minProperties", "may have fewer than {} properties", lowest=True),
            *_limit(given, taken, path, "maxProperties", "may have more than {} properties", lowest=False),
        ]
        required = set(given.get("required", ()))
        missing = [name for name in taken.get("required", ()) if name not in required]
        found += [Incompatibility(f"{path}/{name}", "may be missing where it is required") for name in missing]
        for name in dict.fromkeys([*given.get("properties", {}), *taken.get("properties", {})]):
            found += self.compare(_sent_property(given, name), self._taken_property(taken, name), f"{path}/{name}")
        return found + self.compare(_property(given, None), self._taken_property(taken, None), f"{path}/*")

    def _taken_property(self, taken: Node, name: str | None) -> Any:
        found = _property(taken, name)
        return {} if found is False and self._ignores_extras else found


# --- parts of a schema --------------------------------------------------------------------------------------------


def _opened(schema: Any, document: SchemaDocument) -> Node:
    """The rules of a schema, its references followed; what leads nowhere asks for nothing."""
    seen = 0
    while isinstance(schema, dict) and "$ref" in schema and seen < 100:
        seen += 1
        place = document.resolve(str(schema["$ref"]))
        target = place.schema if isinstance(place, SchemaPlace) else {}
        rest = {name: value for name, value in schema.items() if name in _RULES and name != "$ref"}
        schema = {"allOf": [target, rest]} if rest else target
    if schema is False:
        return _NEVER
    if not isinstance(schema, dict):
        return {}
    return {name: value for name, value in schema.items() if name in _RULES}


def _is_never(schema: Node) -> bool:
    return schema.get("not") in ({}, True) and "not" in schema


def _without(schema: Node, name: str) -> Node:
    return {key: value for key, value in schema.items() if key != name}


def _both(one: Node, other: Any) -> Node:
    """A schema that asks for what both ask for."""
    if not isinstance(other, dict):
        return _NEVER if other is False else one
    both = dict(one)
    for name, value in other.items():
        if name not in _RULES:
            continue
        if name not in both or both[name] == value:
            both[name] = value
        elif name == "properties":
            both[name] = {**both[name], **{key: _joined(both[name].get(key), part) for key, part in value.items()}}
        elif name == "required":
            both[name] = [*both[name], *value]
        elif name == "type":
            both[name] = sorted(_kinds(one) & _kinds(other)) or ["null"]
        elif name in ("anyOf", "oneOf", "allOf", "$ref"):
            both.setdefault("allOf", []).append({name: value})
        elif name.startswith(("min", "exclusiveMin")):
            both[name] = max(both[name], value)
        elif name.startswith(("max", "exclusiveMax")):
            both[name] = min(both[name], value)
    return both


def _joined(one: Any, other: Any) -> Any:
    return other if one is None else {"allOf": [one, other]}


def _values(schema: Node) -> list[Any] | None:
    """The values of a schema that lists them, or whose type has no more than two."""
    if "const" in schema:
        return [schema["const"]]
    if "enum" in schema:
        return list(schema["enum"])
    kind = schema.get("type")
    return [False, True] if kind == "boolean" else [None] if kind == "null" else None


def _kinds(schema: Node) -> set[str]:
    named = schema.get("type", _TYPES)
    kinds = {named} if isinstance(named, str) else set(named)
    return kinds | {"integer"} if "number" in kinds else kinds


def _takes_kind(kind: str, branch: Node) -> bool:
    return bool(_kinds(branch) & {kind}) or any(name in branch for name in ("anyOf", "oneOf", "allOf"))


def _item(schema: Node, place: int) -> Any:
    first = schema.get("prefixItems", ())
    return first[place] if place < len(first) else schema.get("items", {})


def _property(schema: Node, name: str | None) -> Any:
    """What a schema says of a property, or of those it does not name."""
    properties = schema.get("properties", {})
    return properties[name] if name in properties else schema.get("additionalProperties", {})


def _sent_property(schema: Node, name: str) -> Any:
    """The same for what is given: an object that is open to anything is not counted as having a property it does not name."""
    found = _property(schema, name)
    return False if name not in schema.get("properties", {}) and found in ({}, True) else found


# --- rules of one type --------------------------------------------------------------------------------------------


def _compare_numbers(given: Node, taken: Node, path: str) -> Iterator[Incompatibility]:
    if "number" in _kinds(given) and "number" not in _kinds(taken):
        yield Incompatibility(path, "may have a fraction where an integer is expected")
    yield from _bound(given, taken, path, "minimum", "exclusiveMinimum", "below", sign=1)
    yield from _bound(given, taken, path, "maximum", "exclusiveMaximum", "above", sign=-1)
    step = taken.get("multipleOf")
    if step is not None and not _is_multiple(
        given.get("multipleOf", 1 if _kinds(given) == {"integer"} else None), step
    ):
        yield Incompatibility(path, f"may be no multiple of {step}")


def _bound(
    given: Node, taken: Node, path: str, name: str, exclusive: str, word: str, *, sign: int
) -> Iterator[Incompatibility]:
    """Whether the given end of a range lies outside the taken one; `sign` makes the highest a lowest."""
    inner, outer = _end(given, name, exclusive, sign), _end(taken, name, exclusive, sign)
    if outer is not None and (inner is None or inner < outer):
        yield Incompatibility(
            path, f"may be {word} {sign * outer[0]}" if not outer[1] else f"may be {sign * outer[0]} or {word} it"
        )


def _end(schema: Node, name: str, exclusive: str, sign: int) -> tuple[float, bool] | None:
    """The tightest end of a range, and whether it is itself left out."""
    ends = [
        (sign * schema[key], key == exclusive) for key in (name, exclusive) if isinstance(schema.get(key), int | float)
    ]
    return max(ends, default=None)


def _is_multiple(step: float | None, of: float) -> bool:
    return step is not None and of != 0 and (step / of) == int(step / of)


def _compare_texts(given: Node, taken: Node, path: str) -> Iterator[Incompatibility]:
    yield from _limit(given, taken, path, "minLength", "may be shorter than {} characters", lowest=True)
    yield from _limit(given, taken, path, "maxLength", "may be longer than {} characters", lowest=False)
    for name, word in (("pattern", "of another pattern than"), ("format", "no"), ("contentEncoding", "no")):
        if name in taken and given.get(name) != taken[name]:
            yield Incompatibility(path, f"may be {word} {taken[name]}")


def _limit(given: Node, taken: Node, path: str, name: str, sentence: str, *, lowest: bool) -> Iterator[Incompatibility]:
    outer, inner = taken.get(name, 0 if lowest else None), given.get(name, 0 if lowest else None)
    if outer is not None and (inner is None or (inner < outer if lowest else inner > outer)):
        yield Incompatibility(path, sentence.format(outer))


# --- words --------------------------------------------------------------------------------------------------------


def _article(kind: str) -> str:
    return "null" if kind == "null" else f"{'an' if kind[0] in 'aeio' else 'a'} {kind}"


def _wanted_words(taken: Node) -> str:
    named = taken.get("type", _TYPES)
    return " or ".join(_article(each) for each in ([named] if isinstance(named, str) else named))


def _short(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:57] + "..."
