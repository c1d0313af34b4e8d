"""Predicates and lookups on nodes: which keywords they have, which types they accept, which nodes they apply."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from operator import attrgetter
from typing import Any, Final

import msgspec

from enfold.schema.nodes import BLANK, MISSING, SILENT, TYPES, Discriminator, Node, in_place, reachable
from enfold.schema.nodes.values import all_differ, is_member


def is_blank(node: Node) -> bool:
    """Whether a node has no keywords that affect validity."""
    return not has_constraints(node) and not node.all_of


def is_leaf(node: Node) -> bool:
    """Whether a node can be checked in one expression: no structure, nothing applied in place."""
    return not (needs_branches(node) or has_unevaluated(node) or any(True for _ in in_place(node)))


def needs_branches(node: Node) -> bool:
    """Whether a node constrains the contents of arrays or objects that it accepts."""
    kinds = accepted(node)
    return ("array" in kinds and constrains_arrays(node)) or ("object" in kinds and constrains_objects(node))


def has_any(*fields: str) -> Callable[[Node], bool]:
    """Return a predicate: whether a node has a value in one of these fields."""
    values = attrgetter(*fields)
    blank = values(Node(-1))
    return lambda node: bool(values(node) != blank)


def has_only(node: Node, fields: Iterable[str]) -> bool:
    """Whether a node has no keywords that affect validity but these."""
    return all(getattr(node, field) == BLANK[field] for field in BLANK.keys() - SILENT.union(fields))


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

constrains_arrays: Final = has_any(*_ARRAYS)
constrains_objects: Final = has_any(*_OBJECTS)
constrains_types: Final = has_any(*_TYPED)
has_unevaluated: Final = has_any(*_UNEVALUATED)
# Whether the nodes that a node applies depend on the value.
decides_by_value: Final = has_any(*_DECISIONS)
# Whether a node has constraints of its own, apart from those it refers to.
has_constraints: Final = has_any("never", "cyclic", "problem", "enum", "not_", *_TYPED, *_UNEVALUATED, *_DECISIONS)
# Whether a change inside an array or object may break a constraint on the array or object itself.
spans_whole_value: Final = has_any(
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
# The constraints on a value as a whole, without the schemas of its contents.
WHOLE: Final = (
    "enum", *_SCALARS, "min_items", "max_items", "unique", "min_properties", "max_properties", "dependent_required",
    "contains", "min_contains", "max_contains", "names", "not_",
)  # fmt: skip
constrains_whole: Final = has_any(*WHOLE)


def accepted(node: Node) -> frozenset[str]:
    """Return the types that the node's own `type` accepts."""
    return ALL_TYPES if node.types is None else node.types


def outer_types(node: Node) -> frozenset[str]:
    """Return the types a node may accept, considering the node and its direct references."""
    kinds = accepted(node)
    if node.enum is not None:
        kinds &= types_of_values(node.enum)
    for part in node.all_of:
        kinds &= accepted(part)
    return kinds


def types_of_values(values: Iterable[Any]) -> frozenset[str]:
    return frozenset(kind for value in values for kind in _TYPES_OF_CLASS.get(type(value), ()))


def kinds_of(value: Any) -> frozenset[str]:
    """Return the JSON Schema types of a value; none for a value outside JSON."""
    if type(value) is float:
        if value - value != 0:  # infinity and NaN
            return frozenset()
        return _INTEGER if value.is_integer() else _FRACTION
    return _TYPES_OF_CLASS.get(type(value), frozenset())


def nullable_inner(node: Node) -> Node | None:
    """Return X where a node is exactly a choice between X and null; otherwise None."""
    variants = node.any_of or node.one_of
    if len(variants) != 2 or not is_choice(node) or node.all_of or node.cyclic:
        return None
    for inner, null in (variants, variants[::-1]):
        if _is_null(null) and (node.any_of or "null" not in outer_types(inner)):
            return inner
    return None


def is_choice(node: Node) -> bool:
    """Whether a node has a single `anyOf` or `oneOf` and no other constraints of its own."""
    if bool(node.any_of) == bool(node.one_of) or node.if_ is not None or node.dependent_schemas:
        return False
    return node.not_ is None and node.enum is None and not constrains_types(node) and not has_unevaluated(node)


def _is_null(node: Node) -> bool:
    return node.types == frozenset({"null"}) and is_leaf(node) and node.enum is None


def are_exclusive(variants: Iterable[Node]) -> bool:
    """Whether the types of the variants show that a value can be valid for at most one."""
    taken: frozenset[str] = frozenset()
    for variant in variants:
        kinds = outer_types(variant)
        if taken & kinds:
            return False
        taken |= kinds
    return True


def constraining_parts(node: Node) -> list[Node]:
    """Return a node and all nodes it applies through references and `allOf`, without those that have no constraints."""
    return [part for part in _with_all_of(node) if has_constraints(part)]


def declared_default(node: Node) -> Any:
    """Return the default of a node, its own or inherited through a reference."""
    return next((part.default for part in _with_all_of(node) if part.default is not MISSING), MISSING)


def _with_all_of(node: Node) -> list[Node]:
    return reachable([node], lambda part: part.all_of)


def with_all_in_place(node: Node) -> list[Node]:
    """Return a node and every node that may apply to the same value."""
    return reachable([node], in_place)


def named_by(node: Node) -> Iterator[str]:
    """Yield the properties that a node names, with or without a schema."""
    yield from node.properties or ()
    yield from node.required
    for name, needed in node.dependent_required.items():
        yield name
        yield from needed
    yield from node.dependent_schemas
    if node.if_ is not None:
        yield from (name for tested in constraining_parts(node.if_) for name in tested.properties or ())


def branches(node: Node, fits: Callable[[Node], bool]) -> list[Node]:
    """Return the nodes that a conditional applies: `if` and `then` where the value fits `if`, otherwise `else`."""
    if node.if_ is None:
        return []
    taken = (node.if_, node.then) if fits(node.if_) else (node.else_,)
    return [part for part in taken if part is not None]


def dependents(node: Node, value: Any) -> list[Node]:
    """Return the `dependentSchemas` that apply to an object."""
    if type(value) is not dict:
        return []
    return [part for name, part in node.dependent_schemas.items() if name in value]


def item_node(node: Node, position: int) -> Node | None:
    """Return the schema of the item at a position, if any."""
    return node.prefix[position] if position < len(node.prefix) else node.items


def matching_nodes(node: Node, name: Any) -> list[Node]:
    """Return the `patternProperties` schemas that match a property."""
    return [child for pattern, child in node.patterns if type(name) is str and pattern.search(name)]


def rest_node(node: Node, name: Any) -> Node | None:
    """Return `additionalProperties` where it applies to a property."""
    is_known = (node.properties is not None and name in node.properties) or matching_nodes(node, name)
    return None if is_known else node.additional


def nodes_inside(node: Node, step: str | int) -> list[Node]:
    """Return the nodes that may apply to a property or item; patterns, which may be hostile, count as matching."""
    if isinstance(step, int):
        found = [item_node(node, step)]
    else:
        found = [(node.properties or {}).get(step, node.additional), *(child for _, child in node.patterns)]
        found += node.unmatched
    return [part for part in found if part is not None]


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


_DEEPEST: Final = 40  # levels of references and variants followed to determine types


class Tag(msgspec.Struct, frozen=True):
    """A property whose value selects the variant."""

    name: str
    choices: list[tuple[Node, list[Any]]]  # values only where they distinguish all variants
    hint: Discriminator | None

    @property
    def values(self) -> list[Any]:
        return [value for _, values in self.choices for value in values]

    def variant_for(self, value: Any) -> Node | None:
        """Return the variant that a value of the property selects, by its constants or by the discriminator."""
        found = next((variant for variant, values in self.choices if is_member(value, values)), None)
        return self._named(self.hint, value) if found is None and self.hint is not None else found

    def _named(self, hint: Discriminator, value: Any) -> Node | None:
        """Return the variant that the mapping gives for a value, or whose schema has that name."""
        target, name = (hint.mapping.get(value), hint.names.get(value, value)) if type(value) is str else (None, "")
        for variant, _ in self.choices:
            if any(part is target or (part.name and part.name == name) for part in (variant, *variant.all_of)):
                return variant
        return None


class Variants:
    """Types, constants and tags of the nodes of one schema as variants of a choice, computed once."""

    def __init__(self) -> None:
        self.constants = cache(_constants)
        self._types: dict[int, frozenset[str]] = {}
        self._tags: dict[tuple[Node, tuple[Node, ...]], list[Tag]] = {}

    def types(self, node: Node, depth: int = 0) -> frozenset[str]:
        """Return the JSON types that a node allows, including its variants and references."""
        known = self._types.get(node.index)
        if known is None:
            self._types[node.index] = accepted(node)  # in case a cycle returns here
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
        """Return the properties that distinguish these variants: the discriminator's, and those with constants."""
        known = self._tags.get((node, variants))
        if known is None:
            objects = [part for part in dict.fromkeys(variants) if "object" in self.types(part)]
            known = self._tags[node, variants] = list(self._find_tags(objects, node.discriminator))
        return known

    def _find_tags(self, variants: list[Node], hint: Discriminator | None) -> Iterator[Tag]:
        if hint is not None:
            values = [(part, self.constants(part).get(hint.name) or _mapped_values(hint, part)) for part in variants]
            yield _tag(hint.name, values, hint)
        for name in self.constants(variants[0]) if len(variants) > 1 else ():
            tag = _tag(name, [(part, self.constants(part).get(name, [])) for part in variants])
            if tag.values:
                yield tag


def _constants(variant: Node) -> dict[str, list[Any]]:
    """Return the properties of a variant that have enumerated values; of several lists, the shortest."""
    found: dict[str, list[Any]] = {}
    for part in constraining_parts(variant):
        for name, child in (part.properties or {}).items():
            lists = [inner.enum for inner in constraining_parts(child) if inner.enum]
            if lists:
                found[name] = min([*lists, found.get(name, lists[0])], key=len)
    return found


def _mapped_values(hint: Discriminator, variant: Node) -> list[Any]:
    """Return the discriminator values of a variant: those mapped to it, or the name of its schema."""
    targets = (variant, *variant.all_of)
    mapped = [value for value, target in hint.mapping.items() if target in targets]
    return mapped or [target.name for target in targets if target.name][:1]


def _tag(name: str, choices: list[tuple[Node, list[Any]]], hint: Discriminator | None = None) -> Tag:
    tag = Tag(name, choices, hint)
    is_distinct = all(values for _, values in choices) and all_differ(tag.values)
    return tag if is_distinct else Tag(name, [(variant, []) for variant, _ in choices], hint)
