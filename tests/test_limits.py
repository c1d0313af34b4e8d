"""How many calls one identity may make at once and per second, on every surface that checks its callers."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator

import pytest
from tests.serving import serve
from tests.surfaces.mcp.conftest import Client

from enfold import CallError, Context, Identity, OperationRegistry
from enfold.auth.tokens import Tokens
from enfold.operations import Policy
from enfold.operations.policy import CallLimits
from enfold.runtime.registry import Registry
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp
from enfold.tasks import Tasks
from enfold.tasks.memory import MemoryTasks

ANN, BOB = Context(identity=Identity("ann")), Context(identity=Identity("bob"))
TOKENS = Tokens({"ann-token": Identity("ann"), "bob-token": Identity("bob")})


class Shop:
    """A registry whose calls wait until they may go on."""

    def __init__(self) -> None:
        self.ops = OperationRegistry("shop")
        self.go_on = asyncio.Event()
        self.begun = asyncio.Semaphore(0)

        @self.ops.query
        async def wait() -> str:
            self.begun.release()
            await self.go_on.wait()
            return "done"

        @self.ops.query
        async def now() -> str:
            return "done"

        @self.ops.subscription
        async def ticks() -> AsyncIterator[int]:
            yield 1
            await self.go_on.wait()
            yield 2

    def limited(self, **limits: float) -> Registry:
        return self.ops.with_policy(Policy(limits=CallLimits(**limits)))  # type: ignore[arg-type]


async def test_one_call_too_many_at_once_is_refused_and_others_are_served() -> None:
    shop = Shop()
    guarded = shop.limited(at_once=2).guarded()
    running = [asyncio.create_task(guarded.execute("shop.wait", {}, ANN)) for _ in range(2)]
    for _ in running:
        await shop.begun.acquire()
    with pytest.raises(CallError, match="The limit of 2 calls at once per caller is reached") as caught:
        await guarded.execute("shop.now", {}, ANN)
    assert caught.value.code == "RESOURCE_EXHAUSTED"
    assert caught.value.details == {"reason": "calls_at_once", "retry_after": 2}
    assert (await guarded.execute("shop.now", {}, BOB)).data == "done"
    shop.go_on.set()
    await asyncio.gather(*running)
    assert (await guarded.execute("shop.now", {}, ANN)).data == "done"


async def test_a_call_that_runs_as_a_task_is_counted_once() -> None:
    ops = OperationRegistry("shop")

    @ops.mutation(durable="required")
    async def pay() -> str:
        return "done"

    limited = ops.with_policy(Policy(limits=CallLimits(at_once=1, per_second=1)))
    async with Tasks(limited, MemoryTasks()):
        assert (await limited.guarded().execute("shop.pay", {}, ANN)).data == "done"


async def test_a_stream_is_a_call_for_as_long_as_it_is_followed() -> None:
    shop = Shop()
    guarded = shop.limited(at_once=1).guarded()
    stream = guarded.subscribe("shop.ticks", {}, ANN)
    assert (await anext(stream)).data == 1
    with pytest.raises(CallError, match="1 calls at once"):
        await guarded.execute("shop.now", {}, ANN)
    await stream.aclose()
    assert (await guarded.execute("shop.now", {}, ANN)).data == "done"


async def test_more_calls_than_a_second_has_are_refused_with_the_time_to_wait() -> None:
    guarded = Shop().limited(per_second=3).guarded()
    for _ in range(3):
        await guarded.execute("shop.now", {}, ANN)
    with pytest.raises(CallError, match="The limit of 3 calls per second per caller is reached") as caught:
        await guarded.execute("shop.now", {}, ANN)
    assert caught.value.details == {"reason": "calls_per_second", "retry_after": 1}
    assert (await guarded.execute("shop.now", {}, BOB)).data == "done"


async def test_a_call_that_is_abandoned_is_no_longer_counted() -> None:
    shop = Shop()
    guarded = shop.limited(at_once=1).guarded()
    running = asyncio.create_task(guarded.execute("shop.wait", {}, ANN))
    await shop.begun.acquire()
    running.cancel()
    with pytest.raises((CallError, asyncio.CancelledError)):
        await running
    assert (await guarded.execute("shop.now", {}, ANN)).data == "done"


async def test_callers_that_do_not_return_are_forgotten() -> None:
    limits = CallLimits(per_second=1_000_000)
    tracemalloc.start()
    try:
        for number in range(20_000):
            limits.release(limits.acquire(Identity(f"caller {number}")))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 500_000  # bytes; all of them would take megabytes


def test_http_says_when_to_come_again() -> None:
    with serve(to_http(Shop().limited(per_second=0.01), tokens=TOKENS)) as client:
        assert client.get("/functions/shop.now", Authorization="Bearer ann-token").status == 200
        refused = client.get("/functions/shop.now", Authorization="Bearer ann-token")
        assert refused.status == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 100
        assert refused.headers["enfold-code"] == "RESOURCE_EXHAUSTED"
        assert client.get("/functions/shop.now", Authorization="Bearer bob-token").status == 200


async def test_an_mcp_client_gets_it_in_the_result_of_its_call() -> None:
    shop = Shop()
    app = to_mcp(shop.limited(per_second=0.01), tokens=TOKENS)
    ann, bob = Client(app, "2026-07-28", "ann-token"), Client(app, "2026-07-28", "bob-token")
    assert (await ann.call("shop_now"))["structuredContent"] == {"result": "done"}
    refused = await ann.call("shop_now")
    assert refused["isError"] is True
    assert refused["_meta"]["enfold/error"]["code"] == "RESOURCE_EXHAUSTED"
    assert (await bob.call("shop_now"))["isError"] is False
