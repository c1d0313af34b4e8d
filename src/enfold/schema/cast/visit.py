"""TypeBox's `Value.Cast`, kind by kind: what becomes of a value that its schema does not accept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from enfold.schema.cast import kinds
from enfold.schema.cast.create import Creator
from enfold.schema.cast.failure import CastError, cannot_cast
from enfold.schema.cast.javascript import as_object, clone, distinct, length
from enfold.schema.cast.kinds import MISSING, Kind
from enfold.schema.cast.typebox_check import Checks, Memo

# An object with more properties than this is rebuilt step by step: compiling so many lines takes a good part of a second.
_WORTH_COMPILING: Final = 200


class Caster:
    """One cast under way."""

    def __init__(self, document: kinds.CastSchema, checks: Checks, memo: Memo) -> None:
        self.creator = Creator(document, checks, memo)
        self._document = document
        self.checks = checks
        self.memo = memo
        self._scores: dict[tuple[int, int], tuple[int, Any]] = {}
        self._holes: list[tuple[Any, Any]] = []

    def cast(self, value: Any) -> Any:
        result = self.visit(self._document.root, value)
        self._fill_holes()
        return result

    def visit(self, node: Kind, value: Any) -> Any:
        """The value itself where the kind accepts it, otherwise what the kind makes of it."""
        return value if self.check(node, value) else self.remake(node, value)

    def visit_missing(self, node: Kind) -> Any:
        """What the kind makes of nothing; for most kinds the rules know without a check, which need not be compiled."""
        return self.remake(node, MISSING) if self.checks.missing.refuses(node) else self.visit(node, MISSING)

    def check(self, node: Kind, value: Any) -> bool:
        return self.checks[node.number](value, self.memo)

    def remake(self, node: Kind, value: Any) -> Any:
        """What the kind makes of a value it does not accept."""
        if isinstance(node, kinds.Reference):
            node = self.creator.follow(node)
        return _CASTS[type(node)](self, node, value)

    def create(self, node: Kind, _: Any = None) -> Any:
        return self.creator.create(node)

    def variants(self, node: kinds.Union) -> list[Kind]:
        return [
            variant if isinstance(variant, kinds.Import) else self.creator.follow(variant) for variant in node.variants
        ]

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
        key = (node.number, id(value))
        known = self._scores.get(key)
        if known is None:
            known = self._scores[key] = (_score(self, node, value), value)
        return known[0]


def _object(caster: Caster, node: kinds.Object, value: Any) -> Any:
    own = as_object(value)
    if own is None:
        return caster.create(node)
    small = len(node.properties) <= _WORTH_COMPILING and caster.checks.is_worth_compiling(node)
    result = caster.checks.rebuild(node)(own, caster.memo, caster) if small else _rebuild(caster, node, own)
    if isinstance(node.extra, Kind):
        extras = ((name, item) for name, item in own.items() if name not in node.properties)
        result.update((name, caster.visit(node.extra, item)) for name, item in extras)
    return result


def _rebuild(caster: Caster, node: kinds.Object, own: dict[str, Any]) -> dict[str, Any]:
    """What the generated function of an object does, for those with so many properties that it would not pay."""
    result: dict[str, Any] = {}
    for name, part in node.properties.items():
        if name in own:
            result[name] = caster.visit(part, own[name])
        elif name in node.required:
            caster.put(result, name, caster.visit_missing(part))
    return result


def _record(caster: Caster, node: kinds.Record, value: Any) -> Any:
    if not isinstance(value, dict):
        return caster.create(node)
    return {name: caster.visit(node.values, item) for name, item in value.items()}


def _array(caster: Caster, node: kinds.Array, value: Any) -> Any:
    items = value if isinstance(value, list) else _listed(node, caster.create(node))
    sized = _resize(caster, node, items)
    result = [caster.visit(node.items, item) for item in sized]
    return _only_once(caster, node, result) if node.unique else result


def _listed(node: kinds.Array, created: Any) -> list[Any]:
    """What was created as a list; a default may be anything, and JavaScript spreads a text that is too short."""
    if isinstance(created, list):
        return created
    if isinstance(created, str) and length(created) < (node.minimum_size or 0):
        return list(created)
    if created is None:
        raise CastError("TypeError", "Cannot read properties of null (reading 'map')")
    raise CastError("TypeError", "maximum.map is not a function")


def _resize(caster: Caster, node: kinds.Array, items: list[Any]) -> list[Any]:
    if node.minimum_size is not None and len(items) < node.minimum_size:
        lacking = int(node.minimum_size - len(items))
        caster.creator.spend(lacking)
        items = [*items, *[None] * lacking]
    if node.maximum_size is not None and len(items) > node.maximum_size:
        items = items[: int(node.maximum_size)]
    return items


def _only_once(caster: Caster, node: kinds.Array, items: list[Any]) -> list[Any]:
    unique = distinct(items)
    if not caster.check(node, unique):
        raise cannot_cast("Array cast produced invalid data due to uniqueItems constraint")
    return unique


def _tuple(caster: Caster, node: kinds.Tuple, value: Any) -> Any:
    if not isinstance(value, list):
        return caster.create(node)
    result = [MISSING] * len(node.items)
    for i, part in enumerate(node.items):
        caster.put(result, i, caster.visit(part, value[i]) if i < len(value) else caster.visit_missing(part))
    return result


def _union(caster: Caster, node: kinds.Union, value: Any) -> Any:
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
    own = as_object(value) if isinstance(node, kinds.Object) else None
    if isinstance(node, kinds.Object) and own is not None:
        return sum(_score_property(caster, part, own.get(name, MISSING)) for name, part in node.properties.items())
    if isinstance(node, kinds.Union):
        return max(caster.score(variant, value) for variant in caster.variants(node))
    return int(caster.check(node, value))


def _score_property(caster: Caster, node: Kind, value: Any) -> int:
    fits = caster.check(node, value)
    tag = 100 if fits and isinstance(node, kinds.Literal) else 0
    return tag + (10 if fits else 0) + (value is not MISSING)


def _intersect(caster: Caster, node: kinds.Intersect, value: Any) -> Any:
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


def _never(_: Caster, __: kinds.Never, ___: Any) -> Any:
    raise cannot_cast("Never types cannot be cast")


_CASTS: Final[dict[type[Kind], Callable[[Caster, Any, Any], Any]]] = {
    kinds.Object: _object,
    kinds.Record: _record,
    kinds.Array: _array,
    kinds.Tuple: _tuple,
    kinds.Union: _union,
    kinds.Intersect: _intersect,
    kinds.Never: _never,
    **dict.fromkeys(
        (kinds.Unknown, kinds.Not, kinds.Null, kinds.Boolean, kinds.String, kinds.Number, kinds.Literal, kinds.Enum),
        Caster.create,
    ),
}
