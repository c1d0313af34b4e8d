"""TypeBox's `Value.Create`: the value a schema has when nothing is known, defaults first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from enfold.schema.cast.failure import cannot_create, too_deep, too_large
from enfold.schema.cast.javascript import spread
from enfold.schema.cast.kinds import Kind, KindName
from enfold.schema.cast.typebox_check import Answers, Checks, dead_reference
from enfold.schema.nodes.copies import clone
from enfold.schema.nodes.node import MISSING

# A few lines of schema can ask for a value of any size; what one cast may invent ends here.
_MAX_CREATED: Final = 100_000
_MAX_TEXT: Final = 1_000_000

# TypeBox allows this many references to an ancestor in one value.
_MAX_RECURSIONS: Final = 512
_ENDLESS: Final = "Cannot create recursive type as it appears possibly infinite. Consider using a default."


class Creator:
    """Creates values during one cast, and counts them."""

    def __init__(self, checks: Checks, answers: Answers) -> None:
        self._checks = checks
        self._answers = answers
        self._created = 0
        self._recursions = 0
        self._under_way: list[Kind] = []

    def create(self, node: Kind) -> Any:
        self._recursions = 0
        self._under_way.clear()
        return self.part(node)

    def part(self, node: Any) -> Any:
        self.spend(1)
        if node.to_ancestor:
            self._count_recursion()
        if node.default is not MISSING:
            return clone(node.default)
        return _CREATORS[node.kind](self, node)

    def spend(self, count: float) -> None:
        self._created += int(count)
        if self._created > _MAX_CREATED:
            raise too_large("The value")

    def check(self, node: Kind, value: Any) -> bool:
        return self._checks.fits(node, value, self._answers)

    def target(self, node: Kind) -> Any:
        """The value of what a reference points to; raises where that leads to the same reference again, without end."""
        targets = [other.target for other in self._under_way]
        if node.target in targets:
            circle = [node, *self._under_way[targets.index(node.target) :]]
            raise cannot_create(_ENDLESS) if any(other.to_ancestor for other in circle) else too_deep()
        self._under_way.append(node)
        value = self.part(follow(node))
        self._under_way.pop()
        return value

    def _count_recursion(self) -> None:
        self._recursions += 1
        if self._recursions > _MAX_RECURSIONS + 1:
            raise cannot_create(_ENDLESS)


def follow(node: Kind) -> Kind:
    """What a reference points to; a CastError where that is nothing, or itself."""
    if node.followed.is_reference:
        raise dead_reference(node.followed)
    return node.followed


def _string(_: Creator, node: Kind) -> str:
    if node.pattern is not None:
        raise cannot_create("String types with patterns must specify a default value")
    size = int(node.min_length or 0)
    if size > _MAX_TEXT:
        raise too_large("The value")
    return " " * size


def _number(_: Creator, node: Kind) -> float:
    return 0 if node.minimum is None else node.minimum


def _object(creator: Creator, node: Kind) -> dict[str, Any]:
    return {name: creator.part(part) for name, part in (node.properties or {}).items() if name in node.required_names}


def _array(creator: Creator, node: Kind) -> list[Any]:
    if node.unique:
        raise cannot_create("Array with the uniqueItems constraint requires a default value")
    if node.contains is not None:
        raise cannot_create("Array with the contains constraint requires a default value")
    return [creator.part(node.items) for _ in range(int(node.min_items or 0))]


def _tuple(creator: Creator, node: Kind) -> list[Any]:
    return [creator.part(part) for part in node.prefix]


def _union(creator: Creator, node: Kind) -> Any:
    return creator.part(node.any_of[0])


def _intersect(creator: Creator, node: Kind) -> Any:
    value: Any = {}
    for member in node.all_of:
        part = creator.part(member)
        # To JavaScript null is an object, and an array too.
        value = {**spread(value), **spread(part)} if isinstance(part, dict | list | None) else part
    if not creator.check(node, value):
        raise cannot_create("Intersect produced invalid value. Consider using a default value.")
    return value


def _never(_: Creator, __: Kind) -> Any:
    raise cannot_create("Never types cannot be created. Consider using a default value.")


def _not(_: Creator, __: Kind) -> Any:
    raise cannot_create("Not types must have a default value")


def _first_value(_: Creator, node: Kind) -> Any:
    return clone((node.enum or [None])[0])


_CREATORS: Final[dict[KindName, Callable[[Creator, Any], Any]]] = {
    "Unknown": lambda _, __: {},
    "Never": _never,
    "Not": _not,
    "Null": lambda _, __: None,
    "Boolean": lambda _, __: False,
    "String": _string,
    "Number": _number,
    "Literal": _first_value,
    "Enum": _first_value,
    "Object": _object,
    "Record": lambda _, __: {},
    "Array": _array,
    "Tuple": _tuple,
    "Union": _union,
    "Intersect": _intersect,
    "Ref": Creator.target,
    "Import": lambda creator, node: creator.part(follow(node)),
}
