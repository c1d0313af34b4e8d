"""Results that report a failure, on every surface and in every format."""

import json
from base64 import b64encode
from typing import Any

import msgspec
import pytest
from tests.formats.surfaces import Call, in_the_shell, over_cgi, over_http, over_mcp

from enfold import (
    CallError,
    OperationRegistry,
    OperationSpec,
    ResponseEnvelope,
    TextContent,
    http_envelope,
    local_envelope,
    mcp_envelope,
    unwrap,
)
from enfold.envelope import ResultWarning, error_of, error_text
from enfold.formats import FORMATS, mcp_envelope_v0_1, tool_envelope_v1

OBJECT = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
ROOT = ResultWarning("root_mismatch", "", type="string", size=6)


def registry_with(result: Any, schema: dict[str, Any] = OBJECT, **spec: Any) -> OperationRegistry:
    ops = OperationRegistry()
    ops.register_spec(OperationSpec(namespace="up", name="get", output_schema=schema, **spec))
    ops.register_handler("up.get", lambda *_: result)
    return ops


PAGE = "The service returned text/html instead of application/json"

# What an upstream sent with a success, what the schema promised, and the sentence that says what is wrong.
BROKEN_PROMISES: dict[str, tuple[ResponseEnvelope[Any], dict[str, Any], str]] = {
    "a login page": (http_envelope("<html>", content_type="text/html; charset=utf-8"), OBJECT, PAGE),
    "an array for an object": (
        http_envelope([1], content_type="application/json"),
        OBJECT,
        "The service returned an array, which does not match its schema",
    ),
    "another object": (
        http_envelope({"login": "here"}, content_type="application/problem+json"),
        OBJECT,
        "The service returned an object without any of the declared fields, which does not match its schema",
    ),
    "bytes for an object": (
        http_envelope(b"\x00\xff", content_type="application/octet-stream"),
        OBJECT,
        "The service returned application/octet-stream instead of application/json",
    ),
    "nothing instead of the declared value": (
        http_envelope(None, content_type=""),
        OBJECT,
        "The service returned nothing, which does not match its schema",
    ),
    "text for an array": (http_envelope("x", content_type="text/html"), {"type": "array"}, PAGE),
    "a tool's text for an object": (
        mcp_envelope("x", content=[TextContent(text="x")]),
        OBJECT,
        "The tool returned text, which does not match its schema",
    ),
}


@pytest.mark.parametrize(("result", "schema", "sentence"), BROKEN_PROMISES.values(), ids=BROKEN_PROMISES)
class TestAnUpstreamsResultThatIsSomethingElse:
    """A success of an upstream whose root does not fit is kept by `execute`, and is an error on every surface."""

    async def test_is_kept_in_the_process(self, result: Any, schema: Any, sentence: str) -> None:
        envelope = await registry_with(result, schema).execute("up.get", {})
        assert (envelope.data, envelope.is_error) == (result.data, True)
        assert error_text(envelope) == sentence
        with pytest.raises(CallError, match=sentence):
            unwrap(envelope, raise_on_error=True)

    @pytest.mark.parametrize("call", [over_http, over_cgi])
    def test_is_502_with_a_sentence_in_format_result(self, call: Call, result: Any, schema: Any, sentence: str) -> None:
        seen = call(registry_with(result, schema), "up.get", "result")
        assert (seen.status, seen.body) == (502, {"error": sentence})
        assert seen.headers["enfold-code"] == "EXECUTION_ERROR"

    @pytest.mark.parametrize("call", [over_http, over_cgi])
    @pytest.mark.parametrize("format", ["envelope", "mcp_envelope_v0_1", "tool_envelope_v1"])
    def test_is_200_in_formats_that_can_say_more(
        self, call: Call, format: str, result: Any, schema: Any, sentence: str
    ) -> None:
        seen = call(registry_with(result, schema), "up.get", format)
        assert seen.status == 200
        assert sentence in json.dumps(seen.body) or format == "envelope"

    @pytest.mark.parametrize("format", FORMATS)
    def test_is_an_error_over_mcp_and_in_the_shell(
        self, format: str, result: Any, schema: Any, sentence: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        ops = registry_with(result, schema)
        assert over_mcp(ops, "up.get", format).status == 1
        seen = in_the_shell(ops, "up.get", format)
        assert seen.status == 1
        assert sentence in seen.messages + capsys.readouterr().err


FITTING: dict[str, tuple[Any, dict[str, Any]]] = {
    "an answer without a body": (http_envelope(None, status_code=204), OBJECT),
    "a local result, which is ours": (local_envelope("<html>", "up.get"), OBJECT),
    "a small misfit": (http_envelope({"id": "x"}, content_type="application/json"), OBJECT),
    "bytes instead of text": (http_envelope(b"\xff"), {"type": "string", "format": "binary"}),
    "bytes where nothing is known": (http_envelope(b"\xff"), {}),
    "null where null may be": (http_envelope(None), {"type": ["object", "null"]}),
}


@pytest.mark.parametrize(("result", "schema"), FITTING.values(), ids=FITTING)
def test_a_result_whose_root_fits_is_a_success(result: Any, schema: Any) -> None:
    assert over_http(registry_with(result, schema), "up.get", "result").status == 200


def block(payload: Any, version: int = 1) -> str:
    meta = {"tool": "t", "ts": "2026-01-02T03:04:05Z", "version": version}
    return f"__ENVELOPE_V{version}__:" + b64encode(json.dumps({"payload": payload, "meta": meta}).encode()).decode()


V1_FAILURE = {
    "category": "model",
    "code": "ERR_MODEL",
    "message": "The model refused",
    "recoverable": True,
    "details": '{"model":"m1"}',
    "suggestedAction": "Choose another model",
    "nextTool": "list_models",
}
DETAILS = {"model": "m1", "suggested_action": "Choose another model", "next_tool": "list_models"}
V01_FAILURE = {
    "schema_version": "mcp.envelope.v0.1",
    "result": None,
    "errors": [{"code": "ERR_MODEL", "message": "The model refused", "details": DETAILS, "retryable": True}],
    "provenance": None,
}

SELF_NAMED: dict[str, ResponseEnvelope[Any]] = {
    "tool envelope": mcp_envelope(
        None, is_error=True, content=[TextContent(text="words"), TextContent(text=block(V1_FAILURE))]
    ),
    "mcp envelope as structure": mcp_envelope(V01_FAILURE, is_error=True, structured_content=V01_FAILURE),
    "mcp envelope as text": mcp_envelope(
        [{"type": "text", "text": json.dumps(V01_FAILURE)}],
        is_error=True,
        content=[TextContent(text=json.dumps(V01_FAILURE))],
    ),
    **{
        f"another Enfold, in format {name}": mcp_envelope(
            None,
            is_error=True,
            content=[TextContent(text=json.dumps({"error": told}))],
            _meta={"enfold/error": {"code": "ERR_MODEL", "retryable": True, "details": DETAILS}},
        )
        for name, told in {"result": "The model refused", "envelope": {"message": "The model refused"}}.items()
    },
}


@pytest.mark.parametrize("failed", SELF_NAMED.values(), ids=SELF_NAMED)
def test_an_error_result_that_names_itself_gives_its_own_code_and_advice(failed: ResponseEnvelope[Any]) -> None:
    error = error_of(failed)
    assert (error.code, error.message, error.details) == ("ERR_MODEL", "The model refused", DETAILS)
    with pytest.raises(CallError) as raised:
        unwrap(failed, raise_on_error=True)
    assert raised.value.to_wire() == error.to_wire()


@pytest.mark.parametrize("failed", SELF_NAMED.values(), ids=SELF_NAMED)
@pytest.mark.parametrize("format", ["mcp_envelope_v0_1", "tool_envelope_v1"])
def test_its_code_and_advice_reach_the_reader_of_every_format_that_has_a_place(
    failed: ResponseEnvelope[Any], format: str
) -> None:
    with pytest.raises(CallError) as raised:
        FORMATS[format].read(json.loads(json.dumps(FORMATS[format].write(failed))))
    assert (raised.value.code, raised.value.message, raised.value.details) == (
        "ERR_MODEL",
        "The model refused",
        DETAILS,
    )


@pytest.mark.parametrize("failed", SELF_NAMED.values(), ids=SELF_NAMED)
def test_people_see_the_message_and_nothing_encoded(
    failed: ResponseEnvelope[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    ops = registry_with(failed, {})
    assert over_http(ops, "up.get", "result").body == {"error": "The model refused"}
    seen = in_the_shell(ops, "up.get", "result")
    assert "The model refused" in seen.messages + capsys.readouterr().err
    assert "__ENVELOPE" not in failed.text()


def test_a_code_that_would_forge_a_line_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    told = {"enfold/error": {"code": "X\r\n\x1b[2JOK"}}
    seen = in_the_shell(registry_with(mcp_envelope(None, is_error=True, _meta=told), {}), "up.get", "result")
    assert (seen.messages + capsys.readouterr().err).startswith("UNKNOWN_ERROR: ")


def test_the_category_of_a_failed_tool_stays_its_own() -> None:
    wire = tool_envelope_v1.write(SELF_NAMED["mcp envelope as text"])
    assert wire["isError"]
    error = error_of(SELF_NAMED["tool envelope"])
    assert (error.row.category, error.row.recoverable) == ("model", True)


BAD_BLOCKS = {
    "broken base64": "__ENVELOPE_V1__:!!",
    "another version": block(V1_FAILURE, 2),
    "no error payload": block({"a": 1}),
    "no JSON": "__ENVELOPE_V1__:" + b64encode(b"nope").decode(),
}


@pytest.mark.parametrize("text", BAD_BLOCKS.values(), ids=BAD_BLOCKS)
def test_the_summary_of_an_unreadable_block_is_kept(text: str) -> None:
    failed = mcp_envelope(None, is_error=True, content=[TextContent(text="disk full"), TextContent(text=text)])
    assert error_text(failed) == "disk full"


def test_an_error_result_with_nothing_but_an_unreadable_block_still_has_a_sentence() -> None:
    failed = mcp_envelope(None, is_error=True, content=[TextContent(text="__ENVELOPE_V1__:!!")])
    assert error_text(failed) == "The tool reported an error"


@pytest.mark.parametrize("errors", [None, [], "x", [3], [{"code": 1, "message": "x"}], [{"code": "A"}]], ids=json.dumps)
def test_an_envelope_without_a_proper_error_leaves_its_own_text(errors: Any) -> None:
    text = json.dumps({**V01_FAILURE, "errors": errors})
    assert error_text(mcp_envelope(None, is_error=True, content=[TextContent(text=text)])) == text


def test_a_failed_http_envelope_is_a_failure_in_every_format() -> None:
    failed = http_envelope({"detail": "gone"}, status_code=410)
    with pytest.raises(CallError, match="HTTP 410"):
        FORMATS["result"].read(FORMATS["result"].write(failed))
    assert mcp_envelope_v0_1.write(failed)["errors"][0]["details"] == {"status": 410, "content_type": ""}
    assert tool_envelope_v1.write(failed)["isError"]


@pytest.mark.parametrize("call", [over_http, over_cgi])
def test_a_code_that_an_upstream_chose_cannot_add_headers(call: Call) -> None:
    evil = "X\r\nSet-Cookie: a=b"
    warned: dict[str, Any] = {**V01_FAILURE, "errors": [], "result": {}, "warnings": [{"code": evil, "message": "m"}]}
    envelope = msgspec.structs.replace(http_envelope(1), warnings=mcp_envelope_v0_1.read(warned).warnings)
    seen = call(registry_with(envelope, {}), "up.get", "result")
    assert (seen.status, seen.headers["enfold-warnings"]) == (200, '1; first="UNKNOWN_ERROR"')
    failure = {**V01_FAILURE, "errors": [{"code": evil, "message": "m"}]}
    seen = call(registry_with(mcp_envelope(1, is_error=True, structured_content=failure), {}), "up.get", "result")
    assert (seen.status, seen.headers["enfold-code"]) == (502, "UNKNOWN_ERROR")
    assert "set-cookie" not in seen.headers


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("call", [over_http, over_cgi, over_mcp])
def test_an_unpaired_surrogate_in_an_error_does_not_hide_the_error(call: Call, format: str) -> None:
    ops = OperationRegistry("up")

    @ops.query
    def get() -> None:
        raise CallError("ODD", "It failed", {"given": ["\ud800"], "deep": {"\udfff": object()}})

    assert "It failed" in json.dumps(call(ops, "up.get", format).body)


# Plain data that no JSON text can hold, and its place.
UNWRITABLE: dict[str, tuple[Any, str]] = {
    "an unpaired surrogate": ({"rows": ["whole", "half \ud800"]}, "/rows/1"),
    "an unpaired surrogate in a key": ({"rows": {"\ud800": 1}}, "/rows"),
    "a number of 5,000 digits": ({"rows": [1, -(10**5000)]}, "/rows/1"),
    "a key of 5,000 digits": ({"rows": {10**5000: 1}}, "/rows"),
}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("call", [over_http, over_cgi, over_mcp, in_the_shell])
@pytest.mark.parametrize(("data", "path"), UNWRITABLE.values(), ids=UNWRITABLE)
def test_a_result_that_cannot_be_written_is_one_failure_everywhere(
    call: Call, format: str, data: Any, path: str
) -> None:
    seen = call(registry_with(data, {}), "up.get", format)
    assert f"failed to marshal response: {path}" in json.dumps(seen.body)


@pytest.mark.parametrize("format", FORMATS)
def test_a_block_that_cannot_be_written_is_a_failure_over_mcp(format: str) -> None:
    seen = over_mcp(registry_with([TextContent(text="\ud800")], {}), "up.get", format)
    assert seen.status == 1
    assert "failed to marshal response" in json.dumps(seen.body)
