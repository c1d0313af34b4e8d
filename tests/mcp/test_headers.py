"""Headers that repeat a request's body."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enfold.mcp.headers import (
    Mirror,
    check_argument_headers,
    check_headers,
    mirror_header,
    mirrors_of,
    read_value,
    write_value,
)
from enfold.mcp.json_rpc import ProtocolError, RPCMessage

# The examples of the specification.
WRITTEN = {
    "us-west1": "us-west1",
    "Hello, 世界": "=?base64?SGVsbG8sIOS4lueVjA==?=",
    " padded ": "=?base64?IHBhZGRlZCA=?=",
    "line1\nline2": "=?base64?bGluZTEKbGluZTI=?=",
    "=?base64?literal?=": "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=",
}


@pytest.mark.parametrize(("text", "value"), WRITTEN.items())
def test_a_text_is_written_as_the_specification_shows(text: str, value: str) -> None:
    assert write_value(text) == value


@given(st.text())
def test_everything_written_can_be_read_back(text: str) -> None:
    if "\ud800" <= max(text, default="a") <= "\udfff":
        return
    assert read_value(write_value(text).encode("ascii")) == text


@pytest.mark.parametrize("value", [b"=?base64?SGVsbG8?=", b"=?base64?SGVs!!!bG8=?=", b"=?base64?/w==?=", b"\xc3\xa4"])
def test_an_invalid_value_is_ignored(value: bytes) -> None:
    assert read_value(value) is None


@pytest.mark.parametrize("value", [b"SGVsbG8=", b"=?base64?SGVsbG8=", b"SGVsbG8=?="])
def test_an_incompletely_marked_value_is_plain(value: bytes) -> None:
    assert read_value(value) == value.decode()


def test_names_of_resources_are_their_uris() -> None:
    message = RPCMessage("2.0", 1, "resources/read", {"uri": "file:///ä"})
    headers = {b"mcp-protocol-version": b"v", b"mcp-method": b"resources/read"}
    check_headers({**headers, b"mcp-name": write_value("file:///ä").encode()}, message, "v")
    with pytest.raises(ProtocolError):
        check_headers({**headers, b"mcp-name": b"file:///a"}, message, "v")


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def marked(name: str, type: str = "string") -> dict[str, Any]:
    return {"type": type, "x-mcp-header": name}


def test_marks_are_found_below_properties() -> None:
    found = mirrors_of(schema(region=marked("Region"), place=schema(zip=marked("Zip", "integer"))))
    assert found == (Mirror(("region",), "Region", "string"), Mirror(("place", "zip"), "Zip", "integer"))


WRONG = {
    "an empty name": schema(a=marked("")),
    "a name with a space": schema(a=marked("A B")),
    "a line's end": schema(a=marked("A\r\nB")),
    "a number": schema(a=marked("A", "number")),
    "the same name twice": schema(a=marked("A"), b=marked("a")),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_mark_makes_all_marks_void(wrong: dict[str, Any]) -> None:
    assert mirrors_of(wrong) is None


COMPARED: dict[str, tuple[str, Any, bytes, bool]] = {
    "text": ("string", "eu", b"eu", True),
    "other text": ("string", "eu", b"us", False),
    "a whole number": ("integer", 42, b"42", True),
    "a number with a fraction of nothing": ("integer", 42, b"42.0", True),
    "another number": ("integer", 42, b"43", False),
    "a number and a word": ("integer", 42, b"many", False),
    "truth": ("boolean", True, b"true", True),
    "truth in capitals": ("boolean", True, b"True", False),
}


@pytest.mark.parametrize(("type", "value", "header", "is_same"), COMPARED.values(), ids=COMPARED)
def test_a_header_and_its_argument_are_compared(type: str, value: Any, header: bytes, is_same: bool) -> None:
    mirrors = mirrors_of(schema(a=marked("A", type))) or ()
    if is_same:
        check_argument_headers(mirrors, {b"mcp-param-a": header}, {"a": value})
        return
    with pytest.raises(ProtocolError) as caught:
        check_argument_headers(mirrors, {b"mcp-param-a": header}, {"a": value})
    assert caught.value.code == -32020


def test_a_client_writes_what_a_server_accepts() -> None:
    mirrors = mirrors_of(schema(a=marked("A"), b=marked("B", "integer"), c=marked("C", "boolean"))) or ()
    arguments = {"a": "ü", "b": 7}
    values = {mirror: mirror_header(mirror, arguments) for mirror in mirrors}
    assert list(values.values())[2] is None
    headers = {mirror.header: value.encode() for mirror, value in values.items() if value is not None}
    check_argument_headers(mirrors, headers, arguments)
