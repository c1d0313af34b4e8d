"""Structs made from schemas, for results that are only written: msgspec checks and writes them faster than dicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Annotated, Any, Final, Literal, TypeAlias, Union

import msgspec
from msgspec import UNSET

from enfold.schema.nodes.node import MISSING, Node
from enfold.schema.nodes.traits import choice_or_null, declared_default

__all__ = ["StructMaker", "encode", "struct_maker"]

StructMaker: TypeAlias = Callable[[dict[str, Any]], msgspec.Struct]

# A struct costs more to make than many checks by other means.
_MOST_NODES: Final = 500

_LARGEST: Final = 1.7976931348623157e308
# Whole numbers stay as they are, and infinity is no number.
_NUMBER: Final = Union[int, Annotated[float, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)]]  # noqa: UP007  # not a class
_SCALARS: Final[dict[str, Any]] = {"null": None, "boolean": bool, "integer": int, "number": _NUMBER, "string": str}

_BARE: Final = Node(0)
# What has no say in which values are valid.
_SILENT: Final = frozenset({"index", "shared", "name", "default", "discriminator"})
_OF_OBJECTS: Final = frozenset({"types", "properties", "required", "additional"})


def struct_maker(root: Node) -> StructMaker | None:
    """What makes structs of the objects that a schema describes, or None where there are no such structs.

    An object of which it makes one is valid, has nothing to strip or fill, and is written as its plain form would be,
    but for the order of its properties. One that it refuses, with any exception, may still be all that.
    """
    try:
        struct = _Structs().annotation(root)
    except (_NoStructError, ValueError, TypeError, RecursionError):  # or a name that no field of a struct can have
        return None
    if not isinstance(struct, type) or not issubclass(struct, msgspec.Struct):
        return None
    make = partial(msgspec.convert, type=struct)
    guard = _Guards().guard(root)
    # The object itself is a dict: a guard that looks no deeper has nothing to do.
    return make if guard is None or guard is _are_builtin else _guarded(make, guard)


def _guarded(make: StructMaker, guard: Guard) -> StructMaker:
    def make_of_builtins(value: dict[str, Any]) -> msgspec.Struct:
        if guard([value]):
            return make(value)
        raise TypeError("not of the builtin types alone")

    return make_of_builtins


def _as_text(value: Any) -> str:
    if isinstance(value, str):  # of a class of its own, which a struct keeps
        return str.__str__(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


encode: Final = msgspec.json.Encoder(enc_hook=_as_text).encode
"""JSON text of plain data, and of data in structs."""


class _NoStructError(Exception):
    """The schema says something that a struct cannot say."""


class _Structs:
    """The structs of one schema: a node that is met again has the same."""

    def __init__(self) -> None:
        self._known: dict[int, Any] = {}

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
            return _any_of([self.annotation(inner), None])
        if len(node.all_of) == 1 and _says_only(node, ("all_of",)):  # a reference
            return self.annotation(node.all_of[0])
        if node.enum is not None:
            return _literal(node)
        return _any_of([self._of_type(node, kind) for kind in sorted(node.types or ())])

    def _of_type(self, node: Node, kind: str) -> Any:
        if kind == "object" and _says_only(node, _OF_OBJECTS):
            return self._struct(node)
        if kind == "array" and node.items is not None and _says_only(node, ("types", "items")):
            return list[self.annotation(node.items)]  # type: ignore[misc]  # known only here
        if kind in _SCALARS and _says_only(node, ("types", "items", *_OF_OBJECTS)):
            return _SCALARS[kind]
        raise _NoStructError

    def _struct(self, node: Node) -> type[msgspec.Struct]:
        properties = node.properties or {}
        is_closed = node.additional is None or node.additional.never
        if not properties or not is_closed or not properties.keys() >= set(node.required):
            raise _NoStructError
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


def _literal(node: Node) -> Any:
    """A choice of words, perhaps with null."""
    values = node.enum or []
    is_of_words = values and all(value is None or type(value) is str for value in values)
    if not is_of_words or not _says_only(node, ("types", "enum")) or not (node.types or {"string"}) & {"string"}:
        raise _NoStructError
    takes_null = None in values and (node.types is None or "null" in node.types)
    words = tuple(value for value in values if value is not None)
    return _any_of([Literal[words], *([None] if takes_null else [])]) if words else None


def _any_of(annotations: list[Any]) -> Any:
    if not annotations:
        raise _NoStructError
    return Union[tuple(annotations)]  # noqa: UP007  # made, not written


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


def _values_there(name: str) -> _Take:
    return lambda objects: [value[name] for value in objects if name in value]
