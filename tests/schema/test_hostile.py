"""Hostile schemas and values: there is always an answer, soon, and never an exception."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from enfold import cast
from enfold.schema.arguments import coerce, faults
from enfold.schema.budget import shared_budget
from enfold.schema.compiled import Schema, compile_schema
from enfold.schema.plain import is_plain
from enfold.schema.regexp import compile_pattern
from enfold.schema.repairs import Repaired

Answer = tuple[bool, bool, Repaired]


def answer(schema: Any, value: Any) -> Answer:
    compiled = compile_schema(schema)
    try:
        is_clean = compiled.is_clean(value)
    except Exception:  # noqa: BLE001  # as the pipeline does: repair decides
        is_clean = False
    return compiled.check(value), is_clean, compiled.repair(value)


def codes(answered: Answer) -> set[str]:
    return {warning.code for warning in answered[2].warnings}


def nested(levels: int, core: Any, around: Callable[[Any], Any]) -> Any:
    for _ in range(levels):
        core = around(core)
    return core


DEEP_VALUE = nested(2_000, 5, lambda inner: {"a": inner})
DEEP_SCHEMA = nested(
    2_000, {"type": "string"}, lambda inner: {"type": "object", "properties": {"a": inner}, "required": ["a"]}
)
TREE = {"type": "object", "properties": {"a": {"$ref": "#"}, "n": {"type": "integer"}}}


def test_a_deep_schema_is_no_deeper_than_the_value_that_meets_it() -> None:
    is_valid, _, repaired = answer(DEEP_SCHEMA, {"a": {"a": 5}})
    assert not is_valid
    assert [(warning.code, warning.path) for warning in repaired.warnings] == [("type_mismatch", "/a/a")]


@pytest.mark.parametrize("schema", [DEEP_SCHEMA, TREE], ids=["as deep a schema", "a recursive schema"])
def test_a_value_deeper_than_the_stack_is_kept_as_it_is(schema: Any) -> None:
    is_valid, is_clean, repaired = answer(schema, DEEP_VALUE)
    assert (is_valid, is_clean) == (False, False)
    assert repaired.data is DEEP_VALUE
    assert [(warning.code, warning.path) for warning in repaired.warnings] == [("unrepairable", "")]


def test_a_deep_value_that_no_keyword_restricts_is_valid() -> None:
    assert answer({"type": "object"}, DEEP_VALUE) == (True, False, Repaired(DEEP_VALUE))


@pytest.mark.parametrize(
    "around",
    [
        lambda inner: {"allOf": [inner]},
        lambda inner: {"anyOf": [inner, {"type": "null"}]},
        lambda inner: {"not": {"not": inner}},
        lambda inner: {"if": inner, "else": False},
        lambda inner: {"items": inner},
    ],
    ids=["allOf", "anyOf", "not", "if", "items"],
)
def test_keywords_may_be_nested_without_end(around: Callable[[Any], Any]) -> None:
    schema = nested(2_000, {"type": "string"}, around)
    is_valid, _, repaired = answer(schema, "text")
    assert repaired.data == "text"
    assert is_valid or codes((is_valid, False, repaired)) == {"unrepairable"}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"$ref": "#/$defs/a/$ref", "$defs": {"a": {"$ref": "#/$defs/a/$ref"}}},
        {"allOf": [{"$ref": "#"}]},
        {"anyOf": [{"$ref": "#"}, {"type": "string"}]},
        {"not": {"$ref": "#"}},
        {"if": {"$ref": "#"}, "then": {"$ref": "#"}},
        {"dependentSchemas": {"a": {"$ref": "#"}}},
    ],
    ids=["itself", "two of each other", "a pointer through itself", "allOf", "anyOf", "not", "if", "dependent"],
)
def test_an_endless_schema_cannot_be_repaired(schema: Any) -> None:
    value = {"a": 1}
    answered = answer(schema, value)
    assert answered[2].data is value
    assert codes(answered) == {"unrepairable"}


@pytest.mark.parametrize("keyword", ["anyOf", "allOf", "oneOf"])
def test_choices_that_double_at_every_reference_are_answered(keyword: str) -> None:
    levels = {
        f"d{level}": {keyword: [{"$ref": f"#/$defs/d{level + 1}"}, {"title": "x", "$ref": f"#/$defs/d{level + 1}"}]}
        for level in range(40)
    }
    schema = {"$ref": "#/$defs/d0", "$defs": {**levels, "d40": {"type": "string"}}}
    assert answer(schema, True)[0] is False
    assert answer(schema, "a")[0] is (keyword != "oneOf")


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_choices_that_double_at_every_level_of_the_value_are_answered(keyword: str) -> None:
    variants = [
        {"properties": {"a": {"$ref": "#/$defs/r"}, name: {"type": "integer"}}, "required": [name]} for name in "bc"
    ]
    schema = {"$ref": "#/$defs/r", "$defs": {"r": {keyword: [*variants, {"type": "integer"}]}}}
    value = nested(40, "x", lambda inner: {"a": inner, "b": "1", "c": 2.5, "extra": 1})
    is_valid, _, repaired = answer(schema, value)
    assert not is_valid
    assert repaired.warnings


def test_unevaluated_properties_on_every_level_are_answered() -> None:
    level = {"anyOf": [{"properties": {"a": {"$ref": "#/$defs/r"}}}], "unevaluatedProperties": False}
    value = nested(60, {"b": 1}, lambda inner: {"a": inner})
    is_valid, _, repaired = answer({"$ref": "#/$defs/r", "$defs": {"r": level}}, value)
    assert not is_valid
    assert [warning.code for warning in repaired.warnings] == ["strip"]


def test_ten_thousand_properties_are_answered() -> None:
    properties = {f"p{number}": {"type": "string"} for number in range(10_000)}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    value = dict.fromkeys(properties, "x")
    assert answer(schema, value) == (True, True, Repaired(value))
    extra = {f"q{number}": 1 for number in range(10_000)}
    assert answer(schema, {**value, **extra})[2].data == value


def test_unused_definitions_cost_nothing() -> None:
    wide: dict[str, Any] = {"properties": {f"p{number}": {} for number in range(100)}}
    huge = {f"d{number}": dict(wide) for number in range(1_000)}
    assert answer({"$defs": huge, "type": "integer"}, 5) == (True, True, Repaired(5))


def test_a_schema_of_too_many_parts_accepts_everything_and_says_why() -> None:
    compiled = Schema({"properties": {f"p{number}": {} for number in range(60_000)}})
    assert compiled.problem == "The schema has more than 50,000 subschemas"
    assert compiled.check({"p1": 1})


@pytest.mark.parametrize(
    ("members", "outsider"),
    [([f"v{number}" for number in range(100_000)], "x"), ([{"k": number} for number in range(20_000)], {"k": -1})],
    ids=["words", "objects"],
)
def test_an_enum_may_be_long(members: list[Any], outsider: Any) -> None:
    schema = {"properties": {"a": {"enum": members}}}
    assert answer(schema, {"a": members[-1]})[0]
    assert codes(answer(schema, {"a": outsider})) == {"constraint"}


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", "(a*)*b", "^(a?){40}a{40}$", r"(.*)(.*)(.*)x"])
def test_a_catastrophic_pattern_with_its_worst_input_is_answered(pattern: str) -> None:
    schema = {"properties": {"s": {"pattern": pattern}}, "patternProperties": {pattern: True}}
    value = {"s": "a" * 50 + "!", "a" * 50 + "!": 1}
    assert answer(schema, value)[2].data["s"] == value["s"]


NAMES = ["__class__", '"', "'", "\n", "\\", "'''\"\"\"", "a']; import os #", "{v}", "%s", "\0", "\ud800", "é", ""]


def test_no_name_of_a_schema_becomes_code() -> None:
    schema = {
        "type": "object",
        "properties": {name: {"enum": [name, 1]} for name in NAMES},
        "required": NAMES,
        "dependentRequired": {name: [name] for name in NAMES},
        "additionalProperties": False,
    }
    value = {name: name for name in NAMES}
    assert answer(schema, value) == (True, True, Repaired(value))
    assert answer(schema, {**value, "\0": 2})[0] is False
    assert answer(schema, {**value, "more": 1})[2].data == value


def test_lone_surrogates_are_characters_like_others() -> None:
    high, low = "\ud800", "\udc00"
    is_valid, _, repaired = answer({"properties": {high: {"type": "integer"}}}, {high: low, low: 1})
    assert not is_valid
    assert repaired.data == {high: low}


def test_keys_that_are_not_text_are_unknown_to_every_schema() -> None:
    value: dict[Any, Any] = {1: 2, None: 3, (1, 2): 4, "a": 1}
    assert answer({"properties": {"a": {"type": "integer"}}}, value)[2].data == {"a": 1}
    assert answer({"patternProperties": {"^a": {}}}, value)[2].data is value


def test_numbers_beyond_all_limits_are_answered() -> None:
    huge = 10**6_000
    schema = {
        "properties": {
            "a": {"type": "string"},
            "b": {"maximum": 10**5_000},
            "c": {"multipleOf": 0.1},
            "d": {"type": "number", "maximum": float("inf")},
            "e": {"type": "integer"},
        }
    }
    value = {"a": huge, "b": huge, "c": huge, "d": float("inf"), "e": "9" * 5_000}
    is_valid, is_clean, repaired = answer(schema, value)
    assert (is_valid, is_clean) == (False, False)
    assert repaired.data == value
    assert {(warning.code, warning.path) for warning in repaired.warnings} == {
        ("type_mismatch", "/a"),
        ("constraint", "/b"),
        ("type_mismatch", "/d"),
        ("type_mismatch", "/e"),
    }


class Brittle:
    """Fails on every access."""

    __hash__ = None  # type: ignore[assignment]  # part of the malice

    def __eq__(self, other: object) -> bool:
        raise ValueError

    def __getattr__(self, name: str) -> Any:
        raise ValueError(name)


class _BrittleKind(type):
    def __hash__(cls) -> int:
        raise ValueError


class Unhashable(metaclass=_BrittleKind):
    """Its very class breaks when it is looked up."""


CYCLIC: dict[str, Any] = {}
CYCLIC["a"] = CYCLIC


@pytest.mark.parametrize(
    "foreign", [Brittle(), Unhashable(), {1, 2}, CYCLIC, float("nan"), b"x"], ids=lambda o: type(o).__name__
)
@pytest.mark.parametrize(
    "schema",
    [{}, {"type": "integer"}, TREE, {"enum": [1, "a", {}]}, {"properties": {"a": {"type": "integer"}}}],
    ids=str,
)
def test_objects_that_json_does_not_have_are_never_clean_and_never_raise(schema: Any, foreign: Any) -> None:
    for value in (foreign, {"a": foreign}, [foreign]):
        _, is_clean, repaired = answer(schema, value)
        assert not is_clean
        assert repaired.data is value
    assert not is_plain([foreign])


def test_a_schema_that_contains_itself_is_a_recursive_one() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    schema["properties"]["a"] = schema
    assert answer(schema, {"a": {"a": {"b": 1}}})[2].data == {"a": {"a": {}}}


def test_thousands_of_alternatives_and_of_schemas_together_are_answered() -> None:
    each = [{"properties": {f"p{number}": {"type": "integer"}}, "required": [f"p{number}"]} for number in range(1_000)]
    assert answer({"anyOf": each}, {"p7": "1"})[2].data == {"p7": 1}
    together = {"allOf": [{"properties": part["properties"]} for part in each]}
    assert answer(together, {"p7": "1", "q": 2})[2].data == {"p7": 1}


def test_many_bad_items_make_a_short_report() -> None:
    _, _, repaired = answer({"type": "array", "items": {"type": "integer"}}, ["x"] * 50_000)
    assert [(warning.path, warning.count) for warning in repaired.warnings] == [("/*", 50_000)]


def test_the_patterns_of_one_call_share_what_a_search_may_take() -> None:
    pattern = compile_pattern("(?=(a+)+$)b")
    with shared_budget():
        assert [
            pattern.search("a" * 300 + "!"),
            pattern.search("a" * 3_000 + "!"),
            pattern.search("a" * 300 + "!"),
        ] == [
            False,
            None,
            None,
        ]
    assert pattern.search("a" * 300 + "!") is False


def test_data_that_patterns_cannot_decide_in_time_is_kept_with_a_warning() -> None:
    schema = {"type": "array", "items": {"type": "string", "pattern": "(?=(a+)+$)b"}}
    value = ["a" * 3_000 + f"!{number}" for number in range(50)]
    is_valid, is_clean, repaired = answer(schema, value)
    assert (is_valid, is_clean, repaired.data) == (False, False, value)
    assert [(warning.code, warning.path, warning.count) for warning in repaired.warnings] == [
        ("unrepairable", "/*", 50)
    ]


def test_defaults_that_double_with_each_level_are_filled_as_far_as_is_sensible() -> None:
    levels = 40
    inner = {
        f"d{level}": {
            "type": "object",
            "default": {},
            "properties": {name: {"$ref": f"#/$defs/d{level + 1}"} for name in "ab"},
        }
        for level in range(levels)
    }
    schema = {"$ref": "#/$defs/d0", "$defs": {**inner, f"d{levels}": {"type": "integer", "default": 1}}}
    repaired = compile_schema(schema).repair({})
    assert compile_schema(schema).check(repaired.data)
    assert {warning.path for warning in repaired.warnings} == {"/a", "/b"}


def test_a_large_default_is_not_copied_without_end() -> None:
    item = {"type": "object", "properties": {"a": {"type": "array", "default": [0] * 1_000}}, "required": ["a"]}
    repaired = compile_schema({"type": "array", "items": item}).repair([{} for _ in range(5_000)])
    assert [(warning.code, warning.path) for warning in repaired.warnings] == [
        ("default", "/*/a"),
        ("missing", "/*/a"),
    ]


def test_values_with_too_many_variants_are_kept() -> None:
    variants = [
        {"type": "object", "properties": {f"k{n}": {"type": "integer"}}, "required": [f"k{n}"]} for n in range(300)
    ]
    value = [{f"k{n % 300}": "5"} for n in range(400)]
    repaired = compile_schema({"type": "array", "items": {"anyOf": variants}}).repair(value)
    assert repaired.data[0] == {"k0": 5}
    assert repaired.data[-1] == value[-1]
    assert "unrepairable" in {warning.code for warning in repaired.warnings}


def _calls(work: Callable[[], Any]) -> int:
    """How many functions are called to do some work."""
    count = 0

    def note(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


AGAIN = {"$ref": "#/$defs/N"}
RECURSIVE: dict[str, list[Any]] = {
    "two that are alike": [
        {"type": "object", "properties": {"k": AGAIN, "t": {"type": "string"}, f"p{place}": {"type": "integer"}}}
        for place in range(2)
    ],
    "three that are alike": [
        {"type": "object", "properties": {"k": AGAIN, f"p{place}": {"type": "integer"}}}
        for place in range(3)
    ],
    "those with a tag": [
        {"type": "object", "properties": {"t": {"const": word}, "k": AGAIN}} for word in ("x", "y")
    ],
    "an object and a table": [
        {"type": "object", "properties": {"k": AGAIN}},
        {"type": "object", "additionalProperties": AGAIN},
    ],
    "a condition": [
        {"type": "object", "properties": {"k": AGAIN}},
        {"if": {"properties": {"k": AGAIN}}, "then": {"properties": {"k": AGAIN, "t": {"type": "string"}}}},
    ],
}  # fmt: skip


@pytest.mark.parametrize("leaf", ["bad", 1, None, "1"], ids=str)
@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
@pytest.mark.parametrize("variants", RECURSIVE.values(), ids=RECURSIVE.keys())
def test_the_work_on_a_recursive_union_stays_in_proportion_to_the_value(
    variants: list[Any], keyword: str, leaf: Any
) -> None:
    schema = {"$defs": {"N": {keyword: [*variants, {"type": "integer"}]}}, **AGAIN}
    value = nested(25, leaf, lambda inner: {"k": inner, "t": "x", "extra": 1})
    questions: list[Callable[[Any, Any], Any]] = [answer, faults, coerce, cast]

    for question in questions:
        assert _calls(lambda question=question: question(schema, value)) < 3_000_000  # type: ignore[misc]  # bound here
