"""All that applies at one place of a value, seen together: the types it may have, its properties, its items."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property
from typing import Any, Final, Literal

import msgspec

from enfold.schema.checks import MANY
from enfold.schema.checks import program as python_text
from enfold.schema.checks.clean import CleanWriter
from enfold.schema.checks.program import Function
from enfold.schema.nodes import MISSING, Node, types_named
from enfold.schema.nodes.traits import (
    ALL_TYPES,
    WHOLE,
    Variants,
    accepted,
    declared_default,
    item_node,
    looks_at_whole,
    matching_nodes,
    named_by,
    parts_with_demands,
    rest_node,
    says_about_whole,
    types_of_values,
)

Kind = Literal["if", "dependentSchemas", "anyOf", "oneOf"]
Decided = frozenset[tuple[Kind, int]]
Test = Callable[..., Any]  # called with the value and the answers so far, which are None where none are kept
KnownResults = python_text.CheckResults | None

_MAX_BUNDLES: Final = 25_000


class Pending(msgspec.Struct, frozen=True, eq=False):
    """A decision that depends on the value: which variant, which branch."""

    kind: Kind
    node: Node

    @property
    def variants(self) -> tuple[Node, ...]:
        return tuple(dict.fromkeys(self.node.any_of if self.kind == "anyOf" else self.node.one_of))


class Property(msgspec.Struct, frozen=True):
    """What one property is to a bundle."""

    nodes: tuple[Node, ...]  # what applies to it
    is_refused: bool  # a schema forbids it, and none names it
    is_unknown: bool  # nobody says anything about it, although other properties are declared


class Bundle:
    """The nodes that apply at one place, and what they say together. Decisions already made are among its nodes."""

    def __init__(self, bundles: Bundles, nodes: tuple[Node, ...], decided: Decided) -> None:
        self._bundles = bundles
        self._decided = decided
        self._children: dict[str, Bundle] = {}
        self.nodes = nodes
        self.parts = tuple(dict.fromkeys(part for node in nodes for part in parts_with_demands(node)))
        self.is_unusable = any(part.never or part.problem or part.endless for part in self.parts)
        self.pending = next(_undecided(self.parts, decided), None)
        self.is_undecided = self.pending is not None and not decided
        # Whether a change inside could break what is demanded of the whole.
        self.is_fragile = bool(self.pending or decided or len(self.parts) > 1 or any(map(looks_at_whole, self.parts)))

    def fits(self, value: Any, answers: KnownResults) -> bool:
        """Whether the value is valid for all nodes."""
        return all(test(value, answers) for test in self._tests)

    def accepts(self, value: Any) -> bool:
        """`fits` for one value by itself: no answers are shared with other questions."""
        return self.fits(value, self._bundles.no_answers())

    @cached_property
    def _tests(self) -> tuple[Test, ...]:
        return tuple(map(self._bundles.test_of, self.nodes))

    @cached_property
    def types(self) -> frozenset[str]:
        """The JSON types that all parts accept; what is pending is not looked at."""
        kinds = ALL_TYPES
        for part in self.parts:
            kinds &= accepted(part)
            if part.enum is not None:
                kinds &= types_of_values(part.enum)
        return kinds

    @cached_property
    def is_typed(self) -> bool:
        """Whether a type is asked for by name, not only through the values of an enum."""
        return any(part.types is not None for part in self.parts)

    @cached_property
    def demands(self) -> tuple[tuple[Test, Node], ...]:
        """What the parts demand of the value as a whole: each as a test, and the node for the wording."""
        bare = (self._bundles.without_inside(part) for part in self.parts)
        return tuple((self._bundles.test_of(node), node) for node in bare if node is not None)

    # Objects.

    @cached_property
    def declares(self) -> bool:
        """Whether properties are declared, so that others are unknown."""
        return any(part.properties for part in self.parts)

    @cached_property
    def members(self) -> dict[str, Property]:
        """The properties that some part names."""
        names = dict.fromkeys(name for part in self.parts for name in named_by(part))
        found = {name: self.property(name) for name in names}
        return {name: member for name, member in found.items() if not member.is_refused or name in self.required}

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(self.members)

    def property(self, key: Any) -> Property:
        """What applies to a property, worked out part by part."""
        nodes = self._by_name.get(key, []) + [node for part in self._by_pattern for node in matching_nodes(part, key)]
        is_named = bool(nodes)
        others = [node for part in self._with_rest if (node := rest_node(part, key)) is not None]
        is_forbidden = any(node.never for node in others)
        nodes += [node for node in others if not node.never]
        if not nodes:
            left_over = [part.unevaluated_properties for part in self.parts if part.unevaluated_properties is not None]
            is_forbidden = is_forbidden or any(node.never for node in left_over)
            nodes = [node for node in left_over if not node.never]
        return Property(tuple(nodes), is_forbidden and not is_named, self.declares and not nodes)

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
        """What applies to every property that is not named, if that does not depend on its name."""
        return None if self._by_pattern else self.property(_NO_NAME)

    @cached_property
    def strips_extras(self) -> bool:
        """Whether every property that is not named goes."""
        return self.extra is not None and (self.extra.is_unknown or self.extra.is_refused)

    @cached_property
    def only_strips(self) -> bool:
        """Whether an object with extras needs no look at it as a whole."""
        is_simple = not (self.is_unusable or self.is_fragile or self.demands)
        return is_simple and "object" in self.types and self.strips_extras

    @cached_property
    def required(self) -> frozenset[str]:
        return frozenset(name for part in self.parts for name in part.required)

    @cached_property
    def wanted(self) -> dict[str, Any]:
        """The properties that should be there, with their defaults; one that would not be valid is none."""
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

    def of(self, nodes: tuple[Node, ...]) -> Bundle:
        """A bundle for something inside."""
        return self._bundles.get(nodes)

    @cached_property
    def scan(self) -> Test:
        """A function that gives the named properties of an object that need a look."""
        return self._bundles.scan(self)

    # Arrays.

    @cached_property
    def says_items(self) -> bool:
        return any(part.prefix or part.items is not None or part.unevaluated_items is not None for part in self.parts)

    @cached_property
    def ahead(self) -> int:
        """How many positions may have schemas of their own."""
        return max((len(part.prefix) for part in self.parts), default=0)

    def item(self, position: int) -> Bundle:
        """What applies to an item of an array."""
        return self._at(position) if position < self.ahead else self.rest

    @cached_property
    def rest(self) -> Bundle:
        """What applies to the items that have no schema of their own."""
        return self._at(self.ahead)

    def _at(self, position: int) -> Bundle:
        nodes = [node for part in self.parts if (node := item_node(part, position)) is not None]
        if not nodes:
            nodes = [part.unevaluated_items for part in self.parts if part.unevaluated_items is not None]
        return self._bundles.get(tuple(nodes))

    @cached_property
    def is_clean(self) -> Test:
        """Whether a value needs no look at all; not known for several nodes at once."""
        return self._bundles.clean_test_of(self.nodes[0]) if len(self.nodes) == 1 else _unknown

    # Decisions.

    def joined(self, pending: Pending, nodes: tuple[Node, ...]) -> Bundle:
        """This bundle with its pending decision made: these nodes apply too."""
        return self._bundles.get(self.nodes + nodes, self._decided | {(pending.kind, pending.node.index)})

    def only(self, kind: str) -> Bundle:
        """This bundle for values of one type."""
        return self._bundles.get((*self.nodes, self._bundles.typed(kind)), self._decided)


class Bundles:
    """The bundles of one schema, and the functions of its nodes, made when they are first needed."""

    def __init__(self, clean: CleanWriter, variants: Variants) -> None:
        program, checks = clean.program, clean.checks
        self.clean = clean
        self.variants = variants
        self.types_of = variants.types
        self._known: dict[tuple[tuple[int, ...], Decided], Bundle] = {}
        self.alone = cache(lambda node: self.get((node,)))
        # Whether a node accepts a value, and whether repair would leave it alone: with answers, and without.
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

    def no_answers(self) -> KnownResults:
        """Where answers are remembered, an empty memory."""
        return python_text.CheckResults() if self.clean.program.remembers else None

    def scan(self, bundle: Bundle) -> Test:
        name = f"d{self.clean.program.number()}"
        self.clean.program.declare(name, lambda function: self._write_scan(function, bundle))
        return self.clean.program.function(name)

    def _write_scan(self, function: Function, bundle: Bundle) -> None:
        function.line("bad = []")
        function.ending = "return bad"
        if len(bundle.members) <= MANY:
            for name, member in bundle.members.items():
                _write_look(function, repr(name), self._expression(member), is_wanted=name in bundle.wanted)
            return
        alike: dict[tuple[str, bool], list[str]] = {}
        for name, member in bundle.members.items():
            alike.setdefault((self._expression(member), name in bundle.wanted), []).append(name)
        for (expression, is_wanted), names in alike.items():
            with function.block(f"for k in {function.program.constant(names)}:"):
                _write_look(function, "k", expression, is_wanted=is_wanted)

    def _expression(self, member: Property) -> str:
        if len(member.nodes) > 1 or member.is_refused:
            return "False"
        return self.clean.expression(member.nodes[0], "x") if member.nodes else "True"


def _write_look(function: Function, word: str, expression: str, *, is_wanted: bool) -> None:
    with function.block(f"if {word} in v:"):
        function.line(f"x = v[{word}]")
        function.line(f"if not ({expression}): bad.append({word})")
    if is_wanted:
        function.line(f"else: bad.append({word})")


def _without_inside(bare: Node, part: Node) -> Node | None:
    """The demands of a node on a value as a whole, written to a bare one; None if there are none."""
    for field in WHOLE:
        setattr(bare, field, getattr(part, field))
    if part.items is not None and part.items.never:
        bare.max_items = min(len(part.prefix), len(part.prefix) if part.max_items is None else part.max_items)
    return bare if says_about_whole(bare) else None


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
    for part in parts_with_demands(node):
        yield from part.required
        for variants in (part.any_of, part.one_of):
            of_each = [
                [name for inner in parts_with_demands(variant) for name in inner.required] for variant in variants
            ]
            if all(of_each):
                yield from (name for names in of_each for name in names)


_NO_NAME: Final = object()  # a key that no schema names and no pattern matches


def _unknown(_value: Any, _answers: KnownResults) -> bool:
    return False


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
