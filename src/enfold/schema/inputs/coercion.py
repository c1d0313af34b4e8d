"""Text that stands for another type without loss, converted: models, query strings, CGI and shells send numbers so."""

from __future__ import annotations

from collections.abc import Iterator
from operator import is_
from typing import Any, Final

from enfold.schema.inputs.faults import MAX_DEPTH, ROOT, TooMuchWorkError, ValuePlace, Walk
from enfold.schema.nodes.node import Node
from enfold.schema.nodes.traits import branches, dependents, item_node
from enfold.schema.repairs.conversions import readings

_MAX_WRONG: Final = 1_000  # texts: a value with more of them is not worth any work


class Coercion:
    """One conversion of a value; what does not change stays the same object."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._wrong = 0  # texts that stand for nothing
        # Each answer is kept with its value, so that no other value can have the same identity meanwhile.
        self._answers: dict[tuple[int, int], tuple[Any, Any]] = {}

    def convert(self, node: Node, value: Any, place: ValuePlace = ROOT) -> Any:
        self._walk.spend()
        if place.depth >= MAX_DEPTH:
            return value
        if type(value) is str:
            return self._text(node, value, place)
        if type(value) is not list and type(value) is not dict:
            return value
        key = (node.index, id(value))
        if key not in self._answers:
            self._answers[key] = (value, self._container(node, value, place))
        return self._answers[key][1]

    def _text(self, node: Node, text: str, place: ValuePlace) -> Any:
        types = self._walk.types(node)
        if types == _ONLY_TEXT or ("string" in types and self._walk.fits(node, text, place)):
            return text
        converted = [self.convert(node, reading, place.again()) for reading in readings(text, types)]
        for reading in converted:
            if self._walk.fits(node, reading, place):
                return reading
        self._wrong += 1
        if self._wrong > _MAX_WRONG:
            raise TooMuchWorkError
        # Of the right type but wrong in another way: that is then the fault to be told of.
        return converted[0] if converted and "string" not in types else text

    def _container(self, node: Node, value: Any, place: ValuePlace) -> Any:
        value = self._items(node, value, place) if type(value) is list else self._properties(node, value, place)
        for part in self._parts(node, value, place):
            value = self.convert(part, value, place.again())
        for variants in (node.any_of, node.one_of):
            if variants:
                value = self._variant(node, variants, value, place)
        return value

    def _items(self, node: Node, value: list[Any], place: ValuePlace) -> list[Any]:
        converted = [
            item if (part := item_node(node, index)) is None else self.convert(part, item, place.inside(index))
            for index, item in enumerate(value)
        ]
        return value if all(map(is_, converted, value)) else converted

    def _properties(self, node: Node, value: dict[str, Any], place: ValuePlace) -> dict[str, Any]:
        converted = {name: self._property(node, name, item, place) for name, item in value.items()}
        return value if all(map(is_, converted.values(), value.values())) else converted

    def _property(self, node: Node, name: str, item: Any, place: ValuePlace) -> Any:
        named = (node.properties or {}).get(name)
        for part in ([] if named is None else [named]) + self._walk.other_nodes(node, name):
            item = self.convert(part, item, place.inside(name))
        return item

    def _parts(self, node: Node, value: Any, place: ValuePlace) -> Iterator[Node]:
        """The nodes that apply at the same place without a choice."""
        yield from node.all_of
        yield from dependents(node, value)
        yield from branches(node, lambda tested: self._walk.fits(tested, value, place))

    def _variant(self, node: Node, variants: tuple[Node, ...], value: Any, place: ValuePlace) -> Any:
        if any(self._walk.fits(part, value, place) for part in variants):
            return value
        near = self._walk.near(variants, value)
        converted = [self.convert(part, value, place.again()) for part in near]
        for part, candidate in zip(near, converted, strict=True):
            if self._walk.fits(part, candidate, place):
                return candidate
        # What no variant accepts is converted for the one that was meant, so that only the rest is a fault.
        if len(near) == 1:
            return converted[0]
        tag = self._walk.tag(node, variants) if near and type(value) is dict else None
        meant = None if tag is None else tag.variant_for(value.get(tag.name))
        return value if meant is None else converted[near.index(meant)]


_ONLY_TEXT: Final = frozenset({"string"})
