"""The format `mcp_envelope_v0_1`: every rule of the compatibility policy, and what comes back when it is read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enfold.envelope import ResponseEnvelope, ResultWarning, http_envelope, local_envelope, mcp_envelope
from enfold.envelope.content import TextContent
from enfold.errors import CODES, CallError, FormatError
from enfold.formats import mcp_envelope_v0_1 as fmt

Faults = Callable[[str, Any], list[str]]
Wire = dict[str, Any]

VERSION = "mcp.envelope.v0.1"
FIELDS = ["schema_version", "result", "provenance", "errors", "warnings", "meta"]

RECORD: Wire = {
    "schema_version": "prov.record.v0.1",
    "run_id": "run-1",
    "tool": {"name": "shop.add", "version": "1.0.0"},
    "inputs": [],
    "outputs": [],
    "methods": ["engine.prov.record_v0_1.build"],
    "evidence": [],
    "parents": [],
}


def envelope(**fields: Any) -> Wire:
    return {"schema_version": VERSION, "result": {"ok": True}, **fields}


# --- writing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "payload",
    [
        "done",
        {"ok": True, "count": 3},
        [1, "two", None],
        42,
        1.5,
        True,
        None,
        {"schema_version": "assist.response.v0.1", "plan": ["a"]},
    ],
    ids=["string", "object", "array", "integer", "number", "boolean", "null", "own schema_version"],
)
def test_any_payload_is_kept_as_it_is_in_the_result(payload: Any, schema_faults: Faults) -> None:
    wire = fmt.write(local_envelope(payload, "shop.add"))
    assert wire == {"schema_version": VERSION, "result": payload, "provenance": None}
    assert schema_faults("mcp.envelope", wire) == []


@pytest.mark.parametrize(
    "existing",
    [
        {"schema_version": VERSION, "result": {"ok": True}},
        {"schema_version": VERSION, "result": 1, "provenance": RECORD, "meta": {"adapter": "cli"}},
        {"schema_version": VERSION, "result": None, "errors": [{"code": "X", "message": "no"}]},
    ],
    ids=["bare", "with provenance", "with errors"],
)
def test_an_existing_envelope_passes_as_equal_json_even_when_provenance_was_captured(existing: Wire) -> None:
    carried = msgspec.structs.replace(local_envelope(existing, "shop.add"), provenance={**RECORD, "run_id": "other"})
    assert fmt.write(carried) == existing


def test_bytes_become_base64_text() -> None:
    assert fmt.write(http_envelope(b"\x00\xff"))["result"] == "AP8="


def test_no_timestamp_and_no_meta_is_written() -> None:
    first, second = local_envelope(1, "a.b"), ResponseEnvelope(1, local_envelope(1, "a.b").meta)
    assert fmt.write(first) == fmt.write(second)
    assert "meta" not in fmt.write(first)


def test_a_captured_record_is_attached(schema_faults: Faults) -> None:
    wire = fmt.write(msgspec.structs.replace(local_envelope(3, "shop.add"), provenance=RECORD))
    assert wire["provenance"] == RECORD
    assert schema_faults("mcp.envelope", wire) == []


def test_a_warning_has_path_type_and_size_but_no_value(schema_faults: Faults) -> None:
    stripped = ResultWarning("strip", "/token", old="s3cret", type="string", size=8)
    wire = fmt.write(msgspec.structs.replace(local_envelope({}, "shop.add"), warnings=(stripped,)))
    assert wire["warnings"] == [
        {
            "code": "ENFOLD.REPAIR.STRIP",
            "message": "An undeclared property was removed: /token",
            "details": {"path": "/token", "type": "string", "size": 8},
        }
    ]
    assert "s3cret" not in str(wire)
    assert schema_faults("mcp.envelope", wire) == []


def test_a_very_long_path_stays_within_the_limits(schema_faults: Faults) -> None:
    warning = ResultWarning("convert", "/" + "x" * 5000)
    wire = fmt.write(msgspec.structs.replace(local_envelope({}, ""), warnings=(warning,)))
    assert schema_faults("mcp.envelope", wire) == []


@pytest.mark.parametrize("code", [*CODES, "OUT_OF_STOCK"])
def test_every_code_is_written_as_the_table_says_and_read_back(code: str, schema_faults: Faults) -> None:
    wire = fmt.write_error(CallError(code, "It failed", {"retry_after": 3}), "shop.add")
    expected = CODES[code].envelope_code if code in CODES else code
    assert (wire["result"], wire["errors"][0]["code"]) == (None, expected)
    assert schema_faults("mcp.envelope", wire) == []
    with pytest.raises(CallError) as raised:
        fmt.read(wire)
    assert (raised.value.code, raised.value.message, raised.value.details) == (code, "It failed", {"retry_after": 3})


def test_details_are_made_flat_and_small(schema_faults: Faults) -> None:
    details = {"more": [{"argument": "y"}], "body": "x" * 10_000, "status": 502, "none": None}
    wire = fmt.write_error(CallError("EXECUTION_ERROR", "HTTP 502", details), "shop.add")
    written = wire["errors"][0]["details"]
    assert written["more"] == '[{"argument":"y"}]'
    assert (len(written["body"]), written["status"], written["none"]) == (2000, 502, None)
    assert schema_faults("mcp.envelope", wire) == []


def test_an_empty_or_endless_message_is_brought_within_the_limits(schema_faults: Faults) -> None:
    for message in ("", "x" * 9000):
        assert schema_faults("mcp.envelope", fmt.write_error(CallError("TIMEOUT", message), "")) == []


def test_partial_output_is_kept_beside_the_error() -> None:
    error = CallError("EXECUTION_ERROR", "It does not fit")
    error.partial = local_envelope({"half": 1}, "shop.add")
    assert fmt.write_error(error, "shop.add")["result"] == {"half": 1}


def test_a_failed_mcp_result_keeps_its_data_and_says_so_in_errors(schema_faults: Faults) -> None:
    failed = mcp_envelope({"at": "disk"}, is_error=True, content=[TextContent(text="disk full")])
    wire = fmt.write(failed)
    assert wire["result"] == {"at": "disk"}
    assert wire["errors"] == [{"code": "ADAPTER.EXECUTION.FAILED", "message": "disk full", "retryable": False}]
    assert schema_faults("mcp.envelope", wire) == []


# --- reading ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"provenance": None}], ids=["absent", "null"])
def test_absent_and_null_provenance_read_the_same(fields: Wire) -> None:
    found = fmt.read(envelope(**fields))
    assert (found.data, found.provenance, found.meta.source) == ({"ok": True}, None, "local")


@pytest.mark.parametrize(
    "wire",
    [
        "text",
        [],
        None,
        {},
        {"schema_version": VERSION},
        {"result": 1},
        {"schema_version": "mcp.envelope.v0.2", "result": 1},
        envelope(extra=1),
        envelope(provenance={}),
        envelope(provenance={**RECORD, "who": "me"}),
        envelope(provenance={**RECORD, "inputs": [{"artifact_id": "a", "media_type": "b"}]}),
        envelope(errors={}),
        envelope(errors=[{"code": "X"}]),
        envelope(errors=[{"code": "", "message": "m"}]),
        envelope(errors=[{"code": "X", "message": "m" * 2001}]),
        envelope(errors=[{"code": "X", "message": "m", "details": {"a": {}}}]),
        envelope(warnings=[{"code": "X", "message": "m", "retryable": True}]),
        envelope(meta={"timestamp": 1}),
        envelope(meta={"duration_ms": -1}),
        envelope(meta=None),
        envelope(result=envelope()),
    ],
    ids=str,
)
def test_data_in_another_format_is_refused(wire: Any) -> None:
    with pytest.raises(FormatError):
        fmt.read(wire)


def test_an_error_is_raised_with_the_partial_output_and_a_tools_own_code() -> None:
    wire = envelope(errors=[{"code": "PAYROLL.SFTP.AUTH", "message": "Refused", "retryable": True}])
    with pytest.raises(CallError) as raised:
        fmt.read(wire)
    assert (raised.value.code, raised.value.retryable, raised.value.partial.data) == (
        "PAYROLL.SFTP.AUTH",
        True,
        {"ok": True},
    )
    assert fmt.write_error(raised.value, "") == wire


def test_a_warning_of_ours_is_read_back() -> None:
    given = ResultWarning("convert", "/n", type="string", size=4)
    found = fmt.read(fmt.write(msgspec.structs.replace(local_envelope({}, ""), warnings=(given,)))).warnings[0]
    assert found.to_wire() == given.to_wire()


# --- any value ----------------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
texts = st.text(min_size=1, max_size=40)
details = st.dictionaries(st.text(max_size=10), st.none() | st.booleans() | st.integers() | st.text(), max_size=3)
warnings = st.fixed_dictionaries({"code": texts, "message": texts}, optional={"details": details})
metas = st.fixed_dictionaries(
    {}, optional={"adapter": texts, "request_id": texts, "duration_ms": st.integers(0, 10**9)}
)
envelopes = st.fixed_dictionaries(
    {"schema_version": st.just(VERSION), "result": json_values, "provenance": st.sampled_from([None, RECORD])},
    optional={"warnings": st.lists(warnings, max_size=3), "meta": metas, "errors": st.just([])},
)
failures = st.fixed_dictionaries(
    {
        "schema_version": st.just(VERSION),
        "result": json_values,
        "errors": st.lists(warnings, min_size=1, max_size=3),
        "provenance": st.sampled_from([None, RECORD]),
    },
)


@settings(max_examples=150)
@given(json_values)
def test_any_json_value_survives_writing_and_reading(value: Any) -> None:
    assert fmt.read(fmt.write(local_envelope(value, "a.b"))).data == value


@settings(max_examples=150)
@given(envelopes)
def test_a_valid_envelope_is_written_again_as_it_was_read(wire: Wire) -> None:
    assert fmt.write(fmt.read(wire)) == wire


@settings(max_examples=100)
@given(failures)
def test_a_failure_is_written_again_as_it_was_read(wire: Wire) -> None:
    with pytest.raises(CallError) as raised:
        fmt.read(wire)
    assert fmt.write_error(raised.value, "") == wire


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec=None)), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150)
@given(anything | st.builds(lambda field, value: envelope(**{field: value}), st.sampled_from(FIELDS), anything))
def test_reading_any_value_raises_nothing_but_format_and_call_errors(wire: Any) -> None:
    with suppress(FormatError, CallError):
        fmt.read(wire)
