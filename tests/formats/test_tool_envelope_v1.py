"""The format `tool_envelope_v1`: two blocks, one for people and one for programs, both ways."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enfold.envelope import http_envelope, local_envelope, mcp_envelope
from enfold.envelope.content import TextContent
from enfold.errors import CODES, CallError, FormatError
from enfold.formats import tool_envelope_v1 as fmt
from enfold.operations import OperationSpec

SPECIFICATION = Path(__file__).parents[3] / "shared" / "seeds" / "tool-envelope-v1.txt"

META = {"tool": "shop.add", "ts": "2026-01-02T03:04:05Z", "version": 1}


def block(content: Any, prefix: str = "__ENVELOPE_V1__:") -> str:
    return prefix + b64encode(json.dumps(content).encode()).decode()


def blocks(first: str, second: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": first}, {"type": "text", "text": second}]


def content_of(wire: dict[str, Any]) -> Any:
    return json.loads(b64decode(wire["content"][1]["text"].removeprefix("__ENVELOPE_V1__:")))


# --- writing ------------------------------------------------------------------------------------------------------


def test_a_result_is_a_summary_and_a_prefixed_block() -> None:
    spec = OperationSpec(name="add", namespace="shop")
    wire = fmt.write(local_envelope({"sum": 3}, "other"), spec)
    assert wire["isError"] is False
    assert [block["type"] for block in wire["content"]] == ["text", "text"]
    found = content_of(wire)
    assert (found["payload"], found["meta"]["tool"], found["meta"]["version"]) == ({"sum": 3}, "shop.add", 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found["meta"]["ts"])


def test_without_a_spec_the_tool_is_the_operation_of_a_local_result() -> None:
    assert content_of(fmt.write(local_envelope(1, "shop.add")))["meta"]["tool"] == "shop.add"
    assert content_of(fmt.write(http_envelope(1)))["meta"]["tool"] == ""


@pytest.mark.parametrize(
    ("payload", "summary"),
    [
        ("done", "done"),
        (None, "Done."),
        (42, "42"),
        ([], "(empty)"),
        ([1, "two"], "- 1\n- two"),
        ({"name": "a|b\nc", "n": 1}, "- **name**: a\\|b c\n- **n**: 1"),
        (
            [{"id": 1, "tag": "x"}, {"id": 2, "more": [1]}],
            "| id | tag | more |\n| --- | --- | --- |\n| 1 | x |  |\n| 2 |  | [1] |",
        ),
        ({"items": list(range(100))}, "- **items**: (100 items)"),
    ],
    ids=["text", "nothing", "number", "empty", "list", "object", "records", "long list inside"],
)
def test_the_summary_is_made_from_the_data(payload: Any, summary: str) -> None:
    assert fmt.write(local_envelope(payload, ""))["content"][0]["text"] == summary


def test_a_long_table_is_cut_and_says_so() -> None:
    text = fmt.write(local_envelope([{"n": n} for n in range(25)], ""))["content"][0]["text"]
    assert text.endswith("| 19 |\n\n… 5 more rows")


def test_a_workflow_has_its_name_as_heading_and_its_own_type() -> None:
    payload = {
        "displayName": "System Design",
        "instructionId": "system-design",
        "model": {"id": "m1", "label": "Model One"},
        "steps": [{"kind": "design", "label": "Plan", "summary": "Plan it"}],
        "recommendations": [{"any": "thing"}],
        "artifacts": [],
    }
    wire = fmt.write(local_envelope(payload, "system-design"))
    assert wire["content"][0]["text"].startswith("## System Design\n\n")
    workflow = fmt.read(wire).as_(fmt.WorkflowPayload)
    assert (workflow.model.label, workflow.steps[0].kind, workflow.recommendations) == (
        "Model One",
        "design",
        [{"any": "thing"}],
    )


def test_a_result_that_is_such_an_envelope_already_is_passed_on() -> None:
    inner = blocks("hello", block({"payload": 1, "meta": META}))
    for data in (inner, {"content": inner, "isError": False}):
        assert fmt.write(local_envelope(data, "shop.add")) == {"content": inner, "isError": False}


# --- failures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [*CODES, "OUT_OF_STOCK"])
def test_every_code_has_its_category_and_comes_back(code: str) -> None:
    error = CallError(code, "It failed", {"argument": "y", "more": [1]})
    wire = fmt.write_error(error, "shop.add")
    payload, meta = content_of(wire)["payload"], content_of(wire)["meta"]
    row = CODES.get(code, CODES["EXECUTION_ERROR"])
    assert (payload["category"], payload["code"], payload["recoverable"]) == (row.category, code, row.recoverable)
    assert (wire["isError"], meta["tool"], json.loads(payload["details"])) == (True, "mcp", error.details)
    with pytest.raises(CallError) as raised:
        fmt.read(wire)
    assert raised.value.to_wire() == error.to_wire()


@pytest.mark.parametrize(
    ("code", "first_line"),
    [
        ("VALIDATION_ERROR", "❌ Validation error [VALIDATION_ERROR]: No"),
        ("EXECUTION_ERROR", "⚠️ Execution error [EXECUTION_ERROR]: No"),
        ("TIMEOUT", "⏱ Timeout [TIMEOUT]: No"),
        ("UNAVAILABLE", "🌐 Network error [UNAVAILABLE]: No"),
        ("ACCESS_DENIED", "🔒 Authorization error [ACCESS_DENIED]: No"),
        ("RESOURCE_EXHAUSTED", "🚦 Rate limit exceeded [RESOURCE_EXHAUSTED]: No"),
        ("OPERATION_NOT_FOUND", "🔍 Not found [OPERATION_NOT_FOUND]: No"),
        ("UNKNOWN_ERROR", "💥 Internal error [UNKNOWN_ERROR]: No"),
    ],
)
def test_the_first_line_of_a_failure_has_its_icon(code: str, first_line: str) -> None:
    assert fmt.write_error(CallError(code, "No"), "")["content"][0]["text"].splitlines()[0] == first_line


def test_advice_comes_from_the_details() -> None:
    details = {"suggested_action": "Wait", "next_tool": "shop_status", "retry_after": 3}
    wire = fmt.write_error(CallError("RESOURCE_EXHAUSTED", "Too many", details), "shop.add")
    assert wire["content"][0]["text"].splitlines()[1:] == [
        'Details: {"retry_after":3}',
        "Suggestion: Wait",
        "Next: call `shop_status`",
        "Retry is safe.",
    ]
    with pytest.raises(CallError) as raised:
        fmt.read(wire)
    assert raised.value.details == details


def test_a_failed_mcp_result_is_an_execution_error_that_keeps_its_data() -> None:
    wire = fmt.write(mcp_envelope({"at": "disk"}, is_error=True, content=[TextContent(text="disk full")]))
    payload = content_of(wire)["payload"]
    assert (wire["isError"], payload["category"], payload["message"]) == (True, "execution", "disk full")
    assert json.loads(payload["details"]) == {"data": {"at": "disk"}}


# --- reading ------------------------------------------------------------------------------------------------------


def test_the_wire_value_its_blocks_and_its_second_text_read_the_same() -> None:
    text = block({"payload": {"n": 1}, "meta": META})
    content = blocks("one", text)
    for wire in ({"content": content, "isError": False}, content, text):
        found = fmt.read(wire)
        assert (found.data, found.to_wire()["meta"]["operationId"]) == ({"n": 1}, "shop.add")


def test_a_zero_padded_version_is_the_same_version() -> None:
    assert fmt.parse_block(block({"payload": 1, "meta": META}, "__ENVELOPE_V001__:")).payload == 1


def test_unknown_fields_of_payload_and_meta_are_kept() -> None:
    meta = {**META, "deprecations": [{"field": "a", "since": "1", "removeInVersion": "2"}], "new": True}
    text = block({"payload": {"n": 1, "new": 2}, "meta": meta})
    assert content_of(fmt.write(fmt.read(text))) == {"payload": {"n": 1, "new": 2}, "meta": meta}


BROKEN = {
    "no prefix": "hello",
    "bad base64": "__ENVELOPE_V1__:%%%",
    "not JSON": "__ENVELOPE_V1__:" + b64encode(b"{").decode(),
    "not UTF-8": "__ENVELOPE_V1__:" + b64encode(b'"\xff"').decode(),
    "no meta": block({"payload": 1}),
    "no payload": block({"meta": META}),
    "no version": block({"payload": 1, "meta": {"tool": "a", "ts": "b"}}),
    "NaN": "__ENVELOPE_V1__:" + b64encode(b'{"payload": NaN, "meta": {}}').decode(),
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_block_alone_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        fmt.read(text)


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_beside_a_broken_block_the_summary_is_read_with_a_warning(text: str) -> None:
    found = fmt.read(blocks("The summary", text))
    assert (found.data, [warning.code for warning in found.warnings]) == ("The summary", ["envelope_block"])


def test_beside_a_broken_block_a_failure_is_raised_with_the_summary() -> None:
    with pytest.raises(CallError, match="It broke"):
        fmt.read({"content": blocks("It broke", "nonsense"), "isError": True})


@pytest.mark.parametrize(
    "text",
    [block({"payload": 1, "meta": META}, "__ENVELOPE_V2__:"), block({"payload": 1, "meta": {**META, "version": 2}})],
    ids=["prefix", "meta"],
)
def test_an_unknown_version_is_refused_by_name_even_beside_a_summary(text: str) -> None:
    for wire in (text, blocks("The summary", text)):
        with pytest.raises(FormatError, match="version 2"):
            fmt.read(wire)


@pytest.mark.parametrize(
    "wire", [None, 1, {}, [], {"content": []}, {"content": [{"type": "text", "text": "a"}]}], ids=str
)
def test_content_without_two_text_blocks_is_refused(wire: Any) -> None:
    with pytest.raises(FormatError):
        fmt.read(wire)


def test_plain_text_details_and_an_unknown_category_are_read() -> None:
    payload = {
        "category": "weather",
        "code": "E1",
        "message": "Rain",
        "recoverable": True,
        "details": "path is required",
    }
    with pytest.raises(CallError) as raised:
        fmt.read(block({"payload": payload, "meta": {**META, "tool": "mcp"}}))
    assert (raised.value.code, raised.value.details, raised.value.retryable) == (
        "E1",
        {"details": "path is required"},
        True,
    )


def test_the_examples_of_the_specification_decode_and_encode_to_equal_json() -> None:
    if not SPECIFICATION.exists():
        pytest.skip("the published specification is not in ../shared/seeds")
    # On that page the next heading follows the first block without a space.
    success, failure = re.findall(
        r"__ENVELOPE_V1__:[A-Za-z0-9+/]{40,}?(?:=+|(?=Error Response))", SPECIFICATION.read_text()
    )
    assert content_of(fmt.write(fmt.read(success))) == json.loads(b64decode(success.removeprefix("__ENVELOPE_V1__:")))
    with pytest.raises(CallError) as raised:
        fmt.read(failure)
    assert raised.value.code == "ERR_INPUT_SCHEMA"
    written = fmt.write_error(raised.value, "")
    assert content_of(written) == json.loads(b64decode(failure.removeprefix("__ENVELOPE_V1__:")))


# --- any value ----------------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
metas = st.fixed_dictionaries(
    {"tool": st.text(max_size=10), "ts": st.sampled_from([META["ts"], "2026-01-02T03:04:05.678+02:00", "soon"])},
    optional={"deprecations": st.just([]), "extra": json_values},
)


@settings(max_examples=150)
@given(json_values)
def test_any_json_value_survives_writing_and_reading(value: Any) -> None:
    assert fmt.read(fmt.write(local_envelope(value, "a.b"))).data == value


@settings(max_examples=150)
@given(json_values, metas)
def test_a_valid_envelope_is_written_again_as_it_was_read(payload: Any, meta: dict[str, Any]) -> None:
    content = {"payload": payload, "meta": {**meta, "version": 1}}
    assert content_of(fmt.write(fmt.read({"content": blocks("", block(content)), "isError": False}))) == content


def test_a_lone_surrogate_survives() -> None:
    assert fmt.read(fmt.write(local_envelope("\ud800", "a.b"))).data == "\ud800"


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec=None)), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150)
@given(anything | st.builds(block, anything) | st.builds(blocks, st.text(), st.builds(block, anything)))
def test_reading_any_value_raises_nothing_but_format_and_call_errors(wire: Any) -> None:
    with suppress(FormatError, CallError):
        fmt.read(wire)


@pytest.mark.parametrize("text", ["path.to.field is required", "", "[1]", '{"a": 1}', "{not JSON"])
def test_details_that_are_one_text_are_that_text_and_come_back(text: str) -> None:
    wire = fmt.write_error(CallError("ERR_INPUT_SCHEMA", "No", {"details": text}), "")
    if not text.startswith("{"):
        assert content_of(wire)["payload"]["details"] == text
    with pytest.raises(CallError) as raised:
        fmt.read(wire)
    assert raised.value.details == {"details": text}
