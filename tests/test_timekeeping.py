import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from tests.waiting import until

from enfold import CallError, OperationRegistry
from enfold.runtime.deadlines import INTERVAL, TimeLimit, running_task, this_thread


def passed(_: object) -> CallError:
    return CallError("TIMEOUT", "the deadline has passed")


async def test_a_limit_that_ended_takes_no_cancellation_of_others_back() -> None:
    async def work() -> int:
        task = asyncio.current_task()
        assert task is not None
        try:
            with TimeLimit(0.0, passed):  # which has passed long ago
                try:
                    await asyncio.Event().wait()
                finally:
                    task.cancel()  # another cancellation at the same moment
        except asyncio.CancelledError:
            return task.cancelling()
        return -1

    task = asyncio.ensure_future(work())
    await asyncio.wait([task])
    assert task.cancelled() or task.result() == 1


async def test_a_stream_that_is_abandoned_at_its_deadline_stays_cancelled() -> None:
    ops = OperationRegistry("t")
    counts: list[int] = []

    @ops.subscription(timeout=0.01)
    async def slow() -> AsyncIterator[int]:
        try:
            await asyncio.Event().wait()
            yield 1
        except asyncio.CancelledError:
            following.cancel()
            raise

    async def follow() -> None:
        try:
            async for _ in ops.subscribe("t.slow"):
                pass
        except asyncio.CancelledError:
            task = asyncio.current_task()
            counts.append(0 if task is None else task.cancelling())
            raise

    following = asyncio.ensure_future(follow())
    with pytest.raises(asyncio.CancelledError):
        await following
    assert counts == [1]


async def test_calls_that_end_soon_leave_no_timer_behind() -> None:
    ops = OperationRegistry("t")

    @ops.query
    async def waiting() -> int:
        await asyncio.sleep(0)
        return 1

    await asyncio.gather(*(ops.execute("t.waiting") for _ in range(100)))
    keeper = this_thread.keeper
    assert keeper is not None
    assert keeper.running == set()
    await until(lambda: keeper.is_stopped)


async def test_a_deadline_shorter_than_a_tick_is_kept() -> None:
    ops = OperationRegistry("t")

    @ops.query(timeout=INTERVAL / 10)
    async def waiting() -> int:
        await asyncio.Event().wait()
        return 1

    with pytest.raises(CallError) as caught:
        await ops.execute("t.waiting")
    assert caught.value.code == "TIMEOUT"


def test_a_loop_that_follows_another_in_its_thread_is_not_taken_for_it() -> None:
    """The first loop is closed while its timer is set, and the thread is not notified."""

    async def is_cut_off_at_its_deadline() -> bool:
        try:
            with TimeLimit(time.monotonic(), passed):
                await asyncio.Event().wait()
        except CallError:
            keeper, _ = running_task()  # sets the timer again, if it has stopped meanwhile
            return keeper.loop is asyncio.get_running_loop()
        return False

    assert asyncio.run(is_cut_off_at_its_deadline())
    assert asyncio.run(is_cut_off_at_its_deadline())
