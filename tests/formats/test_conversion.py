"""Conversions between all formats: what both can express is kept, the rest is reported as lost."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enfold.envelope import ResultWarning, http_envelope, local_envelope
from enfold.errors import CallError, FormatError
from enfold.formats import FORMATS
from enfold.formats.conversion import convert

PAIRS = [(source, target) for source in FORMATS for target in FORMATS]
IDS = [f"{source} to {target}" for source, target in PAIRS]


def lost_paths(wire: Any, source: str, target: str) -> list[str]:
    return [warning.path for warning in convert(wire, FORMATS[source], FORMATS[target]).lost]


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=IDS)
def test_the_data_arrives_in_every_format(source: str, target: str) -> None:
    wire = FORMATS[source].write(local_envelope({"sum": 3, "parts": [1, 2.5, None]}, "shop.add"))
    converted = convert(wire, FORMATS[source], FORMATS[target])
    assert FORMATS[target].read(converted.wire).data == {"sum": 3, "parts": [1, 2.5, None]}
    assert all(warning.path.startswith("/meta/") for warning in converted.lost)


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=IDS)
def test_a_failure_arrives_in_every_format(source: str, target: str) -> None:
    wire = FORMATS[source].write_error(CallError("UNAVAILABLE", "No worker", {"retry_after": 2}), "shop.add")
    converted = convert(wire, FORMATS[source], FORMATS[target])
    with pytest.raises(CallError) as raised:
        FORMATS[target].read(converted.wire)
    assert raised.value.message == "No worker"
    if not {"result", "plain"} & {source, target}:
        assert (raised.value.code, raised.value.details) == ("UNAVAILABLE", {"retry_after": 2})
        assert converted.lost == ()


@pytest.mark.parametrize("name", FORMATS)
def test_to_the_same_format_nothing_is_lost(name: str) -> None:
    wire = FORMATS[name].write(http_envelope({"a": 1}, headers={"etag": "x"}))
    assert lost_paths(wire, name, name) == []


def test_data_that_the_target_format_cannot_represent_is_listed() -> None:
    wire = FORMATS["envelope"].write(http_envelope({"a": 1}, status_code=201, headers={"etag": "x"}))
    assert lost_paths(wire, "envelope", "result") == [
        "/meta/source",
        "/meta/statusCode",
        "/meta/headers",
        "/meta/contentType",
    ]


def test_a_format_with_warnings_reports_the_loss_itself() -> None:
    wire = FORMATS["envelope"].write(local_envelope(1, "shop.add"))
    converted = convert(wire, FORMATS["envelope"], FORMATS["mcp_envelope_v0_1"])
    assert {warning["code"] for warning in converted.wire["warnings"]} == {"ENFOLD.CONVERSION_LOST"}


def test_other_formats_lose_warnings_meta_and_further_errors_of_an_mcp_envelope() -> None:
    warned = msgspec.structs.replace(local_envelope(1, ""), warnings=(ResultWarning("strip", "/a"),))
    wire = {**FORMATS["mcp_envelope_v0_1"].write(warned), "meta": {"adapter": "cli"}}
    assert lost_paths(wire, "mcp_envelope_v0_1", "envelope") == ["/warnings/0", "/adapter_meta"]
    told = [{"code": "A", "message": "a"}, {"code": "B", "message": "b"}]
    assert "/errors" in lost_paths({**wire, "errors": told}, "mcp_envelope_v0_1", "envelope")


@settings(max_examples=60)
@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_any_value_survives_the_tour_through_all_formats(value: Any) -> None:
    # `plain` reads `{"result": v}` as v where nothing tells that it is an object.
    names = [*(name for name in FORMATS if name != "plain"), next(iter(FORMATS))]
    wire = FORMATS[names[0]].write(local_envelope(value, ""))
    for source, target in pairwise(names):
        wire = convert(wire, FORMATS[source], FORMATS[target]).wire
    assert FORMATS[names[-1]].read(wire).data == value


def test_input_in_another_format_is_refused() -> None:
    with pytest.raises(FormatError):
        convert({"nothing": 1}, FORMATS["mcp_envelope_v0_1"], FORMATS["result"])
