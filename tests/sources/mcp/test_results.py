"""Which part of a tool's result is the data, and how payloads in other envelopes are unwrapped."""

import base64
import json
from typing import Any

import pytest

from enfold import CallError, MCPResponseMeta
from enfold.envelope import local_envelope
from enfold.formats import mcp_envelope_v0_1, tool_envelope_v1
from enfold.sources.mcp.results import PARSED_TEXT, read_shape, to_envelope

SUM = {"type": "object", "properties": {"sum": {"type": "integer"}}}
ENVELOPE = {"schema_version": "mcp.envelope.v0.1", "result": {"sum": 3}, "provenance": None}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def data_of(result: dict[str, Any], schema: Any = None, reads: Any = None, *, newest: bool = False) -> Any:
    return to_envelope(result, read_shape(schema, reads, null_is_data=newest)).data


@pytest.mark.parametrize(
    ("result", "schema", "data"),
    [
        pytest.param({"content": [], "structuredContent": {"sum": 3}}, SUM, {"sum": 3}, id="structured content"),
        pytest.param({"content": [text("hi")]}, None, [text("hi")], id="content blocks"),
        pytest.param({"content": [text('{"sum": 3}')]}, None, [text('{"sum": 3}')], id="JSON text without a schema"),
        pytest.param({"content": [text('{"sum": 3}')]}, SUM, {"sum": 3}, id="JSON text with an output schema"),
        pytest.param({"content": [text("It is 3")]}, SUM, [text("It is 3")], id="other text with an output schema"),
        pytest.param({"content": [text("1"), text("2")]}, SUM, [text("1"), text("2")], id="two texts"),
        pytest.param({"content": [], "structuredContent": ENVELOPE}, None, {"sum": 3}, id="mcp.envelope, structured"),
        pytest.param({"content": [text(json.dumps(ENVELOPE))]}, None, {"sum": 3}, id="mcp.envelope, in a text"),
        pytest.param(
            {"structuredContent": {"schema_version": "shop.v2", "result": 1}},
            None,
            {"schema_version": "shop.v2", "result": 1},
            id="a schema version of its own",
        ),
        pytest.param({"structuredContent": {"result": 5}}, None, {"result": 5}, id="an unmarked result"),
        pytest.param({}, None, [], id="nothing"),
        pytest.param({"content": "words"}, None, [{"type": "text", "text": "words"}], id="content that is no list"),
        pytest.param({"content": None}, None, [], id="content that is null"),
    ],
)
def test_the_data_of_a_result(result: dict[str, Any], schema: Any, data: Any) -> None:
    assert data_of(result, schema) == data


def test_text_that_was_parsed_is_reported() -> None:
    envelope = to_envelope({"content": [text('{"sum": 3}')]}, read_shape(SUM, None, null_is_data=False))
    assert [(warning.code, warning.path, warning.type) for warning in envelope.warnings] == [
        (PARSED_TEXT, "", "string")
    ]


def test_a_number_that_is_too_large_in_parsed_text_is_kept_as_text() -> None:
    envelope = to_envelope({"content": [text('{"sum": 1e400, "n": 2}')]}, read_shape(SUM, None, null_is_data=False))
    assert envelope.data == {"sum": "1e400", "n": 2}
    assert [warning.code for warning in envelope.warnings] == [PARSED_TEXT, "large_number"]


def test_a_null_counts_only_in_the_newest_revision() -> None:
    result = {"content": [text("none")], "structuredContent": None}
    assert data_of(result, newest=True) is None
    assert data_of(result, newest=False) == [text("none")]


def test_an_error_result_is_a_result_and_is_not_unwrapped() -> None:
    result = {"content": [text(json.dumps(ENVELOPE))], "isError": True}
    envelope = to_envelope(result, read_shape(SUM, "result", null_is_data=False))
    assert (envelope.is_error, envelope.data) == (True, result["content"])


def test_the_meta_keeps_the_result_unchanged() -> None:
    result = {"content": [text("x")], "structuredContent": ENVELOPE, "_meta": {"trace": 1}}
    meta = to_envelope(result, read_shape(None, None, null_is_data=False)).meta
    assert isinstance(meta, MCPResponseMeta)
    assert (meta.structured_content, meta._meta) == (ENVELOPE, {"trace": 1})


def test_a_failure_in_an_mcp_envelope_is_raised_with_its_code() -> None:
    failed = mcp_envelope_v0_1.write_error(CallError("RESOURCE_EXHAUSTED", "Too many", {"retry_after": 3}), "shop.add")
    with pytest.raises(CallError) as caught:
        data_of({"structuredContent": failed})
    assert (caught.value.code, caught.value.message) == ("RESOURCE_EXHAUSTED", "Too many")


def test_a_tool_envelope_is_unwrapped_and_a_broken_one_stays() -> None:
    wire = tool_envelope_v1.write(local_envelope({"sum": 3}, "shop.add"))
    assert data_of(wire) == {"sum": 3}
    broken = [text("It is 3"), text("__ENVELOPE_V1__:" + base64.b64encode(b"{").decode())]
    assert data_of({"content": broken}) == broken


@pytest.mark.parametrize(
    ("wrapped", "data"),
    [
        pytest.param({"result": 5}, 5, id="one value"),
        pytest.param({"result": None}, None, id="null"),
        pytest.param({"result0": 1, "result1": "a"}, [1, "a"], id="several"),
        pytest.param({}, None, id="none"),
        pytest.param({"other": 1}, {"other": 1}, id="something else"),
    ],
)
def test_a_source_may_say_that_results_are_wrapped(wrapped: dict[str, Any], data: Any) -> None:
    assert data_of({"structuredContent": wrapped}, reads="result") == data
    assert data_of({"content": [text(json.dumps(wrapped))]}, reads="result") == data


def test_the_schema_of_a_wrapped_result_is_that_of_what_it_holds() -> None:
    item = {"$ref": "#/$defs/Item"}
    schema = {"type": "object", "properties": {"result": item}, "$defs": {"Item": SUM}, "x-fastmcp-wrap-result": True}
    assert read_shape(schema, None, null_is_data=False).schema == {"$defs": {"Item": SUM}, "$ref": "#/$defs/Item"}
    several = {"properties": {"result0": SUM, "result1": {"type": "string"}}}
    assert read_shape(several, "result", null_is_data=False).schema["prefixItems"] == [SUM, {"type": "string"}]
