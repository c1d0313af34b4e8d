"""Converts results of a declared type with msgspec or, for its own types, pydantic.

Values that an engine would write differently from `to_plain` are not given to it.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Annotated, Any, Final, TypeAlias, TypeVar, Union, get_args, get_origin

import msgspec

from enfold.errors import CallError
from enfold.schema import types as shapes
from enfold.schema.compiled import compile_schema
from enfold.schema.plain import is_finite, is_for_msgspec, is_text_like, to_plain
from enfold.schema.types import Definitions, Part, RecordShape, Shape
from enfold.schema.types.describe import describe

Convert: TypeAlias = Callable[[Any], Any]
Guard: TypeAlias = Callable[[list[Any]], bool]
T = TypeVar("T")

_NULL: Final = shapes.Scalar("null")
_TEXT: Final = shapes.Scalar("string")


class Converter(msgspec.Struct, frozen=True):
    """Converts results of one declared type to plain data."""

    convert: Convert  # raises any exception for a result that it leaves to `to_plain`
    write: Callable[[Any], bytes]  # encodes the result of `convert` as JSON; raises likewise
    is_final: bool  # whether the data is right even where it does not fit the schema
    gives_builtins: bool  # whether the data consists of exact builtin types


def result_converter(annotation: Any, shape: Shape, definitions: Definitions) -> Converter | None:
    """Return the converter of a return type; None where values are plain already or no engine supports the type."""
    parts = shapes.all_parts(shape, definitions)
    if all(map(_is_plain_part, parts)):
        return None
    own = _pydantic_form(shape)
    is_opaque = any(isinstance(part, shapes.Foreign) and not _is_for_hook(part.annotation) for part in parts)
    try:
        if own is None and not is_opaque:
            return None if _hides_defaults(parts, definitions) else _by_msgspec(shape, definitions, parts)
        guard = _Guards(definitions, is_exact=True).guard(shape)
        return _by_pydantic(annotation if own is None else own, guard, is_final=own is not None)
    except _RecursiveTypeError:
        return None


def _is_plain_part(part: Part) -> bool:
    """Whether values of this part are JSON values if their own parts are."""
    match part:
        case RecordShape():
            return part.build is dict
        case shapes.Items():
            return part.build is list
        case shapes.Enumeration():
            return part.is_plain
    return not isinstance(part, shapes.Text | shapes.Flags | shapes.Row | shapes.Foreign)


def _is_tuple(part: Part) -> bool:
    if isinstance(part, RecordShape):
        return part.is_row
    return isinstance(part, shapes.Row) or (isinstance(part, shapes.Items) and part.build is tuple)


def _hides_defaults(parts: list[Part], definitions: Definitions) -> bool:
    """Whether msgspec may omit a field whose value is only on the class, without any check noticing."""
    records = [part for part in parts if isinstance(part, RecordShape) and not hasattr(part.build, "__struct_fields__")]
    return any(
        not _has_valid_default(field, definitions)
        for record in records
        for field in record.fields
        if not field.required and hasattr(record.build, field.wire_name)
    )


def _has_valid_default(field: shapes.Field, definitions: Definitions) -> bool:
    try:
        default = to_plain(field.default)
    except CallError:
        return False
    return compile_schema(describe(field.shape, definitions, "output")).check(default)


# --- msgspec ------------------------------------------------------------------------------------------------------


def _by_msgspec(shape: Shape, definitions: Definitions, parts: list[Part]) -> Converter:
    is_guarded = any(isinstance(part, shapes.Anything | shapes.Table) or shapes.is_decimal(part) for part in parts)
    guard = _Guards(definitions, is_exact=False).guard(shape) if is_guarded else None
    has_tuples = any(map(_is_tuple, parts))
    to_builtins, hook = msgspec.to_builtins, _encode_other

    def convert(value: Any) -> Any:
        plain = to_builtins(value, enc_hook=hook)
        return _with_lists(plain) if has_tuples else plain

    write = _guarded(guard, msgspec.json.Encoder(enc_hook=hook).encode)
    is_exact = not any(isinstance(part, shapes.Foreign) for part in parts)
    return Converter(_guarded(guard, convert), write, is_final=False, gives_builtins=is_exact)


def _guarded(guard: Guard | None, use: Callable[[Any], T]) -> Callable[[Any], T]:
    """Return the function, raising for values that the guard rejects."""
    if guard is None:
        return use

    def use_trusted(value: Any) -> T:
        if not guard([value]):
            raise _untrusted()
        return use(value)

    return use_trusted


def _untrusted() -> TypeError:
    return TypeError("the engine writes this value differently")


def _encode_other(value: Any) -> Any:
    """Encode an object that msgspec does not support: a path, an IP address, or a pydantic value."""
    if is_text_like(value):
        return str(value)
    if _is_for_hook(type(value)):
        from enfold.schema.types.pydantic_schemas import dump

        return dump(value)
    raise TypeError(f"{type(value).__qualname__} is not JSON serializable")


def _is_for_hook(annotation: Any) -> bool:
    """Whether it is a pydantic class that msgspec does not support."""
    is_class = isinstance(annotation, type) and hasattr(annotation, "__get_pydantic_core_schema__")
    return is_class and not hasattr(annotation, "__dataclass_fields__")


def _with_lists(value: Any) -> Any:
    """Replace tuples by lists in place."""
    kind = type(value)
    if kind is dict:
        for key, item in value.items():
            if type(item) in _CONTAINERS:
                value[key] = _with_lists(item)
        return value
    return list(map(_with_lists, value)) if kind in _CONTAINERS else value


_CONTAINERS: Final = frozenset({dict, list, tuple})


# --- pydantic -----------------------------------------------------------------------------------------------------


def _by_pydantic(annotation: Any, guard: Guard | None, *, is_final: bool) -> Converter | None:
    from enfold.schema.types.pydantic_schemas import serializer_of

    try:
        serializer = serializer_of(annotation)
    except Exception:  # noqa: BLE001  # pydantic raises various exceptions for unsupported classes
        return None
    to_python, to_json = serializer.to_python, serializer.to_json

    def convert(value: Any) -> Any:
        return to_python(value, mode="json", by_alias=True, warnings=False)

    def write(value: Any) -> bytes:
        text = to_json(value, by_alias=True, warnings=False)
        # pydantic writes large numbers as 1e+16, msgspec as 1e16. Searching for "+" first is ten times faster.
        if b"+" in text and b"e+" in text:
            raise _untrusted()
        return text

    return Converter(_guarded(guard, convert), _guarded(guard, write), is_final, gives_builtins=False)


def _pydantic_form(shape: Shape) -> Any:
    """Return the annotation of a shape that consists of pydantic types and containers; None for other shapes."""
    shape = shapes.without_notes(shape)
    match shape:
        case shapes.Foreign():
            return shape.annotation
        case shapes.Items(build=build) if build is list:
            inner = _pydantic_form(shape.item)
            return None if inner is None else list[inner]  # type: ignore[valid-type]  # known only here
        case shapes.Table(build=build, key=key) if build is dict and key == _TEXT:
            inner = _pydantic_form(shape.value)
            return None if inner is None else dict[str, inner]  # type: ignore[valid-type]  # as above
        case shapes.Either():
            members = [type(None) if member == _NULL else _pydantic_form(member) for member in shape.members]
            return None if None in members else Union[tuple(members)]  # noqa: UP007  # as above
    return None


# --- guards -------------------------------------------------------------------------------------------------------


class _RecursiveTypeError(Exception):
    """The type is recursive, so its values on all levels could be too many to check together."""


class _Guards:
    """The guards of one type. Each checks all values of one location together, which is cheap.

    A guard tests whether an engine writes the values like `to_plain`: values of type Any, dicts, and where `is_exact`
    instances of classes, because pydantic omits what a subclass adds.
    """

    def __init__(self, definitions: Definitions, *, is_exact: bool) -> None:
        self._definitions = definitions
        self._is_exact = is_exact
        self._known: dict[Any, Guard | None] = {}
        self._open: set[Any] = set()

    def guard(self, shape: Part) -> Guard | None:
        """Return the guard of a shape, or None where nothing has to be checked."""
        match shape:
            case shapes.Anything():
                return _each(is_for_msgspec)
            case shapes.Text() if shapes.is_decimal(shape):
                return _each(is_finite)
            case shapes.Foreign():
                classes = _classes(shape.annotation) if self._is_exact else None
                return None if classes is None else _only(classes)
            case shapes.Noted() | shapes.Alias():
                return self.guard(shape.shape)
            case RecordShape():
                return self._record(shape)
            case shapes.Items():
                return _of_items(self.guard(shape.item))
            case shapes.Row():
                return _of_columns([(itemgetter(at), self.guard(item)) for at, item in enumerate(shape.items)])
            case shapes.Table():
                return _of_tables(self.guard(shape.value))
            case shapes.Either():
                return self._either(shape.members)
            case shapes.Named():
                return self._named(shape.key)
        return None

    def _named(self, key: Any) -> Guard | None:
        if key in self._open:
            raise _RecursiveTypeError
        if key not in self._known:
            self._open.add(key)
            self._known[key] = self.guard(self._definitions[key])
            self._open.discard(key)
        return self._known[key]

    def _record(self, record: RecordShape) -> Guard | None:
        columns = [(_getter(record, field), self.guard(field.shape)) for field in record.fields if field.is_written]
        fields = _of_columns(columns)
        return _both(_only(frozenset({record.build})), fields) if self._is_exact else fields

    def _either(self, members: tuple[Shape, ...]) -> Guard | None:
        """Return the guard of a union: each member checks the values of its class."""
        guards = [(self._class(member), guard) for member in members if (guard := self.guard(member)) is not None]

        def are_trusted(values: list[Any]) -> bool:
            return all(guard([value for value in values if isinstance(value, kind)]) for kind, guard in guards)

        return are_trusted if guards else None

    def _class(self, member: Shape) -> Any:
        member = shapes.without_notes(member)
        match member:
            case shapes.Table():
                return dict
            case shapes.Named() if isinstance(record := self._definitions[member.key], RecordShape):
                return record.build
            case shapes.Foreign() if isinstance(member.annotation, type):
                return member.annotation
        return object


def _classes(annotation: Any) -> frozenset[type] | None:
    """Return the classes that an annotation names, alone or in a union; None for other annotations."""
    if isinstance(annotation, type):
        return frozenset({annotation})
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _classes(arguments[0])
    members = [_classes(member) for member in arguments] if origin in _UNIONS else [None]
    return None if None in members else frozenset[type]().union(*filter(None, members))


_UNIONS: Final = (Union, types.UnionType)


def _each(is_trusted: Callable[[Any], bool]) -> Guard:
    return lambda values: all(map(is_trusted, values))


def _only(classes: frozenset[Any]) -> Guard:
    allowed = classes | {msgspec.UnsetType}
    return lambda values: allowed.issuperset(map(type, values))


def _both(first: Guard, second: Guard | None) -> Guard:
    return first if second is None else lambda values: first(values) and second(values)


def _of_items(guard: Guard | None) -> Guard | None:
    return None if guard is None else lambda values: guard(list(chain.from_iterable(values)))


def _of_tables(guard: Guard | None) -> Guard:
    """Return the guard of dicts, whose keys must be strings: engines convert other keys differently."""

    def are_trusted(tables: list[Any]) -> bool:
        if not _DICTS.issuperset(map(type, tables)) or not _WORDS.issuperset(map(type, chain.from_iterable(tables))):
            return False
        return guard is None or guard([item for table in tables for item in table.values()])

    return are_trusted


_DICTS: Final = frozenset({dict})
_WORDS: Final = frozenset({str})


def _of_columns(columns: list[tuple[Callable[[Any], Any], Guard | None]]) -> Guard | None:
    looked_at = [(get, guard) for get, guard in columns if guard is not None]

    def are_trusted(values: list[Any]) -> bool:
        return all(guard(list(map(get, values))) for get, guard in looked_at)

    return are_trusted if looked_at else None


def _getter(record: RecordShape, field: shapes.Field) -> Callable[[Any], Any]:
    if record.build is not dict:
        return attrgetter(field.keyword if hasattr(record.build, "__struct_fields__") else field.wire_name)
    return itemgetter(field.wire_name) if field.required else lambda row: row.get(field.wire_name, msgspec.UNSET)
