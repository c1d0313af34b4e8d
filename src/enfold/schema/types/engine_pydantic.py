"""Reads arguments and values with pydantic, for signatures that use it or that msgspec does not support.

Imported on demand. Containers, records, unions and pydantic's own types are read by pydantic-core; values represented
by text are read by msgspec, so that dates are the same in both engines.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET
from pydantic import GetCoreSchemaHandler, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter
from pydantic_core import SchemaValidator, ValidationError, core_schema, to_json

from enfold.errors import DecodeError
from enfold.schema import types as shapes
from enfold.schema.compiled import compile_schema
from enfold.schema.types import Definitions, Field, Part, RecordShape, Shape, UnreadableTextError, ValueLimits
from enfold.schema.types.engine_msgspec import (
    KEY,
    MakeSchema,
    Path,
    Read,
    RefusedError,
    explain_refusal,
    is_of_user,
    read_hook,
    refusal,
    refused_by_schema,
    sentence,
    to_annotation,
)
from enfold.schema.types.pydantic_schemas import (
    refuse_exponential_unions,
    with_base64,
    with_finite_numbers,
    with_own_patterns,
)

Core = core_schema.CoreSchema


def argument_reader(record: RecordShape, definitions: Definitions, schema: MakeSchema) -> Read:
    """Return a function from the JSON object of a call to keyword arguments, which raises DecodeError."""
    validator = SchemaValidator(_make_core(record, definitions), _use_prebuilt=False)

    def read(data: Any) -> Any:
        text = _json_text(data)
        try:
            return validator.validate_json(text, strict=True)
        except ValidationError as error:
            return _read_again(validator, text, data, schema, error)

    return read


def _json_text(data: Any) -> bytes:
    """Encode the data: in strict mode pydantic accepts text for a date only from JSON."""
    try:
        return to_json(data)
    except ValueError as error:
        raise refusal([], "JSON data") from error


def _read_again(validator: SchemaValidator, text: bytes, data: Any, schema: MakeSchema, first: ValidationError) -> Any:
    """Read data that fits the schema in lax mode: strict mode rejects valid input such as 1.0 for an integer."""
    if not compile_schema(schema()).check(data):
        raise RefusedError(partial(_refused, first, data, schema)) from first
    try:
        return validator.validate_json(text)
    except ValidationError as error:
        raise RefusedError(partial(_refused, error, data, schema)) from error


def _make_core(part: Part, definitions: Definitions) -> Core:
    """Build the core schema inside a type, because pydantic passes its definition handler only to types."""

    class Subject:
        @classmethod
        def __get_pydantic_core_schema__(cls, _source: Any, handler: GetCoreSchemaHandler) -> Core:
            builder = _CoreBuilder(definitions, handler)
            return builder.with_definitions(builder.core(part))

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(Subject)
        adapter.rebuild(raise_errors=True)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise TypeError(str(error).splitlines()[0]) from error
    core: Core = with_finite_numbers(with_base64(with_own_patterns(adapter.core_schema)))
    refuse_exponential_unions(core)
    return core


class _CoreBuilder:
    """Writes shapes as pydantic-core schemas; records and aliases are defined once and referenced."""

    __slots__ = ("_defined", "_definitions", "_handler")

    def __init__(self, definitions: Definitions, handler: GetCoreSchemaHandler) -> None:
        self._definitions = definitions
        self._handler = handler
        self._defined: dict[str, Core] = {}

    def with_definitions(self, core: Core) -> Core:
        return core_schema.definitions_schema(core, list(self._defined.values())) if self._defined else core

    def core(self, shape: Part) -> Core:
        match shape:
            case shapes.Anything():
                return core_schema.any_schema()
            case shapes.Scalar():
                return _scalar(shape)
            case shapes.Text():
                return core_schema.no_info_plain_validator_function(partial(_read_text, shape))
            case shapes.Enumeration() if shape.is_plain and all(type(value) is str for value in shape.values):
                return core_schema.literal_schema(list(shape.values))
            case shapes.Enumeration():
                return core_schema.no_info_plain_validator_function(partial(_read_member, shape))
            case shapes.Flags():
                return _then_build(partial(_read_flags, shape.cls), core_schema.int_schema(strict=True))
            case shapes.Items():
                limits = shape.limits
                items = core_schema.list_schema(
                    self.core(shape.item), min_length=limits.min_length, max_length=limits.max_length
                )
                return items if shape.build is list else _then_build(shape.build, items)
            case shapes.Row():
                return core_schema.tuple_schema([self.core(item) for item in shape.items])
            case shapes.Table():
                return self._table(shape)
            case shapes.Either():
                return self._either(shape)
            case shapes.Named():
                return self._named(shape)
            case shapes.Foreign():
                return self._handler.generate_schema(shape.annotation)
            case shapes.Noted() | shapes.Alias():
                return self.core(shape.shape)
            case RecordShape():
                return self._row(shape) if shape.is_row else self._object(shape)

    def _object(self, record: RecordShape) -> Core:
        fields = {
            field.wire_name: core_schema.typed_dict_field(self.core(field.shape), required=field.required)
            for field in record.read_fields
        }
        if record.tag is not None:
            tag = core_schema.literal_schema([record.tag[1]])
            fields[record.tag[0]] = core_schema.typed_dict_field(tag, required=False)
        extras: Literal["forbid", "ignore"] = "forbid" if record.is_closed else "ignore"
        core = core_schema.typed_dict_schema(fields, extra_behavior=extras, cls_name=record.name)
        names = [(field.wire_name, field.keyword) for field in record.read_fields]
        if record.build is dict and all(wire_name == keyword for wire_name, keyword in names):
            return core
        return _then_build(lambda data: record.build(**{new: data[old] for old, new in names if old in data}), core)

    def _row(self, record: RecordShape) -> Core:
        """Return the schema of an array record, which may omit trailing fields with defaults."""
        items = [self._row_item(field) for field in record.read_fields]
        if record.tag is None:
            return _then_build(lambda row: record.build(*_without_unset(row)), core_schema.tuple_schema(items))
        tag = core_schema.literal_schema([record.tag[1]])
        return _then_build(lambda row: record.build(*_without_unset(row[1:])), core_schema.tuple_schema([tag, *items]))

    def _row_item(self, field: Field) -> Core:
        item = self.core(field.shape)
        return item if field.required else core_schema.with_default_schema(item, default=UNSET)

    def _table(self, shape: shapes.Table) -> Core:
        limits = shape.limits
        core = core_schema.dict_schema(
            self._key(shape.key),
            self.core(shape.value),
            min_length=limits.min_length,
            max_length=limits.max_length,
        )
        return core if shape.build is dict else _then_build(shape.build, core)

    def _key(self, key: Shape) -> Core:
        """Return the schema of a key, whose text msgspec reads."""
        if isinstance(key, shapes.Foreign) or (isinstance(key, shapes.Scalar) and key.type == "string"):
            return self.core(key)
        annotation: Any = to_annotation(shapes.Table(dict, key, shapes.Scalar("null")), self._definitions)

        def read(text: Any) -> Any:
            try:
                return next(iter(msgspec.convert({text: None}, annotation, str_keys=True, dec_hook=read_hook)))
            except msgspec.ValidationError as error:
                raise UnreadableTextError("key") from error

        return core_schema.no_info_plain_validator_function(read)

    def _either(self, shape: shapes.Either) -> Core:
        """Return a union: tags first, then smart mode for objects and arrays, then scalars in order of precedence."""
        records = {member: record for member in shape.members if (record := self._record(member)) is not None}
        name, tagged = _tags(records)
        scalars = sorted((member for member in shape.members if _is_scalar(member)), key=_precedence)
        others = [
            self.core(member) for member in shape.members if member not in tagged.values() and not _is_scalar(member)
        ]
        choices: list[Core] = []
        if tagged:
            tagged_cores = {tag: self.core(member) for tag, member in tagged.items()}
            choices.append(core_schema.tagged_union_schema(tagged_cores, discriminator=name))
        if others:
            choices.append(core_schema.union_schema(list(others), mode="smart"))
        return core_schema.union_schema([*choices, *map(self.core, scalars)], mode="left_to_right")

    def _record(self, shape: Shape) -> RecordShape | None:
        record = self._definitions[shape.key] if isinstance(shape, shapes.Named) else None
        return record if isinstance(record, RecordShape) and not record.is_row else None

    def _named(self, shape: shapes.Named) -> Core:
        definition = self._definitions[shape.key]
        reference = f"enfold:{id(definition)}"
        if reference not in self._defined:
            self._defined[reference] = core_schema.any_schema()  # reserves the reference while the fields are written
            self._defined[reference] = {**self.core(definition), "ref": reference}
        return core_schema.definition_reference_schema(reference)


def _tags(records: dict[Shape, RecordShape]) -> tuple[str, dict[str | int, Shape]]:
    """Return the field that distinguishes records, by class tag or by distinct constants, and the record per value."""
    tags = {record.tag[1]: member for member, record in records.items() if record.tag is not None}
    if tags:
        return next(record.tag[0] for record in records.values() if record.tag is not None), tags
    constants = [_constants(record) for record in records.values()]
    for name in constants[0] if len(records) > 1 else ():
        found: dict[str | int, Shape] = {
            word: member for member, each in zip(records, constants, strict=True) for word in each.get(name, ())
        }
        if all(name in each for each in constants) and len(found) == sum(len(each[name]) for each in constants):
            return name, found
    return "", {}


def _constants(record: RecordShape) -> dict[str, tuple[str, ...]]:
    """Return the required fields with enumerated strings."""
    required = {field.wire_name: shapes.without_notes(field.shape) for field in record.read_fields if field.required}
    return {
        name: shape.values
        for name, shape in required.items()
        if isinstance(shape, shapes.Enumeration) and all(type(value) is str for value in shape.values)
    }


def _scalar(shape: shapes.Scalar) -> Core:
    limits = msgspec.structs.replace(shape.limits, pattern=None).given()  # `_matching` checks the pattern
    if shape.type == "integer":
        return core_schema.int_schema(**limits, strict=True)
    if shape.type == "number":
        return core_schema.float_schema(**limits, strict=True, allow_inf_nan=False)
    if shape.type == "string":
        return core_schema.str_schema(**limits, strict=True)
    return core_schema.none_schema() if shape.type == "null" else core_schema.bool_schema(strict=True)


def _read_text(shape: shapes.Text, value: Any) -> Any:
    try:
        found: Any = msgspec.convert(value, shape.cls, strict=True, dec_hook=read_hook)
    except msgspec.ValidationError as error:
        raise UnreadableTextError(shape.format) from error
    if shape.format == "decimal" and not found.is_finite():
        raise UnreadableTextError(shape.format)
    _check_limits(found, shape.limits)
    return found


def _check_limits(value: Any, limits: ValueLimits) -> None:
    """Check limits for values that pydantic-core does not create."""
    for name, bound in limits.given().items():
        words, is_within = _LIMITS[name]
        try:
            fits = is_within(value, bound)
        except (ArithmeticError, TypeError):  # NaN, or mixed naive and aware times
            fits = False
        if not fits:
            raise ValueError(f"{words} {bound}")


_LIMITS: Final[dict[str, tuple[str, Callable[[Any, Any], Any]]]] = {
    "ge": ("must be at least", operator.ge),
    "gt": ("must be above", operator.gt),
    "le": ("must be at most", operator.le),
    "lt": ("must be below", operator.lt),
    "multiple_of": ("must be a multiple of", lambda value, bound: value % bound == 0),
    "min_length": ("must have a length of at least", lambda value, bound: len(value) >= bound),
    "max_length": ("must have a length of at most", lambda value, bound: len(value) <= bound),
    "tz": ("must have a time zone:", lambda value, bound: (value.tzinfo is not None) == bound),
}


def _read_member(shape: shapes.Enumeration, value: Any) -> Any:
    for json_value, member in zip(shape.values, shape.members, strict=True):
        if type(json_value) is type(value) and json_value == value:
            return member
    if isinstance(shape.annotation, type) and type(value) in map(type, shape.values):
        with contextlib.suppress(ValueError):  # an enum may accept values beyond its members
            return shape.annotation(value)
    raise UnreadableTextError("enum")


def _read_flags(cls: type, value: int) -> Any:
    try:
        return cls(value)
    except ValueError:
        raise ValueError(f"Invalid enum value {value}") from None  # as msgspec words it


def _then_build(build: Callable[[Any], Any], core: Core) -> Core:
    def make(data: Any) -> Any:
        try:
            return build(data)
        except TypeError as error:  # pydantic reports only ValueError
            raise ValueError(sentence(error)) from error

    return core_schema.no_info_after_validator_function(make, core)


def _without_unset(row: tuple[Any, ...]) -> Iterator[Any]:
    return (item for item in row if item is not UNSET)


def _is_scalar(shape: Shape) -> bool:
    scalars = shapes.Scalar | shapes.Text | shapes.Enumeration | shapes.Flags
    return isinstance(shapes.without_notes(shape), scalars)


def _precedence(shape: Shape) -> int:
    """Rank scalars in a union: dates, ids and enums before plain text; integers before floats before decimals."""
    match shapes.without_notes(shape):
        case shapes.Enumeration():
            return 0
        case shapes.Text(format=format) if format not in {"base64", "path", "decimal"}:
            return 0
        case shapes.Scalar(type="integer"):
            return 1
        case shapes.Scalar(type="number"):
            return 2
    return 3


# pydantic explains all errors or none, and has one per union member and level.
_MAX_EXPLAINED: Final = 200


def _refused(error: ValidationError, data: Any, schema: MakeSchema) -> DecodeError:
    if error.error_count() > _MAX_EXPLAINED and not compile_schema(schema()).check(data):
        return refused_by_schema(data, schema())
    fault = min(error.errors(include_url=False, include_input=False), key=_rank)
    return explain_refusal(data, schema(), _path(fault["loc"], data), _cause(fault), fault["msg"])


def _rank(fault: Any) -> tuple[bool, int]:
    """Rank errors, of which a union has one per member: user validators first, then the deepest."""
    return not is_of_user(_cause(fault)), -len(fault["loc"])


def _cause(fault: Any) -> BaseException | None:
    cause = fault.get("ctx", {}).get("error")
    return cause if isinstance(cause, Exception) else None


def _path(location: tuple[int | str, ...], data: Any) -> Path:
    """Return the path into the data without the names of union members and validators that pydantic inserts."""
    path: Path = []
    for step in location:
        is_place = isinstance(data, list) and isinstance(step, int) and step < len(data)
        if is_place or (isinstance(data, dict) and step in data):
            path.append(step)
            data = data[step]
    return [*path[:-1], KEY] if location and location[-1] == KEY else path
