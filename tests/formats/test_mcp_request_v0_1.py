"""The request `mcp.request.v0.1`, and how its preferences shape the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats.surfaces import Call, over_cgi, over_http

from enfold import Context, OperationRegistry, unwrap
from enfold.envelope import local_envelope
from enfold.errors import CallError
from enfold.formats import mcp_envelope_v0_1
from enfold.formats.mcp_envelope_v0_1 import ToolRequest, fit, read_request
from enfold.operations.context import Preferences

Faults = Callable[[str, Any], list[str]]


def request(**fields: Any) -> dict[str, Any]:
    return {
        "schema_version": "mcp.request.v0.1",
        "tool": {"name": "shop.add"},
        "params": {"x": 1},
        "artifacts": [],
        **fields,
    }


def test_tool_arguments_artifacts_and_preferences_are_read() -> None:
    reference = {"schema_version": "artifact.ref.v0.1", "locator": "file:/tmp/a.json"}
    found = read_request(
        request(
            request_id="req-1",
            params={"x": 1, "_meta": {"capture_provenance": True, "provenance_mode": "full"}},
            artifacts=[reference],
            preferences={"deterministic": False, "max_output_bytes": 10, "locale": "de"},
        )
    )
    assert (found.tool, found.input, found.request_id) == ("shop.add", {"x": 1}, "req-1")
    assert found.preferences == Preferences(deterministic=False, max_output_bytes=10, locale="de")
    assert found.artifacts[0].locator == "file:/tmp/a.json"
    assert found.capture is not None
    assert found.capture.mode == "full"


@pytest.mark.parametrize("params", [None, {}], ids=["null", "empty"])
def test_without_params_there_are_no_arguments_and_nothing_is_recorded(params: Any) -> None:
    found = read_request(request(params=params))
    assert (found.input, found.capture, found.preferences.deterministic) == ({}, None, True)


@pytest.mark.parametrize(
    "wire",
    [
        None,
        {},
        request(schema_version="mcp.request.v0.2"),
        request(extra=1),
        request(tool={}),
        request(tool={"name": ""}),
        request(params=[1]),
        request(params="x"),
        request(params={"_meta": 1}),
        request(params={"_meta": {"capture_provenance": "yes"}}),
        request(params={"_meta": {"capture_provenance": True, "provenance_mode": "all"}}),
        request(artifacts=[{"schema_version": "artifact.ref.v0.1"}]),
        request(preferences={"max_output_bytes": -1}),
        request(preferences={"loud": True}),
    ],
    ids=str,
)
def test_a_malformed_request_is_a_validation_error(wire: Any) -> None:
    with pytest.raises(CallError) as raised:
        read_request(wire)
    assert raised.value.code == "VALIDATION_ERROR"


def test_a_caller_who_does_not_ask_for_determinism_gets_meta(schema_faults: Faults) -> None:
    wire = mcp_envelope_v0_1.write(local_envelope(3, "shop.add"))
    asked = read_request(request(request_id="req-1", preferences={"deterministic": False}))
    answer = fit(wire, asked, adapter="http", duration_ms=7)
    assert answer["meta"] == {"adapter": "http", "request_id": "req-1", "duration_ms": 7}
    assert schema_faults("mcp.envelope", answer) == []
    assert fit(wire, read_request(request()), adapter="http") == wire


def limited(limit: int) -> ToolRequest:
    return read_request(request(preferences={"max_output_bytes": limit}))


def test_an_answer_that_is_too_long_is_cut_to_valid_json_with_a_warning(schema_faults: Faults) -> None:
    wire = mcp_envelope_v0_1.write(local_envelope({"items": [{"name": "x" * 50}] * 100, "end": 1}, "shop.list"))
    answer = fit(wire, limited(1000), adapter="http")
    assert len(msgspec.json.encode(answer)) <= 1000
    assert 0 < len(answer["result"]["items"]) < 100
    assert answer["result"]["items"][0] == {"name": "x" * 50}
    assert [warning["code"] for warning in answer["warnings"]] == ["ENFOLD.OUTPUT.TRUNCATED"]
    assert schema_faults("mcp.envelope", answer) == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(), inner, max_size=6),
    max_leaves=30,
)


@settings(max_examples=150)
@given(json_values, st.integers(300, 600))
def test_every_response_respects_a_limit_above_its_empty_size(value: Any, limit: int) -> None:
    wire = {"schema_version": "mcp.envelope.v0.1", "result": [value, value, "x" * 700], "provenance": None}
    assert len(msgspec.json.encode(fit(wire, limited(limit), adapter="http"))) <= limit


# --- on its way to the handler ------------------------------------------------------------------------------------

REFERENCE = {"schema_version": "artifact.ref.v0.1", "locator": "file:/tmp/a.json"}


def echoing() -> OperationRegistry:
    ops = OperationRegistry("shop")

    @ops.query(version="2.1.0")
    async def add(x: int, context: Context) -> dict[str, Any]:
        chosen = context.preferences
        told = [chosen.deterministic, chosen.max_output_bytes, chosen.locale]
        return {"preferences": told, "artifacts": [each.locator for each in context.artifacts]}

    @ops.query
    async def nested(x: int, context: Context) -> Any:
        return unwrap(await context.env.shop.add({"x": x}))

    @ops.query(access={"required_scopes": ["admin"]}, version="3.0.0")
    async def secret(x: int) -> int:
        return x

    return ops


@pytest.mark.parametrize("call", [over_http, over_cgi])
@pytest.mark.parametrize("tool", ["shop.add", "shop.nested"])
def test_preferences_and_artifacts_reach_the_handler(call: Call, tool: str) -> None:
    preferences = {"deterministic": False, "max_output_bytes": 10_000, "locale": "de"}
    wire = request(tool={"name": tool}, preferences=preferences, artifacts=[REFERENCE])
    body = call(echoing(), "/call", "result", wire).body
    assert body["result"] == {"preferences": [False, 10_000, "de"], "artifacts": ["file:/tmp/a.json"]}


def test_a_call_without_a_request_has_default_preferences_and_no_artifacts() -> None:
    body = over_http(echoing(), "shop.add", "result", {"x": 1}).body
    assert body == {"result": {"preferences": [True, None, None], "artifacts": []}}


@pytest.mark.parametrize("call", [over_http, over_cgi])
def test_a_wrong_version_of_the_tool_is_reported(call: Call) -> None:
    seen = call(echoing(), "/call", "result", request(tool={"name": "shop.add", "version": "2.0.0"}))
    error = seen.body["errors"][0]
    assert (seen.status, error["code"]) == (400, "ENFOLD.VALIDATION_ERROR")
    assert error["details"] == {"argument": "tool.version", "reason": "constraint", "expected": "2.1.0"}
    assert call(echoing(), "/call", "result", request(tool={"name": "shop.add", "version": "2.1.0"})).status == 200


def test_the_version_of_what_the_caller_may_not_see_is_not_reported() -> None:
    seen = over_http(echoing(), "/call", "result", request(tool={"name": "shop.secret", "version": "9"}))
    assert "3.0.0" not in str(seen.body)
    assert seen.body["errors"][0]["code"] != "ENFOLD.VALIDATION_ERROR"
