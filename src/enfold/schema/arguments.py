"""The input of an operation: converts text to the declared types, and explains per argument what is invalid.

This is the slow path, taken after fast validation has failed. It never raises: hostile input gets a shorter explanation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from operator import is_
from typing import Any, Final

import msgspec

from enfold.errors import CallError, DecodeError, Reason, nearest
from enfold.schema import messages
from enfold.schema.budget import shared_budget
from enfold.schema.checks import evaluated_names
from enfold.schema.compiled import Schema, compile_schema
from enfold.schema.keywords import properties_of
from enfold.schema.nodes import Node
from enfold.schema.nodes.traits import (
    ALL_TYPES,
    Tag,
    branches,
    dependents,
    item_node,
    kinds_of,
    matching_nodes,
)
from enfold.schema.nodes.values import all_differ, bounds_of, is_member, readings

__all__ = ["Fault", "coerce", "faults", "type_faults", "validation_error"]

_MAX_FAULTS: Final = 100
_MAX_IN_DETAILS: Final = 20
_MAX_IN_MESSAGE: Final = 5
_MAX_SCHEMA: Final = 100


def coerce(schema: dict[str, Any], value: Any) -> Any:
    """Convert text to the declared types where nothing is lost; return the same object if nothing changes."""
    try:
        with shared_budget():
            compiled = compile_schema(schema)
            return Coercion(Walk(compiled, 2 * MAX_STEPS)).convert(compiled.root, value)
    except (TooMuchWorkError, RecursionError):
        return value


def faults(schema: dict[str, Any], value: Any) -> list[Fault]:
    """Return the faults of a value in the order of the schema's properties, unknown properties last."""
    with shared_budget():
        compiled = compile_schema(schema)
        if compiled.check(value):
            return []
        found = _find_faults(compiled, value)
    if not found:
        return [Fault("", "constraint", f"a value that fits {messages.short_json(schema, _MAX_SCHEMA)}")]
    return sorted(found, key=lambda fault: fault.reason == "unknown")


def _find_faults(schema: Schema, value: Any) -> dict[Fault, None]:
    found: dict[Fault, None] = {}
    try:
        for fault in islice(Walk(schema).faults(schema.root, value), _MAX_FAULTS):
            found[fault] = None
    except (TooMuchWorkError, RecursionError):
        pass  # report the faults found so far
    return found


def type_faults(decode: Callable[[Any], Any], input: dict[str, Any], found: list[Fault]) -> list[Fault]:
    """Return faults that types find where the schema finds none: custom validators, invalid dates.

    Each argument is reported once and then left out to reach the next.
    """
    known = {_root(fault.argument) for fault in found}
    rest = {name: value for name, value in input.items() if name not in known}
    reported: list[Fault] = []
    while len(reported) < _MAX_IN_MESSAGE:
        try:
            decode(rest)
        except DecodeError as refused:
            if (found or reported) and (refused.reason in ("missing", "unknown") or not refused.path):
                break  # caused by an omitted argument, or reported already
            clause = messages.refusal(refused.expected)
            reported.append(Fault(refused.path, refused.reason, refused.expected, clause=clause))
            if (name := _root(refused.path)) not in rest:
                break
            del rest[name]
        else:
            break
    return reported or ([] if found else [Fault("", "constraint", "a value its types accept")])


def _root(argument: str) -> str:
    return argument.partition(".")[0].partition("[")[0]


def validation_error(faults: list[Fault], schema: dict[str, Any]) -> CallError:
    """Return the error for a call whose input has these faults; its message lists the first ones."""
    first, *others = faults
    details = first.to_wire()
    if others:
        details["more"] = [fault.to_wire() for fault in others[:_MAX_IN_DETAILS]]
    sentences = [_sentence(fault, schema) for fault in faults[:_MAX_IN_MESSAGE]]
    return CallError("VALIDATION_ERROR", "; ".join(dict.fromkeys(sentences)), details)


def _sentence(fault: Fault, schema: dict[str, Any]) -> str:
    name = f'Argument "{fault.argument}"' if fault.argument else "The input"
    if fault.reason == "missing":
        return f"{name} is missing (expected {fault.expected})"
    if fault.reason == "unknown":
        near = nearest(fault.argument, properties_of(schema))
        return f'Unknown argument "{fault.argument}"' + (f': did you mean "{near}"?' if near else "")
    if fault.clause:
        return f"{name} {fault.clause}"
    got = f", got {fault.got}" if fault.got else ""
    return f"{name} must be {fault.expected}{got}"


_ONLY_TEXT: Final = frozenset({"string"})


MAX_DEPTH: Final = 96
MAX_STEPS: Final = 50_000
_MAX_REFERENCES: Final = 8  # followed for a description
_ONLY_NULL: Final = frozenset({"null"})


class Fault(msgspec.Struct, frozen=True):
    """One fault: the argument, the reason, and what was expected."""

    argument: str
    reason: Reason
    expected: str | None
    got: str = ""  # the type or value received, for the message only
    clause: str = ""  # replaces "must be ..." in the message

    def to_wire(self) -> dict[str, Any]:
        return {"argument": self.argument, "reason": self.reason, "expected": self.expected}


class TooMuchWorkError(Exception):
    """Explaining the faults takes more steps than allowed."""


class ValuePlace(msgspec.Struct, frozen=True):
    """A location in a value: its keys, and the number of nodes traversed."""

    keys: tuple[str | int, ...] = ()
    depth: int = 0

    def inside(self, key: str | int) -> ValuePlace:
        return ValuePlace((*self.keys, key), self.depth + 1)

    def under(self, name: Any) -> ValuePlace:
        """Return the location of a property, whose name may be outside JSON."""
        return self.inside(name if isinstance(name, str) else str(name))

    def again(self) -> ValuePlace:
        """Return the same location for another node that applies there."""
        return ValuePlace(self.keys, self.depth + 1)


ROOT: Final = ValuePlace()


class Walk:
    """Explains why a value is invalid. Whether it is, the compiled checks of the schema decide."""

    def __init__(self, schema: Schema, steps: int = MAX_STEPS) -> None:
        self._left = steps
        self._schema = schema
        self.types = schema.variants.types
        # Results hold a reference to their value so that its identity stays unique.
        self._known: dict[tuple[int, int], tuple[Any, bool]] = {}

    def fits(self, node: Node, value: Any) -> bool:
        self.spend()
        if not isinstance(value, dict | list):
            return self._schema.check_of(node)(value)
        key = (node.index, id(value))
        if key not in self._known:
            self._known[key] = (value, self._schema.check_of(node)(value))
        return self._known[key][1]

    def faults(self, node: Node, value: Any, place: ValuePlace = ROOT) -> Iterator[Fault]:
        """Yield the faults of a value in the order of the schema, down to a maximum depth."""
        self.spend()
        if place.depth >= MAX_DEPTH:
            return
        if node.never:
            yield _forbidden(place)
        elif (types := self.types(node)) != ALL_TYPES and types.isdisjoint(kinds_of(value)):
            yield self._wrong_type(node, value, place)
        elif node.enum is not None and not is_member(value, node.enum):
            yield _broken(place, messages.one_of(node.enum), value)
        else:
            yield from self._kind_faults(node, value, place)
            yield from self._in_place(node, value, place)

    def spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise TooMuchWorkError

    def describe(self, node: Node) -> str:
        """Describe the values that a node accepts."""
        members = self._members(node, 0)
        return messages.types(self.types(node)) if members is None else messages.one_of(members)

    def tag(self, node: Node, variants: tuple[Node, ...]) -> Tag | None:
        """Return the property with distinct values that selects one of these variants, if there is one."""
        return next((tag for tag in self._schema.variants.tags(node, variants) if tag.values), None)

    def _members(self, node: Node, depth: int) -> list[Any] | None:
        """Return all values that a node enumerates; None where it does not."""
        self.spend()
        if node.enum is not None:
            return node.enum
        if node.types == _ONLY_NULL:
            return [None]
        if depth > _MAX_REFERENCES:
            return None
        if variants := node.any_of or node.one_of:
            lists = [self._members(part, depth + 1) for part in variants]
            listed = [members for members in lists if members is not None]
            return [member for members in listed for member in members] if len(listed) == len(lists) else None
        lists = [self._members(part, depth + 1) for part in node.all_of]
        return next((members for members in lists if members is not None), None)

    def _wrong_type(self, node: Node, value: Any, place: ValuePlace) -> Fault:
        return Fault(messages.path(place.keys), "type", self.describe(node), messages.type_name(value))

    def _kind_faults(self, node: Node, value: Any, place: ValuePlace) -> Iterator[Fault]:
        match value:
            case str():
                yield from _string_faults(node, value, place)
            case list():
                yield from self._array_faults(node, value, place)
            case dict():
                yield from self._object_faults(node, value, place)
            case int() | float() if not isinstance(value, bool):
                yield from _number_faults(node, value, place)

    def _array_faults(self, node: Node, value: list[Any], place: ValuePlace) -> Iterator[Fault]:
        yield from _size_faults(node.min_items, node.max_items, "item", value, place)
        yield from self._item_faults(node, value, place)
        if node.unique and not all_differ(value):
            yield _broken(place, "items that all differ")
        if node.contains is not None:
            yield from self._contains_faults(node, node.contains, value, place)

    def _item_faults(self, node: Node, value: list[Any], place: ValuePlace) -> Iterator[Fault]:
        first = len(node.prefix)
        if node.items is not None and node.items.never and len(value) > first:
            yield _broken(place, f"at most {messages.count_of(first, 'item')}")
        for index, item in enumerate(value):
            part = item_node(node, index)
            if part is not None and not part.never:
                yield from self.faults(part, item, place.inside(index))

    def _contains_faults(self, node: Node, wanted: Node, value: list[Any], place: ValuePlace) -> Iterator[Fault]:
        found = sum(self.fits(wanted, item) for item in value)
        least = 1 if node.min_contains is None else node.min_contains
        if found < least:
            yield _broken(place, f"at least {messages.count_of(least, 'item')} of {self.describe(wanted)}")
        if node.max_contains is not None and found > node.max_contains:
            yield _broken(place, f"at most {messages.count_of(node.max_contains, 'item')} of {self.describe(wanted)}")

    def _object_faults(self, node: Node, value: dict[str, Any], place: ValuePlace) -> Iterator[Fault]:
        yield from self._missing_or_wrong(node, value, place)
        for name, item in value.items():
            for part in self.other_nodes(node, name):
                yield from self.faults(part, item, place.under(name))
            if node.names is not None:
                yield from self._name_faults(node.names, name, place)
        yield from self._dependent_faults(node, value, place)
        if node.unevaluated_properties is not None:
            yield from self._leftover_faults(node, node.unevaluated_properties, value, place)
        yield from _size_faults(node.min_properties, node.max_properties, "property", value, place)

    def _missing_or_wrong(self, node: Node, value: dict[str, Any], place: ValuePlace) -> Iterator[Fault]:
        required = dict.fromkeys(node.required)
        for name, part in (node.properties or {}).items():
            if name in value:
                yield from self.faults(part, value[name], place.inside(name))
            elif name in required:
                yield self._missing(part, name, place)
        for name in required:
            if name not in value and name not in (node.properties or ()):
                yield self._missing(None, name, place)

    def _missing(self, node: Node | None, name: str, place: ValuePlace) -> Fault:
        expected = "any value" if node is None else self.describe(node)
        return Fault(messages.path((*place.keys, name)), "missing", expected)

    def other_nodes(self, node: Node, name: str) -> list[Node]:
        """Return the nodes for a property other than its declared one."""
        self.spend()
        matching = matching_nodes(node, name) if node.patterns else []
        if matching or node.additional is None or name in (node.properties or ()):
            return matching
        return [node.additional]

    def _name_faults(self, node: Node, name: str, place: ValuePlace) -> Iterator[Fault]:
        wrong = next(self.faults(node, name, place.again()), None)
        if wrong is not None:
            expected = f"a name that is {wrong.expected or 'known'}"
            yield Fault(messages.path((*place.keys, name)), "constraint", expected)

    def _leftover_faults(self, node: Node, left: Node, value: dict[str, Any], place: ValuePlace) -> Iterator[Fault]:
        seen = evaluated_names(node, value, self.fits)
        for name, item in value.items():
            if name not in seen:
                yield from self.faults(left, item, place.under(name))

    def _dependent_faults(self, node: Node, value: dict[str, Any], place: ValuePlace) -> Iterator[Fault]:
        for name, needed in node.dependent_required.items():
            for each in needed if name in value else ():
                if each not in value:
                    yield self._missing(property_node(node, each), each, place)
        for part in dependents(node, value):
            yield from self.faults(part, value, place.again())

    def _in_place(self, node: Node, value: Any, place: ValuePlace) -> Iterator[Fault]:
        for part in node.all_of:
            yield from self.faults(part, value, place.again())
        if node.any_of and not any(self.fits(part, value) for part in node.any_of):
            yield from self._union_faults(node, node.any_of, value, place)
        if node.one_of:
            yield from self._one_of_faults(node, value, place)
        if node.not_ is not None and self.fits(node.not_, value):
            yield _broken(place, f"other than {self.describe(node.not_)}", value)
        for part in branches(node, lambda tested: self.fits(tested, value)):
            yield from self.faults(part, value, place.again())

    def _one_of_faults(self, node: Node, value: Any, place: ValuePlace) -> Iterator[Fault]:
        fitting = sum(self.fits(part, value) for part in node.one_of)
        if fitting == 0:
            yield from self._union_faults(node, node.one_of, value, place)
        elif fitting > 1:
            yield _broken(place, f"exactly one of {len(node.one_of)} forms", value)

    def _union_faults(self, node: Node, variants: tuple[Node, ...], value: Any, place: ValuePlace) -> Iterator[Fault]:
        """Yield the faults for the variant that the value most likely intends."""
        near = self.near(variants, value)
        tag = self.tag(node, variants) if type(value) is dict and len(near) > 1 else None
        if not near:
            yield self._wrong_type(node, value, place)
        elif tag is not None:
            yield from self._tagged_faults(tag, value, place)
        elif self._members(node, 0) is not None:
            yield _broken(place, self.describe(node), value)
        else:
            nearest = max(near, key=lambda part: self._closeness(part, value, place.depth))
            yield from self.faults(nearest, value, place.again())

    def _closeness(self, node: Node, value: Any, depth: int) -> int:
        """Count the parts of a value that fit a variant, minus missing and invalid ones."""
        self.spend()
        inner = self._inner_nodes(node, value)
        fitting = sum(1 if self.fits(part, item) else -1 for part, item in inner)
        missing = sum(name not in value for name in node.required) if type(value) is dict else 0
        parts = node.all_of if depth < MAX_DEPTH else ()
        return fitting - missing + sum(self._closeness(part, value, depth + 1) for part in parts)

    def _inner_nodes(self, node: Node, value: Any) -> list[tuple[Node, Any]]:
        if type(value) is list:
            found = [(item_node(node, index), item) for index, item in enumerate(value)]
            return [(part, item) for part, item in found if part is not None]
        names = node.properties or {} if type(value) is dict else {}
        return [(part, value[name]) for name, part in names.items() if name in value]

    def near(self, variants: tuple[Node, ...], value: Any) -> list[Node]:
        """Return the variants that accept the type of a value."""
        return [part for part in variants if not self.types(part).isdisjoint(kinds_of(value))]

    def _tagged_faults(self, tag: Tag, value: dict[str, Any], place: ValuePlace) -> Iterator[Fault]:
        inside = place.inside(tag.name)
        if tag.name not in value:
            yield Fault(messages.path(inside.keys), "missing", messages.one_of(tag.values))
        elif (selected := tag.variant_for(value[tag.name])) is None:
            yield _broken(inside, messages.one_of(tag.values), value[tag.name])
        else:
            yield from self.faults(selected, value, place.again())


def property_node(node: Node, name: str, depth: int = 0) -> Node | None:
    """Return the node of a property, following references."""
    if node.properties is not None and name in node.properties:
        return node.properties[name]
    parts = node.all_of if depth < _MAX_REFERENCES else ()
    return next((found for part in parts if (found := property_node(part, name, depth + 1)) is not None), None)


def _string_faults(node: Node, value: str, place: ValuePlace) -> list[Fault]:
    found = _size_faults(node.min_length, node.max_length, "character", value, place)
    if node.pattern is not None and not (is_matched := node.pattern.search(value)):
        kind = "text matching" if is_matched is False else "a shorter text, because it takes too long to match"
        found.append(_broken(place, messages.cut(f"{kind} {node.pattern.source}"), value))
    return found


def _size_faults(fewest: int | None, most: int | None, noun: str, value: Any, place: ValuePlace) -> list[Fault]:
    found = []
    if fewest is not None and len(value) < fewest:
        found.append(_broken(place, f"at least {messages.count_of(fewest, noun)}", value))
    if most is not None and len(value) > most:
        found.append(_broken(place, f"at most {messages.count_of(most, noun)}", value))
    return found


def _number_faults(node: Node, value: float, place: ValuePlace) -> list[Fault]:
    return [
        _broken(place, f"{bound.phrase} {limit}", value)
        for bound, limit in bounds_of(node)
        if not bound.holds(value, limit)
    ]


def _forbidden(place: ValuePlace) -> Fault:
    if place.keys and isinstance(place.keys[-1], str):
        return Fault(messages.path(place.keys), "unknown", None)
    return _broken(place, "left out")


def _broken(place: ValuePlace, expected: str, value: Any = None) -> Fault:
    return Fault(messages.path(place.keys), "constraint", expected, messages.shown(value))


_MAX_WRONG: Final = 1_000  # texts that cannot be converted


class Coercion:
    """One conversion of a value; unchanged parts stay the same objects."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._wrong = 0  # texts that could not be converted
        # Results hold a reference to their value so that its identity stays unique.
        self._known: dict[tuple[int, int], tuple[Any, Any]] = {}

    def convert(self, node: Node, value: Any, place: ValuePlace = ROOT) -> Any:
        self._walk.spend()
        if place.depth >= MAX_DEPTH:
            return value
        if type(value) is str:
            return self._text(node, value, place)
        if type(value) is not list and type(value) is not dict:
            return value
        key = (node.index, id(value))
        if key not in self._known:
            self._known[key] = (value, self._container(node, value, place))
        return self._known[key][1]

    def _text(self, node: Node, text: str, place: ValuePlace) -> Any:
        types = self._walk.types(node)
        if types == _ONLY_TEXT or ("string" in types and self._walk.fits(node, text)):
            return text
        converted = [self.convert(node, reading, place.again()) for reading in readings(text, types)]
        for reading in converted:
            if self._walk.fits(node, reading):
                return reading
        self._wrong += 1
        if self._wrong > _MAX_WRONG:
            raise TooMuchWorkError
        # A value of the right type that violates a constraint gives the better message.
        return converted[0] if converted and "string" not in types else text

    def _container(self, node: Node, value: Any, place: ValuePlace) -> Any:
        value = self._items(node, value, place) if type(value) is list else self._properties(node, value, place)
        for part in self._parts(node, value):
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

    def _parts(self, node: Node, value: Any) -> Iterator[Node]:
        """Yield the nodes that apply unconditionally at the same location."""
        yield from node.all_of
        yield from dependents(node, value)
        yield from branches(node, lambda tested: self._walk.fits(tested, value))

    def _variant(self, node: Node, variants: tuple[Node, ...], value: Any, place: ValuePlace) -> Any:
        if any(self._walk.fits(part, value) for part in variants):
            return value
        near = self._walk.near(variants, value)
        converted = [self.convert(part, value, place.again()) for part in near]
        for part, candidate in zip(near, converted, strict=True):
            if self._walk.fits(part, candidate):
                return candidate
        # Convert for the intended variant even if it does not fit, so that only the remaining faults are reported.
        if len(near) == 1:
            return converted[0]
        tag = self._walk.tag(node, variants) if near and type(value) is dict else None
        selected = None if tag is None else tag.variant_for(value.get(tag.name))
        return value if selected is None else converted[near.index(selected)]
