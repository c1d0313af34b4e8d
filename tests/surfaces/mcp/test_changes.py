"""Notifications to clients when something changes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting import PATIENCE

from enfold import Context, OperationRegistry
from enfold.mcp import resource_updated

if TYPE_CHECKING:
    from tests.surfaces.mcp.conftest import Client, MakeClient

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


@pytest.fixture
def ops() -> OperationRegistry:
    """One operation of each kind."""
    ops = OperationRegistry("shop")
    ops.query(name="one")(lambda: 1)
    ops.prompt(name="ask")(lambda: "Ask")
    ops.resource("shop://stock", name="stock")(lambda: "3")

    @ops.mutation
    async def sell(context: Context) -> None:
        resource_updated(context, "shop://stock")

    return ops


async def listening(client: Client, **wanted: Any) -> Any:
    return client.begin("subscriptions/listen", {"notifications": wanted}).answers()


async def next_message(events: Any) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        _, message = await anext(events)
    assert message is not None
    return dict(message)


async def test_a_listener_first_gets_its_acknowledgement(make_client: MakeClient, ops: OperationRegistry) -> None:
    events = await listening(make_client(ops), toolsListChanged=True, resourceSubscriptions=["shop://stock"], more=1)
    first = await next_message(events)
    assert first["method"] == "notifications/subscriptions/acknowledged"
    granted = {"toolsListChanged": True, "resourceSubscriptions": ["shop://stock"]}
    assert first["params"] == {"notifications": granted, "_meta": {SUBSCRIPTION: 1}}


async def test_many_changes_are_one_notification_for_the_list_that_changed(
    make_client: MakeClient, ops: OperationRegistry
) -> None:
    client = make_client(ops)
    events = await listening(client, toolsListChanged=True, promptsListChanged=True)
    await next_message(events)
    for number in range(3):
        ops.query(name=f"new{number}")(lambda: 1)
    assert (await next_message(events))["method"] == "notifications/tools/list_changed"
    ops.prompt(name="another")(lambda: "Ask")
    assert (await next_message(events))["method"] == "notifications/prompts/list_changed"


async def test_a_listener_gets_only_the_notifications_it_asked_for(
    make_client: MakeClient, ops: OperationRegistry
) -> None:
    events = await listening(make_client(ops), promptsListChanged=True)
    await next_message(events)
    ops.query(name="new")(lambda: 1)
    ops.prompt(name="another")(lambda: "Ask")
    assert (await next_message(events))["method"] == "notifications/prompts/list_changed"


async def test_a_change_by_another_thread_is_notified_too(make_client: MakeClient, ops: OperationRegistry) -> None:
    events = await listening(make_client(ops), toolsListChanged=True)
    await next_message(events)
    await asyncio.to_thread(lambda: ops.query(name="new")(lambda: 1))
    assert (await next_message(events))["method"] == "notifications/tools/list_changed"


async def test_followers_of_a_resource_are_notified_of_its_changes(
    make_client: MakeClient, ops: OperationRegistry
) -> None:
    client = make_client(ops)
    events = await listening(client, resourceSubscriptions=["shop://stock"])
    await next_message(events)
    await client.call("shop_sell")
    told = await next_message(events)
    assert (told["method"], told["params"]["uri"]) == ("notifications/resources/updated", "shop://stock")


async def test_a_session_is_notified_of_changes_on_its_own_stream(
    make_client: MakeClient, ops: OperationRegistry
) -> None:
    client = make_client(ops, "2025-11-25")
    await client.initialize()
    await client.result("resources/subscribe", {"uri": "shop://stock"})
    events = client.get().answers()
    assert (await anext(events))[1] is None  # the event from whose id the stream can be taken up again
    ops.query(name="new")(lambda: 1)
    assert await next_message(events) == {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
    await client.call("shop_sell")
    assert (await next_message(events))["params"] == {"uri": "shop://stock"}
    await client.result("resources/unsubscribe", {"uri": "shop://stock"})
    await client.call("shop_sell")
    ops.unregister("shop.new")
    assert (await next_message(events))["method"] == "notifications/tools/list_changed"


async def test_streams_end_in_good_order_when_the_server_stops(make_client: MakeClient, ops: OperationRegistry) -> None:
    client = make_client(ops)
    events = await listening(client, toolsListChanged=True)
    await next_message(events)
    client.app.stop()
    last = await next_message(events)
    assert (last["result"]["resultType"], last["result"]["_meta"][SUBSCRIPTION]) == ("complete", 1)


async def test_a_listener_that_leaves_is_forgotten(make_client: MakeClient, ops: OperationRegistry) -> None:
    client = make_client(ops)
    conversation = client.begin("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    await anext(conversation.answers())
    conversation.leave()
    await conversation.task


async def test_listening_without_saying_to_what_is_refused(make_client: MakeClient, ops: OperationRegistry) -> None:
    conversation = make_client(ops).begin("subscriptions/listen")
    assert ((await conversation.json())["error"]["code"], conversation.status) == (-32602, 400)
