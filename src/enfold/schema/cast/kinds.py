"""The kinds of TypeBox as frozen values. What a schema means is decided in `mapping`; what is done with it, elsewhere."""

from __future__ import annotations

from typing import Any, Final

import msgspec


class _Missing:
    """JavaScript's `undefined`: a property or an item that is not there."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()


class Kind(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """One place of a schema; its number finds the check made for it."""

    number: int
    default: Any = MISSING


class Unknown(Kind, frozen=True, eq=False):
    """Anything at all, even a property that is missing."""


class Never(Kind, frozen=True, eq=False):
    """Nothing at all."""


class Not(Kind, frozen=True, eq=False):
    inner: Kind


class Null(Kind, frozen=True, eq=False):
    """`null`."""


class Boolean(Kind, frozen=True, eq=False):
    """`true` or `false`."""


class String(Kind, frozen=True, eq=False):
    """A text; its length is counted in UTF-16 units, as JavaScript counts."""

    minimum_length: float | None
    maximum_length: float | None
    pattern: str | None


class Number(Kind, frozen=True, eq=False):
    """A finite number; `1.0` is an integer, a boolean is none."""

    integer: bool
    minimum: float | None
    maximum: float | None
    above: float | None
    below: float | None
    multiple_of: float | None


class Literal(Kind, frozen=True, eq=False):
    value: Any


class Enum(Kind, frozen=True, eq=False):
    """A union of nothing but literals, in one piece because there may be a hundred thousand."""

    values: tuple[Any, ...]


class Object(Kind, frozen=True, eq=False):
    """`extra` is what a property without a schema of its own may be: anything (True), nothing (False), or a kind."""

    properties: dict[str, Kind]
    required: frozenset[str]
    required_count: int
    extra: Kind | bool
    minimum_size: float | None
    maximum_size: float | None


class Record(Kind, frozen=True, eq=False):
    """A map; `pattern` None means every key, `extra` is for keys that do not match."""

    pattern: str | None
    values: Kind
    extra: Kind | bool
    minimum_size: float | None
    maximum_size: float | None


class Array(Kind, frozen=True, eq=False):
    items: Kind
    minimum_size: float | None
    maximum_size: float | None
    unique: bool
    contains: Kind | None
    minimum_contains: float | None
    maximum_contains: float | None


class Tuple(Kind, frozen=True, eq=False):
    items: tuple[Kind, ...]


class Union(Kind, frozen=True, eq=False):
    variants: tuple[Kind, ...]


class Intersect(Kind, frozen=True, eq=False):
    """`unevaluated` is what a property that no member names may be."""

    members: tuple[Kind, ...]
    unevaluated: Kind | bool


class Ref(Kind, frozen=True, eq=False):
    """A reference; `slot` is its place among the document's targets, None where it points to nothing."""

    name: str
    slot: int | None
    to_ancestor: bool


class Import(Kind, frozen=True, eq=False):
    """A type imported from a module: like a reference, but a union does not look through it."""

    slot: int


Reference = Ref | Import


class CastSchema(msgspec.Struct, frozen=True, eq=False):
    """A whole schema: where it starts, and what its references point to in the end."""

    root: Kind
    targets: tuple[Kind, ...]

    def follow(self, node: Kind) -> Kind:
        """What a reference points to; a reference again if that is nothing, or if it goes round in a circle."""
        return self.targets[node.slot] if isinstance(node, Reference) and node.slot is not None else node


def children(node: Kind) -> tuple[Kind, ...]:
    """The kinds directly inside a kind, those behind references left out."""
    match node:
        case Not():
            return (node.inner,)
        case Object():
            return (*node.properties.values(), *_nodes(node.extra))
        case Record():
            return (node.values, *_nodes(node.extra))
        case Array():
            return (node.items, *_nodes(node.contains))
        case Tuple():
            return node.items
        case Union():
            return node.variants
        case Intersect():
            return (*node.members, *_nodes(node.unevaluated))
        case _:
            return ()


def _nodes(value: Kind | bool | None) -> tuple[Kind, ...]:
    return (value,) if isinstance(value, Kind) else ()
