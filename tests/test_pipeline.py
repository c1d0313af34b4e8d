import json
import logging
from dataclasses import dataclass
from typing import Any

import jsonschema_rs
import pytest
from typing_extensions import TypedDict

from enfold import (
    CallError,
    ImageContent,
    MCPResponseMeta,
    OperationRegistry,
    OperationSpec,
    ResponseEnvelope,
    TextContent,
    cast,
    http_envelope,
    mcp_envelope,
)
from enfold.operations import Operation, Policy

ITEM = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "note": {"type": "string", "default": "-"}},
    "required": ["id"],
}


async def finish(result: Any, schema: dict[str, Any] | None = None, **policy: Any) -> ResponseEnvelope[Any]:
    """What the registry makes of a result that a handler returned."""
    ops = OperationRegistry()
    spec = OperationSpec(name="give", output_schema=ITEM if schema is None else schema)

    async def give(input: dict[str, Any], context: Any) -> Any:
        return result

    ops.register(Operation(spec, give, policy=Policy(**policy)))
    return await ops.execute("give", {})


def told(envelope: ResponseEnvelope[Any]) -> list[tuple[str, str]]:
    return [(warning.code, warning.path) for warning in envelope.warnings]


async def test_a_valid_result_is_returned_as_the_same_object() -> None:
    result = {"id": 1, "note": "x"}
    envelope = await finish(result)
    assert envelope.data is result
    assert envelope.warnings == ()


async def test_a_valid_result_of_an_mcp_server_is_returned_as_the_same_object() -> None:
    data = {"id": 1, "note": "x"}
    result = mcp_envelope(data, structured_content={**data, "more": 1}, _meta={"com.example/server": {"name": "s"}})
    assert await finish(result) is result


async def test_repair_strips_fills_and_converts_and_says_so() -> None:
    envelope = await finish({"id": "42", "secret": "s3cret"})
    assert envelope.data == {"id": 42, "note": "-"}
    assert sorted(told(envelope)) == [("convert", "/id"), ("default", "/note"), ("strip", "/secret")]


async def test_a_value_that_cannot_be_repaired_is_unchanged() -> None:
    envelope = await finish({"id": "many", "note": "x"})
    assert envelope.data == {"id": "many", "note": "x"}
    assert told(envelope) == [("type_mismatch", "/id")]


async def test_an_error_body_never_becomes_an_empty_success() -> None:
    body = {"error": {"code": 404}}
    envelope = await finish(body)
    assert envelope.data is body
    assert told(envelope) == [("root_mismatch", "")]


async def test_the_log_has_codes_and_paths_but_no_values(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "enfold.runtime.pipeline"):
        await finish({"id": 1, "note": "x", "password": "hunter2"})
    assert "give: strip /password" in caplog.text
    assert "hunter2" not in caplog.text


async def test_typebox_gives_what_value_cast_gives_and_reports_the_difference() -> None:
    envelope = await finish({"id": "42", "extra": 1}, normalize="typebox")
    assert envelope.data == {"id": 0}
    assert {path for _, path in told(envelope)} == {"/id", "/extra"}


async def test_typebox_keeps_the_value_where_cast_throws() -> None:
    schema = {"type": "string", "pattern": "^a"}
    envelope = await finish(3, schema, normalize="typebox")
    assert envelope.data == 3
    assert told(envelope)[0] == ("unrepairable", "")


async def test_off_leaves_the_data_alone_and_only_validates() -> None:
    result = {"id": "42", "extra": 1}
    envelope = await finish(result, normalize="off")
    assert envelope.data is result
    assert told(envelope) == [("type_mismatch", "/id")]


async def test_off_says_nothing_of_a_valid_result_with_extras() -> None:
    result = {"id": 42, "extra": 1}
    envelope = await finish(result, normalize="off")
    assert (envelope.data, envelope.warnings) == (result, ())


async def test_extras_can_be_kept() -> None:
    result = {"id": 1, "note": "x", "extra": 1}
    envelope = await finish(result, extras="keep")
    assert (envelope.data, envelope.warnings) == (result, ())


async def test_strict_output_refuses_what_still_does_not_fit_but_not_what_was_repaired() -> None:
    assert (await finish({"id": "42", "x": 1}, strict_output=True)).data == {"id": 42, "note": "-"}
    with pytest.raises(CallError, match="does not match its output schema at /id") as caught:
        await finish({"id": "many"}, strict_output=True)
    assert caught.value.code == "EXECUTION_ERROR"
    assert caught.value.partial.data == {"id": "many", "note": "-"}


@pytest.mark.parametrize("payload", ["mcp.envelope.v0.1", "assist.response.v0.1"])
async def test_a_payload_with_its_own_schema_version_stays_intact(payload: str) -> None:
    result = {"schema_version": payload, "result": {"id": "42"}, "provenance": None}
    envelope = await finish(result)
    assert envelope.data is result or envelope.data == result


async def test_an_envelope_passes_and_its_data_is_normalized() -> None:
    envelope = await finish(http_envelope({"id": "7", "note": "x"}, status_code=201))
    assert envelope.meta.source == "http"
    assert envelope.data == {"id": 7, "note": "x"}
    assert told(envelope) == [("convert", "/id")]


async def test_a_mapping_that_is_an_envelope_passes_with_its_warnings() -> None:
    wire = {"data": {"id": 1, "note": "x"}, "meta": {"source": "http", "statusCode": 202}, "more": 1}
    envelope = await finish(wire)
    assert (envelope.data, envelope.meta.source) == ({"id": 1, "note": "x"}, "http")
    assert told(envelope) == [("detected", ""), ("envelope_extra", "/more")]


async def test_data_that_only_resembles_an_envelope_is_data() -> None:
    result = {"data": 1, "meta": {"source": "ftp"}}
    envelope = await finish(result, {})
    assert (envelope.data, envelope.meta.source) == (result, "local")


async def test_an_mcp_error_result_is_neither_normalized_nor_validated() -> None:
    failed = mcp_envelope({"id": "42"}, is_error=True)
    assert await finish(failed) == failed


async def test_binary_bodies_stay_bytes() -> None:
    body = http_envelope(b"\x00", content_type="image/png")
    for schema in ({}, {"type": "string"}, {"type": ["string", "null"], "contentEncoding": "base64"}):
        assert await finish(body, schema) == body
    envelope = await finish(body)
    assert (envelope.data, [warning.code for warning in envelope.warnings]) == (b"\x00", ["root_mismatch"])


async def test_content_blocks_become_an_mcp_result() -> None:
    blocks = [TextContent(text="a"), ImageContent(data="AA==", mime_type="image/png")]
    for result, count in ((blocks, 2), (tuple(blocks), 2), (blocks[0], 1)):
        envelope = await finish(result, {})
        assert isinstance(envelope.meta, MCPResponseMeta)
        assert envelope.meta.content == tuple(blocks[:count])
        assert envelope.data == [block.to_wire() for block in blocks[:count]]


async def test_an_empty_list_is_data_not_content() -> None:
    assert (await finish([], {})).meta.source == "local"


@dataclass
class Item:
    id: int
    note: str


async def test_typed_results_become_plain_before_they_are_checked() -> None:
    envelope = await finish(Item(1, "x"))
    assert (envelope.data, envelope.warnings) == ({"id": 1, "note": "x"}, ())


@pytest.mark.parametrize(
    ("result", "path"),
    [(float("nan"), ""), ({"a": [1, float("inf")]}, "/a/1"), ({"a": object()}, "/a"), ([{1, 2}, object()], "/1")],
    ids=["nan", "infinity", "foreign", "foreign in a list"],
)
async def test_a_value_that_json_cannot_represent_is_an_execution_error_with_its_path(result: Any, path: str) -> None:
    with pytest.raises(CallError, match="failed to marshal response") as caught:
        await finish(result, {})
    assert caught.value.code == "EXECUTION_ERROR"
    assert path in caught.value.message


async def test_a_cycle_is_an_execution_error() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(CallError, match="failed to marshal response"):
        await finish(loop, {})


async def test_a_schema_we_cannot_compile_counts_as_unknown() -> None:
    result = {"a": 1}
    envelope = await finish(result, {"type": "object", "properties": 3})
    assert envelope.data == result


class Report(TypedDict):
    total: int
    rows: list[int]


async def test_several_values_and_none_are_recorded_in_the_spec() -> None:
    ops = OperationRegistry()

    @ops.query
    def pair() -> tuple[int, str]:
        return 1, "a"

    @ops.query
    def nothing() -> None: ...

    @ops.query
    def many() -> tuple[int, ...]:
        return 1, 2, 3

    @ops.query
    def report() -> Report:
        return {"total": 1, "rows": [1]}

    assert {spec.name: spec.values for spec in ops.list()} == {"pair": 2, "nothing": 0, "many": 1, "report": 1}
    assert (await ops.execute("pair", {})).data == [1, "a"]
    assert (await ops.execute("nothing", {})).data is None
    assert (await ops.execute("many", {})).data == [1, 2, 3]
    assert (await ops.execute("report", {})).warnings == ()


async def test_a_result_that_fails_an_independent_validator_has_a_warning() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 3}}, "required": ["n", "m"]}
    envelope = await finish({"n": 5}, schema)
    failing = {"/" + "/".join(map(str, e.instance_path)) for e in jsonschema_rs.iter_errors(schema, envelope.data)}
    assert failing == {"/n", "/"}
    assert sorted(told(envelope)) == [("constraint", "/n"), ("missing", "/m")]


TYPEBOX_CASES: list[tuple[dict[str, Any], Any]] = [
    ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "integer"}]}, [1]),
    ({"properties": {"a": {"type": "integer"}}, "required": ["a"]}, 5),
    ({"items": {"type": "integer"}}, 5),
    ({"type": "string", "maxLength": 1}, "😀"),
    (ITEM, {"id": 1, "extra": 2}),
]


@pytest.mark.parametrize(("schema", "value"), TYPEBOX_CASES, ids=str)
async def test_the_typebox_policy_is_exactly_cast(schema: dict[str, Any], value: Any) -> None:
    envelope = await finish(value, schema, normalize="typebox")
    assert envelope.data == cast(schema, value)
    assert bool(envelope.warnings) == (envelope.data != value)


async def test_metadata_of_an_mcp_result_is_converted_to_plain_data_too() -> None:
    envelope = await finish(mcp_envelope(1, structured_content=Item(1, "x"), _meta={"when": Item(2, "y")}), {})
    assert json.loads(envelope.to_bytes())["meta"]["structuredContent"] == {"id": 1, "note": "x"}


async def test_a_mapping_that_claims_to_be_an_envelope_is_reported() -> None:
    claimed = await finish({"data": {"id": 1}, "meta": {"source": "http", "statusCode": 200}}, {})
    assert (claimed.meta.source, [warning.code for warning in claimed.warnings]) == ("http", ["detected"])
    assert (await finish(http_envelope({"id": 1}), {})).warnings == ()


async def test_a_policy_trusts_instances_alone() -> None:
    claimed = {"data": {"id": 1}, "meta": {"source": "http", "statusCode": 200}}
    envelope = await finish(claimed, {}, detect="instances")
    assert (envelope.data, envelope.meta.source, envelope.warnings) == (claimed, "local", ())
    assert (await finish(http_envelope({"id": 1}), {}, detect="instances")).meta.source == "http"
    ops = OperationRegistry(detect="instances")

    @ops.query
    async def claim() -> dict[str, Any]:
        return claimed

    assert (await ops.execute("claim", {})).data == claimed
    with pytest.raises(ValueError, match="use all or instances"):
        Policy(detect="none")  # type: ignore[arg-type]  # the point of the test
