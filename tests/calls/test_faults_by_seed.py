"""The promises under every fault, by seed: each call ends once and in time, runs at most once per attempt, streams have no gap."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from typing import Self

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.calls.faulty import Faults, FaultyTransport
from tests.waiting import PATIENCE

from enfold import CallError, Context, OperationRegistry, ResponseEnvelope
from enfold.calls import CallHandler, PendingRequestMap
from enfold.calls.memory import MemoryTransport
from enfold.calls.protocol.settings import NEVER, CallSettings, Retry

SCALE = float(os.environ.get("ENFOLD_FAULTS", "0.05"))
QUICK = CallSettings(accept_after=0.01, heartbeat=0.03, silence=0.2, tick=0.005, lost_grace=0.01, window=8)

FAULTS = st.builds(
    Faults,
    drop=st.sampled_from([0.0, 0.05, 0.3]),
    duplicate=st.sampled_from([0.0, 0.1, 0.5]),
    delay=st.sampled_from([0.0, 0.2]),
    reorder=st.sampled_from([0.0, 0.2]),
    cut=st.sampled_from([0.0, 0.02]),
    longest_delay=st.just(0.02),
    cut_for=st.just(0.03),
)
BOUNDED = settings(
    max_examples=max(10, int(200 * SCALE)),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


class Bench:
    """A caller and a worker, with faults in both directions."""

    def __init__(self, faults: Faults, seed: int, retry: Retry) -> None:
        bus = MemoryTransport("bus")
        self.runs: Counter[str] = Counter()
        self.worker = FaultyTransport(bus.join("worker"), faults, seed)
        self.handler = CallHandler(self._operations(), self.worker, settings=QUICK)
        self.caller = FaultyTransport(bus.join("caller"), faults, seed + 1)
        self.pending = PendingRequestMap(self.caller, settings=QUICK, retry=retry)

    async def __aenter__(self) -> Self:
        for operation_id in ("work.write", "work.count"):
            await self.handler.offer(operation_id)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.pending.close()
        await self.handler.close(drain=False)
        await self.caller.close()
        await self.worker.close()

    def _operations(self) -> OperationRegistry:
        ops = OperationRegistry("work")

        @ops.mutation
        async def write(value: int, context: Context) -> int:
            self.runs[context.request_id] += 1
            await asyncio.sleep(0.003 * (value % 7))
            return value

        @ops.subscription
        async def count(to: int) -> AsyncIterator[int]:
            for number in range(to):
                await asyncio.sleep(0)
                yield number

        return ops


@BOUNDED
@given(faults=FAULTS, seed=st.integers(0, 10_000))
def test_a_call_ends_once_in_its_time_and_runs_once_per_attempt(faults: Faults, seed: int) -> None:
    async def scenario() -> None:
        async with Bench(faults, seed, NEVER) as bench:
            calls = [bench.pending.call("work.write", {"value": number}, timeout=0.4) for number in range(30)]
            async with asyncio.timeout(PATIENCE):
                outcomes = await asyncio.gather(*calls, return_exceptions=True)
            for number, outcome in enumerate(outcomes):
                if isinstance(outcome, ResponseEnvelope):
                    assert outcome.data == number
                else:
                    assert isinstance(outcome, CallError)
                    assert outcome.code in {"UNAVAILABLE", "TIMEOUT"}
            assert max(bench.runs.values(), default=0) <= 1
            assert len(bench.pending) == 0

    asyncio.run(scenario())


@BOUNDED
@given(faults=FAULTS, seed=st.integers(0, 10_000))
def test_a_stream_has_no_gap_or_says_so(faults: Faults, seed: int) -> None:
    async def scenario() -> None:
        async with Bench(faults, seed, NEVER) as bench:
            items: list[int] = []
            code = ""
            try:
                async with asyncio.timeout(PATIENCE):
                    async for item in bench.pending.subscribe("work.count", {"to": 60}):
                        items.append(item.data)  # noqa: PERF401  # what came before a failure counts
            except CallError as error:
                code = error.code
            assert items == list(range(len(items)))
            assert (len(items) == 60) if not code else code in {"UNAVAILABLE", "DATA_LOSS"}

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(5))
async def test_a_stream_survives_losses_because_it_asks_again(seed: int) -> None:
    async with Bench(Faults(drop=0.1), seed, Retry(attempts=10)) as bench:
        items = [item.data async for item in bench.pending.subscribe("work.count", {"to": 100})]
    assert items == list(range(100))


async def test_a_call_that_certainly_did_not_start_is_retried() -> None:
    async with Bench(Faults(), 1, Retry(attempts=5, delay=0.02)) as bench:
        await bench.pending.call("work.write", {"value": 0})
        bench.caller.cut()
        asyncio.get_running_loop().call_later(0.03, bench.caller.mend)
        assert (await bench.pending.call("work.write", {"value": 7})).data == 7
        assert sum(bench.runs.values()) == 2


async def test_a_call_that_may_have_started_is_retried_only_if_it_is_idempotent() -> None:
    async with Bench(Faults(), 1, Retry(attempts=5)) as bench:
        await bench.pending.call("work.write", {"value": 0})
        bench.worker.faults = Faults(drop=1.0)
        with pytest.raises(CallError) as raised:
            await bench.pending.call("work.write", {"value": 6}, timeout=5)
        assert (raised.value.code, raised.value.retryable, sum(bench.runs.values())) == ("UNAVAILABLE", False, 2)
        asyncio.get_running_loop().call_later(0.3, setattr, bench.worker, "faults", Faults())
        answer = await bench.pending.call("work.write", {"value": 6}, timeout=5, idempotent=True)
        assert (answer.data, sum(bench.runs.values()) > 3) == (6, True)
