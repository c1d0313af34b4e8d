"""The quick tests of schemas by msgspec: what they accept is clean, and what is written is what everybody gets."""

from __future__ import annotations

import json
from collections import OrderedDict, UserDict
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from enfold import OperationRegistry, OperationSpec
from enfold.operations import Operation
from enfold.operations.outcomes import envelope_of
from enfold.schema.compiled import compile_schema
from enfold.schema.structs import encode

NAMES = st.sampled_from(["a", "b", "c d", "é"])
WORDS = st.sampled_from(["x", "y", ""])
SCALARS = st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.5, 1.0, 10**25, 1e300]) | WORDS
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=10
)
KINDS = st.sampled_from(["null", "boolean", "integer", "number", "string"])
LEAVES = st.one_of(
    KINDS.map(lambda kind: {"type": kind}),
    st.lists(KINDS, min_size=1, max_size=3, unique=True).map(lambda kinds: {"type": kinds}),
    st.lists(WORDS | st.none(), min_size=1, max_size=3, unique=True).map(lambda words: {"enum": words}),
    st.sampled_from([{"type": "string", "maxLength": 1}, {"type": "integer", "minimum": 0, "default": 1}, {}, True]),
    st.just({"$ref": "#/$defs/one"}),
)


def _object(properties: dict[str, Any], required: list[str], additional: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": additional}


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.lists(NAMES, max_size=2, unique=True)
    return st.builds(_object, st.dictionaries(NAMES, inner, min_size=1, max_size=3), names, st.booleans())


SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        _objects(inner),
        _objects(inner),
        inner.map(lambda item: {"type": "array", "items": item}),
        inner.map(lambda item: {"anyOf": [item, {"type": "null"}]}),
    ),
    max_leaves=6,
)


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=300)
@given(_objects(SCHEMAS) | SCHEMAS, SCHEMAS, st.dictionaries(NAMES, VALUES, max_size=4) | VALUES)
def test_what_a_quick_test_accepts_is_clean(schema: Any, one: Any, value: Any) -> None:
    compiled = compile_schema({**(schema if isinstance(schema, dict) else {}), "$defs": {"one": one}})
    tests = compiled.quick_tests()
    repaired = compiled.repair(value)
    if tests is None or (repaired.data is value and not repaired.warnings):
        return
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(value, tests.type)
    if tests.of_text is not None:
        with pytest.raises(msgspec.ValidationError):
            tests.of_text(encode(value))


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "kind": {"enum": ["guest", "member"]},
        "weight": {"type": ["number", "null"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "scores": {"type": "object", "additionalProperties": {"type": "number"}},
        "level": {"enum": [1, "one", None]},
        "boss": {"anyOf": [{"$ref": "#/$defs/boss"}, {"type": "null"}]},
        "homes": {"type": "array", "items": {"type": "object", "properties": {"city": {"type": "string"}}}},
    },
    "required": ["name"],
    "$defs": {"boss": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}},
}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "string"},
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "^x"}}},
        {"type": "object", "properties": {"a": {}}},
        {"type": "object", "properties": {"a": {"type": "array"}}},
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["b"]},
        {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": True},
        {"type": "object", "properties": {'"': {"type": "integer"}}},
        {"properties": {"a": {"type": "integer"}}},
    ],
    ids=["open", "scalar", "itself", "pattern", "anything", "any items", "nameless", "additional", "quote", "untyped"],
)
def test_a_schema_that_says_more_than_msgspec_can_has_no_quick_tests(schema: dict[str, Any]) -> None:
    assert compile_schema(schema).quick_tests() is None


@pytest.mark.parametrize("other", ["null", "string"])
def test_text_is_not_tested_where_nan_could_be_mistaken_for_a_value(other: str) -> None:
    tests = compile_schema({"type": "array", "items": {"type": ["number", other]}}).quick_tests()
    assert tests is not None
    assert tests.of_text is None


@pytest.mark.parametrize("depth", [1, 3, 6, 15, 40])
def test_a_decimal_is_not_a_number_however_deep_it_stands(depth: int) -> None:
    schema: dict[str, Any] = {"type": "number"}
    right: Any = 2.5
    wrong: Any = Decimal("2.5")
    for level in range(depth):
        if level % 3 == 1:
            schema = {"type": "array", "items": schema}
            right, wrong = [right, right], [right, wrong]
        else:
            required = ["a"] if level % 3 else []
            schema = {
                "type": "object",
                "properties": {"a": schema},
                "required": required,
                "additionalProperties": False,
            }
            right, wrong = {"a": right}, {"a": wrong}
    tests = compile_schema(schema).quick_tests()
    assert tests is not None
    msgspec.convert(right, tests.type)
    assert tests.guard is not None
    assert tests.guard(right)
    assert not tests.guard(wrong)


def giving(value: Any) -> OperationRegistry:
    """A registry with one operation, `give`, that gives this value as a person."""
    ops = OperationRegistry()
    ops.register(Operation(OperationSpec(name="give", output_schema=PERSON), lambda *_: value))
    return ops


class Kind(str, Enum):
    GUEST = "guest"


class Word(str):
    __slots__ = ()


class Upper(dict[str, str]):
    def items(self) -> Any:
        return [(name, value.upper()) for name, value in super().items()]


class Weight(IntEnum):
    LIGHT = 1


@pytest.mark.parametrize(
    "value",
    [
        {"name": "Ann", "weight": 2**60 + 1, "tags": ["a"], "boss": {"name": "Bo"}, "kind": "guest"},
        {"name": "Ann", "weight": 1.0},
        {"name": Word("Ann"), "kind": Kind.GUEST, "weight": Weight.LIGHT},
        {"name": "Ann", "tags": ("a", "b"), "boss": OrderedDict(name="Bo")},
        {"name": "Ann", "boss": None, "weight": None},
        {"name": "Ann", "kind": "unknown", "secret": 1},
        {"name": 5},
        {"weight": 1},
        {},
        {"name": "Ann", "weight": Decimal("2.5")},
        {"name": "Ann", "boss": UserDict(name="Bo", secret=1)},
        {"name": "Ann", "boss": Upper(name="Bo")},
        {"name": "Ann", "homes": [{"city": "Rome"}, range(3)]},
        {Word("name"): "Ann", "kind": "guest"},
        {"name": "Ann", "scores": {Word("a"): 1, "b": 2.5}},
        {"name": "Ann", "scores": {1: 1}},
        {"name": "Ann", "scores": {"a": Decimal(1)}},
        {"name": "Ann", "scores": UserDict(a=1)},
        {"name": "Ann", "tags": {"a"}},
        {"name": "Ann", "level": True},
        {"name": "Ann", "level": Weight.LIGHT, "weight": True},
    ],
    ids=[
        *("whole", "fraction", "enums", "tuple", "nulls", "extra", "wrong", "missing", "empty"),
        *(
            "decimal",
            "extra of a mapping",
            "dict of its own kind",
            "no mapping at all",
            "odd key",
            "odd keys of a table",
        ),
        *("numbered table", "decimal in a table", "mapping as table", "set", "true for one", "enum for one"),
    ],
)
async def test_every_reader_gets_what_was_written(value: dict[str, Any]) -> None:
    ops = giving(value)
    plain = await ops.execute("give", {})
    written = envelope_of(await ops.prepared("give", for_writing=True).execute({}, None))
    assert encode(written.data) == encode(plain.data)
    assert [warning.to_wire() for warning in written.warnings] == [warning.to_wire() for warning in plain.warnings]


async def test_properties_are_written_in_the_order_in_which_they_came() -> None:
    ops = giving({"weight": 1, "name": "Ann"})
    written = envelope_of(await ops.prepared("give", for_writing=True).execute({}, None))
    assert encode(written.data) == b'{"weight":1,"name":"Ann"}'


async def test_a_decimal_is_written_as_the_number_it_stands_for() -> None:
    ops = giving({"name": "Ann", "weight": Decimal("2.5")})
    written = envelope_of(await ops.prepared("give", for_writing=True).execute({}, None))
    assert json.loads(encode(written.data)) == {"name": "Ann", "weight": 2.5}
