"""An envelope of another format that a tool returns is passed on unchanged, on every surface."""

import json
from base64 import b64encode
from io import StringIO
from typing import Any

import pytest
from tests.formats.surfaces import Call, Seen, over_cgi, over_http, over_mcp

from enfold import CallError, OperationRegistry, OperationSpec, TextContent, http_envelope, local_envelope, mcp_envelope
from enfold.formats import mcp_envelope_v0_1, tool_envelope_v1
from enfold.runtime.registry import Registry
from enfold.sources.mcp.results import read_shape, to_envelope
from enfold.surfaces.command_line import to_command_line

OWN: dict[str, Any] = {
    "schema_version": "mcp.envelope.v0.1",
    "result": {"text": "x" * 5000, "deep": [[{"a": None}]]},
    "meta": {"adapter": "theirs", "duration_ms": 3},
    "warnings": [{"code": "T.W", "message": "careful"}],
}
FAILED: dict[str, Any] = {**OWN, "result": None, "errors": [{"code": "T.E", "message": "no"}]}


def text_block(value: Any) -> dict[str, Any]:
    return {"type": "text", "text": json.dumps(value)}


def from_server(result: dict[str, Any]) -> Any:
    return to_envelope(result, read_shape(None, None, null_is_data=False))


RESULTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "of a function": (OWN, OWN),
    "of a function, failed": (FAILED, FAILED),
    "of a server, structured": (from_server({"content": [], "structuredContent": OWN}), OWN),
    "of a server, as text": (from_server({"content": [text_block(OWN)]}), OWN),
    "of a server, failed": (from_server({"content": [text_block(FAILED)], "isError": True}), FAILED),
    "of a server, failed and structured": (
        from_server({"content": [], "structuredContent": FAILED, "isError": True}),
        FAILED,
    ),
    "not even valid": ({**OWN, "unknown": 1}, {**OWN, "unknown": 1}),
    "of a server, not even valid": (
        from_server({"content": [], "structuredContent": {**FAILED, "unknown": 1}}),
        {**FAILED, "unknown": 1},
    ),
}


def registry_with(result: Any, schema: dict[str, Any] | None = None) -> OperationRegistry:
    ops = OperationRegistry()
    ops.register_spec(OperationSpec(name="give", output_schema=schema or {}))
    ops.register_handler("give", lambda *_: result)
    return ops


@pytest.mark.parametrize(("result", "expected"), RESULTS.values(), ids=RESULTS)
@pytest.mark.parametrize("call", [over_http, over_cgi])
def test_an_own_envelope_leaves_as_equal_json(call: Call, result: Any, expected: Any) -> None:
    assert call(registry_with(result), "give", "mcp_envelope_v0_1").body == expected
    narrow = {"type": "object", "properties": {"n": {"type": "integer", "default": 3}}}
    assert call(registry_with(result, narrow), "give", "mcp_envelope_v0_1").body == expected


@pytest.mark.parametrize(("result", "expected"), RESULTS.values(), ids=RESULTS)
def test_an_own_envelope_leaves_as_equal_json_over_mcp(result: Any, expected: Any) -> None:
    seen = over_mcp(registry_with(result), "give", "mcp_envelope_v0_1")
    texts = [json.loads(block["text"]) for block in seen.body["content"]]
    assert expected in [*texts, seen.body["structured"]]


def in_the_shell(registry: Registry, wire: Any) -> Seen:
    out = StringIO()
    words = ["--request", json.dumps(wire)]
    code = to_command_line(registry, words, stdin=StringIO(), stdout=out, stderr=StringIO())
    return Seen(code, json.loads(out.getvalue()))


def asked(preferences: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema_version": "mcp.request.v0.1",
        "tool": {"name": "give"},
        "params": {"_meta": {"capture_provenance": True}},
        "artifacts": [],
        "preferences": preferences,
    }


PREFERENCES: list[dict[str, Any]] = [
    {},
    {"deterministic": False},
    {"max_output_bytes": 0},
    {"deterministic": False, "max_output_bytes": 50},
]


@pytest.mark.parametrize(("result", "expected"), RESULTS.values(), ids=RESULTS)
@pytest.mark.parametrize("preferences", PREFERENCES, ids=json.dumps)
def test_no_preference_of_a_request_touches_an_own_envelope(
    result: Any, expected: Any, preferences: dict[str, Any]
) -> None:
    ops = registry_with(result)
    wire = asked(preferences)
    assert over_http(ops, "/call", "result", wire).body == expected
    assert over_cgi(ops, "/call", "result", wire).body == expected
    assert in_the_shell(ops, wire).body == expected


def test_a_tools_own_envelope_raised_as_an_error_is_returned_unchanged() -> None:
    ops = OperationRegistry()

    @ops.query
    def give() -> None:
        mcp_envelope_v0_1.read(FAILED)

    for preferences in PREFERENCES:
        assert over_http(ops, "/call", "result", asked(preferences)).body == FAILED


def served(result: dict[str, Any]) -> OperationRegistry:
    """An operation that answers as the tool of an MCP server whose result this is."""
    ops = OperationRegistry()
    ops.register_spec(OperationSpec(name="give"))
    ops.register_handler("give", lambda *_: from_server(result))
    return ops


SPELLED: dict[str, dict[str, Any]] = {
    "structured": {"content": [], "structuredContent": FAILED},
    "as text": {"content": [text_block(FAILED)]},
}


@pytest.mark.parametrize("result", SPELLED.values(), ids=SPELLED)
@pytest.mark.parametrize("call", [over_http, over_cgi])
def test_errors_of_a_valid_envelope_are_a_failure_whatever_is_error_says(call: Call, result: dict[str, Any]) -> None:
    for spelled in (result, {**result, "isError": False}, {**result, "isError": True}):
        ops = served(spelled)
        assert call(ops, "give", "result").status >= 500
        assert "no" in call(ops, "give", "result").body["error"]
        assert call(ops, "give", "mcp_envelope_v0_1").body == FAILED
        assert over_mcp(ops, "give", "result").status == 1
        assert error_in_the_shell(ops) == (1, "T.E: no")


@pytest.mark.parametrize(
    "wrong",
    [{"unknown": 1}, {"errors": [{"code": "T.E"}]}, {"errors": [{"code": "T.E", "message": "no", "more": 1}]}],
    ids=str,
)
@pytest.mark.parametrize("call", [over_http, over_cgi])
def test_an_invalid_envelope_is_data_and_only_is_error_makes_it_a_failure(call: Call, wrong: dict[str, Any]) -> None:
    envelope = {**FAILED, **wrong}
    result = {"content": [], "structuredContent": envelope}
    seen = call(served(result), "give", "result")
    assert (seen.status, seen.body, seen.headers["enfold-warnings"]) == (
        200,
        {"result": envelope},
        '1; first="envelope_invalid"',
    )
    assert over_mcp(served(result), "give", "result").status == 0
    assert call(served({**result, "isError": True}), "give", "result").status == 502
    assert over_mcp(served({**result, "isError": True}), "give", "result").status == 1


def error_in_the_shell(registry: Registry) -> tuple[int, str]:
    messages = StringIO()
    code = to_command_line(registry, ["give"], stdin=StringIO(), stdout=StringIO(), stderr=messages)
    return code, messages.getvalue().strip()


def test_another_payload_is_wrapped_once_and_stays_whole() -> None:
    payload = {"schema_version": "assist.response.v0.1", "ok": True}
    for _ in range(2):
        wire = mcp_envelope_v0_1.write(local_envelope(payload, ""))
        assert wire == {"schema_version": "mcp.envelope.v0.1", "result": payload, "provenance": None}


def test_a_payload_with_its_own_schema_is_not_a_broken_promise() -> None:
    payload = {"schema_version": "assist.response.v0.1", "ok": True}
    wants_id = {"type": "object", "properties": {"id": {}}, "required": ["id"]}
    ops = registry_with(http_envelope(payload), wants_id)
    assert over_http(ops, "give", "result").body == {"result": payload}


# --- ToolEnvelope -------------------------------------------------------------------------------------------------


def tool_blocks(words: str, version: int = 1) -> list[dict[str, Any]]:
    meta = {"tool": "t", "ts": "2026-01-02T03:04:05Z", "version": version}
    encoded = b64encode(json.dumps({"payload": {"sum": 3}, "meta": meta}).encode()).decode()
    return [{"type": "text", "text": words}, {"type": "text", "text": f"__ENVELOPE_V{version}__:{encoded}"}]


MORE: list[dict[str, Any]] = [
    {"type": "image", "data": "aGk=", "mimeType": "image/png"},
    {"type": "text", "text": "more"},
]


@pytest.mark.parametrize("call", [over_http, over_cgi])
def test_blocks_after_the_two_are_kept(call: Call) -> None:
    blocks = [*tool_blocks("## The author's own words"), *MORE]
    envelope = from_server({"content": blocks})
    assert (envelope.data, envelope.warnings) == ({"sum": 3}, ())
    for result in (envelope, blocks):
        assert call(registry_with(result), "give", "tool_envelope_v1").body == {"content": blocks, "isError": False}
    assert call(registry_with(envelope), "give", "result").body == {"result": {"sum": 3}}
    seen = over_mcp(registry_with(envelope), "give", "result")
    assert [block["type"] for block in seen.body["content"]] == ["text", "text", "image", "text"]
    again = tool_envelope_v1.write(tool_envelope_v1.read({"content": blocks, "isError": False}))
    assert (again["content"][2:], tool_envelope_v1.read(again).data) == (MORE, {"sum": 3})


@pytest.mark.parametrize("width", [60, 64, 76])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\n  "])
def test_base64_that_was_folded_into_lines_is_read(width: int, end: str) -> None:
    words, block = tool_blocks("words")
    prefix, encoded = block["text"].split(":", 1)
    lines = [encoded[start : start + width] for start in range(0, len(encoded), width)]
    folded = {"type": "text", "text": f"{prefix}:{end}{end.join(lines)}{end}"}
    envelope = from_server({"content": [words, folded]})
    assert (envelope.data, envelope.warnings) == ({"sum": 3}, ())
    assert over_http(registry_with(envelope), "give", "result").body == {"result": {"sum": 3}}


@pytest.mark.parametrize("call", [over_http, over_cgi])
@pytest.mark.parametrize("version", [1, 2])
def test_the_blocks_of_a_tool_are_unchanged(call: Call, version: int) -> None:
    blocks = tool_blocks("## The author's own words", version)
    for result in (from_server({"content": blocks}), blocks, [TextContent(text=block["text"]) for block in blocks]):
        body = call(registry_with(result), "give", "tool_envelope_v1").body
        assert body == {"content": blocks, "isError": False}


def test_an_unknown_version_is_reported_where_it_is_read() -> None:
    envelope = from_server({"content": tool_blocks("words", 2)})
    assert [(warning.code, warning.path) for warning in envelope.warnings] == [("envelope_version", "/content/1")]
    assert envelope.data == tool_blocks("words", 2)


def test_a_broken_block_is_reported_where_it_is_read() -> None:
    blocks = [*tool_blocks("words")[:1], {"type": "text", "text": "__ENVELOPE_V1__:!"}]
    envelope = from_server({"content": blocks})
    assert ([warning.code for warning in envelope.warnings], envelope.data) == (["envelope_block"], blocks)


@pytest.mark.parametrize("words", ["# Sum\n\nIt is 3.", "It is {not JSON}", "{also not"])
def test_the_first_block_has_the_authors_own_words(words: str) -> None:
    envelope = mcp_envelope({"sum": 3}, content=[TextContent(text=words)], structured_content={"sum": 3})
    wire = tool_envelope_v1.write(envelope)
    assert wire["content"][0]["text"] == words
    assert tool_envelope_v1.read(wire).data == {"sum": 3}


def test_json_is_not_a_message() -> None:
    envelope = mcp_envelope({"sum": 3}, content=[TextContent(text='{"sum": 3}')], structured_content={"sum": 3})
    assert tool_envelope_v1.write(envelope)["content"][0]["text"] == "- **sum**: 3"


def test_the_summary_of_an_operation_is_its_description() -> None:
    spec = OperationSpec(name="give", meta={"summary": "Everything went well."})
    wire = tool_envelope_v1.write(local_envelope({"sum": 3}, "give"), spec)
    assert wire["content"][0]["text"] == "Everything went well."


INPUT_ERRORS = {
    "missing": ({"argument": "y", "reason": "missing", "expected": "integer"}, 'Pass "y" (integer) and call again.'),
    "unknown": ({"argument": "z", "reason": "unknown", "expected": None}, 'Omit "z" and call again.'),
    "type": ({"argument": "x", "reason": "type", "expected": "integer"}, 'Pass "x" as integer and call again.'),
    "whole": ({"argument": "", "reason": "type", "expected": "object"}, "Pass the input as object and call again."),
}


@pytest.mark.parametrize(("details", "sentence"), INPUT_ERRORS.values(), ids=INPUT_ERRORS)
def test_an_input_error_says_what_mends_it(details: dict[str, Any], sentence: str) -> None:
    wire = tool_envelope_v1.write_error(CallError("VALIDATION_ERROR", "No", details), "")
    assert f"Suggestion: {sentence}" in wire["content"][0]["text"]
    own = CallError("VALIDATION_ERROR", "No", {**details, "suggested_action": "Ask Ann"})
    assert "Suggestion: Ask Ann" in tool_envelope_v1.write_error(own, "")["content"][0]["text"]
