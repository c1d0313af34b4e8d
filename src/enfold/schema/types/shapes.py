"""The shape of a Python type: what it says about JSON, as values. Both engines and the JSON Schema are made from it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET


class ValueLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """The constraints an annotation puts on a value, in the words that msgspec and annotated_types share."""

    ge: Any = None
    gt: Any = None
    le: Any = None
    lt: Any = None
    multiple_of: Any = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None
    tz: bool | None = None

    def given(self) -> dict[str, Any]:
        return {name: limit for name in self.__struct_fields__ if (limit := getattr(self, name)) is not None}


class Notes(msgspec.Struct, frozen=True):
    """What an annotation tells a reader, without a change to what is accepted."""

    description: str | None = None
    title: str | None = None
    examples: Sequence[Any] | None = None
    extra: dict[str, Any] = {}


NO_LIMITS: Final = ValueLimits()
NO_NOTES: Final = Notes()


class Anything(msgspec.Struct, frozen=True):
    """Any JSON value at all."""


class Scalar(msgspec.Struct, frozen=True):
    """A JSON value that is the Python value."""

    type: Literal["null", "boolean", "integer", "number", "string"]
    limits: ValueLimits = NO_LIMITS


class Text(msgspec.Struct, frozen=True):
    """A Python value that stands as text in JSON, such as a date; `format` is JSON Schema's name for the text."""

    cls: type
    format: str
    limits: ValueLimits = NO_LIMITS


class Enumeration(msgspec.Struct, frozen=True):
    """One of several values: `values` in JSON, `members` (at the same places) in Python."""

    annotation: Any
    values: tuple[Any, ...]
    members: tuple[Any, ...]

    @property
    def is_plain(self) -> bool:
        """Whether each member is the JSON value that stands for it."""
        return all(value is member for value, member in zip(self.values, self.members, strict=True))


class Flags(msgspec.Struct, frozen=True):
    """An `enum.Flag`: an integer of which each bit has a name."""

    cls: type


class Items(msgspec.Struct, frozen=True):
    """An array of any length that `build` makes into a list, a set and the like."""

    build: type
    item: Shape
    limits: ValueLimits = NO_LIMITS


class Row(msgspec.Struct, frozen=True):
    """An array of fixed length: a `tuple[A, B]`."""

    items: tuple[Shape, ...]


class Table(msgspec.Struct, frozen=True):
    """An object with keys of one type and values of one type: a `dict[K, V]`."""

    build: type
    key: Shape
    value: Shape
    limits: ValueLimits = NO_LIMITS


class Either(msgspec.Struct, frozen=True):
    """A union."""

    members: tuple[Shape, ...]


class Named(msgspec.Struct, frozen=True):
    """A record or a recursive alias, defined once in the table of the reader under this key."""

    key: Hashable


class Foreign(msgspec.Struct, frozen=True):
    """A type that only pydantic understands."""

    annotation: Any


class Noted(msgspec.Struct, frozen=True):
    """A shape with notes for the reader."""

    shape: Shape
    notes: Notes


Shape: TypeAlias = (
    Anything | Scalar | Text | Enumeration | Flags | Items | Row | Table | Either | Named | Foreign | Noted
)


class Field(msgspec.Struct, frozen=True):
    """One field of a record: its name in JSON, the keyword of the class that takes it, and what it holds."""

    wire_name: str
    keyword: str
    shape: Shape
    required: bool = True
    default: Any = UNSET  # only a default that is known without running the user's code
    description: str | None = None
    is_written: bool = True  # private fields are read, but not written
    is_read: bool = True  # fields that the class sets itself are written, but not read


class RecordShape(msgspec.Struct, frozen=True):
    """A class with fields: a JSON object, or an array of its fields in order where `is_row`."""

    annotation: Any
    name: str
    fields: tuple[Field, ...]
    build: Callable[..., Any]
    description: str | None = None
    is_row: bool = False
    is_closed: bool = False  # refuses fields it does not know
    tag: tuple[str, str | int] | None = None
    omits_defaults: bool = False  # leaves out, when it is written, a field that has its default

    @property
    def read_fields(self) -> tuple[Field, ...]:
        return tuple(field for field in self.fields if field.is_read)


class Alias(msgspec.Struct, frozen=True):
    """A named type alias that refers to itself."""

    name: str
    shape: Shape


Part: TypeAlias = Shape | RecordShape | Alias
Definitions: TypeAlias = dict[Hashable, RecordShape | Alias]


def without_notes(shape: Shape) -> Shape:
    while isinstance(shape, Noted):
        shape = shape.shape
    return shape


def is_decimal(part: Part) -> bool:
    return isinstance(part, Text) and part.format == "decimal"


def has_pattern(part: Part, definitions: Definitions) -> bool:
    """Whether some text in it has to match a pattern; of types that are pydantic's own, pydantic knows."""
    return any(isinstance(each, Scalar) and each.limits.pattern is not None for each in all_parts(part, definitions))


def all_parts(part: Part, definitions: Definitions) -> list[Part]:
    """A shape and all that it is made of; what is defined by name comes once."""
    found = [part]
    seen = set()
    for each in found:  # grows while it is read
        if not isinstance(each, Named):
            found += _parts_of(each)
        elif each.key not in seen:
            seen.add(each.key)
            found.append(definitions[each.key])
    return found


def _parts_of(part: Part) -> tuple[Shape, ...]:
    match part:
        case RecordShape():
            return tuple(field.shape for field in part.fields)
        case Items():
            return (part.item,)
        case Row():
            return part.items
        case Table():
            return (part.key, part.value)
        case Either():
            return part.members
        case Noted() | Alias():
            return (part.shape,)
    return ()
