"""Evidence anchors: read, made from content, checked against artifacts."""

from __future__ import annotations

from typing import Any

import pytest

from enfold.errors import FormatError
from enfold.provenance import coerce_evidence, json_pointer_evidence, text_line_evidence
from enfold.provenance.artifacts import Anchor, anchor_fault, read_anchor
from enfold.schema.json_pointer import follow


@pytest.mark.parametrize(
    ("source", "anchor"),
    [
        ("artifact:a1", Anchor("a1")),
        ("artifact:sha256:ab#json:/x/0", Anchor("sha256:ab", "/x/0")),
        ("artifact:a#json:/", Anchor("a", "/")),
        ("artifact:a#json:/p#json:/q", Anchor("a", "/p#json:/q")),
        ("artifact:a#text:line:12-14", Anchor("a", lines=(12, 14))),
        ("artifact:a#text:line:5", Anchor("a", lines=(5, 5))),
        ("artifact:notes#2", Anchor("notes#2")),
    ],
)
def test_an_anchor_is_read(source: str, anchor: Anchor) -> None:
    assert read_anchor(source) == anchor


@pytest.mark.parametrize(
    "source",
    [
        "",
        "a1",
        "artifact:",
        "artifact:#json:/a",
        "artifact:a#json:x",
        "artifact:a#json:/~",
        "artifact:a#json:/~2",
        "artifact:a#text:line:0",
        "artifact:a#text:line:4-2",
        "artifact:a#text:line:",
        "artifact:a#text:row:1",
    ],
)
def test_anything_but_an_anchor_is_refused(source: str) -> None:
    with pytest.raises(FormatError):
        read_anchor(source)


DOCUMENT: Any = {"a/b": [10, {"~": "tilde"}], "": "empty", "n": {"0": "zero"}}


@pytest.mark.parametrize(
    ("pointer", "value"), [("/a~1b/0", 10), ("/a~1b/1/~0", "tilde"), ("/", "empty"), ("/n/0", "zero"), ("", DOCUMENT)]
)
def test_a_pointer_returns_its_value(pointer: str, value: Any) -> None:
    assert follow(DOCUMENT, pointer) == value


@pytest.mark.parametrize("pointer", ["/x", "/a~1b/2", "/a~1b/-", "/a~1b/01", "/a~1b/0/x", "/a~1b/１"])
def test_a_pointer_without_a_target_is_reported(pointer: str) -> None:
    with pytest.raises(LookupError):
        follow(DOCUMENT, pointer)


def test_a_list_supports_a_field_item_by_item_and_a_missing_place_supports_nothing() -> None:
    found = json_pointer_evidence("a1", {"fix": ["x", "y"]}, {"plan": "/fix", "why": "/why"}, "my.method")
    assert [(each.field, each.source, each.method) for each in found] == [
        ("plan[0]", "artifact:a1#json:/fix/0", "my.method"),
        ("plan[1]", "artifact:a1#json:/fix/1", "my.method"),
    ]


def test_lines_support_a_field_where_they_are_there() -> None:
    found = text_line_evidence("log", "one\ntwo\nthree", {"cause": (2, 3), "first": 1, "beyond": 4})
    assert [each.source for each in found] == ["artifact:log#text:line:2-3", "artifact:log#text:line:1"]


def test_a_tools_own_evidence_is_brought_into_form() -> None:
    told = [
        {"field": "a", "source": "artifact:x", "note": "n" * 500},
        {"field": "", "source": "s"},
        "text",
        {"field": 1},
    ]
    found = coerce_evidence(told)
    assert [(each.schema_version, each.field, len(str(each.note))) for each in found] == [("evidence.v0.1", "a", 400)]


@pytest.mark.parametrize(
    ("source", "ok"),
    [
        ("artifact:doc#json:/a~1b/0", True),
        ("artifact:doc#json:/nowhere", False),
        ("artifact:log#text:line:2", True),
        ("artifact:log#text:line:3", False),
        ("artifact:doc#text:line:1", False),
        ("artifact:unseen#json:/anything", True),
        ("artifact:unknown#json:/a", False),
    ],
    ids=["there", "nowhere", "line there", "line beyond", "no text", "content not at hand", "no such artifact"],
)
def test_an_anchor_is_checked_against_its_artifact(source: str, ok: bool) -> None:
    contents = {"doc": DOCUMENT, "log": "one\ntwo"}
    assert (anchor_fault(source, ["doc", "log", "unseen"], contents) is None) is ok
