"""TypeBox 0.34's `Value.Cast` for plain JSON Schema: converts a value to the shape of a schema.

Intentional differences from TypeBox: `format` is an annotation; integers of any size stay exact; names of JavaScript's
built-in properties (`constructor`) are ordinary, and numeric names keep their order; surrogate pairs are never split;
schemas and values that would exhaust JavaScript's stack or memory raise the same RangeError, only earlier.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from enfold.schema.budget import shared_budget
from enfold.schema.cast.check import Answers, Checks, dead_reference
from enfold.schema.cast.kinds import (
    CastError,
    Kind,
    KindName,
    as_object,
    cannot_cast,
    cannot_create,
    distinct,
    length,
    read_kinds,
    spread,
    too_deep,
    too_large,
)
from enfold.schema.nodes import MISSING
from enfold.schema.nodes.values import CompiledSchemas, clone

__all__ = ["CastError", "cast"]


def cast(schema: dict[str, Any] | bool, value: Any) -> Any:
    """Cast a JSON value like TypeBox 0.34's `Value.Cast`; raise CastError where it throws.

    The value is not modified, and a valid one is returned unchanged. Other results may share parts with it.
    """
    try:
        checks = _compiled.of(schema)
        memo = checks.new_memo()
        with shared_budget():
            if checks.fits(checks.root, value, memo):
                return value
            return Caster(checks, memo).cast(checks.root, value)
    except RecursionError:
        raise too_deep() from None


_compiled: Final = CompiledSchemas(lambda schema: Checks(read_kinds(schema)))


# Larger objects are rebuilt without a generated function, which would take most of a second to compile.
_WORTH_COMPILING: Final = 200


# Limits of the values that one cast may create, since a small schema can require a value of any size.
_MAX_CREATED: Final = 100_000
_MAX_TEXT: Final = 1_000_000

# TypeBox allows this many references to an ancestor in one value.
_MAX_RECURSIONS: Final = 512
_ENDLESS: Final = "Cannot create recursive type as it appears possibly infinite. Consider using a default."


class Caster:
    """One cast in progress, with the number of values that it has created."""

    def __init__(self, checks: Checks, memo: Answers) -> None:
        self.checks = checks
        self.memo = memo
        self._scores: dict[tuple[int, int], tuple[int, Any]] = {}
        self._holes: list[tuple[Any, Any]] = []
        self._created = 0
        self._recursions = 0
        self._under_way: list[Kind] = []  # the references whose targets are being created

    def cast(self, root: Kind, value: Any) -> Any:
        result = self.cast_invalid(root, value)
        self._fill_holes()
        return result

    def visit(self, node: Any, value: Any) -> Any:
        """Return the value if it is valid for the kind, otherwise cast it."""
        return value if self.check(node, value) else self.cast_invalid(node, value)

    def visit_missing(self, node: Any) -> Any:
        """Cast a missing value; for most kinds the rules decide without compiling a check."""
        return self.cast_invalid(node, MISSING) if self.checks.refuses_missing(node) else self.visit(node, MISSING)

    def check(self, node: Any, value: Any) -> bool:
        return self.checks.fits(node, value, self.memo)

    def cast_invalid(self, node: Any, value: Any) -> Any:
        """Cast a value that is invalid for the kind."""
        if node.is_reference:
            node = follow(node)
        return _CASTS[node.kind](self, node, value)

    def create(self, node: Kind, _: Any = None) -> Any:
        """Create a value of a kind, as TypeBox's `Value.Create` does."""
        self._recursions = 0
        self._under_way.clear()
        return self.part(node)

    def part(self, node: Any) -> Any:
        self.spend(1)
        if node.to_ancestor:
            self._recursions += 1
            if self._recursions > _MAX_RECURSIONS + 1:
                raise cannot_create(_ENDLESS)
        if node.default is not MISSING:
            return clone(node.default)
        return _CREATORS[node.kind](self, node)

    def spend(self, count: float) -> None:
        self._created += int(count)
        if self._created > _MAX_CREATED:
            raise too_large("The value")

    def target(self, node: Kind) -> Any:
        """Create the value of a reference's target; raise for an infinite recursion."""
        targets = [other.target for other in self._under_way]
        if node.target in targets:
            circle = [node, *self._under_way[targets.index(node.target) :]]
            raise cannot_create(_ENDLESS) if any(other.to_ancestor for other in circle) else too_deep()
        self._under_way.append(node)
        value = self.part(follow(node))
        self._under_way.pop()
        return value

    def variants(self, node: Any) -> list[Kind]:
        return [variant if variant.kind == "Import" else follow(variant) for variant in node.any_of]

    def put(self, container: Any, place: Any, value: Any) -> None:
        """Store a part of a result; one that stays missing is removed at the end, as JSON does."""
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
        """Return how well a variant of a union fits, as a relative score."""
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
    result = _rebuild(caster, node, own) if rebuild is None else rebuild(own, caster, caster.memo)
    if node.additional is not None and not node.is_closed:
        extras = ((name, item) for name, item in own.items() if name not in properties)
        result.update((name, caster.visit(node.additional, item)) for name, item in extras)
    return result


def _rebuild(caster: Caster, node: Kind, own: dict[str, Any]) -> dict[str, Any]:
    """Rebuild an object without a generated function."""
    result: dict[str, Any] = {}
    for name, part in (node.properties or {}).items():
        if name in own:
            result[name] = caster.visit(part, own[name])
        elif name in node.required_names:
            caster.put(result, name, caster.visit_missing(part))
    return result


def _record(caster: Caster, node: Kind, value: Any) -> Any:
    """Cast every value of a map to its kind, whether or not its key matches the pattern."""
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
    """Return a created array as a list; a default may be any value, and JavaScript spreads a short string."""
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
        caster.spend(lacking)
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
    """Return the properties of a correct value, overridden by those of the given value."""
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


def follow(node: Kind) -> Kind:
    """Return the target of a reference; raise CastError where it is unresolved or circular."""
    if node.followed.is_reference:
        raise dead_reference(node.followed)
    return node.followed


def _create_string(_: Caster, node: Kind) -> str:
    if node.pattern is not None:
        raise cannot_create("String types with patterns must specify a default value")
    size = int(node.min_length or 0)
    if size > _MAX_TEXT:
        raise too_large("The value")
    return " " * size


def _create_array(caster: Caster, node: Kind) -> list[Any]:
    if node.unique:
        raise cannot_create("Array with the uniqueItems constraint requires a default value")
    if node.contains is not None:
        raise cannot_create("Array with the contains constraint requires a default value")
    return [caster.part(node.items) for _ in range(int(node.min_items or 0))]


def _create_intersect(caster: Caster, node: Kind) -> Any:
    value: Any = {}
    for member in node.all_of:
        part = caster.part(member)
        # In JavaScript null and arrays are objects.
        value = {**spread(value), **spread(part)} if isinstance(part, dict | list | None) else part
    if not caster.check(node, value):
        raise cannot_create("Intersect produced invalid value. Consider using a default value.")
    return value


def _refusing(message: str) -> Callable[[Caster, Kind], Any]:
    def refuse(_: Caster, __: Kind) -> Any:
        raise cannot_create(message)

    return refuse


def _first_value(_: Caster, node: Kind) -> Any:
    return clone((node.enum or [None])[0])


_CREATORS: Final[dict[KindName, Callable[[Caster, Any], Any]]] = {
    "Unknown": lambda _, __: {},
    "Never": _refusing("Never types cannot be created. Consider using a default value."),
    "Not": _refusing("Not types must have a default value"),
    "Null": lambda _, __: None,
    "Boolean": lambda _, __: False,
    "String": _create_string,
    "Number": lambda _, node: 0 if node.minimum is None else node.minimum,
    "Literal": _first_value,
    "Enum": _first_value,
    "Object": lambda caster, node: {
        name: caster.part(part) for name, part in (node.properties or {}).items() if name in node.required_names
    },
    "Record": lambda _, __: {},
    "Array": _create_array,
    "Tuple": lambda caster, node: [caster.part(part) for part in node.prefix],
    "Union": lambda caster, node: caster.part(node.any_of[0]),
    "Intersect": _create_intersect,
    "Ref": Caster.target,
    "Import": lambda caster, node: caster.part(follow(node)),
}
