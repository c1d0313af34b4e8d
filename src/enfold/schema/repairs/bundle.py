"""Bundles: the merged view of all nodes that apply to one location of a value, with its types, properties and items."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property, partial
from operator import is_
from typing import Any, Final, Literal

import msgspec

from enfold.schema.checks import MAX_UNROLLED
from enfold.schema.checks import program as python_text
from enfold.schema.checks.clean import CleanWriter
from enfold.schema.checks.program import Function
from enfold.schema.nodes import MISSING, Node, types_named
from enfold.schema.nodes.traits import (
    ALL_TYPES,
    WHOLE,
    Variants,
    accepted,
    branches,
    constraining_parts,
    constrains_whole,
    declared_default,
    dependents,
    item_node,
    matching_nodes,
    named_by,
    rest_node,
    spans_whole_value,
    types_of_values,
)

Kind = Literal["if", "dependentSchemas", "anyOf", "oneOf"]
Decided = frozenset[tuple[Kind, int]]
Test = Callable[..., Any]  # takes the value and the memo, which is None where results are not memoized
KnownMemo = python_text.CheckMemo | None

_MAX_BUNDLES: Final = 25_000


class Pending(msgspec.Struct, frozen=True, eq=False):
    """A decision that depends on the value: the variant of a union, the branch of a conditional."""

    kind: Kind
    node: Node

    @property
    def is_union(self) -> bool:
        return self.kind in ("anyOf", "oneOf")

    @property
    def variants(self) -> tuple[Node, ...]:
        return tuple(dict.fromkeys(self.node.any_of if self.kind == "anyOf" else self.node.one_of))

    def applied(self, value: Any, fits: Callable[[Node, Any], bool]) -> tuple[Node, ...]:
        """Return the nodes that a conditional applies, or the variants that a value is valid for."""
        if self.kind == "if":
            return tuple(branches(self.node, lambda tested: fits(tested, value)))
        if self.kind == "dependentSchemas":
            return tuple(dependents(self.node, value))
        return tuple(part for part in self.variants if fits(part, value))


class Property(msgspec.Struct, frozen=True):
    """How a bundle treats one property."""

    nodes: tuple[Node, ...]  # the nodes that apply to it
    is_forbidden: bool  # by one of the schemas
    is_refused: bool  # forbidden, and declared by none
    is_unknown: bool  # undeclared, although other properties are declared


class Bundle:
    """The nodes that apply at one location, merged. Variants and branches already decided are among its nodes."""

    def __init__(self, bundles: Bundles, nodes: tuple[Node, ...], decided: Decided) -> None:
        self._bundles = bundles
        self._decided = decided
        self._children: dict[str, Bundle] = {}
        self.nodes = nodes
        self.parts = tuple(dict.fromkeys(part for node in nodes for part in constraining_parts(node)))
        self.is_unusable = any(part.never or part.problem or part.cyclic for part in self.parts)
        self.pending = next(_undecided(self.parts, decided), None)
        self.is_undecided = self.pending is not None and not decided
        # Whether a change inside could violate a constraint on the whole value.
        self.is_fragile = bool(
            self.pending or decided or len(self.parts) > 1 or any(map(spans_whole_value, self.parts))
        )

    def fits(self, value: Any, memo: KnownMemo) -> bool:
        """Whether the value is valid for all nodes."""
        return all(test(value, memo) for test in self._tests)

    def accepts(self, value: Any) -> bool:
        """Whether a single value is valid, with a memo of its own."""
        return self.fits(value, self._bundles.new_memo())

    @cached_property
    def _tests(self) -> tuple[Test, ...]:
        return tuple(map(self._bundles.test_of, self.nodes))

    @cached_property
    def types(self) -> frozenset[str]:
        """The JSON types that all parts accept; pending decisions are not considered."""
        kinds = ALL_TYPES
        for part in self.parts:
            kinds &= accepted(part)
            if part.enum is not None:
                kinds &= types_of_values(part.enum)
        return kinds

    @cached_property
    def possible_types(self) -> frozenset[str]:
        """The JSON types that all parts accept in at least one of their variants."""
        return ALL_TYPES.intersection(*map(self._bundles.types_of, self.nodes))

    @cached_property
    def is_typed(self) -> bool:
        """Whether a part has a `type`, not only an enum."""
        return any(part.types is not None for part in self.parts)

    @cached_property
    def constraints(self) -> tuple[tuple[Test, Node], ...]:
        """The constraints on the value as a whole, each as a test and a node."""
        bare = (self._bundles.without_inside(part) for part in self.parts)
        return tuple((self._bundles.test_of(node), node) for node in bare if node is not None)

    # Objects.

    @cached_property
    def declares(self) -> bool:
        """Whether properties are declared, which makes others unknown."""
        return any(part.properties for part in self.parts)

    @cached_property
    def members(self) -> dict[str, Property]:
        """The properties that a part names."""
        names = dict.fromkeys(name for part in self.parts for name in named_by(part))
        found = {name: self.property(name) for name in names}
        return {name: member for name, member in found.items() if not member.is_refused or name in self.required}

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(self.members)

    def property(self, key: Any) -> Property:
        """Return how a property is treated."""
        nodes = self._by_name.get(key, []) + [node for part in self._by_pattern for node in matching_nodes(part, key)]
        is_named = bool(nodes)
        others = [node for part in self._with_rest if (node := rest_node(part, key)) is not None]
        is_forbidden = any(node.never for node in others)
        nodes += [node for node in others if not node.never]
        if not nodes:
            left_over = [part.unevaluated_properties for part in self.parts if part.unevaluated_properties is not None]
            is_forbidden = is_forbidden or any(node.never for node in left_over)
            nodes = [node for node in left_over if not node.never]
        return Property(tuple(nodes), is_forbidden, is_forbidden and not is_named, self.declares and not nodes)

    @cached_property
    def _by_name(self) -> dict[Any, list[Node]]:
        found: dict[Any, list[Node]] = {}
        for part in self.parts:
            for name, child in (part.properties or {}).items():
                found.setdefault(name, []).append(child)
        return found

    @cached_property
    def _by_pattern(self) -> tuple[Node, ...]:
        return tuple(part for part in self.parts if part.patterns)

    @cached_property
    def _with_rest(self) -> tuple[Node, ...]:
        return tuple(part for part in self.parts if part.additional is not None)

    @cached_property
    def extra(self) -> Property | None:
        """How every unnamed property is treated, if that does not depend on its name."""
        return None if self._by_pattern else self.property(_NO_NAME)

    @cached_property
    def strips_extras(self) -> bool:
        """Whether every unnamed property is stripped."""
        return self.extra is not None and (self.extra.is_unknown or self.extra.is_refused)

    @cached_property
    def only_strips(self) -> bool:
        """Whether stripping extras requires no check of the whole object."""
        is_simple = not (self.is_unusable or self.is_fragile or self.constraints)
        return is_simple and "object" in self.types and self.strips_extras

    @cached_property
    def required(self) -> frozenset[str]:
        return frozenset(name for part in self.parts for name in part.required)

    @cached_property
    def wanted(self) -> dict[str, Any]:
        """The properties to be present, with their valid defaults."""
        wanted = dict.fromkeys((name for part in self.parts for name in part.required), MISSING)
        for name, member in self.members.items():
            defaults = (declared_default(node) for node in member.nodes)
            default = next((known for known in defaults if known is not MISSING), MISSING)
            if default is not MISSING and self.child(name).accepts(default):
                wanted[name] = default
        return wanted

    def child(self, name: str) -> Bundle:
        child = self._children.get(name)
        if child is None:
            child = self._children[name] = self._bundles.get(self.members[name].nodes)
        return child

    def inside(self, name: str) -> Bundle:
        """Return the bundle for the value of a property, which may be undeclared."""
        return self.child(name) if name in self.members else self._bundles.get(self.property(name).nodes)

    def of(self, nodes: tuple[Node, ...]) -> Bundle:
        """Return the bundle for nodes inside this one."""
        return self._bundles.get(nodes)

    @cached_property
    def scan(self) -> Test:
        """A function that returns the named properties of an object that need repair."""
        return self._bundles.scan(self)

    # Arrays.

    @cached_property
    def constrains_items(self) -> bool:
        return any(part.prefix or part.items is not None or part.unevaluated_items is not None for part in self.parts)

    @cached_property
    def ahead(self) -> int:
        """The number of positions with their own schemas."""
        return max((len(part.prefix) for part in self.parts), default=0)

    def item(self, position: int) -> Bundle:
        """Return the bundle for an item of an array."""
        return self._at(position) if position < self.ahead else self.rest

    @cached_property
    def rest(self) -> Bundle:
        """The bundle for items after the positional ones."""
        return self._at(self.ahead)

    def _at(self, position: int) -> Bundle:
        nodes = [node for part in self.parts if (node := item_node(part, position)) is not None]
        if not nodes:
            nodes = [part.unevaluated_items for part in self.parts if part.unevaluated_items is not None]
        return self._bundles.get(tuple(nodes))

    @cached_property
    def is_clean(self) -> Test:
        """Whether a value needs no repair; undecided (False) for several nodes."""
        return self._bundles.clean_test_of(self.nodes[0]) if len(self.nodes) == 1 else _never_clean

    # Decisions.

    def joined(self, pending: Pending, nodes: tuple[Node, ...]) -> Bundle:
        """Return this bundle with its pending decision resolved to these nodes."""
        return self._bundles.get(self.nodes + nodes, self._decided | {(pending.kind, pending.node.index)})

    def only(self, kind: str) -> Bundle:
        """Return this bundle restricted to values of one type."""
        return self._bundles.get((*self.nodes, self._bundles.typed(kind)), self._decided)


class Bundles:
    """The bundles of one schema and the functions of its nodes, created on first use."""

    def __init__(self, clean: CleanWriter, variants: Variants) -> None:
        program, checks = clean.program, clean.checks
        self.clean = clean
        self.variants = variants
        self.types_of = variants.types
        self._known: dict[tuple[tuple[int, ...], Decided], Bundle] = {}
        self.alone = cache(lambda node: self.get((node,)))
        # Validity and cleanliness tests of a node: with a memo, and standalone.
        self.test_of = cache(lambda node: program.function(checks.function(node)))
        self.clean_test_of = cache(lambda node: program.function(clean.function(node)))
        self.check_of = cache(lambda node: program.standalone(checks.function(node)))
        self.clean_of = cache(lambda node: program.standalone(clean.function(node)))
        self.required_somewhere = cache(lambda node: frozenset(_required_of(node)))
        self.without_inside = cache(lambda node: _without_inside(clean.new(), node))
        self.typed = cache(lambda kind: clean.new(types=types_named(kind)))

    def get(self, nodes: tuple[Node, ...], decided: Decided = frozenset()) -> Bundle:
        nodes = tuple(dict.fromkeys(nodes))
        key = (tuple(node.index for node in nodes), decided)
        bundle = self._known.get(key)
        if bundle is None:
            if len(self._known) > _MAX_BUNDLES:
                self._known.clear()
            bundle = self._known[key] = Bundle(self, nodes, decided)
        return bundle

    def new_memo(self) -> KnownMemo:
        """Return an empty memo, or None where results are not memoized."""
        return python_text.CheckMemo() if self.clean.program.memoizes else None

    def scan(self, bundle: Bundle) -> Test:
        if len(bundle.members) > MAX_UNROLLED:
            return partial(_scan, bundle)
        name = f"d{self.clean.program.number()}"
        self.clean.program.declare(name, lambda function: self._write_scan(function, bundle))
        return self.clean.program.function(name)

    def _write_scan(self, function: Function, bundle: Bundle) -> None:
        function.line("bad = []")
        function.ending = "return bad"
        for name, member in bundle.members.items():
            with function.block(f"if {name!r} in v:"):
                function.line(f"x = v[{name!r}]")
                function.line(f"if not ({self._expression(member)}): bad.append({name!r})")
            if name in bundle.wanted:
                function.line(f"else: bad.append({name!r})")

    def _expression(self, member: Property) -> str:
        if len(member.nodes) > 1 or member.is_refused:
            return "False"
        return self.clean.expression(member.nodes[0], "x") if member.nodes else "True"


def _scan(bundle: Bundle, value: dict[Any, Any], memo: KnownMemo) -> list[str]:
    """Return the named properties that need repair; for very many, which take long to compile."""
    present = (name for name in bundle.members if name in value)
    wrong = [
        name
        for name in present
        if bundle.members[name].is_refused or not bundle.child(name).is_clean(value[name], memo)
    ]
    return wrong + [name for name in bundle.wanted if name not in value]


def _without_inside(bare: Node, part: Node) -> Node | None:
    """Copy the constraints of a node on a value as a whole to a bare node; None if there are none."""
    for field in WHOLE:
        setattr(bare, field, getattr(part, field))
    if part.items is not None and part.items.never:
        bare.max_items = min(len(part.prefix), len(part.prefix) if part.max_items is None else part.max_items)
    return bare if constrains_whole(bare) else None


def _undecided(parts: tuple[Node, ...], decided: Decided) -> Iterator[Pending]:
    for part in parts:
        pending: list[tuple[Kind, bool]] = [
            ("if", part.if_ is not None),
            ("dependentSchemas", bool(part.dependent_schemas)),
            ("anyOf", bool(part.any_of)),
            ("oneOf", bool(part.one_of)),
        ]
        yield from (Pending(kind, part) for kind, said in pending if said and (kind, part.index) not in decided)


def _required_of(node: Node) -> Iterator[str]:
    for part in constraining_parts(node):
        yield from part.required
        for variants in (part.any_of, part.one_of):
            of_each = [
                [name for inner in constraining_parts(variant) for name in inner.required] for variant in variants
            ]
            if all(of_each):
                yield from (name for names in of_each for name in names)


_NO_NAME: Final = object()  # a key that no schema names and no pattern matches


def _never_clean(_value: Any, _answers: KnownMemo) -> bool:
    return False


_MAX_WAYS: Final = 32
_CONTAINERS: Final = frozenset({dict, list})


class _Place(msgspec.Struct, frozen=True, eq=False):
    """All interpretations of the value at one location, as far as it is an object or an array."""

    objects: tuple[Bundle, ...] = ()
    arrays: tuple[Bundle, ...] = ()


def without_unknown(bundles: Bundles, root: Node, value: Any) -> Any:
    """Return the value without undeclared properties and otherwise unchanged.

    Variants of a union are not evaluated: a property stays if any variant declares it or is open.
    """

    @cache
    def place(interpretations: tuple[Bundle, ...]) -> _Place:
        ways: dict[Bundle, None] = {}
        for bundle in interpretations:
            ways.update(dict.fromkeys(_ways(bundle)))
            if len(ways) > _MAX_WAYS:
                return _Place()  # too many interpretations: everything is kept
        return _Place(*(tuple(way for way in ways if kind in way.types) for kind in ("object", "array")))

    @cache
    def member(at: _Place, key: Any) -> _Place | None:
        """Return the place of a property; None if every interpretation strips or refuses it."""
        found = [way.property(key) for way in at.objects]
        if all(each.is_unknown or each.is_refused for each in found):
            return None
        return place(tuple(way.of(each.nodes) for way, each in zip(at.objects, found, strict=True)))

    @cache
    def item(at: _Place, position: int) -> _Place:
        return place(tuple(way.item(position) for way in at.arrays))

    def stripped(value: Any, at: _Place) -> Any:
        if type(value) is dict and at.objects:
            inside = {key: (part, below) for key, part in value.items() if (below := member(at, key)) is not None}
            result = {key: stripped(part, below) for key, (part, below) in inside.items()}
            is_same = len(result) == len(value) and all(map(is_, result.values(), value.values()))
            return value if is_same else result
        if type(value) is list and at.arrays and not _CONTAINERS.isdisjoint(map(type, value)):
            ahead = max(way.ahead for way in at.arrays)
            items = [stripped(part, item(at, min(position, ahead))) for position, part in enumerate(value)]
            return value if all(map(is_, items, value)) else items
        return value

    return stripped(value, place((bundles.alone(root),)))


def _ways(bundle: Bundle) -> Iterable[Bundle]:
    """Yield the bundle with every combination of its decisions, up to the limit."""
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
