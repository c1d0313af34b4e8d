"""How operations are listed as tools."""

from __future__ import annotations

from collections.abc import AsyncIterator
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

from enfold import ImageContent, OperationRegistry, OperationSpec, TextContent
from enfold.auth.tokens import Tokens
from enfold.operations import Operation
from enfold.schema.json_pointer import follow
from enfold.surfaces.openapi import to_openapi

if TYPE_CHECKING:
    from tests.surfaces.mcp.conftest import MakeClient


async def listed(
    make_client: MakeClient, ops: OperationRegistry, revision: str, **options: Any
) -> list[dict[str, Any]]:
    client = make_client(ops, revision, **options)
    tools: list[dict[str, Any]] = (await client.result("tools/list"))["tools"]
    return tools


async def test_a_tool_has_a_name_every_client_accepts(
    make_client: MakeClient, ops: OperationRegistry, revision: str
) -> None:
    @ops.query(title="Sum")
    def add(x: int, y: int) -> int:
        """Add two numbers."""
        return x + y

    [tool] = await listed(make_client, ops, revision)
    assert (tool["name"], tool["title"], tool["description"]) == ("shop_add", "Sum", "Add two numbers.")


async def test_tools_can_be_listed_by_their_ids(make_client: MakeClient, ops: OperationRegistry) -> None:
    ops.query(name="add")(lambda: 1)
    [tool] = await listed(make_client, ops, "2026-07-28", tool_names="id")
    assert tool["name"] == "shop.add"


async def test_names_that_would_clash_get_a_hash_of_their_ids(make_client: MakeClient) -> None:
    ops = OperationRegistry()
    ops.query(namespace="a.b", name="c")(lambda: 1)
    ops.query(namespace="a", name="b_c")(lambda: 2)
    names = [tool["name"] for tool in await listed(make_client, ops, "2026-07-28")]
    assert names == [f"a_b_c_{sha256(own.encode()).hexdigest()[:8]}" for own in ("a.b.c", "a.b_c")]
    client = make_client(ops)
    assert [(await client.call(name))["structuredContent"]["result"] for name in names] == [1, 2]


HINTS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("query", {}, {"readOnlyHint": True}),
    ("mutation", {}, {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": False}),
    (
        "mutation",
        {"destructive": True, "idempotent": True},
        {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True},
    ),
]


@pytest.mark.parametrize(("type", "options", "hints"), HINTS, ids=["query", "mutation", "destructive"])
async def test_hints_tell_what_a_tool_does(
    make_client: MakeClient, ops: OperationRegistry, type: str, options: dict[str, Any], hints: dict[str, Any]
) -> None:
    ops.register(lambda: 1, name="work", type=type, **options)
    [tool] = await listed(make_client, ops, "2026-07-28")
    assert tool["annotations"] == hints


async def test_schemas_are_kept_whole(make_client: MakeClient, ops: OperationRegistry, revision: str) -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {"place": {"$anchor": "place", "type": "string"}},
        "properties": {"to": {"$ref": "#/$defs/place"}},
        "if": {"required": ["to"]},
        "then": {"minProperties": 1},
    }
    ops.register(Operation(OperationSpec(name="go", input_schema=schema), lambda *given: given[0]))
    [tool] = await listed(make_client, ops, revision)
    assert tool["inputSchema"] == schema


async def test_the_output_schema_is_that_of_the_openapi_document(
    make_client: MakeClient, ops: OperationRegistry, revision: str
) -> None:
    @ops.query
    def pair() -> tuple[int, str]:
        return 1, "a"

    [tool] = await listed(make_client, ops, revision)
    document = to_openapi(ops)
    responses = document["paths"]["/functions/shop.pair"]["post"]["responses"]
    reference = responses["200"]["content"]["application/json"]["schema"]["$ref"]
    assert tool["outputSchema"] == follow(document, reference[1:])


async def test_a_stream_is_listed_as_a_list_of_its_items(make_client: MakeClient, ops: OperationRegistry) -> None:
    @ops.subscription
    async def ticks() -> AsyncIterator[int]:
        yield 1

    [tool] = await listed(make_client, ops, "2026-07-28")
    assert tool["outputSchema"]["properties"]["result"] == {"type": "array", "items": {"type": "integer"}}


async def test_a_source_may_keep_its_output_schema_to_itself(make_client: MakeClient, ops: OperationRegistry) -> None:
    ops.query(name="add", meta={"advertise_output": False})(lambda: 1)
    [tool] = await listed(make_client, ops, "2026-07-28")
    assert "outputSchema" not in tool


async def test_older_clients_see_only_fields_they_know(make_client: MakeClient, ops: OperationRegistry) -> None:
    ops.query(name="add", title="Sum")(lambda: 1)
    [oldest] = await listed(make_client, ops, "2024-11-05")
    [middle] = await listed(make_client, ops, "2025-03-26")
    assert oldest.keys() == {"name", "description", "inputSchema"}
    assert middle.keys() == {"name", "description", "inputSchema", "annotations"}


async def test_a_long_list_is_split_into_pages(make_client: MakeClient, ops: OperationRegistry, revision: str) -> None:
    for number in range(5):
        ops.query(name=f"tool{number}")(lambda: 1)
    client = make_client(ops, revision, page_size=2)
    names, cursor = [], None
    for _ in range(3):
        page = await client.result("tools/list", {} if cursor is None else {"cursor": cursor})
        names += [tool["name"] for tool in page["tools"]]
        cursor = page.get("nextCursor")
    assert names == [f"shop_tool{number}" for number in range(5)]
    assert cursor is None


async def test_an_unknown_cursor_is_refused(make_client: MakeClient, ops: OperationRegistry, revision: str) -> None:
    answer = await make_client(ops, revision).ask("tools/list", {"cursor": "nowhere"})
    assert answer["error"]["code"] == -32602


async def test_a_caller_sees_only_what_he_may_call(
    make_client: MakeClient, ops: OperationRegistry, tokens: Tokens, revision: str
) -> None:
    ops.query(name="read")(lambda: 1)
    ops.mutation(name="write", access={"required_scopes": ["write"]})(lambda: 1)
    ann = make_client(ops, revision, "ann-token", tokens=tokens)
    bob = make_client(ops, revision, "bob-token", tokens=tokens)
    assert [tool["name"] for tool in (await ann.result("tools/list"))["tools"]] == ["shop_read", "shop_write"]
    assert [tool["name"] for tool in (await bob.result("tools/list"))["tools"]] == ["shop_read"]


async def test_a_list_that_differs_by_caller_is_private(make_client: MakeClient, ops: OperationRegistry) -> None:
    client = make_client(ops, ttl_ms=5000)
    ops.query(name="read")(lambda: 1)
    first = await client.result("tools/list")
    ops.mutation(name="write", access={"required_scopes": ["write"]})(lambda: 1)
    second = await client.result("tools/list")
    assert (first["cacheScope"], first["ttlMs"]) == ("public", 5000)
    assert (second["cacheScope"], second["ttlMs"]) == ("private", 5000)


async def test_a_handshake_has_no_caching_hints(make_client: MakeClient, ops: OperationRegistry) -> None:
    assert (await make_client(ops, "2025-11-25").result("tools/list")).keys() == {"tools"}


@pytest.mark.parametrize(
    ("returned", "is_advertised"),
    [
        pytest.param(ImageContent, False, id="a block"),
        pytest.param(list[TextContent | ImageContent], False, id="blocks of several kinds"),
        pytest.param(tuple[TextContent, ...], False, id="any number of blocks"),
        pytest.param(ImageContent | None, True, id="perhaps a block"),
        pytest.param(list[TextContent | int], True, id="blocks and numbers"),
        pytest.param(list[int], True, id="numbers"),
        pytest.param(Any, True, id="anything"),
    ],
)
async def test_a_tool_that_gives_only_content_advertises_no_structure(
    make_client: MakeClient, ops: OperationRegistry, revision: str, returned: Any, is_advertised: bool
) -> None:
    async def give() -> Any: ...

    give.__annotations__["return"] = returned
    ops.query(give)
    [tool] = await listed(make_client, ops, revision)
    assert ("outputSchema" in tool) == is_advertised


async def test_the_bytes_of_a_page_are_limited(make_client: MakeClient, ops: OperationRegistry, revision: str) -> None:
    """Tools of a large document may each bring hundreds of schemas."""
    sizes = {"small": 10, "huge": 5_000, "large": 600, "middle": 600, "last": 600}
    for name, size in sizes.items():
        ops.query(name=name, description="x" * size)(lambda: 1)
    client = make_client(ops, revision, page_bytes=2_000)
    pages, cursor = [], None
    while True:
        page = await client.result("tools/list", {} if cursor is None else {"cursor": cursor})
        pages.append([tool["name"] for tool in page["tools"]])
        cursor = page.get("nextCursor")
        if cursor is None:
            break
    assert pages == [["shop_small"], ["shop_huge"], ["shop_large", "shop_middle"], ["shop_last"]]


async def test_an_operation_without_a_handler_is_not_there(make_client: MakeClient) -> None:
    ops = OperationRegistry("shop")
    ops.register_spec(OperationSpec(name="later", namespace="shop"))
    ops.register(lambda: 1, name="now")
    client = make_client(ops)
    assert [tool["name"] for tool in await listed(make_client, ops, "2026-07-28")] == ["shop_now"]
    answer = await client.begin("tools/call", {"name": "shop_later"}).json()
    assert answer["error"]["code"] == -32602
    ops.register_handler("shop.later", lambda *_: 2)
    assert (await client.call("shop_later", {}))["structuredContent"] == {"result": 2}
