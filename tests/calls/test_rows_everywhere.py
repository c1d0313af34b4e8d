"""Rows of the fault table that hold on every transport: slow consumers, calls given up at random, noise."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import resource
import time
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from tests.calls.networks import Network, shop

from enfold import CallError, OperationRegistry, ResponseEnvelope
from enfold.calls import PendingRequestMap
from enfold.calls.events import Requested, write_event
from enfold.calls.settings import NEVER, Limits
from enfold.operation import new_request_id
from enfold.surfaces.calls import serve_calls

SCALE = float(os.environ.get("ENFOLD_FAULTS", "0.05"))
SLACK = 1.0 if SCALE >= 1 else 10.0


async def test_row_7_nobody_serves_it(network: Network) -> None:
    async with PendingRequestMap(network.peer("alice"), retry=NEVER) as alice:
        started = time.monotonic()
        with pytest.raises(CallError) as raised:
            await alice.call("shop.add", {"x": 1, "y": 2}, timeout=30)
    assert (raised.value.code, raised.value.details["reason"]) == ("UNAVAILABLE", "no_responders")
    assert time.monotonic() - started < 0.05 * SLACK


@pytest.mark.parametrize("over", [-1000, -400, -1, 0, 1, 1000])
async def test_row_8_sizes_around_the_limit(network: Network, over: int) -> None:
    """Whatever the size, it is carried or refused, at once, and the connection lives on."""
    async with serve_calls(shop(), network.peer("worker")), PendingRequestMap(network.peer("alice")) as alice:
        limit = alice._transport.capabilities.max_payload
        others = [asyncio.create_task(alice.call("shop.wait", {"seconds": 0.2})) for _ in range(20)]
        await asyncio.sleep(0)
        for operation, argument in (
            ("shop.large", {"size": limit + over}),
            ("shop.echo", {"value": "x" * (limit + over)}),
        ):
            try:
                assert len((await alice.call(operation, argument, timeout=10)).data) == limit + over
            except CallError as error:
                assert error.code == "PAYLOAD_TOO_LARGE"  # noqa: PT017  # one of two good ends
        assert [answer.data for answer in await asyncio.gather(*others)] == ["done"] * 20


async def test_row_9_a_burst_of_ten_times_the_capacity(network: Network) -> None:
    running = max(16, int(256 * SCALE))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with (
        serve_calls(shop(), network.peer("worker"), limits=Limits(running, 0)),
        PendingRequestMap(network.peer("alice"), retry=NEVER) as alice,
    ):
        started = time.monotonic()
        calls = [alice.call("shop.wait_once", {"seconds": 0.1}, timeout=20) for _ in range(running * 10)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        seconds = time.monotonic() - started
    codes = {outcome.code for outcome in outcomes if isinstance(outcome, CallError)}
    done = sum(isinstance(outcome, ResponseEnvelope) for outcome in outcomes)
    assert (codes, done >= running) == ({"RESOURCE_EXHAUSTED"}, True)
    assert seconds < 1.0 * SLACK
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


async def test_row_10_a_fast_producer_and_a_slow_consumer(network: Network) -> None:
    ops = OperationRegistry("shop")
    count = int(100_000 * SCALE) // (1 if SCALE >= 1 else 2)
    produced = 0

    @ops.subscription
    async def count_() -> AsyncIterator[int]:
        nonlocal produced
        for number in range(count):
            produced = number + 1
            yield number

    consumed, ahead, expected = 0, 0, 0
    view = ops.rename({"shop.count_": "shop.count"})
    async with serve_calls(view, network.peer("worker")), PendingRequestMap(network.peer("alice")) as alice:
        async for item in alice.subscribe("shop.count", {}):
            assert item.data == expected
            expected += 1
            consumed += 1
            ahead = max(ahead, produced - consumed)
            if consumed % 500 == 0:
                await asyncio.sleep(0.02)
    assert (consumed, ahead <= 64) == (count, True)


async def test_row_12_calls_are_given_up_at_random_points(network: Network) -> None:
    ops = OperationRegistry("shop")
    running = 0

    @ops.subscription
    async def count() -> AsyncIterator[int]:
        nonlocal running
        running += 1
        try:
            while True:
                await asyncio.sleep(0.001)
                yield 1
        finally:
            running -= 1

    chance = random.Random(7)  # noqa: S311  # the same points each time
    tasks_before = len(asyncio.all_tasks())
    async with serve_calls(ops, network.peer("worker")) as serving, PendingRequestMap(network.peer("alice")) as alice:

        async def follow_a_while() -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(chance.uniform(0, 0.05)):
                    async for _ in alice.subscribe("shop.count", {}):
                        pass

        for _ in range(max(5, int(1000 * SCALE) // 10)):
            await asyncio.gather(*(follow_a_while() for _ in range(10)))
        async with asyncio.timeout(0.2 * SLACK + 1):
            while running or serving.handler.running:  # noqa: ASYNC110  # the producers say when
                await asyncio.sleep(0.005)
        assert len(alice) == 0
    await asyncio.sleep(0.1)
    gc.collect()
    left = len(asyncio.all_tasks()) - tasks_before
    assert left < 20  # what a network needs for itself, and nothing for each call


async def test_row_15_noise_harms_nobody(network: Network) -> None:
    count = int(100_000 * SCALE)
    chance = random.Random(15)  # noqa: S311  # the same noise each time
    good = write_event("e", Requested(new_request_id(), "shop.add", {"x": 1, "y": 2}, 1000))
    async with (
        serve_calls(shop(), network.peer("worker")) as serving,
        PendingRequestMap(network.peer("alice")) as alice,
    ):
        liar = network.peer("mallory")
        await liar.connect()
        received = 0
        for number in range(count):
            noise = bytearray(good)
            for _ in range(chance.randrange(1, 8)):
                noise[chance.randrange(len(noise))] = chance.randrange(256)
            await liar.publish("op.mallory.shop.add", bytes(noise), reply=f"{liar.inbox()}.{new_request_id()}")
            if number % 100 == 0:
                received += (await alice.call("shop.add", {"x": number, "y": 1})).data == number + 1
                await asyncio.sleep(0)
        async with asyncio.timeout(30):
            while serving.handler.counts.received < count:  # noqa: ASYNC110  # the worker says when
                await asyncio.sleep(0.01)
        counts = serving.handler.counts
        assert received == len(range(0, count, 100))
        assert counts.malformed + counts.refused + counts.duplicates >= count * 0.9
        assert (await alice.call("shop.add", {"x": 1, "y": 2})).data == 3
