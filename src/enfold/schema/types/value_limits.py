"""Annotated metadata: constraints and notes of msgspec, annotated_types and pydantic in one form, without importing them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from msgspec import UNSET

from enfold.schema.types.shapes import (
    NO_LIMITS,
    NO_NOTES,
    Either,
    Items,
    Noted,
    Notes,
    Scalar,
    Shape,
    Table,
    Text,
    ValueLimits,
)

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
    from enfold.schema.nodes.pattern import PatternError, compile_pattern  # few types have a pattern
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
        return _words_of(item, item.extra_json_schema)
    if is_field(item):
        return _words_of(item, item.json_schema_extra)
    return {}


def _words_of(item: Any, extra: Any) -> dict[str, Any]:
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
