"""What repair still does with a value that has more faults than it takes on: it removes what the schema does not know."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, Final

from enfold.schema.nodes.node import Node
from enfold.schema.repairs.bundle import Bundle, Bundles, Pending

_MAX_WAYS: Final = 32
_CONTAINERS: Final = frozenset({dict, list})


def without_unknown(bundles: Bundles, root: Node, value: Any) -> Any:
    """The value without properties that its schema does not know, and otherwise as it came.

    Which variant of a union a value is, is not asked: a property stays if any of them knows it, or is open.
    """
    return _Remover().of([bundles.alone(root)]).apply(value)


class _Remover(dict[tuple[int, ...], "_Place"]):
    """The places of a schema, by the ways to read a value there."""

    def of(self, bundles: Iterable[Bundle]) -> _Place:
        ways: dict[int, Bundle] = {}
        for bundle in bundles:
            for way in _ways(bundle):
                ways[id(way)] = way
            if len(ways) > _MAX_WAYS:
                ways = {}  # nothing is known of this place, and all is kept
                break
        key = tuple(ways)
        if key not in self:
            self[key] = _Place(self, tuple(ways.values()))
        return self[key]


class _Place:
    """All ways to read the value at one place."""

    def __init__(self, places: _Remover, ways: tuple[Bundle, ...]) -> None:
        self._places = places
        self._objects = [way for way in ways if "object" in way.types]
        self._arrays = [way for way in ways if "array" in way.types]
        self._members: dict[Any, _Place] = {}
        self._items: dict[int, _Place] = {}

    def apply(self, value: Any) -> Any:
        if type(value) is dict:
            return self._object(value) if self._objects else value
        return self._array(value) if self._arrays else value

    def _object(self, value: dict[Any, Any]) -> dict[Any, Any]:
        unknown = [key for key in value if key not in self._names and self._is_unknown(key)]
        result = value
        if unknown:
            result = value.copy()
            for key in unknown:
                del result[key]
        for key, item in list(result.items()):
            if type(item) in _CONTAINERS and (changed := self._member(key).apply(item)) is not item:
                result = result.copy() if result is value else result
                result[key] = changed
        return result

    def _array(self, value: list[Any]) -> list[Any]:
        if _CONTAINERS.isdisjoint(map(type, value)):
            return value
        ahead = self._ahead
        result = [
            self._item(min(position, ahead)).apply(item) if type(item) in _CONTAINERS else item
            for position, item in enumerate(value)
        ]
        return value if all(one is other for one, other in zip(result, value, strict=True)) else result

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset[str]().union(*(way.names for way in self._objects))

    def _is_unknown(self, key: Any) -> bool:
        found = (way.extra or way.property(key) for way in self._objects)
        return all(each.is_unknown or each.is_refused for each in found)

    def _member(self, key: Any) -> _Place:
        place = self._members.get(key)
        if place is None:
            nodes = (way.property(key).nodes for way in self._objects)
            place = self._places.of(way.of(each) for way, each in zip(self._objects, nodes, strict=True))
            if key in self._names:
                self._members[key] = place
        return place

    @cached_property
    def _ahead(self) -> int:
        return max(way.ahead for way in self._arrays)

    def _item(self, position: int) -> _Place:
        if position not in self._items:
            self._items[position] = self._places.of(way.item(position) for way in self._arrays)
        return self._items[position]


def _ways(bundle: Bundle) -> Iterable[Bundle]:
    """The bundle with every decision made in every way; as many as are of use."""
    waiting, found = [bundle], 0
    while waiting and found <= _MAX_WAYS:
        each = waiting.pop()
        if each.pending is None:
            found += 1
            yield each
        else:
            waiting += [each.joined(each.pending, nodes) for nodes in _choices(each.pending)]


def _choices(pending: Pending) -> list[tuple[Node, ...]]:
    node = pending.node
    if pending.kind == "if":
        branches = [(node.if_, node.then), (node.else_,)]
        return [tuple(part for part in branch if part is not None) for branch in branches]
    if pending.kind == "dependentSchemas":
        return [tuple(node.dependent_schemas.values())]
    return [(variant,) for variant in pending.variants]
