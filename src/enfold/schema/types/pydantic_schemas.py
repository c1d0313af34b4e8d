"""Adjusts pydantic-core schemas: base64 bytes, finite numbers, patterns with a bounded matcher, JSON Schemas and serializers.

Recursive unions that would take exponential time are rejected.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from itertools import combinations
from typing import Any, Final, Literal

import msgspec
from pydantic import EncodedBytes, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticCustomError, SchemaSerializer, core_schema

from enfold.schema.regexp import compile_pattern
from enfold.schema.types import UnreadableTextError, usable_pattern


def describe_foreign(annotation: Any, mode: Literal["input", "output"]) -> dict[str, Any]:
    """Return pydantic's JSON Schema for one of its types, with `$defs`."""
    direction: Literal["validation", "serialization"] = "validation" if mode == "input" else "serialization"
    inputs = [("it", direction, TypeAdapter(annotation))]
    schemas, document = TypeAdapter.json_schemas(inputs, schema_generator=_Describer)
    return {**schemas["it", direction], "$defs": document.get("$defs", {})}


def dump(value: Any) -> Any:
    """Convert a pydantic model or dataclass to JSON data that matches its JSON Schema."""
    cls: Any = type(value)
    return serializer_of(cls).to_python(value, mode="json", by_alias=True, warnings=False)


@functools.lru_cache(maxsize=1024)
def serializer_of(annotation: Any) -> SchemaSerializer:
    """Return pydantic's serializer for a type, with bytes as base64 text and only finite decimals."""
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    core = adapter.core_schema
    with_text = _with_finite_decimals(with_base64(core))
    return adapter.serializer if with_text is core else SchemaSerializer(with_text, _use_prebuilt=False)


class _Describer(GenerateJsonSchema):
    """Generates JSON Schemas in our style: bytes are base64 text, fields have no titles, nothing raises."""

    def bytes_schema(self, schema: core_schema.BytesSchema) -> JsonSchemaValue:
        if _CONFIGURED & self._config.config_dict.keys():
            return super().bytes_schema(schema)
        return {"type": "string", "contentEncoding": "base64"}

    def ser_schema(self, schema: Any) -> JsonSchemaValue | None:
        """Return an open schema for serializers without a return type and for `SerializeAsAny`."""
        is_open = schema["type"] == "any" or (_is_of_user(schema) and schema.get("return_schema") is None)
        return {} if is_open else super().ser_schema(schema)

    def model_field_schema(self, schema: core_schema.ModelField) -> JsonSchemaValue:
        return _without_default_if_excluded(schema, super().model_field_schema(schema))

    def dataclass_field_schema(self, schema: core_schema.DataclassField) -> JsonSchemaValue:
        return _without_default_if_excluded(schema, super().dataclass_field_schema(schema))

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - the signature is pydantic's
        return False

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:  # noqa: ARG002 - as above
        return {}


def _is_of_user(serialization: dict[str, Any]) -> bool:
    """Whether the serializer is a user's function."""
    module = getattr(serialization.get("function"), "__module__", None) or ""
    return "function" in serialization and module.split(".")[0] != "pydantic"


def _without_default_if_excluded(field: Any, schema: JsonSchemaValue) -> JsonSchemaValue:
    """Drop the default of a field with `exclude_if`, which must not be filled in again."""
    if field.get("serialization_exclude_if") is None:
        return schema
    return {word: value for word, value in schema.items() if word != "default"}


# Models that configure bytes themselves are left unchanged.
_CONFIGURED: Final = {"ser_json_bytes", "val_json_bytes"}


def with_base64(core: Any) -> Any:
    """Read and write bytes as base64 text; return the same object where there are none."""
    if not isinstance(core, dict):
        return with_parts(core, with_base64)
    if _CONFIGURED & core.get("config", {}).keys() or _decodes_itself(core):
        return core
    if core.get("type") == "bytes":
        return _base64_core(core)
    return with_parts(core, with_base64)


def with_finite_numbers(core: Any) -> Any:
    """Reject infinity, which JSON cannot represent, unless a model allows it."""
    if not isinstance(core, dict):
        return with_parts(core, with_finite_numbers)
    if "allow_inf_nan" in core or "allow_inf_nan" in core.get("config", {}):
        return core
    return {**core, "allow_inf_nan": False} if core.get("type") == "float" else with_parts(core, with_finite_numbers)


def with_own_patterns(core: Any, engine: str = "rust-regex") -> Any:
    """Use the bounded matcher of `regexp` for patterns that pydantic would run in Python's `re`."""
    if isinstance(core, dict):
        engine = core.get("config", {}).get("regex_engine", engine)
        if core.get("type") == "str" and "pattern" in core:
            is_for_re = not isinstance(core["pattern"], str) or core.get("regex_engine", engine) == "python-re"
            return _own_pattern_core(core) if is_for_re else core
    return with_parts(core, functools.partial(with_own_patterns, engine=engine))


def _own_pattern_core(core: dict[str, Any]) -> Any:
    source = core["pattern"] if isinstance(core["pattern"], str) else core["pattern"].pattern
    pattern = compile_pattern(usable_pattern(source))

    def match(text: Any) -> Any:
        if pattern.search(text):
            return text
        raise PydanticCustomError(
            "string_pattern_mismatch", "String should match pattern '{pattern}'", {"pattern": source}
        )

    rest: Any = {word: value for word, value in core.items() if word not in ("pattern", "regex_engine")}
    return core_schema.no_info_after_validator_function(match, rest)


def _with_finite_decimals(core: Any) -> Any:
    """Reject non-finite decimals when writing, unless a field has its own serializer."""
    if isinstance(core, dict) and core.get("type") == "decimal" and "serialization" not in core:
        write = core_schema.plain_serializer_function_ser_schema(_write_decimal, when_used="json")
        return {**core, "serialization": write}
    return with_parts(core, _with_finite_decimals)


def _write_decimal(value: Any) -> Any:
    if not isinstance(value, Decimal):
        return value
    if not value.is_finite():
        raise ValueError(f"{value} is not a JSON number")
    return str(value)


def _decodes_itself(core: dict[str, Any]) -> bool:
    """Whether this is a type like pydantic's Base64Bytes, which decodes its text."""
    function = core.get("function")
    method = function.get("function") if isinstance(function, dict) else None
    return isinstance(getattr(method, "__self__", None), EncodedBytes)


def _base64_core(core: Any) -> Any:
    write = core_schema.plain_serializer_function_ser_schema(_write_base64, when_used="json")
    return core_schema.no_info_before_validator_function(
        _read_base64, core, serialization=core.get("serialization", write)
    )


def _read_base64(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return msgspec.convert(value, bytes)
    except msgspec.ValidationError as error:
        raise UnreadableTextError("base64") from error


def _write_base64(value: Any) -> Any:
    return msgspec.to_builtins(value) if isinstance(value, bytes) else value


def with_parts(core: Any, change: Callable[[Any], Any]) -> Any:
    """Apply a function to the parts of a core schema; return the same object where nothing changes."""
    if isinstance(core, list | tuple):
        return _same_or_new(core, type(core)(map(change, core)))
    if not isinstance(core, dict):
        return core
    return _same_or_new(core, {key: _part(key, part, change) for key, part in core.items()})


def _part(key: str, part: Any, change: Callable[[Any], Any]) -> Any:
    if key in {"fields", "choices"} and isinstance(part, dict):  # keys are user-defined names
        return _same_or_new(part, {name: change(schema) for name, schema in part.items()})
    return part if key in _NOT_SCHEMAS else change(part)


_NOT_SCHEMAS: Final = {"metadata", "config", "default", "expected", "cls", "ref", "type"}


def _same_or_new(old: Any, new: Any) -> Any:
    parts = zip(old.values(), new.values(), strict=True) if isinstance(old, dict) else zip(old, new, strict=True)
    return old if all(one is other for one, other in parts) else new


def _parts_inside(core: Any) -> list[dict[str, Any]]:
    """Return a schema and all schemas inside it, without following references."""
    found: list[dict[str, Any]] = []

    def look(part: Any) -> Any:
        if isinstance(part, dict):
            found.append(part)
        return with_parts(part, look)

    look(core)
    return found


def refuse_exponential_unions(core: Any) -> None:
    """Raise TypeError for a union that pydantic would read in exponential time.

    pydantic tries every member of a union without a discriminator. Where two members can contain the union again at the
    same location, a value nested n levels deep is read 2 ** n times.
    """
    definitions = {each["ref"]: each for each in core["definitions"]} if core["type"] == "definitions" else {}
    for reference, definition in definitions.items():
        for part in _parts_inside(definition):
            if part.get("type") == "union":
                _Union(part, reference, definitions).refuse_if_exponential()


_ITEMS: Final = 0  # the items of an array
_EVERY: Final = 1  # the values of all properties
_PLACES: Final = {"dict": {_EVERY}, "list": {_ITEMS}, "set": {_ITEMS}, "frozenset": {_ITEMS}, "tuple": {_ITEMS}}


class _Union:
    """A union inside a definition, and the locations where its members refer to that definition again."""

    def __init__(self, union: Any, reference: str, definitions: dict[str, Any]) -> None:
        self._union = union
        self._reference = reference
        self._definitions = definitions

    def refuse_if_exponential(self) -> None:
        for (one, core, places), (other, other_core, other_places) in combinations(self._members(self._union), 2):
            if _overlap(places, other_places):
                common = [name for name in _literals(core) if name in _literals(other_core)]
                raise TypeError(_advice(one, other, common))

    def _members(self, union: Any) -> Iterator[tuple[str, Any, set[Any]]]:
        """Yield the members of a union and of nested unions: name, schema and recursive locations."""
        for choice in union["choices"]:
            name, core = self._unwrapped(choice[0] if isinstance(choice, tuple) else choice)
            if core.get("type") == "union":
                yield from self._members(core)
            else:
                yield name, core, self._places(core)

    def _unwrapped(self, core: Any) -> tuple[str, Any]:
        name, seen = "", set()
        while id(core) not in seen:
            seen.add(id(core))
            name = getattr(core.get("cls"), "__name__", None) or core.get("cls_name") or name
            if core.get("type") == "definition-ref":
                core = self._definitions.get(core["schema_ref"], {})
            else:
                core = core.get("schema") or core.get("json_schema") or core
        return name or str(core.get("type")), core

    def _places(self, core: Any) -> set[Any]:
        """Return where a member can contain the union again: property names, all properties, or items."""
        if core.get("type") == "tagged-union":  # only one of its members is read
            return set().union(*(self._places(self._unwrapped(member)[1]) for member in core["choices"].values()))
        fields = core.get("fields")
        if fields is None:
            return _PLACES.get(core.get("type", ""), {_EVERY, _ITEMS}) if self._recurs(core) else set()
        found: set[Any] = {_EVERY} if self._recurs(core.get("extras_schema")) else set()
        for name, field in _named(fields):
            if self._recurs(field):
                alias = field.get("validation_alias") or name
                found |= {name, alias} if isinstance(alias, str) else {_EVERY}
        return found

    def _recurs(self, core: Any) -> bool:
        found: set[str] = set()
        waiting = [core]
        for each in waiting:  # grows during iteration
            references = {part["schema_ref"] for part in _parts_inside(each) if part.get("type") == "definition-ref"}
            new = [reference for reference in references - found if reference in self._definitions]
            found.update(new)
            waiting += [self._definitions[reference] for reference in new]
        return self._reference in found


def _overlap(one: set[Any], other: set[Any]) -> bool:
    return bool(one & other or (_EVERY in one and other - {_ITEMS}) or (_EVERY in other and one - {_ITEMS}))


def _named(fields: Any) -> Iterable[tuple[str, Any]]:
    """Return fields by name; those of a dataclass are a list."""
    return fields.items() if isinstance(fields, dict) else [(field["name"], field) for field in fields]


def _literals(record: Any) -> list[str]:
    schemas = {name: field["schema"] for name, field in _named(record.get("fields", {}))}
    return [
        name for name, schema in schemas.items() if "literal" in (schema["type"], schema.get("schema", {}).get("type"))
    ]


def _advice(one: str, other: str, common: list[str]) -> str:
    name = common[0] if common else "kind"
    fields = "" if common else f", and give each of them a Literal field {name!r}"
    return (
        f"a recursive union of {one} and {other} without a discriminator can take exponential time to read: "
        f"use Annotated[{one} | {other}, Field(discriminator={name!r})]{fields}"
    )
