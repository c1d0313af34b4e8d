"""Schema compatibility: whether every value valid for one schema is valid for another.

The comparison is structural and conservative: keywords it cannot compare are reported as incompatible unless equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

import msgspec

from enfold.schema import messages
from enfold.schema.compiled import Schema, compile_schema
from enfold.schema.nodes import Node
from enfold.schema.nodes.traits import accepted, constraining_parts, is_blank, item_node, rest_node
from enfold.schema.nodes.values import is_multiple
from enfold.schema.repairs.bundle import Bundle, Property

MAX_REPORTED: Final = 20
MAX_STEPS: Final = 20_000

# Node fields that must be equal because they are not compared, with their keywords.
_CONDITIONS: Final = {
    "not_": ("not",),
    "if_": ("if", "then", "else"),
    "contains": ("contains", "minContains", "maxContains"),
    "dependent_required": ("dependentRequired", "dependencies"),
    "dependent_schemas": ("dependentSchemas", "dependencies"),
    "patterns": ("patternProperties",),
    "unmatched": ("patternProperties",),
    "names": ("propertyNames",),
    "unevaluated_properties": ("unevaluatedProperties",),
    "unevaluated_items": ("unevaluatedItems",),
}
# The type that a size limit applies to, its field, its message, and whether it is a minimum (1) or a maximum (-1).
_COUNTS: Final = (
    ("string", "min_length", "may be shorter than {} characters", 1),
    ("string", "max_length", "may be longer than {} characters", -1),
    ("array", "min_items", "may have fewer than {} items", 1),
    ("array", "max_items", "may have more than {} items", -1),
    ("object", "min_properties", "may have fewer than {} properties", 1),
    ("object", "max_properties", "may have more than {} properties", -1),
)
_TEXTS: Final = (("pattern", "may not match"), ("format", "may not be"), ("contentEncoding", "may not be"))
_NUMBERS: Final = frozenset({"integer", "number"})
_TWO_VALUES: Final[dict[frozenset[str], list[Any]]] = {
    frozenset({"boolean"}): [False, True],
    frozenset({"null"}): [None],
}


class Incompatibility(msgspec.Struct, frozen=True):
    """A location where a given value may be rejected, and the reason as the predicate of a sentence."""

    path: str
    why: str

    def __str__(self) -> str:
        return f"{self.path or 'the value'} {self.why}"


Found: TypeAlias = list[Incompatibility]


def incompatibilities(given: Any, taken: Any, *, ignores_extras: bool = False) -> Found:
    """Return the reasons why a value valid for `given` may be invalid for `taken`; empty if it is always valid.

    With `ignores_extras` the receiver ignores undeclared properties, as readers of responses do.
    """
    one, other = compile_schema(given), compile_schema(taken)
    problem = one.problem or other.problem
    if problem is not None:
        return [Incompatibility("", f"cannot be compared: {problem}")]
    try:
        return _Comparison(other, ignores_extras=ignores_extras).compare(one.bundles.alone(one.root), other.root, "")[
            :MAX_REPORTED
        ]
    except (_TooMuchError, RecursionError):
        return [Incompatibility("", "is too large to be compared")]


class _TooMuchError(Exception):
    pass


class _Comparison:
    """Compares the bundle given at a location with each node that takes it; a recurring pair counts as compatible."""

    def __init__(self, taken: Schema, *, ignores_extras: bool) -> None:
        self._taken = taken
        self._ignores_extras = ignores_extras
        self._met: set[tuple[Bundle, Node]] = set()
        self._steps = 0

    def compare(self, given: Bundle, taken: Node, path: str) -> Found:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise _TooMuchError
        if (given, taken) in self._met:
            return []
        self._met.add((given, taken))
        return self._compare(given, taken, path)

    def _compare(self, given: Bundle, taken: Node, path: str) -> Found:
        """Compare alternatives of the given side first, then enumerated values, then each part of the taking side."""
        parts = constraining_parts(taken)
        if not parts or not given.types or _is_never(given.parts):
            return []
        if _is_never(parts):
            return [Incompatibility(path, "is no longer accepted")]
        if given.pending is not None:
            choices = [(each,) for each in given.pending.variants] if given.pending.is_union else [()]
            decided = [given.joined(given.pending, choice) for choice in choices]
            return [each for one in decided for each in self.compare(one, taken, path)]
        values = _values(given)
        if values is not None:
            fits = self._taken.bundles.check_of(taken)
            refused = [messages.short_json(value) for value in values if not fits(value)]
            return [Incompatibility(path, f"may be {text}, which is not accepted") for text in refused]
        return [each for part in parts for each in self._compare_part(given, part, path)]

    def _compare_part(self, given: Bundle, part: Node, path: str) -> Iterator[Incompatibility]:
        for variants in (part.any_of, part.one_of):
            for kind in sorted(given.types) if variants else ():
                yield from self._compare_kind(given.only(kind), kind, variants, path)
        if part.enum is not None:
            listed = ", ".join(map(messages.short_json, part.enum[:5]))
            yield Incompatibility(path, f"may be something other than {listed}")
            return
        foreign = given.types - accepted(part)
        if foreign:
            words = " or ".join(_article(kind) for kind in sorted(foreign))
            expected = " or ".join(map(_article, messages.distinct_types(accepted(part))))
            yield Incompatibility(path, f"may be {words} where {expected} is expected")
            return
        yield from (Incompatibility(path, why) for why in _broken_rules(given, part))
        if "array" in given.types:
            yield from self._compare_items(given, part, path)
        if "object" in given.types:
            yield from self._compare_properties(given, part, path)

    def _compare_kind(self, given: Bundle, kind: str, variants: tuple[Node, ...], path: str) -> Found:
        """Compare values of one type with alternatives, one of which must accept them all."""
        near: list[Found] = []
        for variant in variants:
            met = set(self._met)
            found = self.compare(given, variant, path)
            if not found:
                return []
            self._met = met  # discard assumptions made on the way
            if kind in self._taken.bundles.types_of(variant):
                near.append(found)
        if len(near) == 1:
            return near[0]
        return [Incompatibility(path, f"may be {_article(kind)} that none of the alternatives accepts")]

    def _compare_items(self, given: Bundle, part: Node, path: str) -> Iterator[Incompatibility]:
        first = max(given.ahead, len(part.prefix))
        for place in range(first + 1):
            taken = item_node(part, place)
            if taken is not None:
                yield from self.compare(given.item(place), taken, f"{path}/{place if place < first else '*'}")

    def _compare_properties(self, given: Bundle, part: Node, path: str) -> Iterator[Incompatibility]:
        for name in part.required:
            if name not in given.required:
                yield Incompatibility(f"{path}/{name}", "may be missing where it is required")
        declared = dict.fromkeys(name for each in given.parts for name in each.properties or ())
        for name in dict.fromkeys((*declared, *(part.properties or ()))):
            sent = given.property(name)
            # An open object does not count as having properties that it does not declare.
            if name in declared or not all(map(is_blank, sent.nodes)):
                yield from self._compare_property(given, sent, part, name, path)
        yield from self._compare_property(given, given.property(_OTHERS), part, _OTHERS, path)

    def _compare_property(self, given: Bundle, sent: Property, part: Node, name: Any, path: str) -> Found:
        named = (part.properties or {}).get(name)
        taken = rest_node(part, name) if named is None else named
        is_passed_over = named is None and self._ignores_extras and taken is not None and taken.never
        if taken is None or sent.is_refused or is_passed_over:
            return []
        return self.compare(given.of(sent.nodes), taken, f"{path}/{'*' if name is _OTHERS else name}")


_OTHERS: Final = object()  # the undeclared properties


def _is_never(parts: Iterable[Node]) -> bool:
    return any(part.never or (part.not_ is not None and is_blank(part.not_)) for part in parts)


def _values(given: Bundle) -> list[Any] | None:
    """Return all given values where they are enumerated or the type has at most two."""
    lists = [part.enum for part in given.parts if part.enum is not None]
    listed = min(lists, key=len) if lists else _TWO_VALUES.get(given.types)
    return None if listed is None else [value for value in listed if given.accepts(value)]


def _broken_rules(given: Bundle, part: Node) -> Iterator[str]:
    """Yield the constraints of a node on the value itself that a given value of the right type may violate."""
    for field, keywords in _CONDITIONS.items():
        if getattr(part, field) and not any(_agree(each, part, keywords) for each in given.parts):
            yield f"has a different {keywords[0]}, which is not compared"
    if given.types & _NUMBERS:
        yield from _broken_bounds(given, part)
    for kind, field, sentence, sign in _COUNTS:
        if kind in given.types and _breaks_count(given, part, field, sign):
            yield sentence.format(getattr(part, field))
    for keyword, phrase in _TEXTS:
        text = part.source.get(keyword)
        is_new = isinstance(text, str) and not any(each.source.get(keyword) == text for each in given.parts)
        if is_new and "string" in given.types:
            yield f"{phrase} {text}"
    if part.unique and "array" in given.types and not any(each.unique for each in given.parts):
        yield "may have duplicate items"


def _agree(one: Node, other: Node, keywords: Iterable[str]) -> bool:
    return all(one.source.get(keyword) == other.source.get(keyword) for keyword in keywords)


def _broken_bounds(given: Bundle, part: Node) -> Iterator[str]:
    for inclusive, exclusive, word, sign in (
        ("minimum", "exclusive_minimum", "below", 1),
        ("maximum", "exclusive_maximum", "above", -1),
    ):
        inner, outer = _bound(given.parts, inclusive, exclusive, sign), _bound([part], inclusive, exclusive, sign)
        if outer is not None and (inner is None or inner < outer):
            end = sign * outer[0]
            yield f"may be {end} or {word} it" if outer[1] else f"may be {word} {end}"
    steps = [each.multiple_of for each in given.parts if each.multiple_of] + ([] if "number" in given.types else [1])
    if part.multiple_of and not any(is_multiple(step, part.multiple_of) for step in steps):
        yield f"may not be a multiple of {part.multiple_of}"


def _bound(parts: Iterable[Node], inclusive: str, exclusive: str, sign: int) -> tuple[float, bool] | None:
    """Return the tightest end of a range and whether it is exclusive; `sign` is -1 for maxima."""
    ends = [(getattr(part, field), field == exclusive) for part in parts for field in (inclusive, exclusive)]
    return max(((sign * end, is_left_out) for end, is_left_out in ends if end is not None), default=None)


def _breaks_count(given: Bundle, part: Node, field: str, sign: int) -> bool:
    outer, unsaid = getattr(part, field), 0 if sign > 0 else None
    inner = max((sign * limit for each in given.parts if (limit := getattr(each, field)) is not None), default=unsaid)
    return outer is not None and (inner is None or inner < sign * outer)


def _article(kind: str) -> str:
    return "null" if kind == "null" else f"{'an' if kind[0] in 'aeio' else 'a'} {kind}"
