"""The shape of a Python type: what it says about JSON, as values. Both engines and the JSON Schema are made from it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
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


class UnreadableTextError(ValueError):
    """Text that does not stand for a value of its type; its argument names the type or the format."""


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


_ORDER: Final = frozenset({"ge", "gt", "le", "lt"})
_NUMBER: Final = _ORDER | {"multiple_of"}
_LENGTH: Final = frozenset({"min_length", "max_length"})
_LIMITS_OF_SCALAR: Final = {"integer": _NUMBER, "number": _NUMBER, "string": _LENGTH | {"pattern"}}
_LIMITS_OF_TEXT: Final = {
    "date-time": _ORDER | {"tz"},
    "time": _ORDER | {"tz"},
    "date": _ORDER,
    "duration": _ORDER,
    "decimal": _NUMBER,
    "base64": _LENGTH,
}


class Metadata(msgspec.Struct, frozen=True):
    """What the extra arguments of an `Annotated` say."""

    limits: ValueLimits = NO_LIMITS
    notes: Notes = NO_NOTES
    uses_pydantic: bool = False  # a pydantic `Field` is among them
    is_plain: bool = True  # msgspec reads all constraints from the annotation as it is written


def read_metadata(metadata: Iterable[Any]) -> Metadata:
    limits: dict[str, Any] = {}
    notes: dict[str, Any] = {}
    uses_pydantic, is_plain = False, True
    for item in _flat(metadata):
        found = _limits_of(item)
        limits.update(found)
        notes.update(_notes_of(item))
        uses_pydantic = uses_pydantic or is_field(item)
        is_plain = is_plain and (isinstance(item, msgspec.Meta) or not found)
    return Metadata(ValueLimits(**limits), Notes(**notes), uses_pydantic, is_plain)


def is_pydantic_metadata(metadata: Iterable[Any]) -> bool:
    """Whether only pydantic can do what the metadata asks for: validators, discriminators, predicates."""
    return any(_is_for_pydantic(item) for item in _flat(metadata))


def is_field(item: Any) -> bool:
    """Whether this is what pydantic's `Field(...)` gives."""
    return _home(item) == "pydantic.fields" and hasattr(item, "json_schema_extra")


def field_default(field: Any) -> Callable[[], Any] | None:
    """A function that gives the default of a pydantic `Field`, or None where it has none."""
    if field.default_factory is not None:
        factory: Callable[[], Any] = field.default_factory
        return factory
    return None if field.is_required() else lambda: field.default


def known_default(field: Any) -> Any:
    """The default of a pydantic `Field`, or UNSET where only running the user's code would tell."""
    if field.default_factory is None:
        return field.default
    return field.default_factory() if field.default_factory in (list, dict, set) else UNSET


def field_alias(field: Any) -> str | None:
    """The name that a pydantic `Field` gives its value in JSON, if it gives one."""
    alias = field.validation_alias or field.alias
    return alias if isinstance(alias, str) else None


def limit(shape: Shape, limits: ValueLimits) -> Shape:
    """The shape with the limits put where they belong; a limit that fits nowhere is a TypeError."""
    given = limits.given()
    if limits.pattern is not None:
        given["pattern"] = usable_pattern(limits.pattern)
    used: set[str] = set()
    limited = _limited(shape, given, used)
    if unused := given.keys() - used:
        listed = ", ".join(f"{name}={given[name]!r}" for name in sorted(unused))
        raise TypeError(f"the constraint {listed} does not apply to this type")
    return limited


def usable_pattern(source: str) -> str:
    """A pattern in the words of JSON Schema, of which our own matcher knows what it can take; otherwise a TypeError."""
    from enfold.schema.regexp import PatternError, compile_pattern  # few types have a pattern
    from enfold.schema.regexp.syntax import portable_pattern  # as above

    try:
        return compile_pattern(source).source
    except PatternError as error:
        written = portable_pattern(source)
        if written in (None, source):
            raise TypeError(str(error)) from None
        return usable_pattern(written)


def _limited(shape: Shape, given: dict[str, Any], used: set[str]) -> Shape:
    if isinstance(shape, Noted):
        return Noted(_limited(shape.shape, given, used), shape.notes)
    if isinstance(shape, Either):
        return Either(tuple(_limited(member, given, used) for member in shape.members))
    if not isinstance(shape, Scalar | Text | Items | Table):
        return shape
    fitting = {name: value for name, value in given.items() if name in _applicable(shape)}
    used.update(fitting)
    return msgspec.structs.replace(shape, limits=ValueLimits(**shape.limits.given() | fitting)) if fitting else shape


def _applicable(shape: Scalar | Text | Items | Table) -> frozenset[str]:
    if isinstance(shape, Scalar):
        return _LIMITS_OF_SCALAR.get(shape.type, frozenset())
    if isinstance(shape, Text):
        return _LIMITS_OF_TEXT.get(shape.format, frozenset())
    return _LENGTH


def _flat(metadata: Iterable[Any]) -> Iterable[Any]:
    """Groups of annotated_types opened, and the constraints inside a `Field` after it."""
    for item in metadata:
        if _home(item) == "annotated_types" and hasattr(item, "__is_annotated_types_grouped_metadata__"):
            yield from _flat(item)
            continue
        yield item
        if is_field(item):
            yield from _flat(item.metadata)


def _limits_of(item: Any) -> dict[str, Any]:
    home = _home(item)
    if home == "pydantic._internal._fields":  # where `Field(pattern=...)` keeps what annotated_types has no word for
        return {"pattern": item.pattern} if isinstance(getattr(item, "pattern", None), str) else {}
    if home != "annotated_types" and not isinstance(item, msgspec.Meta):
        return {}
    names = ValueLimits.__struct_fields__
    return {name: value for name in names if (value := getattr(item, name, None)) is not None}


def _notes_of(item: Any) -> dict[str, Any]:
    if isinstance(item, str):
        return {"description": item}
    if isinstance(documentation := getattr(item, "documentation", None), str):  # PEP 727
        return {"description": documentation}
    if isinstance(item, msgspec.Meta):
        return _annotations_of(item, item.extra_json_schema)
    if is_field(item):
        return _annotations_of(item, item.json_schema_extra)
    return {}


def _annotations_of(item: Any, extra: Any) -> dict[str, Any]:
    words = {name: value for name in ("description", "title", "examples") if (value := getattr(item, name))}
    return words | {"extra": extra} if isinstance(extra, dict) else words


def _is_for_pydantic(item: Any) -> bool:
    home = _home(item)
    if is_field(item):
        return item.discriminator is not None
    if home in ("annotated_types", "pydantic._internal._fields"):
        return not _limits_of(item)
    return home.split(".")[0] in {"pydantic", "pydantic_core"} or hasattr(item, "__get_pydantic_core_schema__")


def _home(item: Any) -> str:
    return type(item).__module__
