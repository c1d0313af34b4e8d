"""The clients for users' tests: the same verbs on every surface."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias

import pytest
from tests.waiting import PATIENCE

from enfold import CallError, Context, Identity, OperationRegistry, testing
from enfold.auth.tokens import Tokens

Open: TypeAlias = Callable[..., AbstractAsyncContextManager[testing.Client]]

ANN = Identity("ann", frozenset({"keys"}))
BOB = Identity("bob")


@pytest.fixture
def shop() -> OperationRegistry:
    ops = OperationRegistry("shop")

    @ops.query
    def add(x: int, y: int) -> int:
        return x + y

    @ops.mutation(access={"required_scopes": ["keys"]})
    async def unlock(context: Context) -> str:
        assert context.identity is not None
        return context.identity.id

    @ops.subscription
    async def count(to: int) -> AsyncIterator[int]:
        for number in range(to):
            if number == 3:
                raise CallError("SOLD_OUT", "There is none left", {"left": 0})
            yield number

    return ops


async def test_a_call_gives_data_in_an_envelope(enfold_client: Open, shop: OperationRegistry) -> None:
    async with enfold_client(shop) as client:
        reply = await client.call("shop.add", {"x": 1, "y": 2})
    assert reply.envelope is not None
    assert (reply.data, reply.code, reply.envelope.meta.source) == (3, None, "local")


async def test_a_failure_is_a_reply_with_its_code_and_facts(enfold_client: Open, shop: OperationRegistry) -> None:
    async with enfold_client(shop) as client:
        reply = await client.call("shop.add", {"x": 1})
    assert (reply.code, reply.details) == (
        "VALIDATION_ERROR",
        {"argument": "y", "reason": "missing", "expected": "integer"},
    )
    with pytest.raises(CallError, match="y"):
        _ = reply.data


async def test_the_identity_of_a_test_client_is_the_given_one(enfold_client: Open, shop: OperationRegistry) -> None:
    async with enfold_client(shop) as client:
        replies = [await client.call("shop.unlock", identity=identity) for identity in (ANN, BOB, None, ANN)]
    # HTTP and CGI hide the operation from an identity that may never call it.
    assert [reply.code in ("ACCESS_DENIED", "OPERATION_NOT_FOUND") for reply in replies] == [False, True, True, False]
    assert replies[0].data == replies[3].data == "ann"


async def test_a_caller_is_shown_what_they_may_call(enfold_client: Open, shop: OperationRegistry) -> None:
    async with enfold_client(shop) as client:
        assert list(await client.list()) == ["shop.add", "shop.count"]
        assert sorted(await client.list(identity=ANN)) == ["shop.add", "shop.count", "shop.unlock"]


async def test_a_subscription_gives_its_items(enfold_client: Open, shop: OperationRegistry) -> None:
    async with enfold_client(shop) as client:
        assert [item.data async for item in client.subscribe("shop.count", {"to": 3})] == [0, 1, 2]


@pytest.mark.parametrize("input", [{"to": 9}, {"to": "many"}])
async def test_a_subscription_that_fails_raises(
    enfold_client: Open, shop: OperationRegistry, input: dict[str, object]
) -> None:
    async with enfold_client(shop) as client:
        with pytest.raises(CallError) as raised:
            _ = [item async for item in client.subscribe("shop.count", input)]
    assert raised.value.code == ("SOLD_OUT" if input == {"to": 9} else "VALIDATION_ERROR")


async def test_an_operation_that_is_not_there_is_not_found(enfold_client: Open, shop: OperationRegistry) -> None:
    async with enfold_client(shop) as client:
        assert (await client.call("shop.none")).code == "OPERATION_NOT_FOUND"


@pytest.mark.enfold_surfaces("http", "mcp", "cgi", "command_line")
async def test_a_reply_holds_what_the_surface_answered(enfold_client: Open, shop: OperationRegistry) -> None:
    async with enfold_client(shop) as client:
        good = await client.call("shop.add", {"x": 1, "y": 2}, format="result")
        bad = await client.call("shop.add", format="result")
    assert (good.data, bad.code, good.status in (0, 200)) == (3, "VALIDATION_ERROR", True)
    assert "3" in str(good.wire)


@pytest.mark.enfold_surfaces("direct", "http", "mcp", "command_line", "calls")
async def test_resources_of_operations_are_opened_and_closed(enfold_client: Open, shop: OperationRegistry) -> None:
    events: list[str] = []
    shop.on_start(lambda: events.append("open"))
    shop.on_stop(lambda: events.append("closed"))
    async with enfold_client(shop) as client:
        assert (await client.call("shop.add", {"x": 1, "y": 2})).data == 3
    assert events == ["open", "closed"]


# --- what the wire allows besides ---------------------------------------------------------------------------------


async def test_a_stream_without_a_reader_is_ended() -> None:
    ops, ended = OperationRegistry("shop"), asyncio.Event()

    @ops.subscription
    async def ticks() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
                await asyncio.sleep(0)
        finally:
            ended.set()

    for surface in ("direct", "http", "calls"):
        ended.clear()
        async with testing.open_client(surface, ops) as client:
            stream = client.subscribe("shop.ticks")
            assert (await anext(stream)).data == 1
            await stream.aclose()
            await asyncio.wait_for(ended.wait(), PATIENCE)


async def test_any_request_can_be_sent_over_http(shop: OperationRegistry) -> None:
    async with testing.http(shop, tokens=Tokens({"key": ANN})) as client:
        answer = client.request("GET", "/functions/shop.add?x=1&y=2", identity=BOB, headers={"x-request-id": "r1"})
        assert (await answer.json(), answer.status, answer.headers["x-request-id"]) == ({"result": 3}, 200, "r1")
        own = client.request("POST", "/functions/shop.unlock", {}, headers={"authorization": "Bearer key"})
        assert await own.json() == {"result": "ann"}
        wrong = client.request("POST", "/functions/shop.unlock", {}, headers={"authorization": "Bearer none"})
        assert (await wrong.began()).status == 401


async def test_any_request_can_be_sent_over_mcp(shop: OperationRegistry) -> None:
    async with testing.mcp(shop, tool_names="safe") as client:
        assert [tool["name"] for tool in (await client.ask("tools/list"))["tools"]] == ["shop_add", "shop_count"]
        with pytest.raises(CallError, match="prompt"):
            await client.ask("prompts/get", {"name": "none"})


async def test_any_words_can_be_given_to_the_command_line(shop: OperationRegistry) -> None:
    async with testing.command_line(shop) as client:
        assert await client.run("shop.add", "x=1", "y=2") == (0, '{"result":3}\n', "")


async def test_an_app_that_fails_to_start_fails_the_test() -> None:
    async def app(scope: object, receive: object, send: object) -> None:
        raise ValueError("no key")

    from enfold.testing.asgi import living

    with pytest.raises(ValueError, match="no key"):
        async with living(app):
            pass


def test_a_surface_that_is_not_there_is_named(shop: OperationRegistry) -> None:
    with pytest.raises(ValueError, match="'soap' to test: use one of direct, http"):
        testing.open_client("soap", shop)
