"""Questions about nodes that several readers of a schema ask: what they say, what they accept, what they lead to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from operator import attrgetter
from typing import Any, Final

import msgspec

from enfold.schema.nodes import CONTAINERS, MISSING, TYPES, Discriminator, Node, in_place, reachable
from enfold.schema.nodes.values import all_differ, is_member


def is_blank(node: Node) -> bool:
    """Whether a node accepts everything and has nothing to say about it."""
    return not says_something(node) and not node.all_of


def is_leaf(node: Node) -> bool:
    """Whether a node can be asked in one expression: no structure, nothing applied in place."""
    return not (needs_branches(node) or has_unevaluated(node) or any(True for _ in in_place(node)))


def needs_branches(node: Node) -> bool:
    """Whether a node says something about the inside of arrays or objects that it accepts."""
    kinds = accepted(node)
    return ("array" in kinds and says_about_arrays(node)) or ("object" in kinds and says_about_objects(node))


def has_any(*fields: str) -> Callable[[Node], bool]:
    """The question whether a node has anything in one of these fields."""
    values = attrgetter(*fields)
    blank = values(Node(-1))
    return lambda node: bool(values(node) != blank)


_SCALARS: Final = (
    "minimum", "maximum", "exclusive_minimum", "exclusive_maximum", "multiple_of", "min_length", "max_length", "pattern",
)  # fmt: skip
_ARRAYS: Final = ("prefix", "items", "contains", "min_items", "max_items", "unique")
_OBJECTS: Final = (
    "properties", "patterns", "additional", "names", "required", "min_properties", "max_properties", "dependent_required",
)  # fmt: skip
_UNEVALUATED: Final = ("unevaluated_items", "unevaluated_properties")
_DECISIONS: Final = ("any_of", "one_of", "if_", "dependent_schemas")
_TYPED: Final = ("types", *_SCALARS, *_ARRAYS, *_OBJECTS)

says_about_arrays: Final = has_any(*_ARRAYS)
says_about_objects: Final = has_any(*_OBJECTS)
says_types: Final = has_any(*_TYPED)
has_unevaluated: Final = has_any(*_UNEVALUATED)
# Whether what a node applies depends on the value.
decides_by_value: Final = has_any(*_DECISIONS)
# Whether a node has a demand of its own, apart from what it refers to.
says_something: Final = has_any("never", "endless", "problem", "enum", "not_", *_TYPED, *_UNEVALUATED, *_DECISIONS)
# Whether a change inside an array or object may break what a node demands of it as a whole.
looks_at_whole: Final = has_any(
    "min_properties",
    "max_properties",
    "names",
    "enum",
    "contains",
    "not_",
    "unique",
    "dependent_required",
    *_UNEVALUATED,
)
# Whether a node has demands that look at a value as a whole; some need its inside for that, but say nothing about it.
WHOLE: Final = (
    "enum", *_SCALARS, "min_items", "max_items", "unique", "min_properties", "max_properties", "dependent_required",
    "contains", "min_contains", "max_contains", "names", "not_",
)  # fmt: skip
says_about_whole: Final = has_any(*WHOLE)


def accepted(node: Node) -> frozenset[str]:
    """The types that a node's own `type` lets through."""
    return ALL_TYPES if node.types is None else node.types


def outer_types(node: Node) -> frozenset[str]:
    """The types a node may accept, as far as one look at it and its references tells."""
    kinds = accepted(node)
    if node.enum is not None:
        kinds &= types_of_values(node.enum)
    for part in node.all_of:
        kinds &= accepted(part)
    return kinds


def types_of_values(values: Iterable[Any]) -> frozenset[str]:
    return frozenset(kind for value in values for kind in _TYPES_OF_CLASS.get(type(value), ()))


def kinds_of(value: Any) -> frozenset[str]:
    """The types of a value in the words of schemas; none for what JSON does not have."""
    if type(value) is float:
        if value - value != 0:  # infinity and NaN
            return frozenset()
        return _INTEGER if value.is_integer() else _FRACTION
    return _TYPES_OF_CLASS.get(type(value), frozenset())


def choice_or_null(node: Node) -> Node | None:
    """What a node is apart from null, if it is a choice between that and null, and nothing else."""
    variants = node.any_of or node.one_of
    if len(variants) != 2 or not is_choice(node) or node.all_of or node.endless:
        return None
    for inner, null in (variants, variants[::-1]):
        if _is_null(null) and (node.any_of or "null" not in outer_types(inner)):
            return inner
    return None


def is_choice(node: Node) -> bool:
    """Whether a node is one `anyOf` or one `oneOf` and has no other demand of its own."""
    if bool(node.any_of) == bool(node.one_of) or node.if_ is not None or node.dependent_schemas:
        return False
    return node.not_ is None and node.enum is None and not says_types(node) and not has_unevaluated(node)


def _is_null(node: Node) -> bool:
    return node.types == frozenset({"null"}) and is_leaf(node) and node.enum is None


def alternatives_exclude(variants: Iterable[Node]) -> bool:
    """Whether a value can be valid for one of the variants at most, to be seen from their types alone."""
    taken: frozenset[str] = frozenset()
    for variant in variants:
        kinds = outer_types(variant)
        if taken & kinds:
            return False
        taken |= kinds
    return True


def may_share_a_value(variants: Iterable[Node]) -> bool:
    """Whether an array or object could be valid for two variants, each of which knows something about its inside."""
    return not alternatives_exclude(
        Node(-1, types=outer_types(variant) & CONTAINERS) for variant in variants if not is_leaf(variant)
    )


def parts_with_demands(node: Node) -> list[Node]:
    """A node and all that its references and `allOf` apply, without those that say nothing of their own."""
    return [part for part in _with_all_of(node) if says_something(part)]


def declared_default(node: Node) -> Any:
    """The default of a node, its own or that of what it refers to."""
    return next((part.default for part in _with_all_of(node) if part.default is not MISSING), MISSING)


def _with_all_of(node: Node) -> list[Node]:
    return reachable([node], lambda part: part.all_of)


def with_all_in_place(node: Node) -> list[Node]:
    """A node and everything that may apply to the same value."""
    return reachable([node], in_place)


def named_by(node: Node) -> Iterator[str]:
    """The properties a node names, with or without a schema for them."""
    yield from node.properties or ()
    yield from node.required
    for name, needed in node.dependent_required.items():
        yield name
        yield from needed
    yield from node.dependent_schemas
    if node.if_ is not None:
        yield from (name for tested in parts_with_demands(node.if_) for name in tested.properties or ())


def branches(node: Node, fits: Callable[[Node], bool]) -> list[Node]:
    """What the `if` of a node applies to a value: itself and `then` where the value fits it, else `else`."""
    if node.if_ is None:
        return []
    taken = (node.if_, node.then) if fits(node.if_) else (node.else_,)
    return [part for part in taken if part is not None]


def dependents(node: Node, value: Any) -> list[Node]:
    """What a node applies to an object because of the properties that it has."""
    if type(value) is not dict:
        return []
    return [part for name, part in node.dependent_schemas.items() if name in value]


def item_node(node: Node, position: int) -> Node | None:
    """What a node says of the item at a position, if it says anything."""
    return node.prefix[position] if position < len(node.prefix) else node.items


def matching_nodes(node: Node, name: Any) -> list[Node]:
    """What the patterns of a node say of a property."""
    return [child for pattern, child in node.patterns if type(name) is str and pattern.search(name)]


def rest_node(node: Node, name: Any) -> Node | None:
    """What `additionalProperties` of a node says of a property; nothing if the node knows it otherwise."""
    is_known = (node.properties is not None and name in node.properties) or matching_nodes(node, name)
    return None if is_known else node.additional


ALL_TYPES: Final = frozenset(TYPES)
_INTEGER: Final = frozenset({"integer", "number"})
_FRACTION: Final = frozenset({"number"})
_TYPES_OF_CLASS: Final[dict[type, frozenset[str]]] = {
    str: frozenset({"string"}),
    int: _INTEGER,
    float: _INTEGER,
    bool: frozenset({"boolean"}),
    type(None): frozenset({"null"}),
    dict: frozenset({"object"}),
    list: frozenset({"array"}),
}


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
