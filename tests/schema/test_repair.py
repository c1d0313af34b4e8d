"""Repair, rule by rule: what a value becomes, and what is said about it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.schema.typebox import cases, corpora

from enfold.schema.compiled import compile_schema, repair
from enfold.schema.repairs import Repaired

STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}


def record(required: list[str] | None = None, /, **properties: Any) -> dict[str, Any]:
    """An object schema; every property is required unless a list says which."""
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names}


def told(repaired: Repaired) -> list[tuple[str, str]]:
    return [(warning.code, warning.path) for warning in repaired.warnings]


def outcome(schema: Any, value: Any) -> tuple[Any, list[tuple[str, str]]]:
    repaired = repair(schema, value)
    return repaired.data, told(repaired)


# What plain Cast does to real responses, and what repair makes of them.

REAL: list[tuple[str, Any, Any, Any, list[tuple[str, str]]]] = [
    (
        "numbers sent as text",
        record(price=NUMBER, qty=INTEGER),
        {"price": "19.99", "qty": "3"},
        {"price": 19.99, "qty": 3},
        [("convert", "/price"), ("convert", "/qty")],
    ),
    (
        "a new enum member",
        record(status={"enum": ["open", "closed"]}),
        {"status": "archived"},
        {"status": "archived"},
        [("constraint", "/status")],
    ),
    ("null for an optional integer", record([], age=INTEGER), {"age": None}, {}, [("null_dropped", "/age")]),
    (
        "a text that is too long",
        record(t={"type": "string", "maxLength": 5}),
        {"t": "a long title"},
        {"t": "a long title"},
        [("constraint", "/t")],
    ),
    (
        "a bad property beside an unknown one",
        record(a=INTEGER),
        {"a": "x", "more": {"b": 1}},
        {"a": "x"},
        [("type_mismatch", "/a"), ("strip", "/more")],
    ),
    (
        "a null among strings",
        record(tags={"anyOf": [{"type": "null"}, {"type": "array", "items": STRING}]}),
        {"tags": ["a", None, "b"]},
        {"tags": ["a", None, "b"]},
        [("type_mismatch", "/tags/1")],
    ),
    (
        "a date with a format",
        record(at={"type": "string", "format": "date-time"}),
        {"at": "2026-11-15T10:00:00Z"},
        {"at": "2026-11-15T10:00:00Z"},
        [],
    ),
    (
        "one of two objects that apply together is incomplete",
        {"allOf": [record(a=STRING, tags={"type": "array", "items": STRING}), record(b=INTEGER)]},
        {"a": "x", "tags": ["t"]},
        {"a": "x", "tags": ["t"]},
        [("missing", "/b")],
    ),
    (
        "an error body",
        record(id=INTEGER, items={"type": "array"}),
        {"error": {"code": 404}},
        {"error": {"code": 404}},
        [("root_mismatch", "")],
    ),
]


@pytest.mark.parametrize(
    ("schema", "value", "data", "warnings"), [row[1:] for row in REAL], ids=[row[0] for row in REAL]
)
def test_a_real_response_keeps_its_meaning(schema: Any, value: Any, data: Any, warnings: Any) -> None:
    found, said = outcome(schema, value)
    assert found == data
    assert sorted(said) == sorted(warnings)


# R0


def test_a_valid_value_is_returned_as_the_same_object() -> None:
    value = {"id": 1, "items": [{"url": "a"}]}
    repaired = repair(record(id=INTEGER, items={"type": "array", "items": record(url=STRING)}), value)
    assert repaired.data is value
    assert repaired.warnings == ()


# R1


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (record(id=INTEGER), [1]),
        (record(id=INTEGER), None),
        (record(id=INTEGER), "<html>"),
        (INTEGER, "5"),
        ({"type": "array", "items": INTEGER}, 5),
        (record(id=INTEGER), {}),
        ({"anyOf": [record(id=INTEGER), record(name=STRING)]}, {"error": "x"}),
        ({"$ref": "#/$defs/r", "$defs": {"r": record(id=INTEGER)}}, {"error": "x"}),
    ],
    ids=["an array", "null", "a page", "text", "a scalar", "nothing required", "of no variant", "through a reference"],
)
def test_something_else_at_the_root_stays_untouched_with_one_warning(schema: Any, value: Any) -> None:
    repaired = repair(schema, value)
    assert repaired.data is value
    assert told(repaired) == [("root_mismatch", "")]


def test_a_fraction_for_an_integer_is_the_same_json_type_and_so_no_root_mismatch() -> None:
    assert outcome(INTEGER, 2.7) == (2.7, [("type_mismatch", "")])


# R2


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"properties": {"a": False}}, "/a"),
        ({"properties": {"a": {"not": STRING}}}, "/a"),
        ({"properties": {"a": {"$ref": "#/nowhere"}}}, "/a"),
        ({"properties": {"a": {"$ref": "#/properties/a"}}}, "/a"),
        ({"properties": {"a": {"pattern": "("}}}, "/a"),
        ({"properties": {"a": {"pattern": r"^(?=(a+))\1*b$"}}}, "/a"),
        ({"$ref": "#"}, ""),
    ],
    ids=["false", "not", "a reference to nowhere", "a loop", "no pattern", "a hostile pattern", "the root itself"],
)
def test_an_unrepairable_value_is_kept(schema: Any, path: str) -> None:
    value = {"a": "a" * 100_000}
    repaired = repair(schema, value)
    assert repaired.data is value
    assert told(repaired) == [("unrepairable", path)]


# R4


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"minimum": 5}, 1),
        ({"maxLength": 1}, "abc"),
        ({"pattern": "^b"}, "abc"),
        ({"multipleOf": 2}, 3),
        ({"enum": ["a", "b"]}, "c"),
        ({"const": 1}, 2),
        ({"type": "array", "minItems": 2}, [1]),
        ({"type": "array", "maxItems": 1}, [1, 2]),
        ({"type": "array", "prefixItems": [INTEGER], "items": False}, [1, 2]),
        ({"type": "array", "uniqueItems": True}, [1, 1]),
        ({"type": "array", "contains": STRING}, [1]),
        ({"type": "object", "minProperties": 2}, {"a": 1}),
        ({"type": "object", "maxProperties": 1}, {"a": 1, "b": 2}),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, {"a": 1}),
        ({"type": "object", "propertyNames": {"maxLength": 1}}, {"ab": 1}),
    ],
    ids=lambda part: json.dumps(part)[:40],
)
def test_a_broken_constraint_is_reported_and_nothing_is_padded_cut_or_removed(schema: Any, value: Any) -> None:
    assert outcome(record(x=schema), {"x": value}) == ({"x": value}, [("constraint", "/x")])


# R5


@pytest.mark.parametrize(
    ("schema", "value", "converted"),
    [
        (INTEGER, "42", 42),
        (INTEGER, "-7", -7),
        (INTEGER, "123456789012345678901234567890", 123456789012345678901234567890),
        (NUMBER, "19.99", 19.99),
        (NUMBER, "42", 42),
        (NUMBER, "1e-7", 1e-7),
        ({"type": ["integer", "null"]}, "5", 5),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "false", False),
        (STRING, 42, "42"),
        (STRING, 1.5, "1.5"),
        ({"enum": ["1", "2"]}, 1, "1"),
        ({"const": 3}, "3", 3),
        ({"type": "array", "items": STRING}, "a", ["a"]),
        ({"type": "array", "items": INTEGER}, "5", [5]),
        ({"type": "array", "items": record(a=INTEGER)}, {"a": 1}, [{"a": 1}]),
    ],
    ids=lambda part: json.dumps(part)[:40],
)
def test_a_conversion_without_loss_is_made(schema: Any, value: Any, converted: Any) -> None:
    data, warnings = outcome(record(x=schema), {"x": value})
    assert data == {"x": converted}
    assert type(data["x"]) is type(converted)
    assert warnings == [("convert", "/x")]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (INTEGER, "abc"),
        (INTEGER, "2.7"),
        (INTEGER, 2.7),
        (INTEGER, ""),
        (INTEGER, " 5"),
        (INTEGER, "+5"),
        (INTEGER, "05"),
        (INTEGER, "-0"),
        (INTEGER, "1_0"),
        (INTEGER, "٣"),
        (INTEGER, "5\n"),
        (INTEGER, True),
        (NUMBER, "1.50"),
        (NUMBER, "0.12345678901234567890"),
        (NUMBER, "1e400"),
        (NUMBER, "NaN"),
        (STRING, True),
        (STRING, None),
        ({"type": "boolean"}, 1),
        ({"type": "boolean"}, "True"),
        ({"type": "array", "items": STRING}, None),
        ({"type": "array", "items": STRING}, True),
        ({"type": "array", "items": STRING, "minItems": 2}, "a"),
        ({"type": "array"}, "a"),
        ({"type": "object"}, "{}"),
    ],
    ids=lambda part: json.dumps(part)[:40],
)
def test_a_value_that_conversion_would_lose_or_invent_is_kept(schema: Any, value: Any) -> None:
    assert outcome(record(x=schema), {"x": value}) == ({"x": value}, [("type_mismatch", "/x")])


def test_a_converted_value_that_breaks_a_constraint_is_reported_twice() -> None:
    warnings = [("convert", "/x"), ("constraint", "/x")]
    assert outcome(record(x={"type": "integer", "minimum": 10}), {"x": "5"}) == ({"x": 5}, warnings)


# R6


def test_a_null_goes_only_where_the_property_is_optional_and_null_is_not_allowed() -> None:
    schema = record(["b"], a=INTEGER, b=INTEGER, c={"type": ["integer", "null"]}, d={})
    data, warnings = outcome(schema, {"a": None, "b": None, "c": None, "d": None})
    assert data == {"b": None, "c": None, "d": None}
    assert warnings == [("null_dropped", "/a"), ("type_mismatch", "/b")]


# R7


@pytest.mark.parametrize(
    ("schema", "kept"),
    [
        ({"properties": {"a": {}}}, {"a"}),
        ({"properties": {"a": {}}, "additionalProperties": False}, {"a"}),
        ({"properties": {"a": {}}, "additionalProperties": True}, {"a", "b"}),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "integer"}}, {"a", "b"}),
        ({"properties": {"a": {}}, "patternProperties": {"^b": {}}}, {"a", "b"}),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, {"a"}),
        ({"properties": {"a": {}}, "required": ["b"]}, {"a", "b"}),
        ({"type": "object"}, {"a", "b"}),
        ({"type": "object", "properties": {}}, {"a", "b"}),
        ({"additionalProperties": False}, set()),
        ({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, {"a", "b"}),
        ({"allOf": [{"properties": {"a": {}}}, {"required": ["a"]}]}, {"a"}),
        ({"properties": {"a": {}}, "anyOf": [{"properties": {"b": {}}}, {"required": ["z"]}]}, {"a", "b"}),
        ({"properties": {"a": {}}, "anyOf": [{"required": ["a"]}, {"required": ["z"]}]}, {"a"}),
        ({"anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, {"a", "b"}),
        ({"anyOf": [{"properties": {"a": {}}}, {"type": "object"}]}, {"a", "b"}),
        ({"properties": {"a": {}}, "if": {"required": ["a"]}, "then": {"properties": {"b": {}}}}, {"a", "b"}),
        ({"properties": {"a": {}}, "if": {"required": ["z"]}, "then": {"properties": {"b": {}}}}, {"a"}),
        ({"properties": {"a": {}}, "dependentSchemas": {"a": {"properties": {"b": {}}}}}, {"a", "b"}),
        ({"$ref": "#/$defs/r", "properties": {"b": {}}, "$defs": {"r": {"properties": {"a": {}}}}}, {"a", "b"}),
    ],
    ids=lambda part: json.dumps(part)[:60] if isinstance(part, dict) else "",
)
def test_only_what_no_applicable_schema_knows_is_stripped(schema: Any, kept: set[str]) -> None:
    value = {"a": 1, "b": 2}
    data, warnings = outcome(schema, value)
    assert set(data) == kept
    assert warnings == [("strip", f"/{name}") for name in ("a", "b") if name not in kept]
    assert repair(schema, value, extras="keep").data == value


def test_extra_properties_are_repaired_against_the_schema_for_them() -> None:
    schema = {"type": "object", "properties": {"a": INTEGER}, "additionalProperties": INTEGER}
    assert outcome(schema, {"a": 1, "b": "2"}) == ({"a": 1, "b": 2}, [("convert", "/b")])


@pytest.mark.parametrize(
    "demand",
    [{"minProperties": 2}, {"not": {"maxProperties": 1}}, {"oneOf": [{"minProperties": 2}, {"required": ["z"]}]}],
    ids=json.dumps,
)
def test_nothing_is_stripped_where_that_would_break_a_valid_value(demand: Any) -> None:
    value = {"a": 1, "b": 2}
    repaired = repair({"properties": {"a": INTEGER}, **demand}, value)
    assert repaired.data is value
    assert repaired.warnings == ()


def test_stripping_does_not_make_the_items_of_a_set_equal() -> None:
    value = [{"a": 1, "b": 1}, {"a": 1, "b": 2}]
    assert repair({"type": "array", "uniqueItems": True, "items": record(a=INTEGER)}, value).data is value


def test_a_refused_property_is_reported_when_extras_are_kept() -> None:
    repaired = repair({"properties": {"a": {}}, "additionalProperties": False}, {"a": 1, "b": 2}, extras="keep")
    assert (repaired.data, told(repaired)) == ({"a": 1, "b": 2}, [("constraint", "/b")])


# R8

CAT = record(kind={"const": "cat"}, lives=INTEGER)
DOG = record(kind={"const": "dog"}, name=STRING)


def test_a_tag_decides_between_variants() -> None:
    pets = {"anyOf": [CAT, DOG]}
    said = [("strip", "/lives"), ("convert", "/name")]
    assert outcome(pets, {"kind": "dog", "name": 7, "lives": 9}) == ({"kind": "dog", "name": "7"}, said)


def test_a_tag_decides_although_another_variant_looks_nearer() -> None:
    wide = {f"p{number}": INTEGER for number in range(12)}
    variants = {"anyOf": [record(kind={"const": "a"}, **wide), record(kind={"const": "b"}, x=INTEGER)]}
    data, _ = outcome(variants, {"kind": "b", "x": "1", **dict.fromkeys(wide, 1)})
    assert data == {"kind": "b", "x": 1}


def test_a_value_with_a_tag_that_no_variant_has_stays_whole() -> None:
    value = {"kind": "bird", "wings": 2, "lives": "9"}
    assert outcome({"anyOf": [CAT, DOG]}, value) == (value, [("constraint", "/kind")])


@pytest.mark.parametrize(
    ("value", "data", "said"),
    [
        ({"a": "oops", "kind": "bird"}, {"a": "oops", "kind": "bird"}, ("type_mismatch", "/a")),
        ({"a": "5", "kind": "bird", "wings": 2}, {"a": 5, "kind": "bird", "wings": 2}, ("convert", "/a")),
    ],
    ids=["what is wrong beside it is said", "what can be converted beside it is"],
)
def test_an_unknown_tag_does_not_silence_the_properties_beside_it(value: Any, data: Any, said: tuple[str, str]) -> None:
    schema = {**record([], a=INTEGER), "anyOf": [CAT, DOG]}
    assert outcome(schema, value) == (data, [("constraint", "/kind"), said])


def test_nothing_is_stripped_for_a_variant_that_does_not_end_valid() -> None:
    schema = {"anyOf": [record([], k=INTEGER), record(b={"type": "boolean"})]}
    value = {"k": "z", "b": ["z"]}
    assert outcome(schema, value) == (value, [("type_mismatch", "/k")])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"t": "bird", "lives": 9, "wings": 2}, []),
        ({"t": "bird", "wings": 2}, [("constraint", "/t")]),
    ],
    ids=["valid by chance", "not valid"],
)
def test_a_value_whose_discriminator_has_no_mapping_stays_whole(value: Any, said: list[tuple[str, str]]) -> None:
    schema = {
        "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
        "discriminator": {"propertyName": "t", "mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"}},
        "$defs": {"Cat": record(t=STRING, lives=INTEGER), "Dog": record(t=STRING, bark=INTEGER)},
    }
    assert outcome(schema, value) == (value, said)


@pytest.mark.parametrize(
    "mapping",
    [None, {"c": "#/$defs/Cat", "d": "#/$defs/Dog"}, {"c": "Cat", "d": "Dog"}],
    ids=["by name", "by mapping to references", "by mapping to names"],
)
def test_a_discriminator_decides_between_variants(mapping: dict[str, str] | None) -> None:
    schema = {
        "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
        "discriminator": {"propertyName": "type", **({"mapping": mapping} if mapping else {})},
        "$defs": {"Cat": record(type=STRING, age=INTEGER), "Dog": record(type=STRING, age=NUMBER)},
    }
    value = {"type": "d" if mapping else "Dog", "age": "1.5"}
    assert outcome(schema, value)[0]["age"] == 1.5


@pytest.mark.parametrize(
    ("schema", "value", "data"),
    [
        ({"anyOf": [{"type": "null"}, {"type": "array", "items": NUMBER}]}, [1, "2", 3], [1, 2, 3]),
        ({"anyOf": [STRING, {"type": "array", "items": NUMBER}]}, [1, "2", 3], [1, 2, 3]),
        ({"anyOf": [{"type": "null"}, {"type": "object", "additionalProperties": NUMBER}]}, {"a": "1"}, {"a": 1}),
        ({"anyOf": [{"type": "null"}, INTEGER]}, "7", 7),
        ({"anyOf": [INTEGER, {"type": "boolean"}]}, "true", True),
        ({"anyOf": [{"enum": ["a", "b"]}, INTEGER]}, "7", 7),
        ({"anyOf": [STRING, INTEGER]}, "7", "7"),
        ({"anyOf": [record(a=INTEGER), record(b=INTEGER, c=INTEGER)]}, {"b": 1, "c": "2"}, {"b": 1, "c": 2}),
        ({"anyOf": [record(a=INTEGER), record(a=INTEGER, b=INTEGER)]}, {"a": 1, "b": 2}, {"a": 1, "b": 2}),
        ({"anyOf": [{"anyOf": [record(a=INTEGER)]}, record(b=INTEGER)]}, {"a": "1"}, {"a": 1}),
    ],
    ids=lambda part: json.dumps(part)[:60],
)
def test_the_nearest_variant_is_taken(schema: Any, value: Any, data: Any) -> None:
    assert outcome(record(x=schema), {"x": value})[0] == {"x": data}


def test_null_is_not_chosen_for_something_and_nothing_becomes_null() -> None:
    schema = record(x={"anyOf": [{"type": "null"}, INTEGER]})
    assert outcome(schema, {"x": "abc"}) == ({"x": "abc"}, [("type_mismatch", "/x")])


def test_the_default_of_a_union_is_for_a_missing_value_only() -> None:
    schema = record(x={"anyOf": [INTEGER, {"type": "boolean"}], "default": 5})
    assert outcome(schema, {"x": "abc"}) == ({"x": "abc"}, [("type_mismatch", "/x")])
    assert outcome({**schema, "required": []}, {}) == ({"x": 5}, [("default", "/x")])


def test_nothing_is_stripped_for_a_guess_that_does_not_lead_to_a_valid_value() -> None:
    value = {"a": "no number", "c": 1}
    data, warnings = outcome(record(x={"anyOf": [record(a=INTEGER), record(b=INTEGER)]}), {"x": value})
    assert data == {"x": value}
    assert warnings == [("type_mismatch", "/x/a")]


# R9


def test_objects_that_apply_together_are_repaired_property_by_property() -> None:
    schema = {"allOf": [{"$ref": "#/$defs/base"}, record(b=STRING)], "$defs": {"base": record(a=INTEGER)}}
    warnings = [("convert", "/a"), ("convert", "/b"), ("strip", "/c")]
    data, said = outcome(schema, {"a": "1", "b": 2, "c": 3})
    assert (data, sorted(said)) == ({"a": 1, "b": "2"}, sorted(warnings))


def test_a_union_inside_of_what_applies_together_is_decided_too() -> None:
    schema = {"allOf": [record(id=INTEGER), {"anyOf": [CAT, DOG]}]}
    data, _ = outcome(schema, {"id": "1", "kind": "dog", "name": "Rex", "lives": 9})
    assert data == {"id": 1, "kind": "dog", "name": "Rex"}


def test_types_that_exclude_each_other_are_beyond_repair() -> None:
    schema = record(x={"allOf": [STRING, INTEGER]})
    assert outcome(schema, {"x": 5}) == ({"x": 5}, [("unrepairable", "/x")])


# R10


def test_a_missing_property_gets_its_default_required_or_not() -> None:
    schema = record(["a", "b"], a={"default": 1}, b=INTEGER, c={"type": "array", "default": [{}]}, d=INTEGER)
    assert outcome(schema, {"b": 2}) == ({"b": 2, "a": 1, "c": [{}]}, [("default", "/a"), ("default", "/c")])


def test_a_default_that_is_not_valid_where_it_lands_is_not_filled_in() -> None:
    schema = record(["a", "b"], a={"type": "integer", "default": "none"}, b=INTEGER, c={**INTEGER, "default": None})
    assert outcome(schema, {"b": 1}) == ({"b": 1}, [("missing", "/a")])


def test_a_default_is_the_callers_own_to_change() -> None:
    schema = record([], tags={"type": "array", "default": []})
    repair(schema, {}).data["tags"].append("x")
    assert repair(schema, {}).data == {"tags": []}


def test_defaults_inside_a_default_are_filled_and_a_default_of_itself_ends() -> None:
    inner = record([], city={"type": "string", "default": "Rome"})
    assert repair(record([], address={**inner, "default": {}}), {}).data == {"address": {"city": "Rome"}}
    endless = {"type": "object", "properties": {"next": {"$ref": "#", "default": {}}}}
    assert repair(endless, {}).data == {"next": {"next": {}}}


def test_a_missing_required_property_without_default_stays_missing() -> None:
    assert outcome(record(a=INTEGER, b=INTEGER), {"a": 1}) == ({"a": 1}, [("missing", "/b")])


# R11


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {}}, "if": {"required": ["a"]}, "then": {"minProperties": 5}},
        {"oneOf": [{"required": ["a"]}, {"properties": {"a": {}}}]},
        {"dependentSchemas": {"a": {"maxProperties": 0}}},
        {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}, "additionalProperties": False}]},
    ],
    ids=lambda part: json.dumps(part)[:60],
)
def test_remaining_faults_always_have_a_warning(schema: Any) -> None:
    assert outcome(record(x=schema), {"x": {"a": 1}}) == ({"x": {"a": 1}}, [("constraint", "/x")])


# The report.


def test_array_siblings_share_one_entry() -> None:
    schema = record(items={"type": "array", "items": record(id=INTEGER)})
    repaired = repair(schema, {"items": [{"id": number, "url": f"u{number}"} for number in range(20)]})
    (warning,) = repaired.warnings
    assert (warning.code, warning.path, warning.count, warning.old) == ("strip", "/items/*/url", 20, "u0")


def test_siblings_that_lose_different_properties_are_reported_by_property() -> None:
    rows = [{"id": number, "a": 1, "url": "u"} | ({"b": 2} if number % 3 == 0 else {}) for number in range(9)]
    rows[4]["id"], rows[5] = "x", {"id": 5, "only": True}
    del rows[7]["id"]
    repaired = repair({"type": "array", "items": record(["id"], id=INTEGER, name=STRING)}, rows)
    assert repaired.data == [{"id": "x" if number == 4 else number} if number != 7 else {} for number in range(9)]
    assert [(warning.code, warning.path, warning.count) for warning in repaired.warnings] == [
        ("strip", "/*/a", 8),
        ("strip", "/*/url", 8),
        ("strip", "/*/b", 3),
        ("type_mismatch", "/4/id", 1),
        ("strip", "/5/only", 1),
        ("missing", "/7/id", 1),
    ]


def test_siblings_with_a_thousand_different_extras_lose_them_all() -> None:
    rows = [{"id": number, f"x{number}": 1, "x0": 2} for number in range(1000)]
    repaired = repair({"type": "array", "items": record(id=INTEGER)}, rows)
    assert repaired.data == [{"id": number} for number in range(1000)]
    first, second, *_, last = repaired.warnings
    assert (first.path, first.count, second.path, second.count) == ("/*/x0", 1000, "/1/x1", 1)
    assert (last.code, last.count) == ("more", 951)


def test_only_the_positions_that_differ_become_a_star() -> None:
    schema = {"type": "array", "items": {"type": "array", "items": INTEGER}}
    assert told(repair(schema, [[1], ["x", "y"]])) == [("type_mismatch", "/1/*")]


def test_a_key_that_is_a_star_is_never_collapsed() -> None:
    schema = {"type": "array", "items": record([], a=INTEGER)}
    repaired = repair(schema, [{"*": 1}, {"*": 2}])
    assert told(repaired) == [("strip", "/0/*"), ("strip", "/1/*")]
    below = repair(record(**{"*": schema}), {"*": [{"b": 1}, {"b": 2}]})
    assert told(below) == [("strip", "/*/0/b"), ("strip", "/*/1/b")]


def test_paths_are_json_pointers() -> None:
    schema = record(**{"a/b": record(**{"c~d": INTEGER})})
    assert told(repair(schema, {"a/b": {"c~d": "x"}})) == [("type_mismatch", "/a~1b/c~0d")]


def test_old_values_are_cut_and_their_size_is_reported() -> None:
    schema = record([], a=INTEGER)
    text, entry = repair(schema, {"a": "x" * 1000, "b": [1] * 500}).warnings
    assert (text.code, text.old, text.type, text.size) == ("strip", ("[" + "1," * 500)[:200], "array", 1001)
    assert (entry.code, entry.old, entry.type, entry.size) == ("type_mismatch", "x" * 200, "string", 1002)


def test_an_entry_has_the_old_and_the_new_value() -> None:
    (warning,) = repair(record(a=INTEGER), {"a": "5"}).warnings
    assert (warning.old, warning.new, warning.type, warning.size) == ("5", 5, "string", 3)
    assert warning.to_wire() == {"code": "convert", "path": "/a", "type": "string", "size": 3}


def test_at_most_fifty_entries_and_the_last_counts_the_rest() -> None:
    schema = record([], **{f"p{number}": INTEGER for number in range(80)})
    repaired = repair(schema, {f"p{number}": "x" for number in range(80)})
    assert len(repaired.warnings) == 50
    last = repaired.warnings[-1]
    assert (last.code, last.path, last.count) == ("more", "", 31)


def test_warnings_about_remaining_mismatches_are_omitted_last() -> None:
    schema = record(last=INTEGER)
    *shown, last = repair(schema, {f"k{number}": 1 for number in range(100)} | {"last": "x"}).warnings
    assert (shown[0].code, shown[0].path) == ("type_mismatch", "/last")
    assert (last.code, last.count) == ("more", 52)


def test_the_input_is_never_changed() -> None:
    value = {"a": "1", "b": [{"c": "2", "d": 3}], "e": None}
    before = json.dumps(value)
    repair(record(["a", "b"], a=INTEGER, b={"type": "array", "items": record(c=INTEGER)}, e=INTEGER), value)
    assert json.dumps(value) == before


# How many invalid values repair must make valid, a little below what it does today.
LEAST_MADE_VALID = {"recorded": 40, "open": 150, "rawschema": 30}


@pytest.mark.parametrize("corpus", corpora())
def test_repair_keeps_nearly_everything_that_the_values_of_a_corpus_hold(corpus: str) -> None:
    kept = total = made_valid = 0
    for case in cases(corpus):
        compiled = compile_schema(case.schema)
        if compiled.check(case.value):
            continue
        data = compiled.repair(case.value).data
        made_valid += compiled.check(data)
        total += len(leaves(case.value))
        kept += sum(1 for path, leaf in leaves(case.value).items() if leaves(data).get(path) == leaf)
    assert kept / total > 0.9
    assert made_valid > LEAST_MADE_VALID[corpus]


def leaves(value: Any, path: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], str]:
    """The scalars and empty containers of a value as JSON text, by place."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found: dict[tuple[Any, ...], str] = {}
    for key, item in items:
        found |= leaves(item, (*path, key))
    return found or {path: json.dumps(value)}
