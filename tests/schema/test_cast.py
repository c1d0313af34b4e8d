"""`cast`: what TypeBox makes of a value, and plain JSON Schema read as its authors meant it."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from tests.schema.typebox import as_json

from enfold.schema.cast import CastError, cast

TEXT = {"type": "string"}
WHOLE = {"type": "integer"}


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties]}


def deep(levels: int, around: Callable[[Any], Any], core: Any) -> Any:
    for _ in range(levels):
        core = around(core)
    return core


def test_a_valid_value_is_returned_as_the_same_object() -> None:
    value = {"id": 1, "more": [1]}
    assert cast(record(id=WHOLE), value) is value


def test_a_valid_value_keeps_its_extras_and_an_invalid_one_loses_them() -> None:
    assert cast(record(a=TEXT), {"a": "x", "more": 1}) == {"a": "x", "more": 1}
    assert cast(record(a=TEXT), {"a": 5, "more": 1}) == {"a": ""}


def test_the_value_is_never_changed() -> None:
    value = {"a": [1, "2"], "b": {"c": None}}
    before = copy.deepcopy(value)
    cast(closed(a={"type": "array", "items": WHOLE}, b=record(c=TEXT, d=TEXT)), value)
    assert value == before


def test_a_rebuilt_object_has_the_order_of_its_schema() -> None:
    assert list(cast(record(b=TEXT, a=TEXT), {"a": 1, "b": "x"})) == ["b", "a"]
    assert list(cast(record(a=TEXT, b=TEXT), {"b": "x", "a": 1})) == ["a", "b"]


def test_a_default_is_given_out_as_a_copy() -> None:
    schema = {"type": "object", "properties": {}, "default": {"tags": ["a"]}}
    cast(schema, None)["tags"].append("b")
    assert cast(schema, None) == {"tags": ["a"]}


def test_equal_schemas_give_equal_casts() -> None:
    assert [cast(json.loads('{"type": "integer", "minimum": 3}'), None) for _ in range(3)] == [3, 3, 3]


def test_whole_numbers_beyond_javascript_stay_exact() -> None:
    assert cast(closed(n=WHOLE, s=TEXT), {"n": 2**70 + 1, "s": None}) == {"n": 2**70 + 1, "s": ""}


RESPONSES = {
    "numbers as text": (
        record(price={"type": "number"}, qty=WHOLE),
        {"price": "19.99", "qty": "3"},
        {"price": 0, "qty": 0},
    ),
    "a new member of an enum": (record(s={"enum": ["open", "closed"]}), {"s": "archived"}, {"s": "open"}),
    "null for an optional integer": ({"type": "object", "properties": {"age": WHOLE}}, {"age": None}, {"age": 0}),
    "a text that is too long": (record(t={"type": "string", "maxLength": 5}), {"t": "a long title"}, {"t": ""}),
    "one bad property": (record(a=WHOLE), {"a": "x", "more": {}}, {"a": 0}),
    "null or texts": (
        record(tags={"anyOf": [{"type": "null"}, {"type": "array", "items": TEXT}]}),
        {"tags": ["a", None, "b"]},
        {"tags": None},
    ),
    "a date": (record(at={"type": "string", "format": "date-time"}), {"at": "2024-01-01"}, {"at": "2024-01-01"}),
    "half of two objects": (
        {"allOf": [record(a=TEXT, tags={"type": "array", "items": TEXT}), record(b=WHOLE)]},
        {"a": "x", "tags": ["t"]},
        {"a": "", "tags": [], "b": 0},
    ),
    "an error page": (
        record(id=WHOLE, items={"type": "array", "items": TEXT}),
        {"error": {"code": 404}},
        {"id": 0, "items": []},
    ),
}


@pytest.mark.parametrize(("schema", "value", "expected"), RESPONSES.values(), ids=RESPONSES)
def test_a_response_becomes_what_typebox_makes_of_it(schema: Any, value: Any, expected: Any) -> None:
    assert as_json(cast(schema, value)) == as_json(expected)


SHIPS = {"$defs": {"Ship": record(name=TEXT)}}
MAPPING: dict[str, tuple[Any, Any, Any]] = {
    "a reference to a definition": ({"$ref": "#/$defs/Ship", **SHIPS}, {}, {"name": ""}),
    "a reference to old definitions": ({"$ref": "#/definitions/S", "definitions": {"S": WHOLE}}, "x", 0),
    "a reference to the root": (
        {"type": "object", "properties": {"n": WHOLE, "next": {"$ref": "#"}}, "required": ["n"]},
        {"n": 1, "next": {"n": "x", "next": {}}},
        {"n": 1, "next": {"n": 0, "next": {"n": 0}}},
    ),
    "a reference to any place": (record(a=WHOLE, b={"$ref": "#/properties/a"}), {"a": 1}, {"a": 1, "b": 0}),
    "a reference into a list": ({"anyOf": [{"$ref": "#/anyOf/1"}, WHOLE]}, "x", 0),
    "a reference with escapes": ({"$ref": "#/$defs/a~1b%20~0c", "$defs": {"a/b ~c": WHOLE}}, "x", 0),
    "a reference to a boolean": ({"$ref": "#/$defs/any", "$defs": {"any": True}}, "x", "x"),
    "a reference by anchor": ({"$ref": "#ship", "$defs": {"S": {"$anchor": "ship", **WHOLE}}}, "x", 0),
    "a default beside a reference": (
        record(ship={"$ref": "#/$defs/Ship", "default": {"name": "Argo"}}) | SHIPS,
        None,
        {"ship": {"name": "Argo"}},
    ),
    "a constant": ({"const": "only"}, "x", "only"),
    "a constant null": ({"const": None}, "x", None),
    "a constant false is not zero": ({"const": False}, 0, False),
    "a constant one is not true": ({"const": 1}, True, 1),
    "a constant object": ({"const": {"a": [1]}}, {"a": [1.0]}, {"a": [1]}),
    "an enum with null": ({"enum": ["x", None]}, None, None),
    "an enum of everything": ({"enum": [1, "1", True, None, [1]]}, [1], [1]),
    "an enum of one is a tag": (
        {"anyOf": [closed(t={"enum": ["a"]}, v=TEXT), closed(t={"enum": ["b"]}, v=TEXT, w=TEXT)]},
        {"t": "b", "v": 5},
        {"t": "b", "v": "", "w": ""},
    ),
    "a default of an enum": ({"enum": ["a", "b"], "default": "b"}, 5, "b"),
    "several types": ({"type": ["integer", "null"]}, None, None),
    "several types, none fits": ({"type": ["integer", "null"]}, "x", 0),
    "several types with a default": ({"type": ["object", "null"], "default": None, "properties": {"a": TEXT}}, 5, None),
    "nullable": ({"type": "string", "nullable": True}, None, None),
    "nullable, not null": ({"type": "string", "nullable": True}, 5, ""),
    "nullable reference": (record(s={"$ref": "#/$defs/Ship", "nullable": True}) | SHIPS, {"s": None}, {"s": None}),
    "a free object": ({"type": "object"}, {"a": [1]}, {"a": [1]}),
    "no free object": ({"type": "object"}, [1], {}),
    "a map": ({"type": "object", "additionalProperties": WHOLE}, {"a": 1, "b\n": "x"}, {"a": 1, "b\n": 0}),
    "a map of anything": ({"type": "object", "additionalProperties": True}, {"a": None}, {"a": None}),
    "an object closed to everything": ({"type": "object", "additionalProperties": False}, {"a": 1}, {}),
    "a map by pattern": ({"patternProperties": {"^k": WHOLE}}, {"k1": "x", "z": "x"}, {"k1": 0, "z": 0}),
    "properties without a type": ({"properties": {"a": WHOLE}, "required": ["a"]}, [], {"a": 0}),
    "an array without items": ({"type": "array"}, [1, "a", None], [1, "a", None]),
    "no array without items": ({"type": "array"}, "x", []),
    "items that are true": ({"type": "array", "items": True}, ["a", 1], ["a", 1]),
    "places of a tuple": ({"type": "array", "prefixItems": [TEXT, WHOLE], "items": False}, ["a", "b", 3], ["a", 0]),
    "places of a tuple as a list": ({"items": [TEXT, WHOLE]}, 5, ["", 0]),
    "members and properties": (record(b=WHOLE) | {"allOf": [record(a=TEXT)]}, {"a": "x"}, {"b": 0, "a": "x"}),
    "a single member": ({"allOf": [record(a=TEXT, b=WHOLE)]}, {"a": "x"}, {"a": "x", "b": 0}),
    "a single member with a default": ({"allOf": [TEXT], "default": "d"}, 5, "d"),
    "a type beside members": ({"type": "object", "allOf": [record(a=TEXT, b=WHOLE)]}, {"a": "x"}, {"a": "x", "b": 0}),
    "a choice beside properties": (
        record(a=WHOLE) | {"anyOf": [{"required": ["b"]}, {"required": ["c"]}]},
        {"a": "x", "b": 1},
        {"a": 0},
    ),
    "exactly one of": ({"oneOf": [WHOLE, {"type": "number"}]}, 5, 5),
    "exactly one of, none": ({"oneOf": [TEXT, WHOLE]}, None, ""),
    "a format": ({"type": "string", "format": "email"}, "none", "none"),
    "a format on a wrong type": ({"type": "string", "format": "email"}, 5, ""),
    "bounds as draft 4 has them": ({"type": "number", "minimum": 1, "exclusiveMinimum": True, "default": 9}, 1, 9),
    "true": (True, {"a": 1}, {"a": 1}),
    "nothing said": ({"title": "anything", "description": "at all"}, 5, 5),
    "keywords that mean nothing to it": (
        {"type": "string", "if": TEXT, "then": False, "x-note": 1, "readOnly": True},
        "x",
        "x",
    ),
}


@pytest.mark.parametrize(("schema", "value", "expected"), MAPPING.values(), ids=MAPPING)
def test_plain_json_schema_is_read_as_it_was_meant(schema: Any, value: Any, expected: Any) -> None:
    assert as_json(cast(schema, value)) == as_json(expected)


FAILURES: dict[str, tuple[Any, Any, str, str]] = {
    "never": (False, 1, "ValueCastError", "Never types cannot be cast"),
    "a negation": ({"not": TEXT}, "x", "ValueCreateError", "Not types must have a default value"),
    "a pattern": (
        {"type": "string", "pattern": "^a"},
        "b",
        "ValueCreateError",
        "String types with patterns must specify a default value",
    ),
    "an invalid pattern": (
        {"type": "string", "pattern": "("},
        "b",
        "SyntaxError",
        "Invalid regular expression: /(/",
    ),
    "repeated items": (
        {"type": "array", "uniqueItems": True, "items": record(a=TEXT)},
        [{"a": "x"}, {"a": "x"}],
        "ValueCastError",
        "Array cast produced invalid data due to uniqueItems constraint",
    ),
    "no items to be unique": (
        {"type": "array", "uniqueItems": True},
        5,
        "ValueCreateError",
        "Array with the uniqueItems constraint requires a default value",
    ),
    "members that exclude each other": (
        {"allOf": [TEXT, WHOLE]},
        None,
        "ValueCreateError",
        "Intersect produced invalid value. Consider using a default value.",
    ),
    "a reference to nothing": (
        {"$ref": "#/$defs/Gone"},
        1,
        "TypeDereferenceError",
        "Unable to dereference schema with $id '#/$defs/Gone'",
    ),
    "an endless type": (
        {"$id": "Node", **record(next={"$ref": "Node"})},
        None,
        "ValueCreateError",
        "Cannot create recursive type as it appears possibly infinite. Consider using a default.",
    ),
    "endless references": (record(next={"$ref": "#"}), None, "RangeError", "Maximum call stack size exceeded"),
    "an array whose default is none": (
        {"type": "array", "default": None},
        5,
        "TypeError",
        "Cannot read properties of null (reading 'map')",
    ),
}


@pytest.mark.parametrize(("schema", "value", "kind", "message"), FAILURES.values(), ids=FAILURES)
def test_where_typebox_throws_a_cast_error_has_the_same_type_and_message(
    schema: Any, value: Any, kind: str, message: str
) -> None:
    with pytest.raises(CastError) as failure:
        cast(schema, value)
    assert failure.value.kind == kind
    assert str(failure.value).startswith(message)


def test_a_cast_error_is_a_value_error_that_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(CastError("ValueCastError", "Never types cannot be cast")))  # noqa: S301  Ours.
    assert isinstance(error, CastError)
    assert (error.kind, str(error)) == ("ValueCastError", "Never types cannot be cast")
    assert issubclass(CastError, ValueError)


def linked(end: Any) -> dict[str, Any]:
    value: dict[str, Any] = deep(2_000, lambda inner: {"v": 1, "next": inner}, end)
    return value


def doubling(keyword: str) -> dict[str, Any]:
    """A schema of sixty lines that says the same thing in 2**60 ways."""
    steps = {f"d{i}": {keyword: [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(60)}
    return {"$ref": "#/$defs/d0", "$defs": steps | {"d60": TEXT}}


MANY = [f"p{i}" for i in range(10_000)]
LINK = {"type": "object", "properties": {"v": WHOLE, "next": {"$ref": "#"}}, "required": ["v"]}
STRANGE = ["__class__", '"', "'", "\n", "\\", "\ud800", "');import os;('", "{v}", "%s", "\0"]
A_VALUE = "a value"
TOO_MUCH = "RangeError"
HOSTILE: dict[str, tuple[Any, Any, str]] = {
    "a deep object schema": (deep(2_000, lambda inner: record(a=inner), TEXT), {"a": 1}, TOO_MUCH),
    "a deep array schema": (deep(2_000, lambda inner: {"type": "array", "items": inner}, TEXT), [1], TOO_MUCH),
    "a deep union schema": (deep(2_000, lambda inner: {"anyOf": [inner, WHOLE]}, TEXT), None, TOO_MUCH),
    "a deep negation": (deep(2_000, lambda inner: {"not": inner}, TEXT), None, TOO_MUCH),
    "a deep valid value": (LINK, linked({"v": 1}), TOO_MUCH),
    "a deep invalid value": (LINK, linked({"v": "x"}), TOO_MUCH),
    "a deep value where anything goes": (record(a=True), {"a": linked(None)}, A_VALUE),
    "deep unique items": ({"type": "array", "uniqueItems": True}, [linked(None)], TOO_MUCH),
    "many properties": (record(**dict.fromkeys(MANY, TEXT)), dict.fromkeys(MANY, ""), A_VALUE),
    "many missing properties": (record(**dict.fromkeys(MANY, record(a=TEXT))), {}, A_VALUE),
    "too many properties": (record(**{f"p{i}": TEXT for i in range(60_000)}), {}, TOO_MUCH),
    "a reference to itself": ({"$ref": "#"}, 1, TOO_MUCH),
    "references in a circle": ({"$ref": "#/a", "a": {"$ref": "#/b"}, "b": {"$ref": "#/a"}}, 1, TOO_MUCH),
    "a reference through itself": ({"$ref": "#/$ref/$ref"}, 1, "TypeDereferenceError"),
    "a union of itself": ({"anyOf": [{"$ref": "#"}, TEXT]}, 1, TOO_MUCH),
    "members of itself": ({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}, 1, TOO_MUCH),
    "a doubling union": (doubling("anyOf"), 1, A_VALUE),
    "a doubling intersection": (doubling("allOf"), 1, TOO_MUCH),
    "endlessly many items": ({"type": "array", "minItems": 10**12}, [], TOO_MUCH),
    "an endless text": ({"type": "string", "minLength": 10**12}, None, TOO_MUCH),
    "a large enum": ({"enum": [f"v{i}" for i in range(100_000)]}, 5, A_VALUE),
    "a pattern that explodes": ({"type": "string", "pattern": "^(a|a)+$"}, "a" * 1_000 + "b", "ValueCreateError"),
    "numbers beyond all floats": ({"type": "number", "multipleOf": 0.1, "minimum": 10**400}, 10**401, A_VALUE),
    "invalid numbers": ({"type": "number", "minimum": float("nan")}, float("inf"), A_VALUE),
    "names that are not text": ({"type": "object", "patternProperties": {"^a": WHOLE}}, {1: 2, None: 3}, A_VALUE),
    "keywords of the wrong type": (
        {"type": 5, "properties": [1], "required": "a", "anyOf": {}, "allOf": "x", "items": 3, "enum": 1},
        {"a": 1},
        A_VALUE,
    ),
}


@pytest.mark.parametrize(("schema", "value", "expected"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_schema_or_value_gets_an_answer(schema: Any, value: Any, expected: str) -> None:
    assert outcome(schema, value) == expected


def outcome(schema: Any, value: Any) -> str:
    try:
        cast(schema, value)
    except CastError as error:
        return error.kind
    return A_VALUE


def test_a_name_in_a_schema_is_only_ever_a_name() -> None:
    schema = closed(**{name: {"enum": STRANGE} for name in STRANGE})
    assert cast(schema, {}) == dict.fromkeys(STRANGE, STRANGE[0])


def test_an_object_of_very_many_properties_is_rebuilt_like_any_other() -> None:
    schema = closed(**dict.fromkeys(MANY, TEXT))
    assert cast(schema, {"p7": "x", "p8": 5, "more": 1}) == dict.fromkeys(MANY, "") | {"p7": "x"}


def test_a_choice_that_is_ambiguous_at_every_level_is_made_once_for_each_value() -> None:
    branches = [record(inner={"$ref": "#"}, tag={"const": tag}) for tag in "abcd"]
    value = deep(60, lambda inner: {"inner": inner, "tag": "d"}, None)
    assert cast({"anyOf": [*branches, {"type": "null"}]}, value) is value


def test_a_schema_that_is_changed_later_is_another_schema() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "default": [1]}}, "required": ["a"]}
    assert cast(schema, {}) == {"a": [1]}
    schema["properties"]["a"]["default"].append(2)  # type: ignore[index]  # a dict of many kinds
    assert cast(schema, {}) == {"a": [1, 2]}


def test_equal_objects_of_an_enum_are_equal_in_any_order_of_their_keys() -> None:
    schema = {"enum": [{"a": 1, "b": [2]}, [1, {"c": None}]]}
    assert cast(schema, {"b": [2], "a": 1.0}) == {"b": [2], "a": 1.0}
    assert cast(schema, {"a": 1, "b": [3]}) == {"a": 1, "b": [2]}
