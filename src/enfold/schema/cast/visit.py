"""TypeBox's `Value.Cast`, kind by kind: what becomes of a value that its schema does not accept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from enfold.schema.cast.create import Creator, follow
from enfold.schema.cast.failure import CastError, cannot_cast
from enfold.schema.cast.javascript import as_object, distinct, length
from enfold.schema.cast.kinds import Kind, KindName
from enfold.schema.cast.typebox_check import Answers, Checks
from enfold.schema.nodes.copies import clone
from enfold.schema.nodes.node import MISSING

# An object with more properties than this is rebuilt step by step: compiling so many lines takes a good part of a second.
_WORTH_COMPILING: Final = 200


class Caster:
    """One cast under way."""

    def __init__(self, checks: Checks, answers: Answers) -> None:
        self.creator = Creator(checks, answers)
        self.checks = checks
        self.answers = answers
        self._scores: dict[tuple[int, int], tuple[int, Any]] = {}
        self._holes: list[tuple[Any, Any]] = []

    def cast(self, root: Kind, value: Any) -> Any:
        result = self.cast_invalid(root, value)
        self._fill_holes()
        return result

    def visit(self, node: Any, value: Any) -> Any:
        """The value itself where the kind accepts it, otherwise what the kind makes of it."""
        return value if self.check(node, value) else self.cast_invalid(node, value)

    def visit_missing(self, node: Any) -> Any:
        """What the kind makes of nothing; for most kinds the rules know without a check, which need not be compiled."""
        return self.cast_invalid(node, MISSING) if self.checks.missing.refuses(node) else self.visit(node, MISSING)

    def check(self, node: Any, value: Any) -> bool:
        return self.checks.fits(node, value, self.answers)

    def cast_invalid(self, node: Any, value: Any) -> Any:
        """What the kind makes of a value it does not accept."""
        if node.is_reference:
            node = follow(node)
        return _CASTS[node.kind](self, node, value)

    def create(self, node: Kind, _: Any = None) -> Any:
        return self.creator.create(node)

    def variants(self, node: Any) -> list[Kind]:
        return [variant if variant.kind == "Import" else follow(variant) for variant in node.any_of]

    def put(self, container: Any, place: Any, value: Any) -> None:
        """Stores a part of a result; one that stays missing is taken out again at the end, as JSON would."""
        container[place] = value
        if value is MISSING:
            self._holes.append((container, place))

    def _fill_holes(self) -> None:
        for container, place in self._holes:
            if isinstance(container, dict):
                del container[place]
            else:
                container[place] = None

    def score(self, node: Kind, value: Any) -> int:
        """How well a variant of a union fits: whole numbers that only mean something beside each other."""
        key = (node.index, id(value))
        known = self._scores.get(key)
        if known is None:
            known = self._scores[key] = (_score(self, node, value), value)
        return known[0]


def _object(caster: Caster, node: Kind, value: Any) -> Any:
    own = as_object(value)
    if own is None:
        return caster.create(node)
    properties = node.properties or {}
    rebuild = caster.checks.rebuild(node) if len(properties) <= _WORTH_COMPILING else None
    result = _rebuild(caster, node, own) if rebuild is None else rebuild(own, caster, caster.answers)
    if node.additional is not None and not node.is_closed:
        extras = ((name, item) for name, item in own.items() if name not in properties)
        result.update((name, caster.visit(node.additional, item)) for name, item in extras)
    return result


def _rebuild(caster: Caster, node: Kind, own: dict[str, Any]) -> dict[str, Any]:
    """What the generated function of an object does, for those with so many properties that it would not pay."""
    result: dict[str, Any] = {}
    for name, part in (node.properties or {}).items():
        if name in own:
            result[name] = caster.visit(part, own[name])
        elif name in node.required_names:
            caster.put(result, name, caster.visit_missing(part))
    return result


def _record(caster: Caster, node: Kind, value: Any) -> Any:
    """Every value is cast to the one kind that a map has, whether or not its key matches the pattern."""
    if not isinstance(value, dict):
        return caster.create(node)
    values = node.patterns[0][1] if node.patterns else node.additional
    return {name: caster.visit(values, item) for name, item in value.items()}


def _array(caster: Caster, node: Kind, value: Any) -> Any:
    items = value if isinstance(value, list) else _listed(node, caster.create(node))
    sized = _resize(caster, node, items)
    result = [caster.visit(node.items, item) for item in sized]
    return _only_once(caster, node, result) if node.unique else result


def _listed(node: Kind, created: Any) -> list[Any]:
    """What was created as a list; a default may be anything, and JavaScript spreads a text that is too short."""
    if isinstance(created, list):
        return created
    if isinstance(created, str) and length(created) < (node.min_items or 0):
        return list(created)
    if created is None:
        raise CastError("TypeError", "Cannot read properties of null (reading 'map')")
    raise CastError("TypeError", "maximum.map is not a function")


def _resize(caster: Caster, node: Kind, items: list[Any]) -> list[Any]:
    if node.min_items is not None and len(items) < node.min_items:
        lacking = int(node.min_items - len(items))
        caster.creator.spend(lacking)
        items = [*items, *[None] * lacking]
    if node.max_items is not None and len(items) > node.max_items:
        items = items[: int(node.max_items)]
    return items


def _only_once(caster: Caster, node: Kind, items: list[Any]) -> list[Any]:
    unique = distinct(items)
    if not caster.check(node, unique):
        raise cannot_cast("Array cast produced invalid data due to uniqueItems constraint")
    return unique


def _tuple(caster: Caster, node: Kind, value: Any) -> Any:
    if not isinstance(value, list):
        return caster.create(node)
    result: list[Any] = [MISSING] * len(node.prefix)
    for i, part in enumerate(node.prefix):
        caster.put(result, i, caster.visit(part, value[i]) if i < len(value) else caster.visit_missing(part))
    return result


def _union(caster: Caster, node: Kind, value: Any) -> Any:
    if node.default is not MISSING:
        return clone(node.default)
    variants = caster.variants(node)
    chosen, best = variants[0], 0
    for variant in variants:
        score = caster.score(variant, value)
        if score > best:
            chosen, best = variant, score
    return caster.visit(chosen, value)


def _score(caster: Caster, node: Kind, value: Any) -> int:
    own = as_object(value) if node.kind == "Object" else None
    if own is not None:
        properties = node.properties or {}
        return sum(_score_property(caster, part, own.get(name, MISSING)) for name, part in properties.items())
    if node.kind == "Union":
        return max(caster.score(variant, value) for variant in caster.variants(node))
    return int(caster.check(node, value))


def _score_property(caster: Caster, node: Any, value: Any) -> int:
    fits = caster.check(node, value)
    tag = 100 if fits and node.kind == "Literal" else 0
    return tag + (10 if fits else 0) + (value is not MISSING)


def _intersect(caster: Caster, node: Kind, value: Any) -> Any:
    correct = caster.create(node)
    assigned = _assign(correct, value)
    return assigned if caster.check(node, assigned) else correct


def _assign(correct: Any, value: Any) -> Any:
    """The properties of a correct value, each with what the given value has there."""
    known, given = as_object(correct), as_object(value)
    if known is None and given is None:
        return value
    if known is None or given is None:
        return correct
    return {name: _assign(part, given[name]) if name in given else part for name, part in known.items()}


def _never(_: Caster, __: Kind, ___: Any) -> Any:
    raise cannot_cast("Never types cannot be cast")


_CASTS: Final[dict[KindName, Callable[[Caster, Any, Any], Any]]] = {
    "Object": _object,
    "Record": _record,
    "Array": _array,
    "Tuple": _tuple,
    "Union": _union,
    "Intersect": _intersect,
    "Never": _never,
    **dict.fromkeys(("Unknown", "Not", "Null", "Boolean", "String", "Number", "Literal", "Enum"), Caster.create),
}
