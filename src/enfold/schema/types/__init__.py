"""Shapes: the structure of Python types as values, from which both engines and the JSON Schema are derived."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET


class Injected:
    """Metadata of an `Annotated` parameter that the runtime fills in: the parameter is not part of the schema."""

    __slots__ = ()


class ValueLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """The constraints of an annotation, with the names that msgspec and annotated_types share."""

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
    """Annotations for readers that do not affect validation."""

    description: str | None = None
    title: str | None = None
    examples: Sequence[Any] | None = None
    extra: dict[str, Any] = {}


NO_LIMITS: Final = ValueLimits()
NO_NOTES: Final = Notes()


class Anything(msgspec.Struct, frozen=True):
    """Any JSON value."""


class Scalar(msgspec.Struct, frozen=True):
    """A value that is the same in JSON and Python."""

    type: Literal["null", "boolean", "integer", "number", "string"]
    limits: ValueLimits = NO_LIMITS


class Text(msgspec.Struct, frozen=True):
    """A Python value represented by text in JSON, such as a date; `format` is JSON Schema's name for it."""

    cls: type
    format: str
    limits: ValueLimits = NO_LIMITS


class Enumeration(msgspec.Struct, frozen=True):
    """One of several values: `values` in JSON, `members` (at the same positions) in Python."""

    annotation: Any
    values: tuple[Any, ...]
    members: tuple[Any, ...]

    @property
    def is_plain(self) -> bool:
        """Whether each member is its own JSON value."""
        return all(value is member for value, member in zip(self.values, self.members, strict=True))


class Flags(msgspec.Struct, frozen=True):
    """An `enum.Flag`: an integer with named bits."""

    cls: type


class Items(msgspec.Struct, frozen=True):
    """An array of any length, converted by `build` to a list, a set and so on."""

    build: type
    item: Shape
    limits: ValueLimits = NO_LIMITS


class Row(msgspec.Struct, frozen=True):
    """An array of fixed length: a `tuple[A, B]`."""

    items: tuple[Shape, ...]


class Table(msgspec.Struct, frozen=True):
    """An object with uniform keys and values: a `dict[K, V]`."""

    build: type
    key: Shape
    value: Shape
    limits: ValueLimits = NO_LIMITS


class Either(msgspec.Struct, frozen=True):
    """A union."""

    members: tuple[Shape, ...]


class Named(msgspec.Struct, frozen=True):
    """A record or a recursive alias, defined once under this key in the reader's definitions."""

    key: Hashable


class Foreign(msgspec.Struct, frozen=True):
    """A type that only pydantic supports."""

    annotation: Any


class Noted(msgspec.Struct, frozen=True):
    """A shape with notes for readers."""

    shape: Shape
    notes: Notes


Shape: TypeAlias = (
    Anything | Scalar | Text | Enumeration | Flags | Items | Row | Table | Either | Named | Foreign | Noted
)


class Field(msgspec.Struct, frozen=True):
    """One field of a record: its JSON name, its keyword in the class, and its shape."""

    wire_name: str
    keyword: str
    shape: Shape
    required: bool = True
    default: Any = UNSET  # only if known without running the user's code
    description: str | None = None
    is_written: bool = True  # False for private fields, which are only read
    is_read: bool = True  # False for fields that the class sets itself, which are only written


class RecordShape(msgspec.Struct, frozen=True):
    """A class with fields: a JSON object, or where `is_row` an array of its fields in order."""

    annotation: Any
    name: str
    fields: tuple[Field, ...]
    build: Callable[..., Any]
    description: str | None = None
    is_row: bool = False
    is_closed: bool = False  # rejects unknown fields
    tag: tuple[str, str | int] | None = None
    omits_defaults: bool = False  # fields with their default are not written

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
    """Text that does not represent a value of its type; the argument names the type or format."""


def without_notes(shape: Shape) -> Shape:
    while isinstance(shape, Noted):
        shape = shape.shape
    return shape


def is_decimal(part: Part) -> bool:
    return isinstance(part, Text) and part.format == "decimal"


def has_pattern(part: Part, definitions: Definitions) -> bool:
    """Whether a string inside has a pattern; pydantic's own types are not inspected."""
    return any(isinstance(each, Scalar) and each.limits.pattern is not None for each in all_parts(part, definitions))


def all_parts(part: Part, definitions: Definitions) -> list[Part]:
    """Return a shape and all shapes inside it; definitions appear once."""
    found = [part]
    seen = set()
    for each in found:  # grows during iteration
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
    """The metadata of an `Annotated`."""

    limits: ValueLimits = NO_LIMITS
    notes: Notes = NO_NOTES
    uses_pydantic: bool = False  # a pydantic `Field` is among them
    is_plain: bool = True  # msgspec supports all constraints as written


def read_metadata(metadata: Iterable[Any]) -> Metadata:
    limits: dict[str, Any] = {}
    notes: dict[str, Any] = {}
    uses_pydantic, is_plain = False, True
    for item in _flat(metadata):
        found = _limits_of(item)
        limits.update(found)
        words = _notes_of(item)
        extra = {**notes.get("extra", {}), **words.get("extra", {})}
        notes.update(words | ({"extra": extra} if extra else {}))
        uses_pydantic = uses_pydantic or is_field(item)
        is_plain = is_plain and (isinstance(item, msgspec.Meta) or not found)
    return Metadata(ValueLimits(**limits), Notes(**notes), uses_pydantic, is_plain)


def is_pydantic_metadata(metadata: Iterable[Any]) -> bool:
    """Whether only pydantic supports the metadata: validators, discriminators, predicates."""
    return any(_is_for_pydantic(item) for item in _flat(metadata))


def is_field(item: Any) -> bool:
    """Whether this is the result of pydantic's `Field(...)`."""
    return _home(item) == "pydantic.fields" and hasattr(item, "json_schema_extra")


def is_media_type(item: Any) -> bool:
    """Whether this is a `MediaType`, which few programs load."""
    return _home(item) == "enfold.schema.files"


def field_default(field: Any) -> Callable[[], Any] | None:
    """Return a function that creates the default of a pydantic `Field`, or None where it has none."""
    if field.default_factory is not None:
        factory: Callable[[], Any] = field.default_factory
        return factory
    return None if field.is_required() else lambda: field.default


def known_default(field: Any) -> Any:
    """Return the default of a pydantic `Field`, or UNSET where that would require running the user's code."""
    if field.default_factory is None:
        return field.default
    return field.default_factory() if field.default_factory in (list, dict, set) else UNSET


def field_alias(field: Any) -> str | None:
    """Return the alias of a pydantic `Field`, if any."""
    alias = field.validation_alias or field.alias
    return alias if isinstance(alias, str) else None


def limit(shape: Shape, limits: ValueLimits) -> Shape:
    """Apply limits to a shape; raise TypeError for a limit that does not apply."""
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
    """Return a pattern in ECMAScript syntax that `regexp` supports; raise TypeError if there is none."""
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
    """Yield the metadata with groups of annotated_types expanded and the constraints of a `Field` after it."""
    for item in metadata:
        if _home(item) == "annotated_types" and hasattr(item, "__is_annotated_types_grouped_metadata__"):
            yield from _flat(item)
            continue
        yield item
        if is_field(item):
            yield from _flat(item.metadata)


def _limits_of(item: Any) -> dict[str, Any]:
    home = _home(item)
    if home == "pydantic._internal._fields":  # `Field(pattern=...)`, which annotated_types has no class for
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
    if is_media_type(item):
        return {"extra": {"contentMediaType": item.name}}
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
