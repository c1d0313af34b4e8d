import copy
import json
from collections import UserDict
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from pydantic import BaseModel
from typing_extensions import TypedDict

from enfold.envelope import (
    HTTP_RESPONSE_META_SCHEMA,
    LOCAL_RESPONSE_META_SCHEMA,
    MCP_CONTENT_BLOCK_SCHEMA,
    MCP_RESPONSE_META_SCHEMA,
    RESPONSE_ENVELOPE_SCHEMA,
    RESPONSE_META_SCHEMA,
    AudioContent,
    EmbeddedResource,
    HTTPResponseMeta,
    ImageContent,
    LocalResponseMeta,
    MCPResponseMeta,
    ResourceLink,
    ResponseEnvelope,
    ResultWarning,
    TextContent,
    content_block,
    from_wire,
    http_envelope,
    is_response_envelope,
    local_envelope,
    mcp_envelope,
    to_wire,
    unwrap,
)
from enfold.errors import CallError, FormatError

BLOCKS: list[Any] = [
    TextContent(text="hello", annotations={"audience": ["user"], "priority": 0.5}),
    ImageContent(data="AAAA", mime_type="image/png"),
    AudioContent(data="AAAA", mime_type="audio/wav", _meta={"a": 1}),
    EmbeddedResource(resource={"uri": "file:///a", "text": "x"}),
    ResourceLink(uri="file:///a", name="a", mime_type="text/plain", size=3),
]

ENVELOPES = {
    "local": local_envelope({"sum": 3}, "shop.add"),
    "local nothing": local_envelope(None, "shop.add"),
    "http": http_envelope([1, 2], status_code=201, headers={"X-A": "1"}, content_type="application/json"),
    "http bytes": http_envelope(b"\x00\xff", content_type="image/png"),
    "http event": http_envelope("x", content_type="text/event-stream", event_type="tick", last_event_id="7"),
    "mcp": mcp_envelope({"a": 1}, content=BLOCKS, structured_content={"a": 1}, _meta={"k": "v"}),
    "mcp error": mcp_envelope([], is_error=True, content=[{"type": "text", "text": "no"}]),
    "mcp null": mcp_envelope(None, structured_content=None),
}


@pytest.mark.parametrize("envelope", ENVELOPES.values(), ids=ENVELOPES)
def test_an_envelope_survives_the_wire(envelope: ResponseEnvelope[Any]) -> None:
    wire = to_wire(envelope)
    assert sorted(wire) == ["data", "meta"]
    assert from_wire(json.loads(json.dumps(wire))) == envelope
    assert from_wire(envelope.to_bytes()) == envelope


@pytest.mark.parametrize("envelope", ENVELOPES.values(), ids=ENVELOPES)
def test_every_envelope_we_emit_fits_its_schema(envelope: ResponseEnvelope[Any]) -> None:
    wire = to_wire(envelope)
    jsonschema_rs.validate(RESPONSE_ENVELOPE_SCHEMA, wire)
    jsonschema_rs.validate(RESPONSE_META_SCHEMA, wire["meta"])
    one = {"local": LOCAL_RESPONSE_META_SCHEMA, "http": HTTP_RESPONSE_META_SCHEMA, "mcp": MCP_RESPONSE_META_SCHEMA}
    jsonschema_rs.validate(one[envelope.meta.source], wire["meta"])


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.type)
def test_a_content_block_survives_the_wire_and_fits_its_schema(block: Any) -> None:
    wire = block.to_wire()
    jsonschema_rs.validate(MCP_CONTENT_BLOCK_SCHEMA, wire)
    assert content_block(json.loads(json.dumps(wire))) == block


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(json_values)
def test_any_data_survives_the_wire_in_every_kind(data: Any) -> None:
    for envelope in (local_envelope(data, "a"), http_envelope(data), mcp_envelope(data, structured_content=data)):
        assert from_wire(envelope.to_wire()) == envelope


@given(st.binary())
def test_any_bytes_survive_the_wire(data: bytes) -> None:
    envelope = http_envelope(data, content_type="application/octet-stream")
    assert to_wire(envelope)["meta"]["dataEncoding"] == "base64"
    assert from_wire(envelope.to_bytes()).data == data


def test_local_bytes_are_base64_text_on_the_wire() -> None:
    assert to_wire(local_envelope(b"\x00\xff", "a"))["data"] == "AP8="


def test_the_local_meta_says_which_operation_and_when() -> None:
    meta = local_envelope(1, "shop.add").meta
    assert isinstance(meta, LocalResponseMeta)
    assert (meta.source, meta.operation_id) == ("local", "shop.add")
    assert meta.timestamp > 1_700_000_000_000


def test_header_names_are_lower_case_and_repeated_ones_joined() -> None:
    meta = http_envelope(None, headers=[("X-One", "a"), ("x-one", "b"), ("Content-Type", "text/plain")]).meta
    assert isinstance(meta, HTTPResponseMeta)
    assert meta.headers == {"x-one": "a, b", "content-type": "text/plain"}
    assert meta.content_type == "text/plain"


def test_private_headers_stay_in_the_process() -> None:
    names = ["Set-Cookie", "Set-Cookie2", "WWW-Authenticate", "Proxy-Authenticate", "X-Internal", "X-Public"]
    envelope = http_envelope(None, headers=dict.fromkeys(names, "v"), private_headers=["X-Internal"])
    assert isinstance(envelope.meta, HTTPResponseMeta)
    assert "set-cookie" in envelope.meta.headers
    assert to_wire(envelope)["meta"]["headers"] == {"x-public": "v"}


def test_a_block_of_an_unknown_kind_becomes_text_holding_its_json() -> None:
    odd = {"type": "hologram", "beam": [1]}
    block = content_block(odd)
    assert isinstance(block, TextContent)
    assert json.loads(block.text) == odd


@pytest.mark.parametrize("value", [None, 3, "text", {"type": "text"}, {"type": 3}, {"type": ["text"]}, {}], ids=repr)
def test_what_is_no_block_at_all_becomes_text_too(value: Any) -> None:
    assert json.loads(content_block(value).text) == value  # type: ignore[union-attr]  # it is a text block


def test_fields_a_newer_revision_added_to_a_block_are_kept() -> None:
    wire = {"type": "text", "text": "a", "annotations": {"priority": 1, "mood": "x"}, "newField": [1]}
    assert content_block(wire).to_wire() == wire


LOOK_ALIKES: list[Any] = [
    None,
    3,
    "local",
    [],
    {},
    {"data": 1},
    {"meta": {"source": "local"}},
    {"data": 1, "meta": None},
    {"data": 1, "meta": {}},
    {"data": 1, "meta": {"source": "ftp"}},
    {"data": 1, "meta": {"source": ["local"]}},
    {"data": 1, "meta": {"source": None}},
    {"data": 1, "meta": "local"},
    {"result": 1, "provenance": None},
]


@pytest.mark.parametrize("value", LOOK_ALIKES, ids=repr)
def test_what_only_resembles_an_envelope_is_none(value: Any) -> None:
    assert not is_response_envelope(value)
    with pytest.raises(FormatError):
        from_wire(value)


@pytest.mark.parametrize("source", ["local", "http", "mcp"])
@pytest.mark.parametrize("kind", [dict, UserDict, MappingProxyType], ids=lambda kind: kind.__name__)
def test_a_mapping_with_data_and_a_known_source_is_an_envelope(source: str, kind: Any) -> None:
    value = kind({"data": None, "meta": kind({"source": source})})
    assert is_response_envelope(value)
    assert from_wire(value).meta.source == source


def test_missing_meta_fields_get_the_factorys_defaults() -> None:
    http = from_wire({"data": 1, "meta": {"source": "http"}}).meta
    assert http == HTTPResponseMeta(200, {}, "")
    assert from_wire({"data": 1, "meta": {"source": "mcp"}}).meta == MCPResponseMeta()
    local = from_wire({"data": 1, "meta": {"source": "local"}}).meta
    assert isinstance(local, LocalResponseMeta)
    assert local.operation_id == ""


def test_meta_fields_of_a_wrong_type_give_way_to_the_default_and_say_so() -> None:
    envelope = from_wire({"data": 1, "meta": {"source": "http", "statusCode": "many", "headers": {"X-A": "1"}}})
    assert envelope.meta == HTTPResponseMeta(200, {"x-a": "1"}, "")
    assert [(warning.code, warning.path) for warning in envelope.warnings] == [("envelope_meta", "/meta/statusCode")]


def test_extra_keys_beside_data_and_meta_are_a_warning() -> None:
    envelope = from_wire({"data": 1, "meta": {"source": "local"}, "note": "x"})
    assert envelope.data == 1
    assert [(warning.code, warning.path) for warning in envelope.warnings] == [("envelope_extra", "/note")]


@pytest.mark.parametrize("text", [b"", b"{", "[" * 100_000, b"\xff"], ids=["empty", "cut", "deep", "not utf-8"])
def test_what_is_not_json_is_a_format_error(text: bytes | str) -> None:
    with pytest.raises(FormatError):
        from_wire(text)


def test_text_that_claims_to_be_base64_and_is_not_stays_as_it_came() -> None:
    envelope = from_wire({"data": "!!", "meta": {"source": "http", "dataEncoding": "base64"}})
    assert envelope.data == "!!"
    assert [(warning.code, warning.path) for warning in envelope.warnings] == [("envelope_meta", "/meta/dataEncoding")]


def test_a_resource_without_an_address_is_kept_as_text() -> None:
    wire = {"type": "resource", "resource": {"text": "x"}}
    block = content_block(wire)
    assert isinstance(block, TextContent)
    assert json.loads(block.text) == wire


def test_unwrap_takes_the_wire_form_too() -> None:
    assert unwrap({"data": 3, "meta": {"source": "local"}}) == 3


def test_is_error_answers_for_every_kind() -> None:
    assert not local_envelope(1, "a").is_error
    assert mcp_envelope(1, is_error=True).is_error
    assert not mcp_envelope(1).is_error
    assert http_envelope(1, status_code=404).is_error
    assert not http_envelope(1, status_code=304).is_error


def test_unwrap_gives_the_data_and_raises_only_when_asked() -> None:
    failed = mcp_envelope(None, is_error=True, content=[TextContent(text="disk full")])
    assert unwrap(local_envelope(5, "a"), raise_on_error=True) == 5
    assert unwrap(failed) is None
    with pytest.raises(CallError, match="disk full") as caught:
        unwrap(failed, raise_on_error=True)
    assert caught.value.code == "EXECUTION_ERROR"


def test_a_warning_leaves_the_process_without_its_values() -> None:
    warning = ResultWarning("strip", "/password", old="secret", type="string", size=8)
    assert warning.to_wire() == {"code": "strip", "path": "/password", "type": "string", "size": 8}


def test_an_envelope_is_a_value() -> None:
    envelope = local_envelope({"a": 1}, "x")
    assert copy.deepcopy(envelope) == envelope
    with pytest.raises(AttributeError):
        envelope.data = {}  # type: ignore[misc]  # frozen: the point of the test


@dataclass
class Point:
    x: int


class PointStruct(msgspec.Struct):
    x: int


class PointDict(TypedDict):
    x: int


class PointModel(BaseModel):
    x: int


@pytest.mark.parametrize("model", [Point, PointStruct, PointModel], ids=lambda model: model.__name__)
def test_typed_access_gives_an_instance(model: Any) -> None:
    assert local_envelope({"x": 3}, "a").as_(model) == model(x=3)
    assert local_envelope([{"x": 3}], "a").as_(list[model]) == [model(x=3)]
    with pytest.raises(FormatError, match="x"):
        local_envelope({"x": "three"}, "a").as_(model)


def test_typed_access_as_a_typed_dict_is_the_data() -> None:
    assert local_envelope({"x": 3}, "a").as_(PointDict) == {"x": 3}


def test_absent_and_null_structured_content_are_told_apart() -> None:
    absent, null = mcp_envelope(1).meta, mcp_envelope(1, structured_content=None).meta
    assert isinstance(absent, MCPResponseMeta)
    assert isinstance(null, MCPResponseMeta)
    assert (absent.structured_content, null.structured_content) == (UNSET, None)
