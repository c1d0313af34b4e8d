"""Events to bytes and back: written events can be read and validate, and nothing else is an event."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enfold import CallError, FormatError, http_envelope, local_envelope, mcp_envelope
from enfold.calls import CALL_EVENT_SCHEMA, CALL_MESSAGE_SCHEMA
from enfold.calls.protocol.events import (
    TYPES,
    Aborted,
    Accepted,
    Completed,
    Credit,
    Heartbeat,
    Payload,
    Requested,
    Resume,
    event_ids,
    failed,
    read_envelope,
    read_event,
    responded,
    write_event,
)
from enfold.envelope import ResponseEnvelope
from enfold.envelope.content import RESPONSE_ENVELOPE_SCHEMA

ID = "0123456789abcdef"

EVENTS: list[Payload] = [
    Requested(ID, "shop.add", {"x": 1}, 1000),
    Requested(ID, "shop.add", {}, None, 1.5e12, "parent", 64, "key", {"mode": "full", "parents": []}, "7"),
    Accepted(ID, "worker"),
    responded(ID, local_envelope({"a": 1}, "shop.add")),
    responded(ID, http_envelope(b"\x00", content_type="image/png"), 3, "id-3"),
    responded(ID, mcp_envelope([], is_error=True, content=[{"type": "text", "text": "no"}])),
    Completed(ID, 0),
    failed(ID, CallError("TIMEOUT", "too late")),
    Aborted(ID),
    Credit(ID, 5),
    Heartbeat(ID),
    Resume(ID, 1),
]


@pytest.mark.parametrize("payload", EVENTS, ids=lambda payload: type(payload).__name__)
def test_an_event_is_read_as_it_was_written(payload: Payload) -> None:
    event = read_event(write_event("e1", payload))
    assert (event.id, event.payload) == ("e1", payload)


@pytest.mark.parametrize("payload", EVENTS, ids=lambda payload: type(payload).__name__)
def test_an_event_on_the_wire_has_its_type_and_version_and_validates(payload: Payload) -> None:
    wire = msgspec.json.decode(write_event("e1", payload))
    assert (wire["v"], wire["type"], set(wire)) == (1, TYPES[type(payload)], {"v", "type", "id", "payload"})
    jsonschema_rs.validate(CALL_EVENT_SCHEMA[wire["type"]], wire["payload"])
    jsonschema_rs.validate(CALL_MESSAGE_SCHEMA, wire)


def test_the_output_of_a_response_is_an_envelope() -> None:
    assert CALL_EVENT_SCHEMA["call.responded"]["properties"]["output"] is RESPONSE_ENVELOPE_SCHEMA
    assert set(CALL_EVENT_SCHEMA) == set(TYPES.values())


@pytest.mark.parametrize(
    "envelope",
    [
        local_envelope([1, {"a": None}], "shop.add"),
        http_envelope(b"\xff\x00", status_code=206, headers={"a": "b"}, content_type="x/y"),
        mcp_envelope({"a": 1}, content=[{"type": "text", "text": "hi"}], structured_content={"a": 1}),
    ],
    ids=["local", "http", "mcp"],
)
def test_an_envelope_comes_out_as_it_went_in(envelope: ResponseEnvelope[Any]) -> None:
    payload: Any = read_event(write_event("e1", responded(ID, envelope))).payload
    assert read_envelope(payload) == envelope


@pytest.mark.parametrize("output", [None, 1, "text", [], {}, {"data": 1}, {"data": 1, "meta": {"source": "moon"}}])
def test_anything_but_an_envelope_is_not_an_output(output: Any) -> None:
    wire = {"v": 1, "type": "call.responded", "id": "e", "payload": {"requestId": ID, "output": output}}
    payload: Any = read_event(msgspec.json.encode(wire)).payload
    with pytest.raises(FormatError):
        read_envelope(payload)


MALFORMED = {
    "nothing": b"",
    "no JSON": b"{",
    "a list": b"[]",
    "another version": b'{"v":2,"type":"call.aborted","id":"e","payload":{"requestId":"0123456789abcdef"}}',
    "an unknown type": b'{"v":1,"type":"call.later","id":"e","payload":{"requestId":"0123456789abcdef"}}',
    "no payload": b'{"v":1,"type":"call.aborted","id":"e"}',
    "a short id": b'{"v":1,"type":"call.aborted","id":"e","payload":{"requestId":"x"}}',
    "an id with a dot": b'{"v":1,"type":"call.aborted","id":"e","payload":{"requestId":"0123456789.abcdef"}}',
    "a negative credit": b'{"v":1,"type":"call.credit","id":"e","payload":{"requestId":"0123456789abcdef","n":-1}}',
    "a deep one": b'{"v":1,"type":"call.aborted","id":"e","payload":' + b"[" * 100_000,
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_anything_else_is_refused_by_one_kind_of_error(data: bytes) -> None:
    with pytest.raises(FormatError):
        read_event(data)


@given(st.binary(max_size=200))
def test_invalid_input_raises_only_one_kind_of_error(data: bytes) -> None:
    with pytest.raises(FormatError):
        read_event(data)


@given(st.recursive(st.none() | st.booleans() | st.text() | st.integers(-(2**53), 2**53), st.lists, max_leaves=10))
def test_any_json_input_crosses(value: Any) -> None:
    payload: Any = read_event(write_event("e", Requested(ID, "shop.echo", {"value": value}))).payload
    assert payload.input == {"value": value}


def test_input_that_is_not_json_data_is_a_format_error() -> None:
    with pytest.raises(FormatError):
        write_event("e", Requested(ID, "shop.echo", {"value": object()}))


def test_each_event_has_its_own_id() -> None:
    first, second = event_ids(), event_ids()
    assert len({next(first) for _ in range(100)} | {next(second) for _ in range(100)}) == 200
