"""Following the resources of a server: its changes as a stream, from the question to the parting."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import cast

import pytest

from enfold import CallError, OperationRegistry
from enfold.sources.mcp import MCPOperations, from_mcp
from enfold.sources.mcp.session import Session
from enfold.sources.mcp.subscriptions import ResourceSubscriptions
from enfold.sources.options import Selection

Little = Callable[..., list[str]]
MEMO = {"uri": "memo://old"}


def registry_of(operations: MCPOperations) -> OperationRegistry:
    ops = OperationRegistry()
    ops.register_all(operations)
    return ops


async def test_a_stream_begins_with_the_resource_and_continues_with_its_changes(little: Little) -> None:
    async with from_mcp(little("--notes")) as operations:
        ops = registry_of(operations)
        async with aclosing(ops.subscribe("resources.updates", MEMO)) as changes:
            told = [(await anext(changes)).data]
            await ops.execute("touch", {})
            told += [(await anext(changes)).data, (await anext(changes)).data]
    assert told == [MEMO, MEMO, {"uri": "memo://old/margin"}]


async def test_many_unread_changes_are_one(little: Little) -> None:
    async with from_mcp(little("--notes")) as operations:
        ops = registry_of(operations)
        async with aclosing(ops.subscribe("resources.updates", MEMO)) as changes:
            await anext(changes)
            for _ in range(5):
                await ops.execute("touch", {})
            told = [(await anext(changes)).data["uri"] for _ in range(2)]
            await ops.execute("touch", {})
            told.append((await anext(changes)).data["uri"])
    assert told == ["memo://old", "memo://old/margin", "memo://old"]


async def test_two_followers_do_not_unsubscribe_each_other(little: Little) -> None:
    async with from_mcp(little("--notes")) as operations:
        ops = registry_of(operations)
        async with aclosing(ops.subscribe("resources.updates", MEMO)) as stays:
            await anext(stays)
            async with aclosing(ops.subscribe("resources.updates", MEMO)) as leaves:
                await anext(leaves)
            assert (await ops.execute("touch", {})).data == {"followed": ["memo://old"]}
            assert (await anext(stays)).data == MEMO
        assert (await ops.execute("touch", {})).data == {"followed": []}


async def test_a_source_that_is_closed_ends_its_streams(little: Little) -> None:
    async with from_mcp(little("--notes"), namespace="pet") as operations:
        changes = registry_of(operations).subscribe("pet.resources.updates", MEMO)
        await anext(changes)
        waiting = asyncio.create_task(anext(changes))
        await asyncio.sleep(0)
    with pytest.raises(CallError) as caught:
        await waiting
    assert (caught.value.code, caught.value.message) == ("UNAVAILABLE", "The connection to pet has been closed")


async def test_after_a_death_the_server_is_asked_again_once(little: Little) -> None:
    async with from_mcp(little("--notes")) as operations:
        ops = registry_of(operations)
        async with aclosing(ops.subscribe("resources.updates", MEMO)) as changes:
            await anext(changes)
            with pytest.raises(CallError, match="exit code 3"):
                await ops.execute("die", {})
            async with aclosing(ops.subscribe("resources.updates", MEMO)) as another:
                await anext(another)
                assert (await anext(changes)).data == MEMO  # changes in between are unknown
                assert (await ops.execute("touch", {})).data == {"followed": ["memo://old"]}


async def test_a_server_without_subscriptions_has_no_such_operation(little: Little) -> None:
    async with from_mcp(little()) as operations:
        assert "resources.updates" not in registry_of(operations)


async def test_filters_leave_it_out_with_the_last_resource(little: Little) -> None:
    async with (
        from_mcp(little("--notes"), selection=Selection(include=["memo"])) as kept,
        from_mcp(little("--notes"), selection=Selection(include="add")) as not_kept,
    ):
        assert kept.report.imported == ["resources.memo", "resources.updates"]
        assert not_kept.report.imported == ["add"]


class SlowToLetGo:
    """A session of a server that takes its time to unsubscribe."""

    is_open = True

    def __init__(self) -> None:
        self.told: list[str] = []
        self.is_asked, self.may_let_go = asyncio.Event(), asyncio.Event()

    async def follow(self, uri: str) -> None:
        self.told.append(f"subscribed {uri}")

    async def unfollow(self, uri: str) -> None:
        self.is_asked.set()
        await self.may_let_go.wait()
        self.told.append(f"unsubscribed {uri}")


async def test_a_follower_that_joins_as_the_last_one_leaves_is_subscribed() -> None:
    session = SlowToLetGo()

    async def open_session() -> Session:
        return cast("Session", session)

    subscriptions = ResourceSubscriptions(open_session)
    leaves, comes = subscriptions.follow("memo://a"), subscriptions.follow("memo://a")
    await anext(leaves)
    leaving = asyncio.create_task(leaves.aclose())
    await session.is_asked.wait()
    coming = asyncio.create_task(anext(comes))
    for _ in range(5):
        await asyncio.sleep(0)
    session.may_let_go.set()
    await asyncio.gather(leaving, coming)
    assert session.told == ["subscribed memo://a", "unsubscribed memo://a", "subscribed memo://a"]
    await comes.aclose()
