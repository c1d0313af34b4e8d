"""Schemas as types of msgspec, whose checks take a fraction of the time of those written in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Annotated, Any, Final, Literal, TypeAlias, Union, get_args

import msgspec
from msgspec import UNSET

from enfold.schema.nodes.node import MISSING, Node
from enfold.schema.nodes.traits import choice_or_null, declared_default

__all__ = ["QuickTests", "encode", "quick_tests"]

Test: TypeAlias = Callable[[Any], Any]

# A struct costs more to make than many checks by other means.
_MOST_NODES: Final = 500

_LARGEST: Final = 1.7976931348623157e308
# Whole numbers stay as they are, and infinity is no number.
_FRACTION: Final = Annotated[float, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)]
_NUMBER: Final = Union[int, _FRACTION]  # noqa: UP007  # not a class
_SCALARS: Final[dict[str, Any]] = {"null": None, "boolean": bool, "integer": int, "number": _NUMBER, "string": str}

_BARE: Final = Node(0)
# What has no say in which values are valid.
_SILENT: Final = frozenset({"index", "shared", "name", "default", "discriminator"})
_OF_OBJECTS: Final = frozenset({"types", "properties", "required", "additional"})


class QuickTests(msgspec.Struct, frozen=True):
    """Tests of one schema. What they accept is valid and has nothing to strip or fill.

    What they refuse, with any exception, may still be all that.
    """

    of_builtins: Test  # data of the exact builtin types, as an engine makes it
    of_writable: Test  # data that is only written: its classes need not be the exact ones if its text is the same
    of_text: Callable[[bytes], Any] | None  # JSON text; None where null may stand for NaN or for a value


def quick_tests(root: Node) -> QuickTests | None:
    """The tests of a schema of objects and arrays, or None where msgspec cannot say what the schema says."""
    structs = _Structs()
    try:
        annotation = structs.annotation(root)
        msgspec.convert(None, Union[annotation, None])  # noqa: UP007  # two kinds of objects in a union are a TypeError
    except (_NoStructError, ValueError, TypeError, RecursionError):  # or a name that no field of a struct can have
        return None
    if not structs.has_containers:
        return None  # a scalar is checked as fast without msgspec
    test = partial(msgspec.convert, type=annotation)
    guard = _Guards().guard(root)
    of_text = None if structs.has_doubtful_numbers else msgspec.json.Decoder(annotation).decode
    # Whoever asks has a dict: a guard that looks no deeper has nothing to do.
    is_needless = guard is None or (guard is _are_builtin and root.types == frozenset({"object"}))
    return QuickTests(test, test if guard is None or is_needless else _guarded(test, guard), of_text)


def _guarded(test: Test, guard: Guard) -> Test:
    def test_of_builtins(value: Any) -> Any:
        if guard([value]):
            return test(value)
        raise TypeError("not of the builtin types alone")

    return test_of_builtins


def _as_text(value: Any) -> str:
    if isinstance(value, str):  # of a class of its own
        return str.__str__(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


encode: Final = msgspec.json.Encoder(enc_hook=_as_text).encode
"""JSON text of results: plain data, text that is written already, and what has the same text as plain data."""


class _NoStructError(Exception):
    """The schema says something that a struct cannot say."""


class _Structs:
    """The structs of one schema: a node that is met again has the same."""

    def __init__(self) -> None:
        self._known: dict[int, Any] = {}
        self.has_containers = False
        self.has_doubtful_numbers = False

    def annotation(self, node: Node) -> Any:
        if node.index not in self._known:
            if len(self._known) >= _MOST_NODES:
                raise _NoStructError
            self._known[node.index] = None  # until it is made: a node inside itself has none
            self._known[node.index] = (self._make(node),)
        made = self._known[node.index]
        if made is None:
            raise _NoStructError
        return made[0]

    def _make(self, node: Node) -> Any:
        inner = choice_or_null(node)
        if inner is not None and _says_only(node, ("any_of", "one_of")):
            return self._any_of([self.annotation(inner), None])
        if len(node.all_of) == 1 and _says_only(node, ("all_of",)):  # a reference
            return self.annotation(node.all_of[0])
        if node.enum is not None:
            return self._any_of(_choices(node))
        return self._any_of([self._of_type(node, kind) for kind in sorted(node.types or ())])

    def _any_of(self, annotations: list[Any]) -> Any:
        if not annotations:
            raise _NoStructError
        union: Any = Union[tuple(annotations)]  # noqa: UP007  # made, not written
        members = get_args(union)
        # In text null stands for NaN too, and for some the word does.
        self.has_doubtful_numbers |= _FRACTION in members and not {str, type(None)}.isdisjoint(members)
        return union

    def _of_type(self, node: Node, kind: str) -> Any:
        if kind == "object" and _says_only(node, _OF_OBJECTS):
            return self._struct(node) if node.properties else self._table(node)
        if kind == "array" and node.items is not None and _says_only(node, ("types", "items")):
            self.has_containers = True
            return list[self.annotation(node.items)]  # type: ignore[misc]  # known only here
        if kind in _SCALARS and _says_only(node, ("types", "items", *_OF_OBJECTS)):
            return _SCALARS[kind]
        raise _NoStructError

    def _table(self, node: Node) -> Any:
        if node.additional is None or node.additional.never or node.required:
            raise _NoStructError
        self.has_containers = True
        return dict[str, self.annotation(node.additional)]  # type: ignore[misc]  # as above

    def _struct(self, node: Node) -> type[msgspec.Struct]:
        properties = node.properties or {}
        is_closed = node.additional is None or node.additional.never
        if not is_closed or not properties.keys() >= set(node.required):
            raise _NoStructError
        self.has_containers = True
        fields: list[Any] = []
        for number, (name, child) in enumerate(properties.items()):
            annotation = self.annotation(child)
            # What has a default may not be missing: it would have to be filled in.
            is_needed = name in node.required or declared_default(child) is not MISSING
            fields.append((f"f{number}", annotation) if is_needed else (f"f{number}", annotation, UNSET))
        return msgspec.defstruct(
            "Written",
            fields,
            rename={f"f{number}": name for number, name in enumerate(properties)},
            kw_only=True,
            forbid_unknown_fields=True,
            gc=False,  # values have no cycles
        )


def _says_only(node: Node, fields: Iterable[str]) -> bool:
    allowed = _SILENT.union(fields)
    return all(
        getattr(node, field) == getattr(_BARE, field) for field in Node.__struct_fields__ if field not in allowed
    )


def _choices(node: Node) -> list[Any]:
    """A choice of words and whole numbers, perhaps with null."""
    kinds = node.types or frozenset({"string", "integer", "null"})
    values = [value for value in node.enum or [] if _KINDS.get(type(value)) in kinds]
    if not all(type(value) in _KINDS for value in node.enum or []) or not _says_only(node, ("types", "enum")):
        raise _NoStructError
    constants = tuple(value for value in values if value is not None)
    return [*([Literal[constants]] if constants else []), *([None] if None in values else [])]


_KINDS: Final = {str: "string", int: "integer", type(None): "null"}


# --- guards -------------------------------------------------------------------------------------------------------

Guard: TypeAlias = Callable[[Iterable[Any]], bool]
_Take: TypeAlias = Callable[[list[dict[str, Any]]], Iterable[Any]]
_Column: TypeAlias = tuple[_Take, Guard]  # what takes the values of one property, and what looks at them

# msgspec takes a Decimal for a float, and for a struct whatever has items or keys, of which it leaves out what it does
# not know. There a closer look has to be taken at all other types.
_BUILTIN: Final = frozenset({dict, list, tuple, str, int, float, bool, type(None)})
_DICTS: Final = frozenset({dict})
_ARRAYS: Final = frozenset({list, tuple})


class _Guards:
    """The guards of one schema; each looks at all values of one place at once, which costs little."""

    def __init__(self) -> None:
        self._known: dict[int, Guard | None] = {}

    def guard(self, node: Node) -> Guard | None:
        """Whether values consist of builtin types wherever msgspec would take others; None where it takes no others."""
        if node.index not in self._known:
            self._known[node.index] = self._make(node)
        return self._known[node.index]

    def _make(self, node: Node) -> Guard | None:
        inner = choice_or_null(node) or (node.all_of[0] if node.all_of else None)
        if inner is not None:
            return self.guard(inner)
        kinds = node.types or frozenset()
        items = self.guard(node.items) if "array" in kinds and node.items is not None else None
        columns = list(self._columns(node)) if "object" in kinds else []
        if columns or items is not None:
            return _guard_of_containers(columns, items)
        return _are_builtin if {"object", "number"} & kinds else None

    def _columns(self, node: Node) -> Iterator[_Column]:
        for name, child in (node.properties or {}).items():
            guard = self.guard(child)
            if guard is not None:
                yield (_values_of if name in node.required else _values_there)(name), guard
        guard = self.guard(node.additional) if node.additional is not None and not node.properties else None
        if guard is not None:
            yield _all_values, guard


def _are_builtin(values: Iterable[Any]) -> bool:
    return _BUILTIN.issuperset(map(type, values))


def _guard_of_containers(columns: list[_Column], items: Guard | None) -> Guard:
    def are_of_builtins(given: Iterable[Any]) -> bool:
        values = list(given)
        kinds = set(map(type, values))
        if not kinds <= _BUILTIN:
            return False
        objects = values if kinds == _DICTS else [value for value in values if type(value) is dict]
        for take, guard in columns:
            if not guard(take(objects)):
                return False
        if items is None:
            return True
        arrays = values if kinds <= _ARRAYS else [value for value in values if type(value) in _ARRAYS]
        return items(chain.from_iterable(arrays))

    return are_of_builtins


def _values_of(name: str) -> _Take:
    return partial(map, itemgetter(name))


def _all_values(objects: list[dict[str, Any]]) -> Iterable[Any]:
    return chain.from_iterable(value.values() for value in objects)


def _values_there(name: str) -> _Take:
    return lambda objects: [value[name] for value in objects if name in value]
