import json
from typing import Any

import jsonschema_rs
import pytest

from enfold import (
    RESPONSE_ENVELOPE_SCHEMA,
    CallError,
    FormatError,
    ResponseEnvelope,
    TextContent,
    http_envelope,
    local_envelope,
    mcp_envelope,
)
from enfold.formats import envelope as envelope_format

ENVELOPES = {
    "local": local_envelope({"sum": 3, "who": "Zoë"}, "shop.add"),
    "http": http_envelope([1], status_code=201, headers={"X-Id": "1"}, content_type="application/json"),
    "http with bytes": http_envelope(b"\x00\xff", content_type="image/png"),
    "mcp": mcp_envelope({"a": 1}, content=[TextContent(text="a is 1")], structured_content={"a": 1}),
    "mcp error": mcp_envelope([], is_error=True, content=[TextContent(text="disk full")]),
}


@pytest.mark.parametrize("envelope", ENVELOPES.values(), ids=ENVELOPES.keys())
def test_every_kind_of_envelope_survives_the_wire(envelope: ResponseEnvelope[Any]) -> None:
    wire = json.loads(json.dumps(envelope_format.write(envelope)))
    assert jsonschema_rs.is_valid(RESPONSE_ENVELOPE_SCHEMA, wire)
    assert envelope_format.read(wire) == envelope


def test_a_failure_comes_back_with_all_its_facts() -> None:
    error = CallError("OUT_OF_STOCK", "Nothing left", {"item": 7}, retryable=True)
    wire = envelope_format.write_error(error, "shop.buy")
    assert wire == {
        "error": {"code": "OUT_OF_STOCK", "message": "Nothing left", "details": {"item": 7}, "retryable": True}
    }
    with pytest.raises(CallError) as raised:
        envelope_format.read(json.loads(json.dumps(wire)))
    assert raised.value.to_wire() == error.to_wire()


def test_results_of_a_server_without_the_format_are_read() -> None:
    with pytest.raises(CallError, match="no luck"):
        envelope_format.read({"error": "no luck"})


def test_a_wire_without_meta_is_read_as_local() -> None:
    assert envelope_format.read({"data": 5}).data == 5


@pytest.mark.parametrize(
    "wire",
    [
        [],
        {},
        {"result": 1},
        {"data": 1, "meta": {"source": "ftp"}},
        {"error": {}},
        {"error": {"code": "X", "message": "m", "details": []}},
        {"error": {"code": "X", "message": "m", "retryable": "no"}},
        {"error": None},
    ],
    ids=str,
)
def test_data_of_another_format_is_refused(wire: Any) -> None:
    with pytest.raises(FormatError):
        envelope_format.read(wire)
