"""Servers of both protocol generations behind one gateway, over HTTP with its document and over MCP with the SDK's client."""

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx2
import pytest
from tests.waiting import PATIENCE

from mcp import Client, types

Open = Callable[..., AbstractAsyncContextManager[Any]]


async def accept(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"name": "Ann"})


def text(result: types.CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return block.text


async def test_every_tool_of_every_server_is_an_http_operation_with_its_document(gateway: Open) -> None:
    async with gateway() as open_gateway, httpx2.AsyncClient(base_url=open_gateway.url) as client:
        document = (await client.get("/openapi.json")).json()
        old = await client.post("/functions/old.add", json={"x": 1, "y": 2})
        both = await client.post("/functions/both.add", json={"x": 20, "y": 22})
    assert {"/functions/old.add", "/functions/both.add"} <= document["paths"].keys()
    assert (old.json(), both.json()) == ({"result": {"sum": 3}}, {"result": {"sum": 42}})


async def test_a_server_that_is_down_is_shown_and_does_not_stop_the_others(gateway: Open) -> None:
    async with gateway() as open_gateway:
        assert {state.name: state.state for state in open_gateway.registry.services.sources} == {
            "old": "up",
            "new": "up",
            "both": "up",
            "down": "down",
        }


async def test_one_endpoint_has_the_tools_prompts_and_resources_of_all(gateway: Open, era: Any) -> None:
    async with gateway() as open_gateway, Client(open_gateway.mcp, mode=era) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        prompts = [prompt.name for prompt in (await client.list_prompts()).prompts]
        resources = [str(resource.uri) for resource in (await client.list_resources()).resources]
        contents = (await client.read_resource("note://by/ann")).contents
    assert {"old_add", "both_add", "both_near"} <= tools.keys()
    assert tools["both_add"].output_schema == {
        "type": "object",
        "properties": {"sum": {"type": "integer"}},
        "required": ["sum"],
    }
    assert (prompts, resources) == (["both_weather"], ["note://first"])
    assert isinstance(contents[0], types.TextResourceContents)
    assert contents[0].text == "text of note://by/ann"


@pytest.mark.parametrize("tool", ["old_add", "both_add"])
async def test_a_result_is_passed_on_with_its_own_content_and_structure(gateway: Open, era: Any, tool: str) -> None:
    async with gateway() as open_gateway, Client(open_gateway.mcp, mode=era) as client:
        result = await client.call_tool(tool, {"x": 20, "y": 22})
    assert (result.structured_content, result.is_error) == ({"sum": 42}, False)


async def test_a_result_that_does_not_fit_reaches_a_client_that_checks(gateway: Open, era: Any) -> None:
    async with gateway() as open_gateway, Client(open_gateway.mcp, mode=era) as client:
        result = await client.call_tool("old_misfit", {})
    assert result.structured_content == {"sum": 42}


async def test_an_error_result_stays_one(gateway: Open, era: Any) -> None:
    async with gateway() as open_gateway, Client(open_gateway.mcp, mode=era) as client:
        result = await client.call_tool("old_failed", {})
    assert (result.is_error, text(result)) == (True, "It is raining")


@pytest.mark.parametrize("tool", ["old_steps", "both_steps"])
async def test_progress_passes_through(gateway: Open, era: Any, tool: str) -> None:
    heard: list[tuple[float, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, message))

    async with gateway() as open_gateway, Client(open_gateway.mcp, mode=era) as client:
        await client.call_tool(tool, {}, progress_callback=hear)
    assert heard == [(1, "step 1"), (2, "step 2")]


async def test_a_question_of_a_server_of_both_eras_reaches_the_client(gateway: Open, era: Any) -> None:
    async with gateway() as open_gateway, Client(open_gateway.mcp, mode=era, elicitation_callback=accept) as client:
        assert text(await client.call_tool("both_ask", {})) == "accept: Ann"


async def test_a_question_of_an_older_server_reaches_the_client_and_its_tool_runs_only_once(
    gateway: Open, era: Any
) -> None:
    async with gateway() as open_gateway:
        async with Client(open_gateway.mcp, mode=era, elicitation_callback=accept) as client:
            answer = json.loads(text(await client.call_tool("old_mark_and_ask", {})))
        assert answer == {"action": "accept", "content": {"name": "Ann"}}
        assert open_gateway.marks.read_text() == "ran\n"


async def test_a_question_of_an_older_server_is_declined_when_its_call_is_ambiguous(gateway: Open) -> None:
    """On the standard streams a question does not say to which call it belongs."""
    async with (
        gateway() as open_gateway,
        Client(open_gateway.mcp, mode="legacy", elicitation_callback=accept) as ann,
        Client(open_gateway.mcp, mode="legacy") as bob,
    ):
        hung = asyncio.create_task(bob.call_tool("old_hang", {}))
        await bob.call_tool("old_add", {"x": 1, "y": 2})
        answer = json.loads(text(await ann.call_tool("old_ask", {})))
        hung.cancel()
        await asyncio.wait({hung})
    assert "error" in answer


async def test_a_client_that_gives_up_ends_the_call_at_the_server(gateway: Open, era: Any) -> None:
    async with gateway() as open_gateway, Client(open_gateway.mcp, mode=era) as client:
        call = asyncio.create_task(client.call_tool("old_hang", {}))
        await client.call_tool("old_add", {"x": 1, "y": 2})
        call.cancel()
        await asyncio.wait({call})
        told: Any = {"cancelled": []}
        while not told["cancelled"]:  # the news is on its way, and each call gives it time
            told = (await client.call_tool("old_told", {})).structured_content
    assert len(told["cancelled"]) == 1


async def test_a_server_that_is_restarted_in_mid_run_is_there_for_the_next_call(gateway: Open) -> None:
    async with gateway() as open_gateway, Client(open_gateway.mcp) as client:
        died = await client.call_tool("old_die", {})
        assert (died.is_error, "exit code 3" in text(died)) == (True, True)
        after, beside = await asyncio.gather(
            client.call_tool("old_add", {"x": 1, "y": 2}), client.call_tool("both_add", {"x": 1, "y": 1})
        )
    assert (after.structured_content, beside.structured_content) == ({"sum": 3}, {"sum": 2})


@pytest.mark.parametrize("killed", ["old", "new"])
async def test_while_one_server_is_restarted_the_others_continue_for_clients_of_both_eras(
    gateway: Open, killed: str
) -> None:
    """Servers of different eras at once, and one of them dies in the midst of everybody's calls."""

    async def call_often(client: Client, server: str) -> list[Any]:
        results = [await client.call_tool(f"{server}_add", {"x": 20, "y": 22}) for _ in range(20)]
        return [(result.is_error, result.structured_content) for result in results]

    async with (
        gateway() as open_gateway,
        Client(open_gateway.mcp, mode="legacy") as older,
        Client(open_gateway.mcp, mode="2026-07-28") as newest,
    ):
        others = [server for server in ("old", "new", "both") if server != killed]
        going_on = [call_often(client, server) for client in (older, newest) for server in others]
        hit = [call_often(client, killed) for client in (older, newest)]
        died, *results = await asyncio.gather(newest.call_tool(f"{killed}_die", {}), *going_on, *hit)
        after = [await call_often(client, killed) for client in (older, newest)]
    good = (False, {"sum": 42})
    assert died.is_error
    assert results[: len(going_on)] == [[good] * 20] * 4
    # Calls in flight may be lost, and fail with that reason; every call is answered.
    assert [each for calls in results[len(going_on) :] for each in calls if each not in (good, (True, None))] == []
    assert after == [[good] * 20] * 2


async def test_a_change_of_a_servers_list_reaches_the_clients_list(gateway: Open) -> None:
    async with gateway() as open_gateway, Client(open_gateway.mcp) as client:
        changed = asyncio.Event()
        stop = open_gateway.registry.watch(lambda: changed.set() if "old.plus" in open_gateway.registry else None)
        await client.call_tool("old_grow", {"name": "plus"})
        await asyncio.wait_for(changed.wait(), PATIENCE)
        stop()
        names = {tool.name for tool in (await client.list_tools()).tools}
    assert "old_plus" in names
    assert "old_hang" not in names
