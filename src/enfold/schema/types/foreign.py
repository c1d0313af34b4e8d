"""pydantic's own types in the manner of ours: their schemas, how they are written as JSON, and bytes as base64 text."""

from __future__ import annotations

import functools
from decimal import Decimal
from typing import Any, Final, Literal

import msgspec
from pydantic import EncodedBytes, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticCustomError, SchemaSerializer, core_schema

from enfold.schema.nodes.pattern import compile_pattern
from enfold.schema.types.core_parts import with_parts
from enfold.schema.types.decoding import NotTextOfError
from enfold.schema.types.value_limits import usable_pattern


def describe_foreign(annotation: Any, mode: Literal["input", "output"]) -> dict[str, Any]:
    """The JSON Schema that pydantic gives for one of its own types, with `$defs`."""
    direction: Literal["validation", "serialization"] = "validation" if mode == "input" else "serialization"
    inputs = [("it", direction, TypeAdapter(annotation))]
    schemas, document = TypeAdapter.json_schemas(inputs, schema_generator=_Describer)
    return {**schemas["it", direction], "$defs": document.get("$defs", {})}


def dump(value: Any) -> Any:
    """A pydantic model or dataclass as JSON data, as its JSON Schema describes it."""
    cls: Any = type(value)
    return serializer_of(cls).to_python(value, mode="json", by_alias=True, warnings=False)


@functools.lru_cache(maxsize=1024)
def serializer_of(annotation: Any) -> SchemaSerializer:
    """What writes values of a type as pydantic does, but bytes as base64 text, and no decimal that is not a number."""
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    core = adapter.core_schema
    with_text = _with_finite_decimals(with_base64(core))
    return adapter.serializer if with_text is core else SchemaSerializer(with_text, _use_prebuilt=False)


class _Describer(GenerateJsonSchema):
    """pydantic's own schemas in the manner of ours: bytes are base64 text, fields have no titles, nothing is refused."""

    def bytes_schema(self, schema: core_schema.BytesSchema) -> JsonSchemaValue:
        if _CONFIGURED & self._config.config_dict.keys():
            return super().bytes_schema(schema)
        return {"type": "string", "contentEncoding": "base64"}

    def ser_schema(self, schema: Any) -> JsonSchemaValue | None:
        """Anything may come from a serializer that does not say what it returns, and from `SerializeAsAny`."""
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
    """Whether it is a function that pydantic did not bring itself."""
    module = getattr(serialization.get("function"), "__module__", None) or ""
    return "function" in serialization and module.split(".")[0] != "pydantic"


def _without_default_if_excluded(field: Any, schema: JsonSchemaValue) -> JsonSchemaValue:
    """What a field leaves out on purpose is not to be filled in again."""
    if field.get("serialization_exclude_if") is None:
        return schema
    return {word: value for word, value in schema.items() if word != "default"}


# A model that says itself how its bytes are written keeps its word.
_CONFIGURED: Final = {"ser_json_bytes", "val_json_bytes"}


def with_base64(core: Any) -> Any:
    """The schema with bytes read from and written as base64 text; the same object where it has no bytes."""
    if not isinstance(core, dict):
        return with_parts(core, with_base64)
    if _CONFIGURED & core.get("config", {}).keys() or _decodes_itself(core):
        return core
    if core.get("type") == "bytes":
        return _base64_core(core)
    return with_parts(core, with_base64)


def with_finite_numbers(core: Any) -> Any:
    """The schema with infinity refused, which JSON cannot hold; a model that wants it keeps its word."""
    if not isinstance(core, dict):
        return with_parts(core, with_finite_numbers)
    if "allow_inf_nan" in core or "allow_inf_nan" in core.get("config", {}):
        return core
    return {**core, "allow_inf_nan": False} if core.get("type") == "float" else with_parts(core, with_finite_numbers)


def with_own_patterns(core: Any, engine: str = "rust-regex") -> Any:
    """The schema with patterns that Python's `re` would search for, without an end, left to our own matcher."""
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
    """The schema with decimals written only where they are numbers; a field that says itself how keeps its word."""
    if isinstance(core, dict) and core.get("type") == "decimal" and "serialization" not in core:
        write = core_schema.plain_serializer_function_ser_schema(_write_decimal, when_used="json")
        return {**core, "serialization": write}
    return with_parts(core, _with_finite_decimals)


def _write_decimal(value: Any) -> Any:
    if not isinstance(value, Decimal):
        return value
    if not value.is_finite():
        raise ValueError(f"{value} is not a number that JSON can hold")
    return str(value)


def _decodes_itself(core: dict[str, Any]) -> bool:
    """Whether this is a type like pydantic's Base64Bytes, which reads its text without us."""
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
        raise NotTextOfError("base64") from error


def _write_base64(value: Any) -> Any:
    return msgspec.to_builtins(value) if isinstance(value, bytes) else value
