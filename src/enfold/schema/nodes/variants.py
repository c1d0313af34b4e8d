"""The variants of a choice told apart: by OpenAPI's discriminator, or by a property for which each has constants of its own."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import msgspec

from enfold.schema.nodes.compare import all_differ, is_member
from enfold.schema.nodes.node import Discriminator, Node
from enfold.schema.nodes.traits import accepted, parts_with_demands, types_of_values

_DEEPEST: Final = 40  # references and variants in a row that are looked into for types


class Tag(msgspec.Struct, frozen=True):
    """A property whose value says which variant is meant."""

    name: str
    choices: list[tuple[Node, list[Any]]]  # without values, unless they tell all variants apart
    hint: Discriminator | None

    @property
    def values(self) -> list[Any]:
        return [value for _, values in self.choices for value in values]

    def variant_for(self, value: Any) -> Node | None:
        """The variant that a value of the property stands for: by its constants, or by the discriminator."""
        found = next((variant for variant, values in self.choices if is_member(value, values)), None)
        return self._named(self.hint, value) if found is None and self.hint is not None else found

    def _named(self, hint: Discriminator, word: Any) -> Node | None:
        """The variant of that word in the mapping, or of that name: the mapping of a document adds words to the names."""
        target, name = (hint.mapping.get(word), hint.words.get(word, word)) if type(word) is str else (None, "")
        for variant, _ in self.choices:
            if any(part is target or (part.name and part.name == name) for part in (variant, *variant.all_of)):
                return variant
        return None


class Variants:
    """What the nodes of one schema are as variants of a choice: their types, constants and tags, worked out once."""

    def __init__(self) -> None:
        self.constants = cache(_constants)
        self._types: dict[int, frozenset[str]] = {}
        self._tags: dict[tuple[Node, tuple[Node, ...]], list[Tag]] = {}

    def types(self, node: Node, depth: int = 0) -> frozenset[str]:
        """The JSON types that a node allows, variants and references included, whatever else they ask for."""
        known = self._types.get(node.index)
        if known is None:
            self._types[node.index] = accepted(node)  # for a loop that comes back while it is being worked out
            known = self._types[node.index] = self._find_types(node, depth)
        return known

    def _find_types(self, node: Node, depth: int) -> frozenset[str]:
        kinds = frozenset[str]() if node.never else accepted(node)
        if node.enum is not None:
            kinds &= types_of_values(node.enum)
        if depth < _DEEPEST:
            for part in node.all_of:
                kinds &= self.types(part, depth + 1)
            for variants in (node.any_of, node.one_of):
                if variants:
                    kinds &= frozenset[str]().union(*(self.types(variant, depth + 1) for variant in variants))
        return kinds

    def tags(self, node: Node, variants: tuple[Node, ...]) -> list[Tag]:
        """The properties that tell these variants of a node apart: that of its discriminator, and those with constants."""
        known = self._tags.get((node, variants))
        if known is None:
            objects = [part for part in dict.fromkeys(variants) if "object" in self.types(part)]
            known = self._tags[node, variants] = list(self._find_tags(objects, node.discriminator))
        return known

    def _find_tags(self, variants: list[Node], hint: Discriminator | None) -> Iterator[Tag]:
        if hint is not None:
            words = [(part, self.constants(part).get(hint.name) or _words(hint, part)) for part in variants]
            yield _tag(hint.name, words, hint)
        for name in self.constants(variants[0]) if len(variants) > 1 else ():
            tag = _tag(name, [(part, self.constants(part).get(name, [])) for part in variants])
            if tag.values:
                yield tag


def _constants(variant: Node) -> dict[str, list[Any]]:
    """The properties of a variant that must be one of a few constants; the fewest count where several lists apply."""
    found: dict[str, list[Any]] = {}
    for part in parts_with_demands(variant):
        for name, child in (part.properties or {}).items():
            lists = [inner.enum for inner in parts_with_demands(child) if inner.enum]
            if lists:
                found[name] = min([*lists, found.get(name, lists[0])], key=len)
    return found


def _words(hint: Discriminator, variant: Node) -> list[Any]:
    """What a discriminator calls a variant: the words of its mapping, or the name of the schema."""
    targets = (variant, *variant.all_of)
    mapped = [word for word, target in hint.mapping.items() if target in targets]
    return mapped or [target.name for target in targets if target.name][:1]


def _tag(name: str, choices: list[tuple[Node, list[Any]]], hint: Discriminator | None = None) -> Tag:
    tag = Tag(name, choices, hint)
    tell_apart = all(values for _, values in choices) and all_differ(tag.values)
    return tag if tell_apart else Tag(name, [(variant, []) for variant, _ in choices], hint)
