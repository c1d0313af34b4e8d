"""Notifications of servers pass through the gateway: changes of resources, progress and log messages, in all revisions."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client.subscriptions import ResourceUpdated, ToolsListChanged
from tests.waiting import PATIENCE

from mcp import Client, StdioServerParameters, types

# The SDK warns of what is gone from the newest revision, and what older servers and clients still speak.
pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")

SERVERS = Path(__file__).parents[1] / "sources/mcp"

Open = Callable[..., AbstractAsyncContextManager[Any]]

# A resource of each server, and the tool that changes it.
NOTES = pytest.mark.parametrize(("uri", "touch"), [("memo://old", "old_touch"), ("note://first", "both_touch")])


class News:
    """The URIs of the changes that a client is notified of, in any revision."""

    def __init__(self) -> None:
        self._uris: asyncio.Queue[str] = asyncio.Queue()

    async def hear(self, message: Any) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            self._uris.put_nowait(str(message.params.uri))

    async def take_all(self, subscription: Any) -> None:
        async for event in subscription:
            if isinstance(event, ResourceUpdated):
                self._uris.put_nowait(event.uri)

    async def next(self) -> str:
        async with asyncio.timeout(PATIENCE):
            return await self._uris.get()


@asynccontextmanager
async def following(url: str | StdioServerParameters, era: Any, uri: str) -> AsyncIterator[tuple[Client, News]]:
    """A client that follows a resource, in the way of its era."""
    news = News()
    async with Client(url, mode=era, message_handler=news.hear if era == "legacy" else None) as client:
        if era == "legacy":
            await client.subscribe_resource(uri)
            yield client, news
            await client.unsubscribe_resource(uri)
            return
        async with client.listen(resource_subscriptions=[uri]) as subscription:
            assert subscription.honored.resource_subscriptions == [uri]
            reading = asyncio.create_task(news.take_all(subscription))
            yield client, news
            reading.cancel()
            await asyncio.wait({reading})


@NOTES
async def test_a_change_of_a_resource_reaches_who_follows_it(gateway: Open, era: Any, uri: str, touch: str) -> None:
    async with gateway("--notes") as open_gateway, following(open_gateway.mcp, era, uri) as (client, news):
        for _ in range(2):
            await client.call_tool(touch, {})
            assert await news.next() == uri
            if uri.startswith("memo"):
                assert await news.next() == f"{uri}/margin"


async def test_a_server_is_asked_once_for_what_many_follow_and_let_go_by_the_last(gateway: Open, era: Any) -> None:
    async def followed(client: Client) -> Any:
        return (await client.call_tool("old_touch", {})).structured_content

    async with gateway("--notes") as open_gateway, Client(open_gateway.mcp, mode=era) as other:
        async with (
            following(open_gateway.mcp, "legacy", "memo://old") as (_, older),
            following(open_gateway.mcp, "2026-07-28", "memo://old") as (client, newest),
        ):
            assert await followed(client) == {"followed": ["memo://old"]}
            assert (await older.next(), await newest.next()) == ("memo://old", "memo://old")
        while await followed(other) != {"followed": []}:  # that both have left is on its way, and each call gives time
            pass


async def test_clients_get_no_notifications_of_resources_they_do_not_follow(gateway: Open, era: Any) -> None:
    async with gateway("--notes") as open_gateway, following(open_gateway.mcp, era, "memo://old") as (client, news):
        await client.call_tool("both_touch", {})
        await client.call_tool("old_touch", {})
        assert await news.next() == "memo://old"


async def test_subscriptions_survive_a_restart_of_the_server(gateway: Open, era: Any) -> None:
    async with gateway("--notes") as open_gateway, following(open_gateway.mcp, era, "memo://old") as (client, news):
        await client.call_tool("old_die", {})
        told = await client.call_tool("old_touch", {})
        assert told.structured_content == {"followed": ["memo://old"]}
        assert await news.next() == "memo://old"


async def test_over_http_the_changes_of_a_resource_are_a_stream(gateway: Open) -> None:
    async with gateway("--notes") as open_gateway, httpx2.AsyncClient(base_url=open_gateway.url) as client:
        query = {"uri": "memo://old"}
        async with client.stream("GET", "/functions/old.resources.updates", params=query) as changes:
            lines = (line async for line in changes.aiter_lines() if line.startswith("data:"))
            first = await anext(lines)
            await client.post("/functions/old.touch", json={})
            second = await anext(lines)
    assert (first, second) == ('data: {"result":{"uri":"memo://old"}}', 'data: {"result":{"uri":"memo://old"}}')


async def test_a_resource_that_is_not_there_cannot_be_followed(gateway: Open) -> None:
    async with gateway("--notes") as open_gateway:
        async with Client(open_gateway.mcp) as client, client.listen(resource_subscriptions=["memo://no"]) as nothing:
            assert nothing.honored.resource_subscriptions is None
        async with Client(open_gateway.mcp, mode="legacy") as client:
            with pytest.raises(Exception, match="Resource not found"):
                await client.subscribe_resource("memo://no")


async def test_a_changed_list_is_notified_even_if_it_looks_the_same(gateway: Open) -> None:
    async with gateway() as open_gateway, Client(open_gateway.mcp) as client:
        await client.call_tool("old_grow", {"name": "plus"})
        async with asyncio.timeout(PATIENCE), client.listen(tools_list_changed=True) as subscription:
            await client.call_tool("old_grow", {"name": "plus"})
            assert await anext(aiter(subscription)) == ToolsListChanged()


@pytest.mark.parametrize("tool", ["old_mutter", "both_mutter"])
@pytest.mark.parametrize(("level", "heard"), [("debug", ["a debug", "a warning"]), ("warning", ["a warning"])])
async def test_log_messages_come_from_the_level_on_that_the_client_wants(
    gateway: Open, era: Any, tool: str, level: Any, heard: list[str]
) -> None:
    told: list[Any] = []

    async def hear(params: types.LoggingMessageNotificationParams) -> None:
        told.append(params.data)

    async with (
        gateway() as open_gateway,
        Client(open_gateway.mcp, mode=era, logging_callback=hear, log_level=level) as client,
    ):
        if era == "legacy":
            await client.set_logging_level(level)
        await client.call_tool(tool, {})
    assert told == heard


async def test_on_the_standard_streams_a_gateway_passes_on_the_same(era: Any, tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    servers = {"old": {"command": sys.executable, "args": [str(SERVERS / "little_server.py"), "--notes"]}}
    config.write_text(json.dumps({"mcpServers": servers}))
    gateway = StdioServerParameters(command=sys.executable, args=["-m", "enfold", "mcp", str(config)])
    async with following(gateway, era, "memo://old") as (client, news):
        await client.call_tool("old_touch", {})
        assert await news.next() == "memo://old"
