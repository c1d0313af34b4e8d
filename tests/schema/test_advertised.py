"""Schemas as clients are shown them: patterns that compile everywhere, and loosened ones for an upstream's answers."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import not_run

from enfold.schema.advertised import Advertising
from enfold.schema.regexp import compile_pattern
from enfold.schema.regexp.syntax import PatternError, portable_pattern

REWRITTEN = {
    r"\-": "-",
    r"\_": "_",
    r"^[A-Za-z0-9\-\_\.]+$": r"^[A-Za-z0-9\-_\.]+$",
    r"^[\w\!\@\#\ \,\:\;\<\>\=\'\"\~\`\%\&]+$": r"""^[\w!@# ,:;<>='"~`%&]+$""",
    r"[\w-.]": r"[\w\-.]",
    r"[a-\d]": r"[a\-\d]",
    r"[\d-\w]": r"[\d\-\w]",
    r"[\p{L}-x]": r"[\p{L}\-x]",
    r"a{,3}": r"a\{,3\}",
    r"{a}": r"\{a\}",
    "]": r"\]",
    r"\é": "é",
    r"\A[a-z]+\Z": "^[a-z]+$",
    r"\A[a-z]+\z": "^[a-z]+$",
    r"(?P<x>a)": "(?<x>a)",
    r"(?P<x>a)\k<x>\1": r"(?<x>a)\k<x>\1",
    r"\(?P<x>a": r"\(?P<x>a",
    r"[(?P<x>]": r"[(?P<x>]",
    r"[\#-\%]": "[#-%]",
    r"(\_]|{)*": r"(_\]|\{)*",
    r"\Aa|b\z": "^a|b$",
    r"[\U0001F600-\U0001F602]": r"[\u{1f600}-\u{1f602}]",
    r"\U0001F600": r"\u{1f600}",
}
KEPT = [
    "", r"^[a-z]+$", r"\d{1,3}(?:\.\d+)?", r"[-a]", r"[a-]", r"[\w-]", r"[-\w]", r"[\--a]", r"[^\]]", r"\/", r"\p{L}",
    r"\u{1F600}", r"(?<a>b)\k<a>", r"(a)\1", r"(?<!a)b(?=c)", r"[\b]", r"\0", "[😀-😂]", r"^\S+@\S+$", r"\cA", r"\x41",
    r"(?:(?=a))*", r"(?=a)(b)*",
]  # fmt: skip
LEFT_OUT = [
    r"(?i)abc", r"a++", r"\012", r"(?=a)*", r"(?<=a)?b", r"\h", r"\p{Foo}", r"\pL", r"\x4", r"\k<a>", r"\1", "(", ")",
    "[b-a]", "a**", "x{2,1}", r"^*", r"[\B]", r"[\1]", r"(?>a)", r"(?#c)", r"\Qa\E", "\\", r"(?P=x)", "[", "a{2}{3}",
    r"(?P<x>a)(?<x>b)", r"\U00110000", r"\U0001", r"[\A]", r"\A*", r"(?!a){2}", "a" * 10_001,
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "written"), REWRITTEN.items())
def test_a_pattern_of_an_older_grammar_is_rewritten(pattern: str, written: str) -> None:
    assert portable_pattern(pattern) == written


@pytest.mark.parametrize("pattern", KEPT)
def test_a_pattern_that_every_client_takes_is_unchanged(pattern: str) -> None:
    assert portable_pattern(pattern) == pattern


@pytest.mark.parametrize("pattern", LEFT_OUT)
def test_a_pattern_that_cannot_be_written_is_left_out(pattern: str) -> None:
    assert portable_pattern(pattern) is None


def refused_by_node(patterns: list[str]) -> list[str]:
    """The patterns that `new RegExp(pattern, "u")` refuses."""
    if shutil.which("node") is None:
        not_run("node")
    program = """
      const refuses = (pattern) => { try { new RegExp(pattern, "u"); return false } catch { return true } };
      console.log(JSON.stringify(JSON.parse(require("fs").readFileSync(0, "utf8")).filter(refuses)));
    """
    done = subprocess.run(
        ["node", "-e", program], input=json.dumps(patterns), text=True, capture_output=True, check=True
    )
    found: list[str] = json.loads(done.stdout)
    return found


PIECES = ["\\", "-", "_", "[", "]", "{", "}", "(", ")", "?", "*", "+", "a", "z", "1", ",", "^", "$", "|", ".", "d", "w",
          "p", "L", "u", "x", "0", "=", "!", "<", ">", ":", "P", "\\-", "\\w", "[a-", "(?=", "{2}", "k", "b", "é", "/"]  # fmt: skip


def test_node_takes_every_pattern_we_show() -> None:
    examples: list[str] = []

    @given(st.lists(st.sampled_from(PIECES), max_size=10).map("".join))
    def collect(pattern: str) -> None:
        examples.append(pattern)

    collect()
    shown = [portable_pattern(pattern) for pattern in (*examples, *REWRITTEN, *KEPT, *LEFT_OUT)]
    assert refused_by_node([pattern for pattern in shown if pattern is not None]) == []


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), st.text(st.sampled_from("az1-_. {}]"), max_size=5))
def test_a_rewritten_pattern_means_what_it_meant(pattern: str, text: str) -> None:
    written = portable_pattern(pattern)
    try:
        before = compile_pattern(pattern)
    except PatternError:
        return
    if written is not None:
        assert compile_pattern(written).search(text) == before.search(text)


def test_patterns_are_found_wherever_schemas_occur() -> None:
    inner = {"type": "string", "pattern": r"\-"}
    schema = {
        "properties": {"pattern": inner, "enum": {"enum": [{"pattern": r"\-"}]}},
        "patternProperties": {r"\_x": inner, "(?i)y": inner},
        "items": [inner],
        "anyOf": [{"not": inner}],
        "propertyNames": {"pattern": "(?i)x"},
        "$defs": {"d": inner},
        "default": {"pattern": r"\-"},
    }
    shown = {"type": "string", "pattern": "-"}
    assert Advertising().portable(schema) == {
        "properties": {"pattern": shown, "enum": {"enum": [{"pattern": r"\-"}]}},
        "patternProperties": {"_x": shown},
        "items": [shown],
        "anyOf": [{"not": shown}],
        "propertyNames": {},
        "$defs": {"d": shown},
        "default": {"pattern": r"\-"},
    }


def test_a_schema_without_such_patterns_is_the_same_object() -> None:
    schema = {"properties": {"a": {"pattern": "^a$"}}, "patternProperties": {"^b": {}}, "$defs": {"c": {"items": {}}}}
    assert Advertising().portable(schema) is schema


def test_a_schema_nested_beyond_reason_is_shown_without_its_inside() -> None:
    schema: dict[str, Any] = {}
    for _ in range(5000):
        schema = {"type": "array", "items": schema}
    shown = Advertising().portable(schema)
    assert shown is schema or shown == {"type": "array"}  # what Python can write, which since 3.12 is more
    assert msgspec.json.encode(shown)
    assert Advertising().loosened(schema) == {"type": ["array", "null"]}


# --- loosened

WHOLE: dict[str, Any] = {
    "type": "object",
    "required": ["id", "state"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "integer", "minimum": 1, "description": "Its number."},
        "state": {"type": "string", "enum": ["open", "closed"]},
        "made": {"type": "string", "format": "date-time", "pattern": "^2"},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1, "uniqueItems": True},
        "owner": {"$ref": "#/$defs/Owner"},
        "either": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        "kind": {"const": "a"},
        "map": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
    "if": {"required": ["id"]},
    "then": {"required": ["never"]},
    "not": {"required": ["id"]},
    "dependentRequired": {"id": ["never"]},
    "$defs": {"Owner": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}},
}


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"id": None, "state": None, "made": None, "tags": None, "owner": None, "either": None, "kind": None},
        {"id": "x", "state": "new", "made": "soon", "tags": [], "owner": {}, "either": 1, "kind": "b", "more": 1},
        {"id": 1.5, "tags": {"a": 1}, "owner": [], "either": "x", "map": {"a": "b"}},
        {"owner": {"name": 1}, "tags": [1, 1]},
    ],
    ids=str,
)
def test_a_loosened_schema_takes_every_object(value: Any) -> None:
    assert jsonschema_rs.validator_for(Advertising().loosened(WHOLE)).is_valid(value)


@pytest.mark.parametrize(
    ("declared", "shown"),
    [
        ("object", ["object", "null"]),
        ("null", "null"),
        ("integer", ["number", "null"]),
        (["integer", "number", "null"], ["number", "null"]),
    ],
    ids=str,
)
def test_a_loosened_root_allows_an_answer_without_content(declared: Any, shown: Any) -> None:
    assert Advertising().loosened({"type": declared})["type"] == shown


@pytest.mark.parametrize("value", [[], "text", 1, True])
def test_a_loosened_schema_keeps_the_type_of_its_root(value: Any) -> None:
    assert not jsonschema_rs.validator_for(Advertising().loosened(WHOLE)).is_valid(value)


@pytest.mark.parametrize("junk", [None, 1, True, {}, [1], ["string", None], [["string"]]], ids=str)
def test_a_schema_whose_type_is_none_is_shown_anyway(junk: Any) -> None:
    schema = {"properties": {"a": {"type": junk, "title": "A"}}}
    assert Advertising().loosened(schema)["properties"]["a"]["title"] == "A"
    assert Advertising().portable(schema) is schema
    assert Advertising().useful(schema, short=True) is schema


def test_a_loosened_schema_still_lists_its_properties() -> None:
    loose = Advertising().loosened(WHOLE)
    assert list(loose["properties"]) == list(WHOLE["properties"])
    assert loose["properties"]["id"] == {"description": "Its number.", "$comment": "integer"}
    assert loose["properties"]["owner"] == {"$ref": "#/$defs/Owner"}
    assert not any(word in json.dumps(loose) for word in ("required", "enum", "format", "pattern", "oneOf"))
    jsonschema_rs.meta.validate(loose)


def test_definitions_that_schemas_share_are_rewritten_once() -> None:
    shared = {"type": "string", "pattern": r"\-"}
    advertising = Advertising()
    one, other = ({"$ref": "#/$defs/a", "title": each, "$defs": {"a": shared}} for each in "xy")
    assert advertising.portable(one)["$defs"]["a"] is advertising.portable(other)["$defs"]["a"]
    assert advertising.loosened(one)["$defs"]["a"] is advertising.loosened(other)["$defs"]["a"]
