"""What is wrong with an operation's input is said by argument, and text that stands for its type is converted."""

from __future__ import annotations

import copy
import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.schema.typebox import cases, corpora

from enfold.schema.arguments import Fault, Walk, coerce, faults, validation_error
from enfold.schema.compiled import compile_schema

Schema = dict[str, Any]

INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
STRING: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}


def arguments(**properties: Schema) -> Schema:
    """The input schema of a function whose arguments are all required."""
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def told(schema: Schema, value: Any) -> list[tuple[str, str, str | None]]:
    return [(fault.argument, fault.reason, fault.expected) for fault in faults(schema, value)]


ADD = arguments(x=INTEGER, y=INTEGER)


def test_a_missing_argument_is_reported_by_name() -> None:
    error = validation_error(faults(ADD, {"x": 2}), ADD)
    assert error.code == "VALIDATION_ERROR"
    assert error.details == {"argument": "y", "reason": "missing", "expected": "integer"}
    assert str(error) == 'Argument "y" is missing (expected integer)'


def test_an_unknown_argument_is_reported_by_name() -> None:
    error = validation_error(faults(ADD, {"x": 1, "y": 2, "z": 3}), ADD)
    assert error.details == {"argument": "z", "reason": "unknown", "expected": None}
    assert str(error) == 'Unknown argument "z"'


@pytest.mark.parametrize(
    ("given", "near"), [("bok", "book"), ("boook", "book"), ("Titel", "title"), ("pages", None), ("b" * 10_000, None)]
)
def test_a_wrong_name_is_reported_with_the_nearest_right_one(given: str, near: str | None) -> None:
    schema = arguments(book=STRING, title=STRING)
    sentence = str(validation_error(faults(schema, {given: "x"}), schema))
    assert (f'": did you mean "{near}"?' in sentence) is (near is not None)


def test_up_to_five_faults_are_reported_together() -> None:
    schema = arguments(book=STRING)
    error = validation_error(faults(schema, {"bok": "x"}), schema)
    assert str(error) == 'Argument "book" is missing (expected string); Unknown argument "bok": did you mean "book"?'
    schema = arguments(**dict.fromkeys("abcdefg", INTEGER))
    assert str(validation_error(faults(schema, {}), schema)).count(" is missing") == 5


@pytest.mark.parametrize(
    ("value", "got"), [("abc", "string"), (1.5, "number"), (True, "boolean"), (None, "null"), ([], "array")]
)
def test_a_value_of_another_type_is_reported_with_both_types(value: Any, got: str) -> None:
    error = validation_error(faults(ADD, {"x": value, "y": 2}), ADD)
    assert error.details == {"argument": "x", "reason": "type", "expected": "integer"}
    assert str(error) == f'Argument "x" must be integer, got {got}'


def test_the_first_fault_follows_the_schema_and_the_others_go_to_more() -> None:
    error = validation_error(faults(ADD, {"z": 1, "y": "abc"}), ADD)
    assert error.details == {
        "argument": "x",
        "reason": "missing",
        "expected": "integer",
        "more": [
            {"argument": "y", "reason": "type", "expected": "integer"},
            {"argument": "z", "reason": "unknown", "expected": None},
        ],
    }


def test_no_more_than_twenty_others_are_reported() -> None:
    error = validation_error(faults(ADD, {f"z{number}": 1 for number in range(1_000)}), ADD)
    assert len(error.details["more"]) == 20


def test_a_whole_number_written_as_a_float_is_an_integer() -> None:
    assert faults(ADD, {"x": 1.0, "y": 2}) == []


def test_a_long_value_is_cut_in_the_sentence() -> None:
    schema = arguments(x={"type": "string", "maxLength": 5})
    sentence = str(validation_error(faults(schema, {"x": "a" * 10_000}), schema))
    assert sentence == f'Argument "x" must be at most 5 characters, got "{"a" * 50}…"'


POINT: Schema = {"type": "object", "properties": {"lat": NUMBER, "lon": NUMBER}, "required": ["lat", "lon"]}
CIRCLE: Schema = {"type": "object", "properties": {"kind": {"const": "circle"}, "r": NUMBER}, "required": ["kind", "r"]}
SQUARE: Schema = {"type": "object", "properties": {"kind": {"const": "square"}, "a": NUMBER}, "required": ["kind", "a"]}
SHAPE: Schema = {"oneOf": [CIRCLE, SQUARE]}
PETS: Schema = {
    "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
    "discriminator": {"propertyName": "pet", "mapping": {"miau": "#/$defs/Cat"}},
    "$defs": {
        "Cat": {"type": "object", "properties": {"pet": STRING, "lives": INTEGER}, "required": ["lives"]},
        "Dog": {"type": "object", "properties": {"pet": STRING, "barks": BOOLEAN}, "required": ["barks"]},
    },
}

# Schema, value, the faults.
FAULTS: dict[str, tuple[Schema, Any, list[tuple[str, str, str | None]]]] = {
    "enum": ({"enum": ["low", "high"]}, "mid", [("", "constraint", 'one of "low", "high"')]),
    "enum, another type": ({"enum": ["low", "high"]}, 5, [("", "type", 'one of "low", "high"')]),
    "enum, typed": ({"type": "string", "enum": ["a", "b"]}, 5, [("", "type", 'one of "a", "b"')]),
    "true is no 1": ({"enum": [1]}, True, [("", "type", "1")]),
    "const": ({"const": "a"}, "b", [("", "constraint", '"a"')]),
    "minimum": ({"minimum": 1}, 0, [("", "constraint", "at least 1")]),
    "maximum": ({"maximum": 1}, 2, [("", "constraint", "at most 1")]),
    "exclusiveMinimum": ({"exclusiveMinimum": 1}, 1, [("", "constraint", "more than 1")]),
    "exclusiveMaximum": ({"exclusiveMaximum": 1}, 1, [("", "constraint", "less than 1")]),
    "multipleOf": ({"multipleOf": 0.5}, 0.7, [("", "constraint", "a multiple of 0.5")]),
    "minLength": ({"minLength": 1}, "", [("", "constraint", "at least 1 character")]),
    "maxLength": ({"maxLength": 5}, "abcdef", [("", "constraint", "at most 5 characters")]),
    "pattern": ({"pattern": "^a"}, "b", [("", "constraint", "text matching ^a")]),
    "type list": ({"type": ["string", "null"]}, 5, [("", "type", "string or null")]),
    "nullable": ({"type": "string", "nullable": True}, 5, [("", "type", "string or null")]),
    "number": (NUMBER, float("nan"), [("", "type", "number")]),
    "minItems": ({"minItems": 2}, [1], [("", "constraint", "at least 2 items")]),
    "maxItems": ({"maxItems": 1}, [1, 2], [("", "constraint", "at most 1 item")]),
    "uniqueItems": ({"uniqueItems": True}, [1, 1.0], [("", "constraint", "items that all differ")]),
    "contains": ({"contains": INTEGER}, ["a"], [("", "constraint", "at least 1 item of integer")]),
    "maxContains": ({"contains": INTEGER, "maxContains": 1}, [1, 2], [("", "constraint", "at most 1 item of integer")]),
    "items": ({"items": INTEGER}, [1, "a", 2.5], [("[1]", "type", "integer"), ("[2]", "type", "integer")]),
    "prefixItems": ({"prefixItems": [STRING, INTEGER]}, ["a", "b"], [("[1]", "type", "integer")]),
    "no further items": ({"prefixItems": [STRING], "items": False}, ["a", 1], [("", "constraint", "at most 1 item")]),
    "additionalItems": ({"items": [STRING], "additionalItems": INTEGER}, ["a", "b"], [("[1]", "type", "integer")]),
    "nested": (
        arguments(at=POINT),
        {"at": {"lat": "x"}},
        [("at.lat", "type", "number"), ("at.lon", "missing", "number")],
    ),
    "in an array": (
        arguments(items={"items": POINT}),
        {"items": [{"lat": 1, "lon": 2}, {"lat": 1}]},
        [("items[1].lon", "missing", "number")],
    ),
    "an odd name": (
        arguments(a={"additionalProperties": INTEGER}),
        {"a": {"b.c d": "x"}},
        [('a["b.c d"]', "type", "integer")],
    ),
    "required without a schema": ({"required": ["q"]}, {}, [("q", "missing", "any value")]),
    "dictionary": ({"additionalProperties": NUMBER}, {"k": "v"}, [("k", "type", "number")]),
    "patternProperties": ({"patternProperties": {"^n": NUMBER}}, {"n1": "v", "s": "v"}, [("n1", "type", "number")]),
    "propertyNames": (
        {"propertyNames": {"maxLength": 2}},
        {"abc": 1},
        [("abc", "constraint", "a name that is at most 2 characters")],
    ),
    "minProperties": ({"minProperties": 2}, {"a": 1}, [("", "constraint", "at least 2 properties")]),
    "maxProperties": ({"maxProperties": 1}, {"a": 1, "b": 2}, [("", "constraint", "at most 1 property")]),
    "dependentRequired": (
        {"properties": {"b": INTEGER}, "dependentRequired": {"a": ["b"]}},
        {"a": 1},
        [("b", "missing", "integer")],
    ),
    "dependentSchemas": ({"dependentSchemas": {"a": {"required": ["b"]}}}, {"a": 1}, [("b", "missing", "any value")]),
    "unevaluatedProperties": (
        {"allOf": [{"properties": {"a": INTEGER}}], "unevaluatedProperties": False},
        {"a": 1, "b": 2},
        [("b", "unknown", None)],
    ),
    "allOf": ({"allOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"b": 1}, [("a", "missing", "any value")]),
    "$ref": (
        {"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer", "minimum": 3}}},
        2,
        [("", "constraint", "at least 3")],
    ),
    "not": ({"not": {"const": 5}}, 5, [("", "constraint", "other than 5")]),
    "if, then": ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, {"a": 1}, [("b", "missing", "any value")]),
    "if, else": ({"if": {"required": ["a"]}, "else": {"required": ["c"]}}, {}, [("c", "missing", "any value")]),
    "union of types": ({"anyOf": [INTEGER, STRING]}, [], [("", "type", "integer or string")]),
    "optional": ({"anyOf": [INTEGER, NULL]}, "x", [("", "type", "integer or null")]),
    "optional object": ({"anyOf": [POINT, NULL]}, {"lat": 1}, [("lon", "missing", "number")]),
    "union of constants": ({"anyOf": [{"const": "a"}, {"const": "b"}]}, "c", [("", "constraint", 'one of "a", "b"')]),
    "optional enum": ({"anyOf": [{"enum": ["a"]}, NULL]}, "c", [("", "constraint", 'one of "a", null')]),
    "tagged": (SHAPE, {"kind": "square", "r": 1}, [("a", "missing", "number")]),
    "an unknown tag": (SHAPE, {"kind": "oval"}, [("kind", "constraint", 'one of "circle", "square"')]),
    "no tag": (SHAPE, {"r": 1}, [("kind", "missing", 'one of "circle", "square"')]),
    "discriminator": (PETS, {"pet": "miau", "barks": 1}, [("lives", "missing", "integer")]),
    "discriminator by name": (PETS, {"pet": "Dog", "barks": 1}, [("barks", "type", "boolean")]),
    "the nearest variant": (
        {"anyOf": [{"items": STRING}, {"items": INTEGER}]},
        [1, 2, "x"],
        [("[2]", "type", "integer")],
    ),
    "two of oneOf": ({"oneOf": [{"minimum": 1}, {"minimum": 2}]}, 3, [("", "constraint", "exactly one of 2 forms")]),
    "a forbidden property": ({"properties": {"a": False}}, {"a": 1}, [("a", "unknown", None)]),
    "valid": (arguments(at=POINT), {"at": {"lat": 1, "lon": 2}}, []),
}


@pytest.mark.parametrize(("schema", "value", "expected"), FAULTS.values(), ids=FAULTS)
def test_each_keyword_names_its_fault(schema: Schema, value: Any, expected: list[tuple[str, str, str | None]]) -> None:
    assert told(schema, value) == expected


def test_a_fault_without_a_specific_reason_still_shows_the_expectation() -> None:
    [fault] = faults({"unevaluatedItems": False}, [1])
    assert (fault.argument, fault.reason) == ("", "constraint")
    assert fault.expected is not None
    assert "unevaluatedItems" in fault.expected


# Schema, text, what it becomes.
LOSSLESS: list[tuple[Schema, str, Any]] = [
    (INTEGER, "10", 10),
    (INTEGER, "-7", -7),
    (INTEGER, "0", 0),
    (INTEGER, "1.0", 1),
    (INTEGER, "123456789012345678901234567890", 123456789012345678901234567890),
    (NUMBER, "-1.5", -1.5),
    (NUMBER, "1e3", 1000.0),
    (NUMBER, "10", 10),
    (BOOLEAN, "true", True),
    (BOOLEAN, "false", False),
    (NULL, "null", None),
    ({"type": ["integer", "null"]}, "null", None),
    ({"anyOf": [INTEGER, NULL]}, "5", 5),
    ({"enum": [1, 2]}, "2", 2),
    ({"const": True}, "true", True),
    ({"$ref": "#/$defs/n", "$defs": {"n": INTEGER}}, "5", 5),
    ({"allOf": [INTEGER, {"minimum": 3}]}, "5", 5),
    ({"anyOf": [{"type": "string", "pattern": "^a"}, INTEGER]}, "10", 10),
    ({"type": "array", "items": INTEGER}, '["1", 2]', [1, 2]),
    (POINT, '{"lat": "1.5", "lon": 2}', {"lat": 1.5, "lon": 2}),
    ({"type": "integer", "maximum": 5}, "10", 10),  # so that the fault is the bound, not the type
]


@pytest.mark.parametrize(
    ("schema", "text", "value"), LOSSLESS, ids=[f"{json.dumps(s)[:40]} {t[:30]}" for s, t, _ in LOSSLESS]
)
def test_text_that_stands_for_its_type_is_converted(schema: Schema, text: str, value: Any) -> None:
    converted = coerce(schema, text)
    assert (converted, type(converted)) == (value, type(value))


LOSSY: list[tuple[Schema, str]] = [
    *(
        (INTEGER, text)
        for text in ("abc", "", " 10", "10 ", "010", "+1", "1_0", "٣", "１", "1.5", "0x10", "1e400", "--1", "NaN")
    ),
    *((NUMBER, text) for text in ("1.", ".5", "Infinity", "1e400", "1,5", "nan")),
    *((BOOLEAN, text) for text in ("True", "1", "yes", "TRUE", "")),
    ({"type": ["string", "null"]}, "null"),
    ({"anyOf": [STRING, INTEGER]}, "10"),
    ({"anyOf": [INTEGER, STRING]}, "10"),
    ({}, "10"),
    (STRING, "10"),
    ({"enum": ["1", 1]}, "1"),
    ({"type": ["string", "object"]}, "{}"),
    ({"type": "object"}, "{'a': 1}"),
    ({"type": "object"}, "[]"),
    ({"type": "array"}, "[1"),
]


@pytest.mark.parametrize(("schema", "text"), LOSSY, ids=[f"{json.dumps(s)[:40]} {t!r}" for s, t in LOSSY])
def test_other_text_is_unchanged(schema: Schema, text: str) -> None:
    assert coerce(schema, text) is text


@pytest.mark.parametrize("value", [5, 1.5, True, None, [5], {"a": 5}], ids=repr)
def test_nothing_but_text_is_converted(value: Any) -> None:
    assert coerce({"type": "string"}, value) is value


def test_text_is_converted_wherever_it_occurs_and_the_input_stays_untouched() -> None:
    schema = arguments(
        ids={"type": "array", "items": INTEGER},
        at=POINT,
        pair={"prefixItems": [STRING, INTEGER]},
        prices={"additionalProperties": NUMBER},
        flags={"patternProperties": {"^is_": BOOLEAN}},
        shape=SHAPE,
        maybe={"anyOf": [{"type": "array", "items": INTEGER}, NULL]},
    )
    value = {
        "ids": ["1", "2"],
        "at": {"lat": "1.5", "lon": "2"},
        "pair": ["1", "1"],
        "prices": {"a": "9.99"},
        "flags": {"is_a": "true", "b": "true"},
        "shape": {"kind": "square", "a": "3"},
        "maybe": ["4"],
    }
    before = copy.deepcopy(value)
    assert coerce(schema, value) == {
        "ids": [1, 2],
        "at": {"lat": 1.5, "lon": 2},
        "pair": ["1", 1],
        "prices": {"a": 9.99},
        "flags": {"is_a": True, "b": "true"},
        "shape": {"kind": "square", "a": 3},
        "maybe": [4],
    }
    assert value == before


def test_a_value_that_needs_no_conversion_is_the_same_object() -> None:
    value = {"x": 1, "y": "abc"}
    assert coerce(ADD, value) is value


def test_a_variant_that_is_meant_is_converted_although_something_else_is_wrong() -> None:
    assert told(SHAPE, coerce(SHAPE, {"kind": "square", "a": "3", "b": 1})) == []
    assert coerce({"anyOf": [ADD, NULL]}, {"x": "1"}) == {"x": 1}


@st.composite
def schemas(draw: st.DrawFn, depth: int = 2) -> Schema:
    leaf = st.sampled_from(
        [INTEGER, NUMBER, STRING, BOOLEAN, NULL, {}, {"enum": ["a", 1, None]}, {"type": "integer", "minimum": 2}]
    )
    if depth == 0:
        return draw(leaf)
    inner = schemas(depth - 1)
    several = st.lists(inner, min_size=1, max_size=3)
    return draw(
        st.one_of(
            leaf,
            st.builds(lambda items: {"type": "array", "items": items, "maxItems": 3}, inner),
            st.builds(lambda a, b: {"type": "object", "properties": {"a": a, "b": b}, "required": ["a"]}, inner, inner),
            st.builds(lambda a: {"properties": {"a": a}, "additionalProperties": False}, inner),
            st.builds(lambda parts: {"anyOf": parts}, several),
            st.builds(lambda parts: {"oneOf": parts}, several),
            st.builds(lambda parts: {"allOf": parts}, several),
            st.builds(lambda part: {"not": part}, inner),
            st.builds(lambda a, b, c: {"if": a, "then": b, "else": c}, inner, inner, inner),
        )
    )


values = st.recursive(
    st.sampled_from([None, True, 0, 1, 3, 2.5, 2.0, "a", "1", "true", "null", "1.5", "[1]", '{"a": "1"}']),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(schemas(), values)
def test_there_are_faults_exactly_where_the_check_refuses(schema: Schema, value: Any) -> None:
    compiled = compile_schema(schema)
    assert (next(Walk(compiled).faults(compiled.bundles.alone(compiled.root), value), None) is None) is compiled.check(
        value
    )
    assert bool(faults(schema, value)) is not compiled.check(value)


@settings(max_examples=100, deadline=None)
@given(schemas(), values)
def test_conversion_never_touches_what_is_valid_and_is_done_once(schema: Schema, value: Any) -> None:
    before = copy.deepcopy(value)
    converted = coerce(schema, value)
    assert value == before
    assert coerce(schema, converted) == converted
    if compile_schema(schema).check(value):
        assert converted is value


def nested(depth: int, innermost: Any) -> Any:
    for _ in range(depth):
        innermost = {"a": innermost}
    return innermost


def nested_schema(depth: int) -> Schema:
    schema: Schema = INTEGER
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def endless_value() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["a"] = value
    return value


TREE: Schema = {
    "properties": {"a": {"anyOf": [{"$ref": "#"}, {"properties": {"a": {"$ref": "#"}}}, NULL]}, "v": INTEGER},
    "required": ["v"],
}
DOUBLING: Schema = {
    "$ref": "#/$defs/0",
    "$defs": {str(n): {"anyOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(40)} | {"40": INTEGER},
}

HOSTILE: dict[str, tuple[Any, Any]] = {
    "a deep value": ({"type": "object", "additionalProperties": {"$ref": "#"}}, nested(2_000, 1)),
    "a deep schema": (nested_schema(2_000), nested(2_000, "1")),
    "a schema of itself": ({"$ref": "#", "type": "integer"}, "x"),
    "references in a ring": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        "x",
    ),
    "a value in itself": (
        {"type": "object", "additionalProperties": {"$ref": "#"}, "required": ["b"]},
        endless_value(),
    ),
    "many properties": (
        {"properties": {f"p{n}": INTEGER for n in range(10_000)}},
        {f"p{n}": "x" for n in range(10_000)},
    ),
    "a tree of unions": (TREE, nested(40, "x")),
    "unions that double": (DOUBLING, "x"),
    "a hostile pattern": ({"type": "string", "pattern": "^(a+)+$"}, "a" * 5_000 + "!"),
    "an unpaired surrogate": ({"type": "object", "additionalProperties": False}, {"\ud800": "\udfff"}),
    "keys that are no text": ({"patternProperties": {"a": NULL}, "additionalProperties": False}, {1: 1, (2, 3): 4}),
    "an object of Python": (INTEGER, object()),
    "deep JSON text": ({"type": "array"}, "[" * 100_000),
    "a huge number": (INTEGER, "9" * 100_000),
    "a huge exponent": (INTEGER, "1e999999999"),
    "a malformed schema": ({"type": 5, "properties": [], "required": "x", "items": 3, "minimum": 2}, 1),
    "no value at all": (False, 1),
}


@pytest.mark.parametrize(("schema", "value"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_input_gets_an_answer(schema: Any, value: Any) -> None:
    found = faults(schema, coerce(schema, value))
    assert bool(found) is not compile_schema(schema).check(value)
    if found:
        assert json.dumps(validation_error(found, schema).to_wire(), ensure_ascii=False).encode()


@pytest.mark.parametrize("corpus", corpora())
def test_every_invalid_value_of_a_corpus_has_a_specific_fault(corpus: str) -> None:
    for case in itertools.islice(cases(corpus), 0, None, 5):
        compiled = compile_schema(case.schema)
        found = faults(case.schema, case.value)
        assert bool(found) is not compiled.check(case.value)
        assert not any(fault.expected and fault.expected.startswith("a value that fits") for fault in found)


def test_a_fault_goes_out_with_three_fields() -> None:
    assert Fault("x", "type", "integer", "string").to_wire() == {
        "argument": "x",
        "reason": "type",
        "expected": "integer",
    }


def test_an_argument_whose_name_is_not_text_is_unknown() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
    assert faults(schema, {"a": 1, 5: 2}) == [Fault("5", "unknown", None)]


def test_text_that_stands_for_a_listed_fraction_is_converted() -> None:
    assert coerce({"enum": [2.5, None]}, "2.5") == 2.5
