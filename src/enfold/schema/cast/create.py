"""TypeBox's `Value.Create`: the value a schema has when nothing is known, defaults first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from enfold.schema.cast import kinds
from enfold.schema.cast.check_code import dead_reference
from enfold.schema.cast.failure import cannot_create, too_deep, too_large
from enfold.schema.cast.javascript import clone, spread
from enfold.schema.cast.kinds import MISSING, Kind
from enfold.schema.cast.typebox_check import Checks, Memo

# A few lines of schema can ask for a value of any size; what one cast may invent ends here.
_MOST_CREATED: Final = 100_000
_LONGEST_TEXT: Final = 1_000_000

# TypeBox allows this many references to an ancestor in one value.
_MOST_RECURSIONS: Final = 512
_ENDLESS: Final = "Cannot create recursive type as it appears possibly infinite. Consider using a default."


class Creator:
    """Creates values during one cast, and counts them."""

    def __init__(self, document: kinds.CastSchema, checks: Checks, memo: Memo) -> None:
        self._document = document
        self._checks = checks
        self._memo = memo
        self._created = 0
        self._recursions = 0
        self._under_way: list[kinds.Ref] = []

    def create(self, node: Kind) -> Any:
        self._recursions = 0
        self._under_way.clear()
        return self.part(node)

    def part(self, node: Kind) -> Any:
        self.spend(1)
        if isinstance(node, kinds.Ref) and node.to_ancestor:
            self._count_recursion()
        if node.default is not MISSING:
            return clone(node.default)
        return _CREATORS[type(node)](self, node)

    def spend(self, count: float) -> None:
        self._created += int(count)
        if self._created > _MOST_CREATED:
            raise too_large("The value")

    def check(self, node: Kind, value: Any) -> bool:
        return self._checks[node.number](value, self._memo)

    def target(self, node: kinds.Ref) -> Any:
        """What a reference points to, created; whoever comes by again before that is done would never come back."""
        slots = [other.slot for other in self._under_way]
        if node.slot in slots:
            circle = [node, *self._under_way[slots.index(node.slot) :]]
            raise cannot_create(_ENDLESS) if any(other.to_ancestor for other in circle) else too_deep()
        self._under_way.append(node)
        value = self.part(self.follow(node))
        self._under_way.pop()
        return value

    def follow(self, node: Kind) -> Kind:
        target = self._document.follow(node)
        if isinstance(target, kinds.Reference):
            raise dead_reference(target)
        return target

    def _count_recursion(self) -> None:
        self._recursions += 1
        if self._recursions > _MOST_RECURSIONS + 1:
            raise cannot_create(_ENDLESS)


def _string(_: Creator, node: kinds.String) -> str:
    if node.pattern is not None:
        raise cannot_create("String types with patterns must specify a default value")
    size = int(node.minimum_length or 0)
    if size > _LONGEST_TEXT:
        raise too_large("The value")
    return " " * size


def _number(_: Creator, node: kinds.Number) -> float:
    return 0 if node.minimum is None else node.minimum


def _object(creator: Creator, node: kinds.Object) -> dict[str, Any]:
    return {name: creator.part(part) for name, part in node.properties.items() if name in node.required}


def _array(creator: Creator, node: kinds.Array) -> list[Any]:
    if node.unique:
        raise cannot_create("Array with the uniqueItems constraint requires a default value")
    if node.contains is not None:
        raise cannot_create("Array with the contains constraint requires a default value")
    return [creator.part(node.items) for _ in range(int(node.minimum_size or 0))]


def _tuple(creator: Creator, node: kinds.Tuple) -> list[Any]:
    return [creator.part(part) for part in node.items]


def _union(creator: Creator, node: kinds.Union) -> Any:
    return creator.part(node.variants[0])


def _intersect(creator: Creator, node: kinds.Intersect) -> Any:
    value: Any = {}
    for member in node.members:
        part = creator.part(member)
        # To JavaScript null is an object, and an array too.
        value = {**spread(value), **spread(part)} if isinstance(part, dict | list | None) else part
    if not creator.check(node, value):
        raise cannot_create("Intersect produced invalid value. Consider using a default value.")
    return value


def _never(_: Creator, __: kinds.Never) -> Any:
    raise cannot_create("Never types cannot be created. Consider using a default value.")


def _not(_: Creator, __: kinds.Not) -> Any:
    raise cannot_create("Not types must have a default value")


_CREATORS: Final[dict[type[Kind], Callable[[Creator, Any], Any]]] = {
    kinds.Unknown: lambda _, __: {},
    kinds.Never: _never,
    kinds.Not: _not,
    kinds.Null: lambda _, __: None,
    kinds.Boolean: lambda _, __: False,
    kinds.String: _string,
    kinds.Number: _number,
    kinds.Literal: lambda _, node: clone(node.value),
    kinds.Enum: lambda _, node: clone(node.values[0]),
    kinds.Object: _object,
    kinds.Record: lambda _, __: {},
    kinds.Array: _array,
    kinds.Tuple: _tuple,
    kinds.Union: _union,
    kinds.Intersect: _intersect,
    kinds.Ref: Creator.target,
    kinds.Import: lambda creator, node: creator.part(creator.follow(node)),
}
