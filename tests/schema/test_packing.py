"""Schemas written for listings: only the definitions that are reached, each written once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from enfold.schema.advertised import Advertising, Packing, first_sentence


def as_is(schema: dict[str, Any]) -> dict[str, Any]:
    return schema


def written(schema: dict[str, Any]) -> Any:
    return msgspec.json.decode(msgspec.json.encode(schema))


ROOT = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}}
A = {"type": "object", "properties": {"b": {"$ref": "#/$defs/B"}}}
B = {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]}


def test_only_the_definitions_that_are_reached_are_written() -> None:
    packed = Packing(as_is).packed({**ROOT, "$defs": {"A": A, "B": B, "C": {"type": "string"}}})
    assert written(packed) == {**ROOT, "$defs": {"A": A, "B": B}}
    assert Packing(as_is).packed({"type": "string", "$defs": {"A": A}}) == {"type": "string"}


def test_definitions_beyond_the_limit_allow_anything() -> None:
    room = len(msgspec.json.encode(A))
    packed = Packing(as_is).packed({**ROOT, "$defs": {"A": A, "B": B}}, room)
    assert written(packed) == {**ROOT, "$defs": {"A": A, "B": {}}}


@pytest.mark.parametrize(
    "odd",
    [
        {"$ref": "#/$defs/A/properties/b"},
        {"$ref": "other.json"},
        {"$dynamicRef": "#node"},
        {"$id": "urn:x", "$ref": "#/$defs/A"},
        {"$anchor": "x"},
    ],
    ids=str,
)
def test_a_schema_with_other_references_stays_whole(odd: dict[str, Any]) -> None:
    for schema in ({**ROOT, "not": odd, "$defs": {"A": A, "B": B}}, {**ROOT, "$defs": {"A": odd, "B": B}}):
        assert Packing(as_is).packed(schema) == schema


def test_a_definition_that_schemas_share_is_rewritten_once() -> None:
    seen = []

    def note(schema: dict[str, Any]) -> dict[str, Any]:
        seen.append(schema)
        return {**schema, "title": "x"}

    packing = Packing(note)
    one, other = (packing.packed({**ROOT, "description": each, "$defs": {"A": A, "B": B}}) for each in "xy")
    assert (len(seen), written(one)["$defs"]) == (4, written(other)["$defs"])
    assert written(one)["$defs"]["A"]["title"] == "x"


def test_examples_and_deprecated_options_are_of_no_use_to_a_model() -> None:
    schema = {
        "type": "object",
        "required": ["old"],
        "examples": [{"old": 1}],
        "properties": {
            "old": {"type": "integer", "deprecated": True, "description": "A number, e.g. 1. And more."},
            "older": {"type": "integer", "deprecated": True},
            "examples": {"type": "array", "example": [1], "enum": [{"example": 1}]},
        },
    }
    old = {"type": "integer", "deprecated": True, "description": "A number, e.g. 1. And more."}
    useful = {
        "type": "object",
        "required": ["old"],
        "properties": {"old": old, "examples": {"type": "array", "enum": [{"example": 1}]}},
    }
    assert Advertising().useful(schema) == useful
    short = Advertising().useful(schema, short=True)
    assert short["properties"]["old"]["description"] == "A number, e.g. 1."
    plain = {"type": "object", "properties": {"a": {"type": "string", "description": "Short."}}}
    assert Advertising().useful(plain) is plain
    assert Advertising().useful(plain, short=True) is plain


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("Gets a card. It is fast.", "Gets a card."),
        ("Gets v1.2 of a card! Really?", "Gets v1.2 of a card!"),
        ("Takes ids (e.g. 7) and more. Then", "Takes ids (e.g. 7) and more."),
        ("A title\n\nAnd a text.", "A title"),
        ("Over two\nlines of text. More", "Over two lines of text."),
        ("取得卡片。更多", "取得卡片。"),
        ("no end", "no end"),
        ("", ""),
    ],
)
def test_a_short_description_is_its_first_sentence(text: str, sentence: str) -> None:
    assert first_sentence(text) == sentence
