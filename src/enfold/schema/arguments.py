"""The input of an operation: converts text to the declared types, and explains per argument what is invalid.

This is the slow path, taken after fast validation has failed. It never raises: hostile input gets a shorter explanation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from operator import is_
from typing import Any, Final, TypeAlias

import msgspec

from enfold.errors import CallError, DecodeError, Reason, nearest
from enfold.schema import messages
from enfold.schema.budget import shared_budget
from enfold.schema.compiled import Schema, compile_schema
from enfold.schema.keywords import properties_of
from enfold.schema.nodes import Node
from enfold.schema.nodes.traits import (
    ALL_TYPES,
    Tag,
    kinds_of,
)
from enfold.schema.nodes.values import all_differ, bounds_of, is_member, readings
from enfold.schema.repairs import by_likeness
from enfold.schema.repairs.bundle import Bundle, Pending

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
            return Coercion(Walk(compiled, 2 * MAX_STEPS)).convert(compiled.bundles.alone(compiled.root), value)
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
        for fault in islice(Walk(schema).faults(schema.bundles.alone(schema.root), value), _MAX_FAULTS):
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


Keys: TypeAlias = tuple[str | int, ...]  # a location in a value


class Walk:
    """Explains why a value is invalid. Whether it is, the compiled checks of the schema decide."""

    def __init__(self, schema: Schema, steps: int = MAX_STEPS) -> None:
        self._left = steps
        self._bundles = schema.bundles
        self._memo = schema.bundles.new_memo()

    def spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise TooMuchWorkError

    def fits(self, node: Node, value: Any) -> bool:
        self.spend()
        return bool(self._bundles.test_of(node)(value, self._memo))

    def fits_all(self, bundle: Bundle, value: Any) -> bool:
        self.spend()
        return bundle.fits(value, self._memo)

    def near(self, nodes: tuple[Node, ...], value: Any) -> tuple[Node, ...]:
        """Return the nodes that accept the type of a value."""
        return tuple(part for part in nodes if not self._bundles.types_of(part).isdisjoint(kinds_of(value)))

    def tag(self, pending: Pending) -> Tag | None:
        """Return the property with distinct values that selects one of the variants, if there is one."""
        return next((tag for tag in self._bundles.variants.tags(pending.node, pending.variants) if tag.values), None)

    def faults(self, bundle: Bundle, value: Any, keys: Keys = ()) -> Iterator[Fault]:
        """Yield the faults of a value in the order of the schema."""
        self.spend()
        types = bundle.possible_types
        wrong = next(
            (part.enum for part in bundle.parts if not (part.enum is None or is_member(value, part.enum))), None
        )
        if any(part.never for part in bundle.parts):
            yield _forbidden(keys)
        elif types != ALL_TYPES and types.isdisjoint(kinds_of(value)):
            yield self._wrong_type(bundle, value, keys)
        elif wrong is not None:
            yield _broken(keys, messages.one_of(wrong), value)
        elif bundle.pending is not None:
            yield from self._undecided_faults(bundle, bundle.pending, value, keys)
        else:
            yield from self._own_faults(bundle, value, keys)

    def describe(self, bundle: Bundle) -> str:
        """Describe the values that a bundle accepts."""
        members = next(filter(None, (self._members(node, 0) for node in bundle.nodes)), None)
        return messages.types(bundle.possible_types) if members is None else messages.one_of(members)

    def _describe(self, node: Node) -> str:
        return self.describe(self._bundles.alone(node))

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

    def _wrong_type(self, bundle: Bundle, value: Any, keys: Keys) -> Fault:
        accepting = self.near(bundle.nodes, value)
        refusing = next((node for node in bundle.nodes if node not in accepting), None)
        expected = self.describe(bundle) if refusing is None else self._describe(refusing)
        return Fault(messages.path(keys), "type", expected, messages.type_name(value))

    def _own_faults(self, bundle: Bundle, value: Any, keys: Keys) -> Iterator[Fault]:
        match value:
            case str():
                yield from (fault for part in bundle.parts for fault in _string_faults(part, value, keys))
            case list():
                yield from self._array_faults(bundle, value, keys)
            case dict():
                yield from self._object_faults(bundle, value, keys)
            case int() | float() if not isinstance(value, bool):
                yield from (fault for part in bundle.parts for fault in _limit_faults(part, "number", value, keys))
        for part in bundle.parts:
            if part.not_ is not None and self.fits(part.not_, value):
                yield _broken(keys, f"other than {self._describe(part.not_)}", value)

    def _array_faults(self, bundle: Bundle, value: list[Any], keys: Keys) -> Iterator[Fault]:
        for part in bundle.parts:
            yield from _limit_faults(part, "array", value, keys)
            if part.items is not None and part.items.never and len(value) > len(part.prefix):
                yield _broken(keys, f"at most {messages.count_of(len(part.prefix), 'item')}")
        for index, item in enumerate(value):
            inside = bundle.item(index)
            if inside.nodes and not any(node.never for node in inside.nodes):
                yield from self.faults(inside, item, (*keys, index))
        for part in bundle.parts:
            if part.unique and not all_differ(value):
                yield _broken(keys, "items that all differ")
            if part.contains is not None:
                yield from self._contains_faults(part, part.contains, value, keys)

    def _contains_faults(self, node: Node, wanted: Node, value: list[Any], keys: Keys) -> Iterator[Fault]:
        found = sum(self.fits(wanted, item) for item in value)
        least = 1 if node.min_contains is None else node.min_contains
        if found < least:
            yield _broken(keys, f"at least {messages.count_of(least, 'item')} of {self._describe(wanted)}")
        if node.max_contains is not None and found > node.max_contains:
            yield _broken(keys, f"at most {messages.count_of(node.max_contains, 'item')} of {self._describe(wanted)}")

    def _object_faults(self, bundle: Bundle, value: dict[str, Any], keys: Keys) -> Iterator[Fault]:
        for name, member in bundle.members.items():
            if name not in value:
                if name in bundle.required:
                    yield self._missing(bundle, name, keys)
            elif not member.is_refused:
                yield from self.faults(bundle.child(name), value[name], (*keys, name))
        for name, item in value.items():
            self.spend()
            found = bundle.members.get(name) or bundle.extra or bundle.property(name)
            inside = (*keys, str(name))
            if found.is_forbidden:
                yield _forbidden(inside)
            elif name not in bundle.members and found.nodes:
                yield from self.faults(bundle.of(found.nodes), item, inside)
        for part in bundle.parts:
            if part.names is not None:
                yield from self._name_faults(self._bundles.alone(part.names), value, keys)
            for name, needed in part.dependent_required.items():
                lacking = [each for each in needed if each not in value] if name in value else []
                yield from (self._missing(bundle, each, keys) for each in lacking)
            yield from _limit_faults(part, "object", value, keys)

    def _missing(self, bundle: Bundle, name: str, keys: Keys) -> Fault:
        expected = self.describe(bundle.child(name))
        return Fault(messages.path((*keys, name)), "missing", expected)

    def _name_faults(self, names: Bundle, value: dict[str, Any], keys: Keys) -> Iterator[Fault]:
        for name in value:
            wrong = next(self.faults(names, name, keys), None)
            if wrong is not None:
                expected = f"a name that is {wrong.expected or 'known'}"
                yield Fault(messages.path((*keys, name)), "constraint", expected)

    def _undecided_faults(self, bundle: Bundle, pending: Pending, value: Any, keys: Keys) -> Iterator[Fault]:
        """Decide what applies to the value; where no variant does, the one that the value most likely intends."""
        taken = pending.applied(value, self.fits)
        fault: Fault | None = None
        if pending.kind == "oneOf" and len(taken) > 1:
            taken, fault = (), _broken(keys, f"exactly one of {len(pending.variants)} forms", value)
        elif pending.is_union and not taken:
            intended = self._intended(pending, value, keys)
            taken, fault = ((intended,), None) if isinstance(intended, Node) else ((), intended)
        yield from self.faults(bundle.joined(pending, taken), value, keys)
        if fault is not None:
            yield fault

    def _intended(self, pending: Pending, value: Any, keys: Keys) -> Node | Fault:
        """Return the variant that a value most likely intends, or the fault of its choice."""
        near = self.near(pending.variants, value)
        tag = self.tag(pending) if type(value) is dict and len(near) > 1 else None
        if not near:
            return self._wrong_type(self._bundles.alone(pending.node), value, keys)
        if tag is not None:
            return self._tagged(tag, value, (*keys, tag.name))
        if self._members(pending.node, 0) is not None:
            return _broken(keys, self._describe(pending.node), value)
        return by_likeness(self._bundles, near, value, self._memo)[0]

    def _tagged(self, tag: Tag, value: dict[str, Any], keys: Keys) -> Node | Fault:
        if tag.name not in value:
            return Fault(messages.path(keys), "missing", messages.one_of(tag.values))
        selected = tag.variant_for(value[tag.name])
        return _broken(keys, messages.one_of(tag.values), value[tag.name]) if selected is None else selected


def _string_faults(node: Node, value: str, keys: Keys) -> list[Fault]:
    found = _limit_faults(node, "string", value, keys)
    if node.pattern is not None and not (is_matched := node.pattern.search(value)):
        kind = "text matching" if is_matched is False else "a shorter text, because it takes too long to match"
        found.append(_broken(keys, messages.cut(f"{kind} {node.pattern.source}"), value))
    return found


def _limit_faults(node: Node, kind: str, value: Any, keys: Keys) -> list[Fault]:
    return [
        _broken(keys, f"{bound.phrase} {messages.count_of(limit, bound.noun)}", value)
        for bound, limit in bounds_of(node, kind)
        if not bound.holds(value, limit)
    ]


def _forbidden(keys: Keys) -> Fault:
    if keys and isinstance(keys[-1], str):
        return Fault(messages.path(keys), "unknown", None)
    return _broken(keys, "left out")


def _broken(keys: Keys, expected: str, value: Any = None) -> Fault:
    return Fault(messages.path(keys), "constraint", expected, messages.shown(value))


_MAX_WRONG: Final = 1_000  # texts that cannot be converted


class Coercion:
    """One conversion of a value; unchanged parts stay the same objects."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._wrong = 0  # texts that could not be converted
        # Results hold a reference to their value so that its identity stays unique.
        self._known: dict[tuple[Bundle, int], tuple[Any, Any]] = {}

    def convert(self, bundle: Bundle, value: Any) -> Any:
        self._walk.spend()
        if type(value) is str:
            return self._text(bundle, value)
        if type(value) is not list and type(value) is not dict:
            return value
        key = (bundle, id(value))
        if key not in self._known:
            self._known[key] = (value, self._container(bundle, value))
        return self._known[key][1]

    def _text(self, bundle: Bundle, text: str) -> Any:
        types = bundle.possible_types
        if types == _ONLY_TEXT or ("string" in types and self._walk.fits_all(bundle, text)):
            return text
        converted = [self.convert(bundle, reading) for reading in readings(text, types)]
        for reading in converted:
            if self._walk.fits_all(bundle, reading):
                return reading
        self._wrong += 1
        if self._wrong > _MAX_WRONG:
            raise TooMuchWorkError
        # A value of the right type that violates a constraint gives the better message.
        return converted[0] if converted and "string" not in types else text

    def _container(self, bundle: Bundle, value: Any) -> Any:
        pending = bundle.pending
        if pending is None:
            return self._items(bundle, value) if type(value) is list else self._properties(bundle, value)
        value = self.convert(bundle.joined(pending, ()), value)
        if pending.is_union:
            return self._variant(bundle, pending, value)
        return self.convert(bundle.joined(pending, pending.applied(value, self._walk.fits)), value)

    def _items(self, bundle: Bundle, value: list[Any]) -> list[Any]:
        converted = [self.convert(bundle.item(index), item) for index, item in enumerate(value)]
        return value if all(map(is_, converted, value)) else converted

    def _properties(self, bundle: Bundle, value: dict[str, Any]) -> dict[str, Any]:
        converted = {name: self.convert(bundle.inside(name), item) for name, item in value.items()}
        return value if all(map(is_, converted.values(), value.values())) else converted

    def _variant(self, bundle: Bundle, pending: Pending, value: Any) -> Any:
        if pending.applied(value, self._walk.fits):
            return value
        near = self._walk.near(pending.variants, value)
        converted = [self.convert(bundle.joined(pending, (part,)), value) for part in near]
        for part, candidate in zip(near, converted, strict=True):
            if self._walk.fits(part, candidate):
                return candidate
        # Convert for the intended variant even if it does not fit, so that only the remaining faults are reported.
        if len(near) == 1:
            return converted[0]
        tag = self._walk.tag(pending) if near and type(value) is dict else None
        selected = None if tag is None else tag.variant_for(value.get(tag.name))
        return value if selected is None else converted[near.index(selected)]
