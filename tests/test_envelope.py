import copy
import json
from collections import UserDict
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID

import jsonschema_rs
import msgspec
import pydantic.dataclasses
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from pydantic import BaseModel
from typing_extensions import TypedDict

from enfold.envelope import (
    RESPONSE_SOURCES,
    HTTPResponseMeta,
    LocalResponseMeta,
    MCPResponseMeta,
    ResponseEnvelope,
    ResultWarning,
    from_wire,
    http_envelope,
    is_response_envelope,
    local_envelope,
    mcp_envelope,
    to_wire,
    unwrap,
)
from enfold.envelope.content import (
    HTTP_RESPONSE_META_SCHEMA,
    LOCAL_RESPONSE_META_SCHEMA,
    MCP_CONTENT_BLOCK_SCHEMA,
    MCP_RESPONSE_META_SCHEMA,
    RESPONSE_ENVELOPE_SCHEMA,
    RESPONSE_META_SCHEMA,
    AudioContent,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    content_block,
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
def test_anything_but_a_block_becomes_text_too(value: Any) -> None:
    assert json.loads(content_block(value).text) == value  # type: ignore[union-attr]  # it is a text block


def test_fields_a_newer_revision_added_to_a_block_are_kept() -> None:
    wire = {"type": "text", "text": "a", "annotations": {"priority": 1, "mood": "x"}, "newField": [1]}
    assert content_block(wire).to_wire() == wire


ODD_BLOCKS: dict[str, Any] = {
    "an unknown kind": {"type": "hologram", "beam": [1]},
    "no block": 7,
    "a broken image": {"type": "image"},
    "newer fields": {"type": "text", "text": "a", "newField": [1]},
    "plain text": {"type": "text", "text": "a"},
}


@pytest.mark.parametrize("odd", ODD_BLOCKS.values(), ids=ODD_BLOCKS)
def test_data_that_is_the_content_holds_the_same_mapped_blocks(odd: Any) -> None:
    content = [odd, {"type": "text", "text": "b"}]
    for envelope in (
        mcp_envelope(content, content=content),
        mcp_envelope(list(content), content=tuple(content)),
        from_wire({"data": content, "meta": {"source": "mcp", "content": content}}),
    ):
        assert envelope.data == envelope.to_wire()["meta"]["content"]


def test_data_that_is_something_else_than_the_content_is_unchanged() -> None:
    content = [{"type": "hologram"}]
    assert mcp_envelope({"a": 1}, content=content).data == {"a": 1}
    assert mcp_envelope([], content=content).data == []
    assert mcp_envelope([{"type": "hologram", "x": 1}], content=content).data == [{"type": "hologram", "x": 1}]


def test_a_block_whose_optional_fields_are_null_is_that_block() -> None:
    assert content_block({"type": "text", "text": "a", "annotations": None, "_meta": None}) == TextContent(text="a")


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
def test_data_that_only_resembles_an_envelope_is_not_one(value: Any) -> None:
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


@pytest.mark.parametrize("source", RESPONSE_SOURCES)
def test_unknown_meta_fields_are_dropped_and_reported(source: str) -> None:
    meta = {"source": source, "brand": 1, "a/b~c": 2}
    envelope = from_wire({"data": 1, "meta": meta})
    jsonschema_rs.validate(RESPONSE_ENVELOPE_SCHEMA, to_wire(envelope))
    assert [(warning.code, warning.path) for warning in envelope.warnings] == [
        ("meta_extra", "/meta/brand"),
        ("meta_extra", "/meta/a~1b~0c"),
    ]


def test_a_meta_field_of_another_source_is_unknown() -> None:
    envelope = from_wire({"data": 1, "meta": {"source": "local", "isError": True, "dataEncoding": "base64"}})
    assert [warning.path for warning in envelope.warnings] == ["/meta/isError", "/meta/dataEncoding"]
    assert not envelope.is_error


def test_very_many_unknown_fields_are_reported_briefly() -> None:
    flood = {f"{number}{'x' * 1000}": 1 for number in range(10_000)}
    envelope = from_wire({"data": 1, "meta": {"source": "local", **flood}, **flood})
    assert len(envelope.warnings) == 50
    assert envelope.warnings[-1] == ResultWarning("more", "", count=19_951)
    assert max(len(warning.path) for warning in envelope.warnings) < 300


@pytest.mark.parametrize("text", [b"", b"{", "[" * 100_000, b"\xff"], ids=["empty", "cut", "deep", "not utf-8"])
def test_invalid_json_is_a_format_error(text: bytes | str) -> None:
    with pytest.raises(FormatError):
        from_wire(text)


def test_text_that_claims_to_be_base64_and_is_not_is_unchanged() -> None:
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


class Mixed(Enum):
    ONE = 1
    TWO = "two"


@dataclass
class Places:
    folder: Path
    host: IPv4Address


@pydantic.dataclasses.dataclass
class Bounded:
    x: int = pydantic.Field(gt=5)


class OtherModel(BaseModel):
    y: int


# Types that operations take and give, too.
TYPED: dict[str, tuple[Any, Any, Any]] = {
    "keys that are numbers": (dict[int, str], {"1": "a"}, {1: "a"}),
    "keys that are ids": (dict[UUID, int], {str(UUID(int=1)): 1}, {UUID(int=1): 1}),
    "a path and an address": (Places, {"folder": "/a", "host": "192.0.2.1"}, Places(Path("/a"), IPv4Address("192.0.2.1"))),
    "one of two models": (list[PointModel | OtherModel], [{"x": 1}, {"y": 2}], [PointModel(x=1), OtherModel(y=2)]),
    "a model or a number": (PointModel | int, 5, 5),
    "values of several types": (Mixed, "two", Mixed.TWO),
    "a dataclass of pydantic": (Bounded, {"x": 6}, Bounded(x=6)),
}  # fmt: skip


@pytest.mark.parametrize(("type", "data", "expected"), TYPED.values(), ids=TYPED)
def test_typed_access_knows_the_types_that_operations_know(type: Any, data: Any, expected: Any) -> None:
    assert local_envelope(data, "a").as_(type) == expected


@pytest.mark.parametrize(
    ("type", "data"),
    [(Bounded, {"x": 1}), (PointModel | OtherModel, {"z": 1}), (Places, {"folder": 5, "host": "x"}), (Mixed, 3)],
    ids=["a bound", "neither model", "no text", "no member"],
)
def test_typed_access_refuses_what_does_not_fit_such_types(type: Any, data: Any) -> None:
    with pytest.raises(FormatError, match="The data is not a "):
        local_envelope(data, "a").as_(type)


def test_typed_access_as_a_typed_dict_is_the_data() -> None:
    assert local_envelope({"x": 3}, "a").as_(PointDict) == {"x": 3}


def test_absent_and_null_structured_content_are_distinguished() -> None:
    absent, null = mcp_envelope(1).meta, mcp_envelope(1, structured_content=None).meta
    assert isinstance(absent, MCPResponseMeta)
    assert isinstance(null, MCPResponseMeta)
    assert (absent.structured_content, null.structured_content) == (UNSET, None)


def test_typed_access_names_the_whole_type_and_the_place_that_does_not_fit() -> None:
    with pytest.raises(FormatError, match=r"The data is not a list\[int\]: .*`int`, got `object`.*\$\[0\]"):
        local_envelope([{"x": 1}], "a").as_(list[int])
    with pytest.raises(FormatError, match=r"The data is not a PointModel: "):
        local_envelope([], "a").as_(PointModel)


def test_text_joins_the_text_blocks_with_newlines() -> None:
    envelope = mcp_envelope(None, content=[TextContent(text="a"), ImageContent(data="", mime_type="x/y"), "b"])
    assert envelope.text() == 'a\n"b"'
    assert mcp_envelope(None).text() == ""


@pytest.mark.parametrize(
    ("envelope", "text"),
    [
        (local_envelope("a", ""), "a"),
        (local_envelope({"a": 1}, ""), '{"a":1}'),
        (local_envelope(None, ""), "null"),
        (http_envelope("<p>"), "<p>"),
        (http_envelope("grün".encode()), "grün"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_text_of_another_result_is_its_data(envelope: ResponseEnvelope[Any], text: str) -> None:
    assert envelope.text() == text


def test_json_parses_the_text() -> None:
    assert mcp_envelope(None, content=[TextContent(text='{"a": [1]}')]).json() == {"a": [1]}
    assert mcp_envelope(None, content=[TextContent(text="[1,"), TextContent(text="2]")]).json() == [1, 2]


@pytest.mark.parametrize(
    "text", ["", "no", "[" * 100_000, "NaN", "\udc00"], ids=["empty", "words", "deep", "nan", "half"]
)
def test_json_of_what_is_not_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="Not JSON"):
        mcp_envelope(None, content=[TextContent(text=text)]).json()
