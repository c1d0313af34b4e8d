"""YAML 1.2 as JSON data: values that old loaders convert stay unchanged."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from enfold.errors import FormatError
from enfold.sources.openapi import from_openapi
from enfold.sources.openapi.document import read_document, read_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NO", "NO"), ("yes", "yes"), ("on", "on"), ("16:9", "16:9"), ("2020-01-01", "2020-01-01"),
        ("2020-01-01T00:00:00Z", "2020-01-01T00:00:00Z"), ("1e-08", 1e-08), ("=", "="), ("0o17", 15), ("0x1F", 31),
        ("010", 10), ("1_000", "1_000"), ("-5", -5), ("+5", 5), ("1.", 1.0), (".5", 0.5), ("1e999", "1e999"),
        (".inf", ".inf"), (".nan", ".nan"), ("~", None), ("", None), ("Null", None), ("TRUE", True), ("false", False),
        ('"12"', "12"), ("'true'", "true"), ("!!str 12", "12"), ("!!int 12", 12), ("!custom 12", "12"), ("9" * 500, "9" * 500),
    ],
)  # fmt: skip
def test_a_scalar_is_what_the_core_schema_says(text: str, value: Any) -> None:
    assert read_yaml(f"a: {text}".encode()) == {"a": value}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("200: a\ntrue: b\n1.0: c\n~: d", {"200": "a", "true": "b", "1.0": "c", "~": "d"}),
        ("a: &x {b: 1}\nc: *x", {"a": {"b": 1}, "c": {"b": 1}}),
        ("a: &x {b: 1, c: 2}\nd: {<<: *x, c: 3}", {"a": {"b": 1, "c": 2}, "d": {"c": 3, "b": 1}}),
        ("a: &x {b: 1}\ny: &y {b: 2, c: 2}\nd: {<<: [*x, *y]}", {"a": {"b": 1}, "y": {"b": 2, "c": 2}, "d": {"b": 1, "c": 2}}),
        ("&k key: 1\nb: *k", {"key": 1, "b": "key"}),
        ("---\na: 1\n---\nb: 2", {"a": 1}),
        ("- a\n- [b, {c: d}]", ["a", ["b", {"c": "d"}]]),
        ("", None),
    ],
    ids=["keys", "alias", "merge", "merges", "anchored key", "first document", "lists", "empty"],
)  # fmt: skip
def test_structures_become_json(text: str, value: Any) -> None:
    assert read_yaml(text.encode()) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: &a {next: *a}", {"a": {"next": {"$ref": "#/a"}}}),
        ("a/b: [&a {next: *a}]", {"a/b": [{"next": {"$ref": "#/a~1b/0"}}]}),
        ("a: &a {b: *a}\nc: *a", {"a": {"b": {"$ref": "#/a"}}, "c": {"b": {"$ref": "#/a"}}}),
        ("a: &a {b: 1}\nc: &a {b: *a}", {"a": {"b": 1}, "c": {"b": {"$ref": "#/c"}}}),
        ("a: {oneOf: &o [{items: {oneOf: *o}}]}", {"a": {"oneOf": [{"items": {"allOf": [{"$ref": "#/a"}]}}]}}),
        (
            "a: {properties: &p {b: {properties: *p, allOf: [{type: object}]}}}",
            {"a": {"properties": {"b": {"allOf": [{"type": "object"}, {"$ref": "#/a"}]}}}},
        ),
    ],
    ids=["mapping", "in a list", "used again", "anchored anew", "choices", "properties"],
)
def test_a_schema_in_itself_becomes_a_reference(text: str, value: Any) -> None:
    assert read_yaml(text.encode()) == value


def test_a_byte_order_mark_and_json_are_read_too() -> None:
    assert read_document(b"\xef\xbb\xbfa: 1") == {"a": 1}
    assert read_document(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: [", "Not YAML"),
        ("a: *missing", "no finished anchor"),
        ("a: &a [*a]", "no finished anchor"),
        ("a: &a {<<: *a}", "merged into itself"),
        ("? {a: 1}\n: b", "must be a scalar"),
        ("[" * 600, "nested too deeply"),
        ("a: \x01", "Not YAML"),
    ],
    ids=["open", "unknown alias", "alias in itself", "merged into itself", "complex key", "deep", "control"],
)
def test_a_value_that_json_cannot_represent_is_refused_with_a_reason(text: str, why: str) -> None:
    with pytest.raises(FormatError, match=why):
        read_document(text.encode())


def test_a_bomb_of_aliases_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(FormatError, match="aliases"):
        read_yaml("\n".join(lines).encode())


UNLIKE_1_1 = [0x7F, *range(0x80, 0xA0), 0x2028, 0x2029, 0xFEFF]


@pytest.mark.parametrize("code", UNLIKE_1_1, ids=hex)
def test_a_character_that_only_yaml_1_1_takes_for_a_line_break_or_forbids_is_text(code: int) -> None:
    text = f"x{chr(code)}y"
    for written in (f'"{text}"', f"'{text}'", text, f"|-\n  {text}", f">-\n  {text}"):
        document = f"# {text}\nk: {written}\nm:\n  - n\n"
        assert read_yaml(document.encode()) == {"k": text, "m": ["n"]}
    assert read_yaml(f'"{text}": 1'.encode()) == {text: 1}


CYCLIC = """
openapi: 3.0.3
info: {title: t, version: "1"}
paths:
  /flows:
    post:
      operationId: run
      requestBody:
        content:
          application/json:
            schema: &flow
              type: object
              properties: &fields
                name: {type: string}
                next: *flow
                branches: {type: array, items: {type: object, properties: *fields}}
                step: {oneOf: &steps [{type: string}, {type: array, items: {oneOf: *steps}}]}
      responses: {"200": {description: ok, content: {application/json: {schema: *flow}}}}
"""


def test_a_document_with_schemas_in_themselves_is_imported() -> None:
    imported = from_openapi(CYCLIC, base_url="http://127.0.0.1")
    (operation,) = imported
    assert not imported.report.degraded
    accepts = jsonschema_rs.validator_for(operation.spec.input_schema).is_valid
    assert accepts({"next": {"next": {"name": "a"}}, "branches": [{"name": "b"}], "step": ["a", ["b", ["c"]]]})
    assert not accepts({"next": {"next": {"name": 1}}})
    assert not accepts({"branches": [{"branches": [{"name": 1}]}]})
    assert not accepts({"step": ["a", [["b", 1]]]})
