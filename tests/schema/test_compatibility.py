"""Which change of a schema breaks whom: known verdicts, in both directions, and a search for a value that shows otherwise."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enfold.schema.compatibility import incompatibilities


def thing(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def closed(*required: str, **properties: Any) -> dict[str, Any]:
    return {**thing(*required, **properties), "additionalProperties": False}


TEXT: dict[str, Any] = {"type": "string"}
WHOLE: dict[str, Any] = {"type": "integer"}
NUMBER: dict[str, Any] = {"type": "number"}
TREE: dict[str, Any] = {
    "$defs": {"T": thing("n", n=WHOLE, sub={"type": "array", "items": {"$ref": "#/$defs/T"}})},
    "$ref": "#/$defs/T",
}
DEEPER: dict[str, Any] = {
    "$defs": {"U": thing(n=NUMBER, sub={"type": "array", "items": {"$ref": "#/$defs/U"}})},
    "$ref": "#/$defs/U",
}

# old, new, whether callers of the old one may be refused (input), whether readers of the old one may be surprised (output)
PAIRS: dict[str, tuple[Any, Any, bool, bool]] = {
    "nothing changed": (thing("x", x=WHOLE), thing("x", x=WHOLE), False, False),
    "only words changed": ({**TEXT, "description": "a"}, {**TEXT, "description": "b", "examples": ["c"]}, False, False),
    "unknown became known": ({}, TEXT, True, False),
    "known became unknown": (TEXT, {}, False, True),
    "integer became number": (WHOLE, NUMBER, False, True),
    "text became integer": (TEXT, WHOLE, True, True),
    "null is allowed": (TEXT, {"type": ["string", "null"]}, False, True),
    "null is allowed by anyOf": (TEXT, {"anyOf": [TEXT, {"type": "null"}]}, False, True),
    "two spellings of or null": ({"type": ["string", "null"]}, {"anyOf": [TEXT, {"type": "null"}]}, False, False),
    "an optional argument came": (closed("x", x=WHOLE), closed("x", x=WHOLE, y=TEXT), False, False),
    "a required argument came": (closed("x", x=WHOLE), closed("x", "y", x=WHOLE, y=TEXT), True, False),
    "an argument went": (closed("x", x=WHOLE, y=TEXT), closed("x", x=WHOLE), True, False),
    "a required argument went": (closed("x", "y", x=WHOLE, y=TEXT), closed("x", x=WHOLE), True, True),
    "required became optional": (closed("x", x=WHOLE), closed(x=WHOLE), False, True),
    "it was closed": (thing(x=WHOLE), closed(x=WHOLE), True, False),
    "another choice": ({"enum": ["a", "b"]}, {"enum": ["a", "b", "c"]}, False, True),
    "a choice less": ({"enum": ["a", "b"]}, {"enum": ["a"]}, True, False),
    "choices in another order": ({"enum": ["a", "b"]}, {"enum": ["b", "a"]}, False, False),
    "text became a choice": (TEXT, {"type": "string", "enum": ["a"]}, True, False),
    "a constant became an enum": ({"const": 1}, {"enum": [1, 2]}, False, True),
    "boolean became its two values": ({"type": "boolean"}, {"enum": [True, False]}, False, False),
    "a higher maximum": ({**WHOLE, "maximum": 5}, {**WHOLE, "maximum": 9}, False, True),
    "a minimum came": (WHOLE, {**WHOLE, "minimum": 0}, True, False),
    "an exclusive end": ({**NUMBER, "minimum": 0}, {**NUMBER, "exclusiveMinimum": 0}, True, False),
    "a shorter text": ({**TEXT, "maxLength": 9}, {**TEXT, "maxLength": 5}, True, False),
    "another pattern": ({**TEXT, "pattern": "^a"}, {**TEXT, "pattern": "^b"}, True, True),
    "a format came": (TEXT, {**TEXT, "format": "date-time"}, True, False),
    "more items": ({"type": "array", "maxItems": 2}, {"type": "array", "maxItems": 3}, False, True),
    "other items": ({"type": "array", "items": WHOLE}, {"type": "array", "items": NUMBER}, False, True),
    "a pair became a list": (
        {"type": "array", "prefixItems": [WHOLE, WHOLE], "items": False},
        {"type": "array", "items": WHOLE},
        False,
        True,
    ),
    "a branch came": ({"oneOf": [TEXT, WHOLE]}, {"oneOf": [TEXT, WHOLE, {"type": "boolean"}]}, False, True),
    "a branch went": ({"anyOf": [TEXT, WHOLE]}, TEXT, True, False),
    "a nested field became required": (
        thing("a", a=thing(b=TEXT)),
        thing("a", a=thing("b", b=TEXT)),
        True,
        False,
    ),
    "a definition was given another name": (
        TREE,
        {"$defs": {"V": TREE["$defs"]["T"]["properties"]["n"]}, **TREE},
        False,
        False,
    ),
    "a definition that leads to itself was loosened": (TREE, DEEPER, False, True),
    "parts became one": ({"allOf": [thing("a", a=TEXT), thing(b=WHOLE)]}, thing("a", a=TEXT, b=WHOLE), False, False),
    "a map's values": (
        {"type": "object", "additionalProperties": WHOLE},
        {"type": "object", "additionalProperties": TEXT},
        True,
        True,
    ),
    "OpenAPI 3.0's null": (TEXT, {**TEXT, "nullable": True}, False, True),
    "an exclusive end of draft 4": (
        {**NUMBER, "minimum": 0},
        {**NUMBER, "minimum": 0, "exclusiveMinimum": True},
        True,
        False,
    ),
    "a pair of draft 4 became a list": (
        {"type": "array", "items": [WHOLE], "additionalItems": False},
        {"items": WHOLE},
        False,
        True,
    ),
    "an old dependency came": ({"type": "object"}, {"type": "object", "dependencies": {"a": ["b"]}}, True, False),
    "a condition that stayed": ({**TEXT, "not": {"const": "a"}}, {**TEXT, "not": {"const": "a"}}, False, False),
    "a condition that changed": ({**TEXT, "not": {"const": "a"}}, {**TEXT, "not": {"const": "b"}}, True, True),
    "a condition in a part": (
        {"allOf": [TEXT, {"if": {"const": "a"}, "then": False}]},
        {**TEXT, "if": {"const": "a"}, "then": False},
        False,
        False,
    ),
    "nothing may be given": ({"type": "string", "enum": []}, WHOLE, False, True),
    "parts that leave nothing": ({"allOf": [TEXT, WHOLE]}, {"type": "boolean"}, False, True),
    "parts that narrow each other": (
        {"allOf": [{**WHOLE, "minimum": 3}, {"maximum": 5, "type": "number"}]},
        {**WHOLE, "minimum": 2, "maximum": 5},
        False,
        True,
    ),
    "choices that a part narrows": ({"enum": ["a", 1], **TEXT}, {"const": "a"}, False, False),
    "a pattern for the names": (
        {"type": "object", "patternProperties": {"^x": WHOLE}, "additionalProperties": False},
        {"type": "object", "patternProperties": {"^x": WHOLE}, "additionalProperties": False},
        False,
        False,
    ),
    "a count came": ({"type": "object"}, {"type": "object", "minProperties": 1}, True, False),
    "a count of nothing": ({"type": "array"}, {"type": "array", "minItems": 0}, False, False),
    "a choice inside a choice": (
        {"anyOf": [{"anyOf": [TEXT, WHOLE]}, NUMBER]},
        {"anyOf": [NUMBER, TEXT]},
        False,
        False,
    ),
    "multiples": ({**WHOLE, "multipleOf": 4}, {**WHOLE, "multipleOf": 2}, False, True),
}


@pytest.mark.parametrize("name", PAIRS)
def test_the_verdict_is_known(name: str) -> None:
    old, new, breaks_callers, breaks_readers = PAIRS[name]
    assert bool(incompatibilities(old, new)) is breaks_callers, incompatibilities(old, new)
    assert bool(incompatibilities(new, old, ignores_extras=True)) is breaks_readers, incompatibilities(
        new, old, ignores_extras=True
    )


def test_the_place_and_the_reason_are_reported() -> None:
    old = thing("a", a={"type": "array", "items": thing(kind={"enum": ["x", "y"]}, size=WHOLE)})
    new = thing(
        "a", "b", a={"type": "array", "items": thing(kind={"enum": ["x"]}, size={**WHOLE, "maximum": 9})}, b=TEXT
    )
    assert sorted(map(str, incompatibilities(old, new))) == [
        '/a/*/kind may be "y", which is not accepted',
        "/a/*/size may be above 9",
        "/b may be missing where it is required",
    ]


_LEAVES = st.sampled_from(
    [
        {},
        TEXT,
        WHOLE,
        NUMBER,
        {"type": "null"},
        {"enum": ["a", 1, None]},
        {**WHOLE, "minimum": 1},
        {**TEXT, "maxLength": 1},
        False,
    ]
)
_SCHEMAS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.builds(
            lambda a, b, r: {**closed(a=a, b=b), "required": r}, inner, inner, st.sampled_from([[], ["a"], ["a", "b"]])
        ),
        st.builds(lambda a, more: {**thing(a=a), "additionalProperties": more}, inner, inner.filter(bool)),
        st.builds(lambda items: {"type": "array", "items": items, "maxItems": 2}, inner),
        st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner),
        st.builds(lambda a, b: {"allOf": [a, b]}, inner, inner),
    ),
    max_leaves=5,
)
_DOCUMENTS = st.one_of(_SCHEMAS, _SCHEMAS.map(lambda inner: {"$defs": {"D": inner}, "$ref": "#/$defs/D"}))
_JSON = st.recursive(
    st.sampled_from([None, True, 0, 1, 2.5, "", "a", "ab"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=300)
@given(old=_DOCUMENTS, new=_DOCUMENTS, values=st.lists(_JSON, min_size=8, max_size=8))
def test_schemas_reported_as_compatible_are_compatible(old: Any, new: Any, values: list[Any]) -> None:
    if incompatibilities(old, new):
        return
    before, now = jsonschema_rs.validator_for(old), jsonschema_rs.validator_for(new)
    for value in values:
        assert now.is_valid(value) or not before.is_valid(value), value


JUNK = [None, True, 0, -1, 2.5, "a", [], {}, [1], ["a"], {"a": 1}, [None], {"a": [None]}, "#/nowhere"]
KEYWORDS = [
    "type", "enum", "anyOf", "oneOf", "allOf", "$ref", "not", "if", "contains", "dependentRequired", "dependentSchemas",
    "dependencies", "patternProperties", "propertyNames", "unevaluatedProperties", "unevaluatedItems", "properties",
    "required", "additionalProperties", "minProperties", "items", "prefixItems", "maxItems", "uniqueItems", "minLength",
    "pattern", "format", "minimum", "exclusiveMaximum", "multipleOf", "discriminator", "nullable", "$defs", "$id",
]  # fmt: skip


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_untrusted_schemas_are_compared_whatever_they_contain(keyword: str) -> None:
    known = thing("a", a=WHOLE)
    for junk in JUNK:
        odd = {**known, keyword: junk}
        assert isinstance(incompatibilities(odd, known), list)
        assert isinstance(incompatibilities(known, odd), list)
        assert incompatibilities(odd, odd) == [], (keyword, junk)


def test_a_schema_that_cannot_be_read_is_not_said_to_fit() -> None:
    assert [found.why for found in incompatibilities(TEXT, "string")] == [
        "cannot be compared: A schema must be an object or a boolean, not str"
    ]


def test_steps_are_compared_in_decimal() -> None:
    wide, narrow = ({"type": "number", "multipleOf": step} for step in (0.3, 0.1))
    assert incompatibilities(wide, narrow) == []
    assert incompatibilities(narrow, wide) != []
