"""Resources whose source reports their changes: it is asked once, told to all who follow, and let go by the last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting import PATIENCE, until

from enfold import CallError, OperationRegistry
from enfold.auth.tokens import Tokens
from enfold.surfaces.mcp.subscriptions import Following

if TYPE_CHECKING:
    from tests.surfaces.mcp.conftest import Client, MakeClient

STOCK = "shop://stock"


class Source:
    """Reports changes on command, and knows its listeners."""

    def __init__(self) -> None:
        self.followed: list[str] = []
        self.has_changed = asyncio.Condition()
        self._changed = ""

    async def change(self, uri: str = STOCK) -> None:
        async with self.has_changed:
            self._changed = uri
            self.has_changed.notify_all()

    async def follow(self, uri: str) -> AsyncIterator[dict[str, str]]:
        self.followed.append(uri)
        try:
            yield {"uri": uri}
            while True:
                async with self.has_changed:
                    await self.has_changed.wait()
                yield {"uri": self._changed}
        finally:
            self.followed.remove(uri)


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def ops(source: Source) -> OperationRegistry:
    """A resource that everybody may read, one for those who may write, and the operation that reports both."""
    ops = OperationRegistry("shop")
    ops.resource(STOCK, name="stock")(lambda: "3")
    ops.resource("shop://safe", name="safe", access={"required_scopes": ["write"]})(lambda: "1000")

    @ops.subscription(meta={"mcp": {"kind": "updates"}})
    async def updates(uri: str) -> AsyncIterator[dict[str, str]]:
        async for change in source.follow(uri):
            yield change

    return ops


async def next_message(events: Any) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        _, message = await anext(events)
    assert message is not None
    return dict(message)


async def follow_by_stream(client: Client, *uris: str) -> tuple[Any, Any]:
    """Follow in the way of the newest revision: the conversation, and its events after the first."""
    conversation = client.begin("subscriptions/listen", {"notifications": {"resourceSubscriptions": list(uris)}})
    events = conversation.answers()
    granted = (await next_message(events))["params"]["notifications"]
    assert granted == ({"resourceSubscriptions": list(uris)} if uris else {})
    return conversation, events


async def follow_in_session(client: Client, uri: str) -> Any:
    """Follow in the way of the older revisions: the events of the session's own stream."""
    await client.initialize()
    await client.result("resources/subscribe", {"uri": uri})
    events = client.get().answers()
    assert (await anext(events))[1] is None
    return events


async def let_go(source: Source) -> None:
    """Wait until the source has no listeners; one that is never released ends in a timeout."""
    await until(lambda: not source.followed)


async def test_followers_are_notified_in_the_form_of_their_revision(
    make_client: MakeClient, ops: OperationRegistry, source: Source
) -> None:
    newest = make_client(ops)
    older = type(newest)(newest.app, "2025-11-25")
    _, events = await follow_by_stream(newest, STOCK)
    news = await follow_in_session(older, STOCK)
    assert source.followed == [STOCK]
    await source.change()
    told = await next_message(events), await next_message(news)
    assert [(each["method"], each["params"]["uri"]) for each in told] == [
        ("notifications/resources/updated", STOCK)
    ] * 2
    newest.app.stop()
    await let_go(source)


async def test_a_change_of_a_part_is_notified_with_the_name_of_the_part(
    make_client: MakeClient, ops: OperationRegistry, source: Source
) -> None:
    client = make_client(ops)
    conversation, events = await follow_by_stream(client, STOCK)
    await source.change(f"{STOCK}/apples")
    assert (await next_message(events))["params"]["uri"] == f"{STOCK}/apples"
    conversation.leave()
    await let_go(source)


async def test_a_client_that_disconnects_unsubscribes(
    make_client: MakeClient, ops: OperationRegistry, source: Source
) -> None:
    client = make_client(ops)
    first, _ = await follow_by_stream(client, STOCK)
    second, events = await follow_by_stream(client, STOCK)
    first.leave()
    await first.task
    await source.change()
    assert (await next_message(events))["params"]["uri"] == STOCK
    second.leave()
    await let_go(source)


@pytest.mark.parametrize("way", ["unsubscribe", "delete"])
async def test_a_session_unsubscribes_on_request_and_when_it_ends(
    make_client: MakeClient, ops: OperationRegistry, source: Source, way: str
) -> None:
    client = make_client(ops, "2025-11-25")
    await follow_in_session(client, STOCK)
    await client.result("resources/subscribe", {"uri": STOCK})  # once more is not twice
    if way == "unsubscribe":
        await client.result("resources/unsubscribe", {"uri": STOCK})
    else:
        await client.send("DELETE").body()
    await let_go(source)


async def test_a_resource_that_may_not_be_read_cannot_be_followed(
    make_client: MakeClient, ops: OperationRegistry, source: Source, tokens: Tokens
) -> None:
    ann = make_client(ops, token="ann-token", tokens=tokens)
    conversation, _ = await follow_by_stream(ann, "shop://safe")
    await follow_by_stream(type(ann)(ann.app, "2026-07-28", "bob-token"))
    bob = type(ann)(ann.app, "2025-11-25", "bob-token")
    await bob.initialize()
    refused = await bob.ask("resources/subscribe", {"uri": "shop://safe"})
    unknown = await bob.ask("resources/subscribe", {"uri": "shop://nothing"})
    assert refused["error"]["code"] == unknown["error"]["code"] == -32002
    assert source.followed == ["shop://safe"]
    conversation.leave()
    await let_go(source)


async def test_a_source_that_is_gone_and_comes_back_is_followed_again(
    make_client: MakeClient, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enfold.surfaces.mcp.subscriptions.BACKOFF", (0.0,))
    ops = OperationRegistry("shop")
    ops.resource(STOCK, name="stock")(lambda: "3")
    breaks = iter([True, True, False])

    @ops.subscription(meta={"mcp": {"kind": "updates"}})
    async def updates(uri: str) -> AsyncIterator[dict[str, str]]:
        yield {"uri": uri}
        if next(breaks):
            raise CallError("UNAVAILABLE", "The shop is closed")
        async for change in source.follow(f"{uri}/again"):
            yield change

    conversation, events = await follow_by_stream(make_client(ops), STOCK)
    # Twice it has come back, and who knows what has happened meanwhile; then it follows for good.
    told = [(await next_message(events))["params"]["uri"] for _ in range(3)]
    assert told == [STOCK, STOCK, f"{STOCK}/again"]
    await source.change()
    assert (await next_message(events))["params"]["uri"] == STOCK
    conversation.leave()
    await let_go(source)


async def test_a_resource_that_its_source_cannot_follow_is_still_read(
    make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    ops = OperationRegistry("shop")
    ops.resource(STOCK, name="stock")(lambda: "3")

    @ops.subscription(meta={"mcp": {"kind": "updates"}})
    async def updates(uri: str) -> AsyncIterator[dict[str, str]]:
        if uri:
            raise CallError("UNAVAILABLE", "The shop is closed")
        yield {}

    client = make_client(ops)
    conversation, _ = await follow_by_stream(client, STOCK)
    assert (await client.result("resources/read", {"uri": STOCK}))["contents"][0]["text"] == "3"
    assert [record.getMessage() for record in caplog.records] == [f"{STOCK} cannot be followed: The shop is closed"]
    conversation.leave()
    await conversation.task


async def test_a_source_that_worked_in_between_is_tried_again_as_soon_as_one_lost_for_the_first_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("enfold.surfaces.mcp.subscriptions.BACKOFF", (0.0, 3600.0))
    ops = OperationRegistry("shop")

    @ops.subscription
    async def updates(uri: str) -> AsyncIterator[dict[str, str]]:
        yield {"uri": uri}  # and then it is lost

    updated: list[str] = []
    has_come_back_often = asyncio.Event()

    def hear(uri: str, _: str) -> None:
        updated.append(uri)
        if len(updated) == 5:
            has_come_back_often.set()

    following = Following(ops, hear)
    await following.follow(STOCK, "shop.updates")
    async with asyncio.timeout(PATIENCE):
        await has_come_back_often.wait()
    following.stop()
