"""Whether a value is valid: every keyword, references, older drafts, and what may pass without repair."""

from __future__ import annotations

import copy
import json
from collections import OrderedDict
from enum import StrEnum
from typing import Any

import jsonschema_rs
import pytest
from tests.schema.typebox import cases, corpora

from enfold.schema.compiled import compile_schema
from enfold.schema.nodes.reference import SchemaDocument, SchemaPlace, Unresolved, digest


def is_valid(schema: Any, value: Any) -> bool:
    return compile_schema(schema).check(value)


KEYWORDS: list[tuple[Any, list[Any], list[Any]]] = [
    # schema, valid values, values that are not
    (True, [None, 1, "a", [], {}], []),
    (False, [], [None, 1, "a", [], {}]),
    ({}, [None, 1, "a", [], {}], []),
    ({"type": "integer"}, [1, 1.0, -0.0, 10**30], [1.5, True, "1", None]),
    ({"type": "number"}, [1, 1.5, 1e300], [True, "1", float("nan"), float("inf")]),
    ({"type": "boolean"}, [True, False], [0, 1, "true"]),
    ({"type": "null"}, [None], [0, "", False]),
    ({"type": ["string", "null"]}, ["", None], [0, []]),
    (
        {"enum": [1, "a", None, [1], {"a": False}]},
        [1, 1.0, "a", None, [1.0], {"a": False}],
        [True, "b", [True], {"a": 0}],
    ),
    ({"const": 0}, [0, 0.0, -0.0], [False, "0", None]),
    ({"enum": [False]}, [False], [0, 0.0]),
    ({"minimum": 2, "maximum": 3}, [2, 3, "x"], [1.9, 4]),
    ({"exclusiveMinimum": 2, "exclusiveMaximum": 3}, [2.5], [2, 3]),
    ({"minimum": 10**30}, [10**30, 1e31], [10**30 - 1]),
    ({"multipleOf": 0.01}, [19.99, 0.07, 4, "x"], [0.005]),
    ({"multipleOf": 3}, [9007199254740993, 0], [9007199254740994, 1.5]),
    ({"multipleOf": 1e-8}, [12391239123, 3e-8], [1.5e-8]),
    ({"minLength": 2, "maxLength": 3}, ["ab", "äöü", "😀😀"], ["a", "😀", "abcd"]),
    ({"pattern": "^[0-9]+$"}, ["12", 12], ["1\n", "x", ""]),
    ({"items": {"type": "integer"}}, [[], [1, 2], "x"], [["1"], [1, None]]),
    ({"prefixItems": [{"type": "integer"}], "items": False}, [[], [1]], [["x"], [1, 2]]),
    ({"contains": {"type": "integer"}, "minContains": 2, "maxContains": 3}, [[1, "a", 2]], [[1], [1, 2, 3, 4]]),
    ({"contains": {"type": "integer"}, "minContains": 0}, [[]], []),
    ({"minItems": 1, "maxItems": 2}, [[1], [1, 2]], [[], [1, 2, 3]]),
    ({"uniqueItems": True}, [[1, True], [[1], [True]], ["1", 1]], [[1, 1.0], [{"a": 1, "b": 2}, {"b": 2.0, "a": 1}]]),
    ({"required": ["a"]}, [{"a": None}, []], [{}]),
    ({"properties": {"a": {"type": "integer"}, "b": False}}, [{}, {"a": 1}, {"c": 1}], [{"a": "1"}, {"b": 1}]),
    ({"properties": {"a": {}}, "additionalProperties": False}, [{}, {"a": 1}], [{"b": 1}]),
    ({"additionalProperties": {"type": "integer"}}, [{}, {"a": 1}], [{"a": "1"}]),
    (
        {"properties": {"a": {}}, "patternProperties": {"^b": {"type": "integer"}}, "additionalProperties": False},
        [{"a": 1, "b1": 2}],
        [{"b1": "2"}, {"c": 1}],
    ),
    ({"propertyNames": {"maxLength": 2}}, [{"ab": 1}], [{"abc": 1}]),
    ({"minProperties": 1, "maxProperties": 2}, [{"a": 1}], [{}, {"a": 1, "b": 2, "c": 3}]),
    ({"dependentRequired": {"a": ["b"]}}, [{"a": 1, "b": 2}, {"c": 1}], [{"a": 1}]),
    ({"dependentSchemas": {"a": {"minProperties": 2}}}, [{"a": 1, "b": 2}, {}], [{"a": 1}]),
    ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, [1, 2], [0, 3]),
    ({"anyOf": [{"type": "string"}, {"minimum": 5}]}, ["a", 5], [4]),
    ({"oneOf": [{"minimum": 5}, {"multipleOf": 2}]}, [7, 4], [6, 3]),
    ({"not": {"type": "string"}}, [1], ["a"]),
    ({"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"minimum": 2}}, ["ab", 2, None], ["a", 1]),
    ({"then": False}, [1], []),
    (
        {
            "properties": {"a": {}},
            "anyOf": [{"properties": {"b": {}}, "required": ["b"]}, {}],
            "unevaluatedProperties": False,
        },
        [{"a": 1}, {"a": 1, "b": 2}],
        [{"c": 1}],
    ),
    ({"prefixItems": [{}], "contains": {"type": "string"}, "unevaluatedItems": False}, [[1, "a"]], [[1, "a", 2]]),
    ({"format": "date-time"}, ["not a date"], []),
    ({"type": "string", "nullable": True}, [None, "a"], [1]),
    ({"enum": ["a"], "nullable": True}, [None, "a"], ["b"]),
]


@pytest.mark.parametrize(("schema", "good", "bad"), KEYWORDS, ids=[json.dumps(case[0])[:60] for case in KEYWORDS])
def test_a_keyword_separates_valid_from_invalid_values(schema: Any, good: list[Any], bad: list[Any]) -> None:
    assert [value for value in good if not is_valid(schema, value)] == []
    assert [value for value in bad if is_valid(schema, value)] == []


OLDER: list[tuple[str, Any, list[Any], list[Any]]] = [
    (
        "a list of items is a tuple",
        {"items": [{"type": "integer"}], "additionalItems": {"type": "string"}},
        [[1, "a"], []],
        [["a"], [1, 2]],
    ),
    ("dependencies on names", {"dependencies": {"a": ["b"]}}, [{"a": 1, "b": 1}], [{"a": 1}]),
    ("dependencies on a schema", {"dependencies": {"a": {"required": ["b"]}}}, [{"a": 1, "b": 1}], [{"a": 1}]),
    ("an exclusive bound as a flag", {"minimum": 3, "exclusiveMinimum": True}, [4], [3]),
    ("definitions", {"$ref": "#/definitions/n", "definitions": {"n": {"type": "integer"}}}, [1], ["1"]),
]


@pytest.mark.parametrize(("schema", "good", "bad"), [case[1:] for case in OLDER], ids=[case[0] for case in OLDER])
def test_forms_of_older_drafts_are_understood(schema: Any, good: list[Any], bad: list[Any]) -> None:
    assert all(is_valid(schema, value) for value in good)
    assert not any(is_valid(schema, value) for value in bad)


INTEGER = {"type": "integer"}
REFERENCES: list[tuple[str, Any]] = [
    ("a pointer", {"$ref": "#/$defs/n", "$defs": {"n": INTEGER}}),
    ("a pointer with escapes", {"$ref": "#/$defs/a~1b%25~0", "$defs": {"a/b%~": INTEGER}}),
    ("a pointer into a list", {"$ref": "#/allOf/1", "allOf": [{}, INTEGER]}),
    ("a pointer to no schema keyword", {"$ref": "#/components/schemas/N", "components": {"schemas": {"N": INTEGER}}}),
    ("an anchor", {"$ref": "#here", "$defs": {"n": {"$anchor": "here", **INTEGER}}}),
    ("an id", {"$ref": "N", "$defs": {"n": {"$id": "N", **INTEGER}}}),
    ("a relative id", {"$id": "http://x.test/a/b", "$ref": "c", "$defs": {"n": {"$id": "c", **INTEGER}}}),
    (
        "a pointer inside an embedded resource",
        {"$ref": "r#/$defs/n", "$defs": {"r": {"$id": "r", "$defs": {"n": INTEGER}}}},
    ),
    ("a chain", {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": INTEGER}}),
    ("a dynamic reference", {"$dynamicRef": "#n", "$defs": {"n": {"$dynamicAnchor": "n", **INTEGER}}}),
]


@pytest.mark.parametrize("schema", [case[1] for case in REFERENCES], ids=[case[0] for case in REFERENCES])
def test_a_reference_resolves_to_its_schema(schema: Any) -> None:
    assert is_valid(schema, 1)
    assert not is_valid(schema, "1")


def test_keywords_beside_a_reference_apply_too() -> None:
    schema = {"$ref": "#/$defs/n", "maximum": 5, "$defs": {"n": INTEGER}}
    assert [value for value in (5, 6, "5") if is_valid(schema, value)] == [5]


def test_a_recursive_schema_reaches_every_level() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}, "value": INTEGER}, "required": ["value"]}
    assert is_valid(tree, {"value": 1, "left": {"value": 2, "left": {"value": 3}}})
    assert not is_valid(tree, {"value": 1, "left": {"value": 2, "left": {}}})


def test_a_dynamic_reference_finds_the_outermost_anchor() -> None:
    schema = {
        "$id": "http://x.test/strings",
        "$ref": "list",
        "$defs": {
            "item": {"$dynamicAnchor": "item", "type": "string"},
            "list": {
                "$id": "list",
                "type": "array",
                "items": {"$dynamicRef": "#item"},
                "$defs": {"any": {"$dynamicAnchor": "item"}},
            },
        },
    }
    assert is_valid(schema, ["a"])
    assert not is_valid(schema, [1])


def test_a_reference_without_a_target_resolves_to_a_reason() -> None:
    document = SchemaDocument({"$defs": {"a": INTEGER}})
    assert document.resolve("#/$defs/a") == SchemaPlace(INTEGER, "")
    assert document.resolve("#/$defs/b") == Unresolved("#/$defs/b", "the document has no such location")
    assert document.resolve("http://elsewhere.test/") == Unresolved(
        "http://elsewhere.test/", "it points outside the document"
    )


@pytest.mark.parametrize(
    "schema",
    [{"$ref": "#/nowhere"}, {"$ref": "#"}, {"pattern": "("}, {"properties": {"a": {"$ref": "http://x.test/y"}}}],
    ids=["no such place", "itself", "no pattern", "another document"],
)
def test_an_undecidable_value_is_accepted_but_never_counts_as_clean(schema: Any) -> None:
    value = {"a": 1} if "properties" in schema else "x"
    assert is_valid(schema, value)
    assert not compile_schema(schema).is_clean(value)


def test_a_malformed_keyword_counts_as_absent() -> None:
    malformed = {"type": 5, "properties": [], "required": True, "enum": "x", "minimum": "3", "allOf": {}, "$ref": 1}
    assert is_valid(malformed, {"a": 1})


@pytest.mark.parametrize("schema", [None, 5, "string", []], ids=str)
def test_anything_but_a_schema_accepts_everything_and_says_why(schema: Any) -> None:
    compiled = compile_schema(schema)
    assert compiled.check({"a": 1})
    assert compiled.problem == f"A schema must be an object or a boolean, not {type(schema).__name__}"


# What may pass without repair.

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "default": 0}, "tags": {"type": "array"}},
    "required": ["name"],
}


class Colour(StrEnum):
    RED = "red"


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"name": "a", "age": 1}, True),
        ({"name": "a", "age": 1.0, "tags": [{"any": [None]}]}, True),
        ({"name": "a"}, False),
        ({"name": "a", "age": 1, "extra": 2}, False),
        ({"name": "a", "age": "1"}, False),
        ({"name": Colour.RED, "age": 1}, False),
        ({"name": "a", "age": True}, False),
        ({"name": "a", "age": 1, "tags": (1, 2)}, False),
        ({"name": "a", "age": 1, "tags": [{1, 2}]}, False),
        ({"name": "a", "age": 1, "tags": [float("nan")]}, False),
        ({"name": "a", "age": 1, "tags": [{1: 2}]}, False),
        ({"name": "a", "age": 1, "tags": CYCLE}, False),
        (OrderedDict(name="a", age=1), False),
        (object(), False),
    ],
    ids=[
        "all there",
        "1.0 is an integer",
        "a default to fill",
        "something to strip",
        "something to convert",
        "an enum member",
        "true is no integer",
        "a tuple",
        "a set deep inside",
        "NaN deep inside",
        "a key that is no text",
        "a cycle",
        "a subclass of dict",
        "an object",
    ],
)
def test_clean_is_what_is_valid_plain_and_needs_nothing(value: Any, expected: bool) -> None:
    assert compile_schema(PERSON).is_clean(value) is expected


def test_equal_schemas_are_compiled_once_and_those_in_another_order_apart() -> None:
    """Their digests are the same; faults and defaults come in the order of the properties."""
    one = {"type": "object", "properties": {"a": {"type": "string", "minLength": 1}}}
    other = {"properties": {"a": {"minLength": 1, "type": "string"}}, "type": "object"}
    assert digest(one) == digest(other)
    assert compile_schema(one) is compile_schema(copy.deepcopy(one))
    assert compile_schema(one) is not compile_schema(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [({"const": 1}, {"const": True}), ({"const": [1, 2]}, {"const": [2, 1]}), ({"const": None}, {"const": "null"})],
    ids=["one and true", "order of items", "null and its text"],
)
def test_different_schemas_have_different_digests(one: Any, other: Any) -> None:
    assert digest(one) != digest(other)


def test_a_schema_that_was_changed_is_compiled_again() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
    assert is_valid(schema, {"a": "x"})
    schema["properties"]["a"] = {"type": "integer"}
    assert not is_valid(schema, {"a": "x"})
    schema["required"] = ["b"]
    assert not is_valid(schema, {"a": 1})


@pytest.mark.parametrize("corpus", corpora())
def test_schemas_of_a_corpus_are_checked_as_an_independent_validator_does(corpus: str) -> None:
    compared, differing = 0, []
    for case in cases(corpus):
        try:
            independent = jsonschema_rs.Draft202012Validator(case.schema)
        except (ValueError, jsonschema_rs.ValidationError):
            continue  # It rejects older forms that Enfold reads.
        if case.schema.get("nullable"):
            continue  # A keyword of OpenAPI 3.0, which it does not know.
        compared += 1
        if compile_schema(case.schema).check(case.value) != independent.is_valid(case.value):
            differing.append(case)
    assert compared > 300
    assert differing == []


def nested_enum(*values: Any) -> dict[str, Any]:
    item = {"type": "object", "properties": {"b": {"enum": list(values)}}}
    return {"type": "object", "properties": {"a": {"type": "array", "items": item}}}


def test_schemas_that_differ_deep_inside_are_not_taken_for_one() -> None:
    assert not compile_schema(nested_enum("x")).check({"a": [{"b": "y"}]})
    assert compile_schema(nested_enum("x", "y")).check({"a": [{"b": "y"}]})


def test_changing_a_returned_schema_does_not_affect_other_callers() -> None:
    mine, theirs = ({"properties": {"a": {"default": {"n": [1]}}}} for _ in range(2))
    compiled = compile_schema(theirs)
    assert compile_schema(mine) is compiled
    theirs["properties"]["a"]["default"]["n"].append(2)
    mine["properties"]["a"]["default"]["n"].append(3)
    assert compiled.repair({}).data == {"a": {"n": [1]}}


def test_equal_properties_are_distinguished_by_the_types_of_their_values() -> None:
    schema = {"properties": {"one": {"const": 1}, "true": {"const": True}, "whole": {"const": 1.0}}}
    assert compile_schema(schema).check({"one": 1, "true": True, "whole": 1})
    assert not compile_schema(schema).check({"true": 1})
    assert not compile_schema(schema).check({"one": True})
