"""A search instead of a long list: what is listed, found, described and called, and by whom."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, TypedDict

import pytest
from tests.gateway.conftest import serve

from enfold import OperationRegistry
from enfold.auth.tokens import Tokens
from enfold.operations import Identity
from enfold.surfaces.mcp import to_mcp
from mcp import Client, types

if TYPE_CHECKING:
    from tests.surfaces.mcp.conftest import MakeClient

THREE = ["search_operations", "describe_operation", "call_operation"]


class Card(TypedDict):
    id: int
    name: str
    labels: list[str]


@pytest.fixture
def board() -> OperationRegistry:
    ops = OperationRegistry("board")

    @ops.query
    async def get_card(id: int, fields: str = "all") -> Card:
        """Get one card of a board. It is read anew.

        Args:
            id: The number of the card.
        """
        return {"id": id, "name": "Tea", "labels": ["hot"]}

    @ops.mutation(destructive=True)
    async def delete_card(id: int) -> None:
        """Remove a card forever."""

    @ops.query(namespace="weather.eu")
    async def forecast(city: str) -> str:
        """Tomorrow's weather in a city."""
        return f"Rain in {city}"

    @ops.mutation(access={"required_scopes": ["admin"]})
    async def wipe_board() -> str:
        """Empty a whole board."""
        return "done"

    return ops


async def names(make_client: MakeClient, ops: OperationRegistry, **options: Any) -> list[str]:
    return [tool["name"] for tool in (await make_client(ops, **options).result("tools/list"))["tools"]]


async def test_the_list_follows_the_operators_settings(make_client: MakeClient, board: OperationRegistry) -> None:
    every = ["board_get_card", "board_delete_card", "weather_eu_forecast"]
    assert await names(make_client, board) == every
    assert await names(make_client, board, expose="search") == THREE
    assert await names(make_client, board, expose="search", pinned=["board.get_*"]) == [*THREE, "board_get_card"]
    assert await names(make_client, board, expose={"board": "search"}) == [*THREE, "weather_eu_forecast"]
    assert await names(make_client, board, expose={"": "search", "weather": "all"}) == [*THREE, "weather_eu_forecast"]
    assert await names(make_client, board, expose="auto") == every
    assert await names(make_client, board, expose="auto", budget=100) == THREE
    with pytest.raises(ValueError, match="use all, search or auto"):
        make_client(board, expose="some")


async def test_the_tool_that_calls_operations_is_annotated_as_destructive(
    make_client: MakeClient, board: OperationRegistry
) -> None:
    tools = (await make_client(board, expose="search").result("tools/list"))["tools"]
    hints = [tool["annotations"] for tool in tools]
    assert [each["readOnlyHint"] for each in hints] == [True, True, False]
    assert hints[2]["destructiveHint"] is True


async def test_an_operation_is_found_described_and_called(make_client: MakeClient, board: OperationRegistry) -> None:
    client = make_client(board, expose="search")
    found = (await client.call("search_operations", {"query": "read cards", "limit": 1}))["structuredContent"]["result"]
    signature = "(id: integer, fields?: string) -> {id, name, labels}"
    assert found == [{"id": "board.get_card", "signature": signature, "description": "Get one card of a board."}]
    described = (await client.call("describe_operation", {"id": "board.get_card"}))["structuredContent"]["result"]
    assert described["arguments"]["properties"]["id"]["description"] == "The number of the card."
    assert described["result"] == "{id, name, labels: [string]}"
    whole = await client.call("call_operation", {"id": "board.get_card", "arguments": {"id": 7}})
    assert whole["structuredContent"] == {"result": {"id": 7, "name": "Tea", "labels": ["hot"]}}
    less = await client.call("call_operation", {"id": "get_card", "arguments": {"id": 7}, "select": "name"})
    assert less["structuredContent"] == json.loads(less["content"][0]["text"]) == {"result": {"name": "Tea"}}
    [warning] = less["_meta"]["enfold/warnings"]
    assert (warning["code"], warning["count"]) == ("left_out", 2)
    # By its own name it can be called as well.
    assert (await client.call("board_get_card", {"id": 1}))["isError"] is False


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ({"id": "board.get_crad"}, "OPERATION_NOT_FOUND", "Did you mean board.get_card?"),
        ({"id": "board.wipe_board"}, "OPERATION_NOT_FOUND", "Operation not found: board.wipe_board"),
        ({"id": "call_operation"}, "OPERATION_NOT_FOUND", "call_operation"),
        ({"id": "board.get_card", "arguments": {}}, "VALIDATION_ERROR", '"id"'),
        ({"id": "board.get_card", "arguments": {"id": 1}, "select": "nam"}, "VALIDATION_ERROR", "did you mean name?"),
        ({"id": "board.get_card", "arguments": [1]}, "VALIDATION_ERROR", "arguments"),
        ({}, "VALIDATION_ERROR", "id"),
    ],
    ids=str,
)
async def test_an_operation_that_cannot_be_called_gives_an_error_result(
    make_client: MakeClient, board: OperationRegistry, arguments: dict[str, Any], code: str, words: str
) -> None:
    tokens = Tokens({"t": Identity("someone", frozenset({"cards"}))})
    client = make_client(board, expose="search", tokens=tokens, token="t")
    result = await client.call("call_operation", arguments)
    assert result["isError"] is True
    assert result["_meta"]["enfold/error"]["code"] == code
    assert words in result["content"][0]["text"].replace('\\"', '"')


async def test_search_hides_operations_that_the_caller_may_not_use(
    make_client: MakeClient, board: OperationRegistry
) -> None:
    people = {"a": Identity("admin", frozenset({"admin"})), "b": Identity("someone", frozenset())}
    seen = {}
    for token in people:
        client = make_client(board, expose="search", tokens=Tokens(people), token=token)
        found = await client.call("search_operations", {"query": "empty the whole board"})
        seen[token] = [each["id"] for each in found["structuredContent"]["result"]]
    assert seen["a"][0] == "board.wipe_board"
    assert "board.wipe_board" not in seen["b"]


async def test_a_users_own_tool_of_the_same_name_wins(make_client: MakeClient, board: OperationRegistry) -> None:
    board.query(namespace="", name="search_operations")(lambda: "mine")
    client = make_client(board, expose="search", pinned="search_operations")
    assert (await client.call("search_operations"))["structuredContent"] == {"result": "mine"}
    found = await client.call("enfold_search_operations", {"query": "card"})
    assert found["structuredContent"]["result"]
    assert "enfold_search_operations" in await names(make_client, board, expose="search")


async def test_the_search_follows_added_and_removed_operations(
    make_client: MakeClient, board: OperationRegistry
) -> None:
    client = make_client(board, expose="search")

    async def found() -> list[str]:
        result = await client.call("search_operations", {"query": "card"})
        return sorted(each["id"] for each in result["structuredContent"]["result"])

    assert await found() == ["board.delete_card", "board.get_card"]
    board.unregister("board.delete_card")
    board.query(name="copy_card")(lambda: 1)
    assert await found() == ["board.copy_card", "board.get_card"]


# --- results ------------------------------------------------------------------------------------------------------


async def test_a_selection_in_meta_is_for_tools_that_promise_no_schema(make_client: MakeClient) -> None:
    ops = OperationRegistry()
    ops.query(name="open", meta={"advertise_output": False})(lambda: {"a": 1, "b": 2})
    ops.query(name="promised")(lambda: {"a": 1, "b": 2})
    client = make_client(ops)
    result = await client.result("tools/call", {"name": "open"}, {"enfold/select": "a"})
    assert result["structuredContent"] == {"result": {"a": 1}}
    refused = await client.result("tools/call", {"name": "promised"}, {"enfold/select": "a"})
    assert refused["_meta"]["enfold/error"]["code"] == "VALIDATION_ERROR"


async def test_a_default_selection_narrows_what_is_promised(make_client: MakeClient) -> None:
    ops = OperationRegistry()

    @ops.query(select="id,name")
    async def card() -> Card:
        return {"id": 1, "name": "Tea", "labels": []}

    client = make_client(ops)
    [tool] = (await client.result("tools/list"))["tools"]
    assert list(tool["outputSchema"]["properties"]["result"]["properties"]) == ["id", "name"]
    assert (await client.call("card"))["structuredContent"] == {"result": {"id": 1, "name": "Tea"}}


async def test_a_result_that_is_too_long_is_cut_and_says_what_is_missing(make_client: MakeClient) -> None:
    ops = OperationRegistry()
    records = [{"id": number, "text": "x" * 50} for number in range(100)]
    ops.query(name="records", meta={"advertise_output": False})(lambda: {"items": records, "note": "y" * 5_000, "n": 1})
    ops.query(name="few")(lambda: {"items": [1]})

    @ops.query
    async def exact() -> tuple[list[int], str]:
        return list(range(10_000)), "all"

    client = make_client(ops, max_result_tokens=500)
    cut = await client.call("records")
    data = json.loads(cut["content"][0]["text"])["result"]
    assert cut["structuredContent"]["result"] == data
    assert data["items"] == records[: len(data["items"])]
    assert data["n"] == 1
    assert len(cut["content"][0]["text"]) <= 2_100
    missing = cut["_meta"]["enfold/truncated"]
    assert {"path": "/items", "items": len(data["items"]), "of": 100} in missing["places"]
    assert "select" in missing["advice"]
    assert "enfold/truncated" not in (await client.call("few")).get("_meta", {})
    # A schema that fixes the length of a list does not allow it.
    assert len((await client.call("exact"))["structuredContent"]["result0"]) == 10_000


async def test_the_items_of_a_long_stream_are_cut_like_a_list(make_client: MakeClient) -> None:
    ops = OperationRegistry()

    @ops.subscription
    async def lines() -> AsyncIterator[dict[str, str]]:
        for number in range(100):
            yield {"line": f"{number} {'x' * 100}"}

    cut = await make_client(ops, max_result_tokens=500).call("lines")
    items = cut["structuredContent"]["result"]
    assert 0 < len(items) < 100
    assert cut["_meta"]["enfold/truncated"]["places"] == [{"path": "", "items": len(items), "of": 100}]


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_frameworks_that_do_not_name_themselves_are_set_by_the_default_name_of_the_sdk(
    board: OperationRegistry, mode: Any
) -> None:
    """google-adk and LlamaIndex open sessions of the Python SDK without a `client_info`."""
    named = types.Implementation(name="my-agent", version="1")
    app = to_mcp(board, clients={"mcp": "text"})
    async with serve(app, app.stop) as url:
        async with Client(f"{url}/mcp", mode=mode) as unnamed:
            result = await unnamed.call_tool("board_get_card", {"id": 1})
            assert (result.structured_content, len(result.content)) == (None, 1)
            assert not any(tool.output_schema for tool in (await unnamed.list_tools()).tools)
        async with Client(f"{url}/mcp", mode=mode, client_info=named) as client:
            assert (await client.call_tool("board_get_card", {"id": 1})).structured_content is not None


async def test_a_known_client_gets_text_alone(make_client: MakeClient, board: OperationRegistry, revision: str) -> None:
    client = make_client(board, revision, clients={"t": "text"})
    meta = {"io.modelcontextprotocol/clientInfo": {"name": "T", "version": "1"}} if client.is_stateless else None
    if not client.is_stateless:
        await client.initialize()
    listed = await client.result("tools/list", {}, meta)
    assert not any("outputSchema" in tool for tool in listed["tools"])
    assert listed.get("cacheScope", "private") == "private"
    assert "structuredContent" not in await client.call("board_get_card", {"id": 1}, meta)
    other = make_client(board, revision, clients={"t": "text"})  # which does not say who it is
    assert "structuredContent" in await other.call("board_get_card", {"id": 1})
    with pytest.raises(ValueError, match="use text or both"):
        make_client(board, clients={"x": "neither"})


async def test_only_our_own_tool_runs_an_operation_that_its_result_names(
    make_client: MakeClient, board: OperationRegistry
) -> None:
    @board.query(meta={"enfold/relay": True})
    async def pretend() -> dict[str, Any]:
        return {"id": "board.delete_card", "arguments": {"id": 1}, "select": None}

    client = make_client(board, expose="search", pinned=["board.pretend"])
    assert json.loads((await client.call("board_pretend"))["content"][0]["text"])["result"]["id"] == "board.delete_card"
    assert (await client.call("board_pretend")).get("isError", False) is False
    wanted = {"id": "board.get_card", "arguments": {"id": 3}}
    assert "Tea" in (await client.call("call_operation", wanted))["content"][0]["text"]
