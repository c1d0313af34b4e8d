"""Format `plain`: objects without a wrapper, and the marks that distinguish them from wrapped values on each surface."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from fastmcp import Client as FastMCPClient
from mcp.client.streamable_http import streamable_http_client
from tests.formats.surfaces import in_the_shell, over_cgi, over_http, over_mcp
from tests.gateway.conftest import serve as serve_here
from tests.serving import serve
from tests.surfaces.mcp.conftest import STATELESS, Client

from enfold import FormatError, OperationRegistry, OperationSpec, local_envelope
from enfold.formats import plain
from enfold.sources.mcp import from_mcp
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp
from enfold.surfaces.openapi import to_openapi
from mcp import ClientSession


@dataclass
class Item:
    name: str
    price: float = 0.0


ops = OperationRegistry("shop")


@ops.query
def item() -> Item:
    return Item("tea", 2.5)


@ops.query
def wrapped_looking() -> dict[str, int]:
    return {"result": 1}


@ops.query
def failed_looking() -> dict[str, str]:
    return {"error": "not at all"}


@ops.query
def number() -> int:
    return 1


@ops.query
def text() -> str:
    return '{"result": "bare"}'


@ops.query
def items() -> list[Item]:
    return [Item("tea")]


@ops.query
def perhaps(found: bool = True) -> Item | None:
    return Item("tea") if found else None


@ops.query
def union(n: int = 0) -> Item | int | str:
    return (Item("tea"), 7, "seven")[n]


@ops.query
def anything(value: Any = None) -> Any:
    return value


@ops.query
def two() -> tuple[int, str]:
    return 1, "a"


@ops.mutation
def nothing() -> None: ...


@ops.query
def picture() -> bytes:
    return b"\x00\xff"


@ops.subscription
async def ticks() -> AsyncIterator[Any]:
    for each in ({"complete": True}, 2, {"result": 3}):
        yield each


CALLS: list[tuple[str, dict[str, Any], Any, str]] = [
    ("item", {}, {"name": "tea", "price": 2.5}, "object"),
    ("wrapped_looking", {}, {"result": 1}, "object"),
    ("failed_looking", {}, {"error": "not at all"}, "object"),
    ("number", {}, {"result": 1}, "result"),
    ("text", {}, {"result": '{"result": "bare"}'}, "text"),
    ("items", {}, {"result": [{"name": "tea", "price": 0.0}]}, "result"),
    ("perhaps", {"found": True}, {"name": "tea", "price": 0.0}, "object"),
    ("perhaps", {"found": False}, {"result": None}, "result"),
    ("union", {"n": 0}, {"name": "tea", "price": 0.0}, "object"),
    ("union", {"n": 1}, {"result": 7}, "result"),
    ("union", {"n": 2}, {"result": "seven"}, "text"),
    ("anything", {"value": {"a": 1}}, {"a": 1}, "object"),
    ("anything", {"value": {}}, {}, "object"),
    ("anything", {"value": [1]}, {"result": [1]}, "result"),
    ("nothing", {}, {}, "result"),
    ("picture", {}, {"result": "AP8="}, "text"),
]
IDS = [f"{name} {json.dumps(given)}" for name, given, _, _ in CALLS]


@pytest.mark.parametrize(("name", "given", "wire", "shape"), CALLS, ids=IDS)
def test_every_surface_writes_objects_as_they_are_and_wraps_the_rest(
    name: str, given: dict[str, Any], wire: Any, shape: str
) -> None:
    for seen in (over_http(ops, f"shop.{name}", "plain", given), over_cgi(ops, f"shop.{name}", "plain", given)):
        assert (seen.status, seen.body) == (200, wire)
        assert seen.headers["enfold-format"] == "plain"
        assert seen.headers["enfold-shape"] == ("object" if shape == "object" else "result")
    assert in_the_shell(ops, f"shop.{name}", "plain", given).body == wire
    told = over_mcp(ops, f"shop.{name}", "plain", given).body
    assert told["structured"] == wire
    assert {"enfold/format": "plain", "enfold/shape": shape}.items() <= told["meta"].items()
    (block,) = told["content"]
    assert block["text"] == wire["result"] if shape == "text" else json.loads(block["text"]) == wire


@pytest.mark.parametrize(("name", "given", "wire", "shape"), CALLS, ids=IDS)
async def test_the_advertised_schemas_allow_what_is_written(
    name: str, given: dict[str, Any], wire: Any, shape: str
) -> None:
    page = await Client(to_mcp(ops, format="plain"), STATELESS).result("tools/list")
    (tool,) = (each for each in page["tools"] if each["name"] == f"shop_{name}")
    assert tool["outputSchema"]["type"] == "object"
    jsonschema_rs.validate(tool["outputSchema"], wire)
    document = to_openapi(ops, format="plain")
    path = document["paths"][f"/functions/shop.{name}"]["post"]
    schema = path["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema_rs.validate({**schema, "components": document["components"]}, wire)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("item", {"result": {"name": "tea"}}),
        ("number", {"result": "one"}),
        ("number", {}),
        ("perhaps", {"result": {"name": "tea"}}),
        ("perhaps", {"price": 1.0}),
        ("union", {"result": None}),
    ],
)
def test_the_advertised_schema_refuses_what_is_never_written(name: str, wrong: Any) -> None:
    schema = plain.success_schema(ops.get_spec(f"shop.{name}"))
    assert not jsonschema_rs.is_valid(schema, wrong)


def test_a_schema_that_refers_to_itself_is_split_into_objects_and_wrapped_values() -> None:
    tree = {"type": ["object", "array", "integer"], "items": {"$ref": "#"}, "additionalProperties": {"$ref": "#"}}
    check = jsonschema_rs.validator_for(plain.success_schema(OperationSpec(name="tree", output_schema=tree)))
    assert all(check.is_valid(wire) for wire in ({"a": {"b": [1]}}, {"result": [{"a": 1}]}, {"result": 1}))
    assert not any(check.is_valid(wire) for wire in ({"a": "text"}, {"result": "text"}, {"result": 1, "b": ""}))


def test_a_schema_of_many_references_is_read_once_each() -> None:
    cycle = {f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{(n + 1) % 40}"}] * 8} for n in range(40)}
    spec = OperationSpec(name="cycle", output_schema={"$ref": "#/$defs/a0", "$defs": cycle})
    assert plain.success_schema(spec)["type"] == "object"


@pytest.mark.parametrize("format", ["plain", "result"])
async def test_another_enfold_reads_what_the_operation_returned(format: str) -> None:
    with serve(to_mcp(ops, format=format)) as server:
        async with from_mcp(f"http://127.0.0.1:{server.port}/mcp", namespace="far") as imported:
            far = OperationRegistry()
            far.register_all(imported)
            for name, given, _, _ in CALLS:
                expected = json.loads(msgspec.json.encode((await ops.execute(f"shop.{name}", given)).data))
                envelope = await far.execute(f"far.shop_{name}", given)
                assert (name, envelope.data, envelope.warnings) == (name, expected, ())


@pytest.mark.parametrize("format", ["plain", "result"])
async def test_a_gateway_passes_marks_and_structure_on(format: str) -> None:
    middle, end = OperationRegistry(), OperationRegistry()
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(serve_here(to_mcp(ops, format="plain")))
        middle.register_all(await stack.enter_async_context(from_mcp(f"{first}/mcp", namespace="far")))
        second = await stack.enter_async_context(serve_here(to_mcp(middle, format=format)))
        end.register_all(await stack.enter_async_context(from_mcp(f"{second}/mcp", namespace="end")))
        for name, given, _, _ in CALLS:
            expected = json.loads(msgspec.json.encode((await ops.execute(f"shop.{name}", given)).data))
            assert (name, (await end.execute(f"end.far_shop_{name}", given)).data) == (name, expected)


@pytest.mark.parametrize("name", ["mcp", "fastmcp"])
async def test_clients_of_others_get_the_value(name: str) -> None:
    with serve(to_mcp(ops, format="plain")) as server:
        url = f"http://127.0.0.1:{server.port}/mcp"
        if name == "fastmcp":
            async with FastMCPClient(url) as fast:
                assert (await fast.call_tool("shop_number", {})).data == 1
                assert (await fast.call_tool("shop_text", {})).data == '{"result": "bare"}'
                assert (await fast.call_tool("shop_item", {})).data.name == "tea"
            return
        async with streamable_http_client(url) as streams, ClientSession(streams[0], streams[1]) as session:
            await session.initialize()
            item = await session.call_tool("shop_item", {})
            assert item.structured_content == {"name": "tea", "price": 2.5}
            text = await session.call_tool("shop_text", {})
            assert text.structured_content == {"result": '{"result": "bare"}'}
            assert [getattr(block, "text", None) for block in text.content] == ['{"result": "bare"}']


def test_several_values_are_numbered() -> None:
    spec = OperationSpec(name="two", values=2)
    written = plain.write(local_envelope([1, "a"], ""), spec)
    assert written == {"result0": 1, "result1": "a"}
    assert plain.shape(local_envelope([1, "a"], ""), spec) == "result"
    assert plain.read(written).data == [1, "a"]


def test_a_line_of_a_stream_is_never_taken_for_its_end() -> None:
    lines = over_http(ops, "shop.ticks", "plain", {}, accept="application/x-ndjson").body
    assert lines == [{"result": {"complete": True}}, {"result": 2}, {"result": 3}, {"complete": True}]


def test_the_document_describes_every_line_of_a_stream() -> None:
    document = to_openapi(ops, format="plain")
    content = document["paths"]["/functions/shop.ticks"]["post"]["responses"]["200"]["content"]
    schema = {**content["application/x-ndjson"]["schema"], "components": document["components"]}
    for line in over_http(ops, "shop.ticks", "plain", {}, accept="application/x-ndjson").body:
        jsonschema_rs.validate(schema, line)


def test_curl_chooses_the_format_and_reads_how_the_value_was_written() -> None:
    with serve(to_http(ops)) as server:
        for name, body, shape in (
            ("item", {"name": "tea", "price": 2.5}, "object"),
            ("wrapped_looking", {"result": 1}, "object"),
            ("number", {"result": 1}, "result"),
        ):
            url = f"http://127.0.0.1:{server.port}/functions/shop.{name}"
            done = subprocess.run(
                ["curl", "--silent", "--include", "--header", "Enfold-Format: plain", url],
                capture_output=True,
                text=True,
                check=True,
            )
            head, _, answered = done.stdout.partition("\n\n")
            assert json.loads(answered) == body
            assert {"enfold-format: plain", f"enfold-shape: {shape}"} <= set(head.lower().splitlines())


def test_a_collected_stream_is_one_wrapped_list() -> None:
    told = over_mcp(ops, "shop.ticks", "plain").body
    assert told["structured"] == {"result": [{"complete": True}, 2, {"result": 3}]}


def test_a_failure_is_written_as_in_format_result() -> None:
    seen = over_http(ops, "shop.perhaps", "plain", {"found": "what"})
    assert (seen.status, list(seen.body)) == (400, ["error"])
    assert "enfold-shape" not in seen.headers


def test_a_shape_that_does_not_fit_is_refused() -> None:
    with pytest.raises(FormatError):
        plain.read({"name": "tea"}, "result")
    with pytest.raises(FormatError):
        plain.read([1])


def test_text_without_an_advertised_schema_has_no_structure() -> None:
    bare = OperationRegistry("shop")

    @bare.query(meta={"advertise_output": False})
    def words() -> str:
        return "hello"

    async def call() -> Any:
        return await Client(to_mcp(bare, format="plain"), STATELESS).call("shop.words")

    result = asyncio.run(call())
    assert result["content"] == [{"type": "text", "text": "hello"}]
    assert "structuredContent" not in result
