"""What is kept under an idempotency key: definite outcomes, in every store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from typing import Any

import pytest
from tests.waiting import PATIENCE, until

from enfold import CallError, Context, Identity, OperationRegistry, TextContent, mcp_envelope
from enfold.operations import Policy
from enfold.operations.idempotency import IdempotencyStore
from enfold.operations.policy import CallLimits

ANN = Identity("ann")


class Shop:
    """Two registries with the same operations, as two processes have them, on two stores that share their entries."""

    def __init__(self, stores: tuple[IdempotencyStore, IdempotencyStore]) -> None:
        self.runs = 0
        self.left = 0  # how many runs saw that they were cancelled
        self.go_on = asyncio.Event()
        self.registries = [self._registry(store) for store in stores]

    def _registry(self, store: IdempotencyStore) -> OperationRegistry:
        ops = OperationRegistry("shop")
        ops.services.idempotency_store = store

        async def pay(amount: int, raises: str = "", retryable: bool | None = None) -> int:
            self.runs += 1
            if raises:
                raise CallError(raises, "no", retryable=retryable)
            return amount

        ops.mutation(pay)
        ops.mutation(name="pay_again", on_crash="retry")(pay)
        ops.mutation(name="pay_twice", idempotent=True)(pay)
        ops.mutation(name="pay_once", idempotent=True, on_crash="fail")(pay)

        async def slow(context: Context) -> str:
            self.runs += 1
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.left += 1
                raise
            return "paid"

        ops.mutation(slow)
        ops.mutation(name="slow_again", on_crash="retry")(slow)
        ops.mutation(name="late", timeout=0.1)(slow)
        ops.mutation(name="late_again", timeout=0.1, on_crash="retry")(slow)

        @ops.mutation
        async def times_out() -> None:
            self.runs += 1
            raise TimeoutError("the bank did not answer")

        @ops.mutation
        async def refuses() -> Any:
            self.runs += 1
            return mcp_envelope([], content=[TextContent("sold out")], is_error=True)

        return ops

    async def call(self, name: str, key: str = "k", process: int = 0, within: float | None = None, **given: Any) -> Any:
        """The data of the result, or the code of the failure."""
        context = Context(identity=ANN, idempotency_key=key, timeout=within)
        try:
            return (await self.registries[process].execute(f"shop.{name}", given, context)).data
        except CallError as error:
            return error.code

    async def leave(self, name: str) -> None:
        """Make a call, and leave as soon as its handler runs."""
        leaving = asyncio.create_task(self.call(name))
        await self.has_begun(self.runs + 1)
        leaving.cancel()
        await asyncio.wait({leaving})

    async def has_begun(self, runs: int = 1) -> None:
        await until(lambda: self.runs >= runs)


@pytest.fixture
def shop(stores: tuple[IdempotencyStore, IdempotencyStore]) -> Shop:
    return Shop(stores)


async def test_a_result_is_kept(shop: Shop) -> None:
    assert [await shop.call("pay", process=process, amount=3) for process in (0, 1, 0)] == [3, 3, 3]
    assert shop.runs == 1


@pytest.mark.parametrize("code", ["SOLD_OUT", "EXECUTION_ERROR", "VALIDATION_ERROR", "DATA_LOSS"])
async def test_a_failure_that_the_handler_produced_is_kept(shop: Shop, code: str) -> None:
    assert [await shop.call("pay", process=process, amount=3, raises=code) for process in (0, 1, 0)] == [code] * 3
    assert shop.runs == 1


async def test_an_error_result_of_a_tool_is_kept(shop: Shop) -> None:
    assert [await shop.call("refuses", process=process) for process in (0, 1)] == [[], []]
    assert shop.runs == 1


async def test_a_handler_s_own_timeout_is_kept(shop: Shop) -> None:
    assert [await shop.call("times_out", process=process) for process in (0, 1)] == ["TIMEOUT", "TIMEOUT"]
    assert shop.runs == 1


@pytest.mark.parametrize("code", ["UNAVAILABLE", "RESOURCE_EXHAUSTED"])
async def test_after_a_failure_that_may_be_retried_a_repeat_is_run(shop: Shop, code: str) -> None:
    assert [await shop.call("pay", process=process, amount=3, raises=code) for process in (0, 1)] == [code, code]
    assert shop.runs == 2


@pytest.mark.parametrize("code", ["UNAVAILABLE", "ABORTED", "RESOURCE_EXHAUSTED"])
async def test_an_indefinite_failure_makes_the_outcome_unknown(shop: Shop, code: str) -> None:
    given: dict[str, Any] = {"amount": 3, "raises": code, "retryable": False}
    assert await shop.call("pay", **given) == code
    assert [await shop.call("pay", process=process, **given) for process in (0, 1)] == ["OUTCOME_UNKNOWN"] * 2
    assert shop.runs == 1


@pytest.mark.parametrize(("name", "runs"), [("pay_again", 2), ("pay_twice", 2), ("pay_once", 1)])
async def test_on_crash_and_idempotent_say_whether_an_unknown_outcome_is_tried_again(
    shop: Shop, name: str, runs: int
) -> None:
    given: dict[str, Any] = {"amount": 3, "raises": "UNAVAILABLE", "retryable": False}
    first, again = await shop.call(name, **given), await shop.call(name, process=1, **given)
    assert (first, again) == ("UNAVAILABLE", "UNAVAILABLE" if runs == 2 else "OUTCOME_UNKNOWN")
    assert shop.runs == runs


async def test_a_call_that_overran_its_operation_s_time_has_an_unknown_outcome(shop: Shop) -> None:
    assert await shop.call("late") == "TIMEOUT"
    assert [await shop.call("late", process=process) for process in (1, 0)] == ["OUTCOME_UNKNOWN"] * 2
    assert shop.runs == 1
    assert [await shop.call("late_again", process=process) for process in (0, 1)] == ["TIMEOUT", "TIMEOUT"]
    assert shop.runs == 3


async def test_an_input_that_does_not_fit_uses_no_key(shop: Shop) -> None:
    assert await shop.call("pay", amount="many") == "VALIDATION_ERROR"
    assert await shop.call("pay", process=1, amount=4) == 4
    assert shop.runs == 1


async def test_a_key_with_another_input_is_refused_while_the_first_runs_and_after_it(shop: Shop) -> None:
    first = asyncio.create_task(shop.call("slow"))
    await shop.has_begun()
    for process in (0, 1):
        context = Context(identity=ANN, idempotency_key="k")
        context.select = "x"
        with pytest.raises(CallError) as raised:
            await shop.registries[process].execute("shop.slow", {}, context)
        assert raised.value.code == "VALIDATION_ERROR"
    shop.go_on.set()
    assert await first == "paid"


@pytest.mark.parametrize("process", [0, 1], ids=["the same process", "another process"])
async def test_a_caller_that_stops_waiting_gets_in_progress(shop: Shop, process: int) -> None:
    """The first caller, too: the call goes on, and a repeat gets its result."""
    contexts = [Context(identity=ANN, idempotency_key="k", timeout=timeout) for timeout in (3.0, 0.1)]
    first = asyncio.create_task(shop.registries[0].execute("shop.slow", {}, contexts[0]))
    await shop.has_begun()
    for call in (shop.registries[process].execute("shop.slow", {}, contexts[1]), first):
        with pytest.raises(CallError) as raised:
            await call
        error = raised.value
        assert (error.code, error.retryable, error.details) == ("TIMEOUT", True, {"reason": "in_progress"})
    shop.go_on.set()
    assert await shop.call("slow", process=process) == "paid"
    assert (shop.runs, shop.left) == (1, 0)


async def test_a_call_runs_to_its_end_when_its_caller_leaves(shop: Shop) -> None:
    await shop.leave("slow")
    again = asyncio.create_task(shop.call("slow", process=1))
    shop.go_on.set()
    assert await again == "paid"
    assert (shop.runs, shop.left) == (1, 0)


async def test_a_call_has_its_operation_s_time_whatever_its_caller_has_left(shop: Shop) -> None:
    left: list[float | None] = []

    @shop.registries[0].mutation
    async def remaining(context: Context) -> None:
        left.append(context.remaining())

    await shop.call("remaining", within=5.0)
    (seconds,) = left
    assert seconds is not None
    assert seconds > 30


async def test_a_call_that_reaches_its_store_too_late_is_not_started(shop: Shop) -> None:
    assert await shop.call("pay", within=0.0, amount=3) == "TIMEOUT"
    assert shop.runs == 0
    assert await shop.call("pay", process=1, amount=3) == 3


async def test_a_process_that_ends_waits_for_calls_whose_callers_have_left(shop: Shop) -> None:
    await shop.leave("slow")
    closing = asyncio.create_task(shop.registries[0].services.lifetime.stop())
    await asyncio.sleep(0)
    assert not closing.done()
    shop.go_on.set()
    await closing
    assert await shop.call("slow", process=1) == "paid"
    assert (shop.runs, shop.left) == (1, 0)


@pytest.mark.parametrize(("name", "again"), [("slow", "OUTCOME_UNKNOWN"), ("slow_again", "paid")])
async def test_a_call_that_a_process_cancels_at_its_end_has_an_unknown_outcome(
    shop: Shop, name: str, again: str
) -> None:
    await shop.leave(name)
    await shop.registries[0].services.lifetime.stop(grace=0.0)
    assert shop.left == 1
    shop.go_on.set()
    assert await shop.call(name, process=1) == again


async def test_many_repeats_on_two_processes_start_one_call(shop: Shop) -> None:
    calls = [asyncio.create_task(shop.call("slow", process=number % 2)) for number in range(20)]
    await shop.has_begun()
    shop.go_on.set()
    assert set(await asyncio.gather(*calls)) == {"paid"}
    assert shop.runs == 1


async def test_on_start_that_fails_uses_no_key(stores: tuple[IdempotencyStore, IdempotencyStore]) -> None:
    ops, tries = OperationRegistry("shop"), 0
    ops.services.idempotency_store = stores[0]

    @ops.on_start
    async def connect() -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ConnectionError("no database")

    @ops.mutation
    async def pay() -> str:
        return "paid"

    async def call() -> Any:
        return (await ops.execute("shop.pay", {}, Context(identity=ANN, idempotency_key="k"))).data

    with pytest.raises((CallError, ConnectionError), match="no database"):
        await call()
    assert await call() == "paid"


def test_a_def_that_overran_is_not_started_a_second_time() -> None:
    """A thread cannot be stopped, so at the timeout it is unknown whether the call has its effect."""
    ops, runs, go_on = OperationRegistry("shop"), [], threading.Event()

    @ops.mutation(timeout=0.1)
    def pay() -> None:
        runs.append(1)
        go_on.wait(PATIENCE)

    async def codes() -> list[str]:
        found = []
        for _ in range(2):
            with pytest.raises(CallError) as raised:
                await ops.execute("shop.pay", {}, Context(identity=ANN, idempotency_key="k"))
            found.append(raised.value.code)
        go_on.set()
        return found

    assert asyncio.run(codes()) == ["TIMEOUT", "OUTCOME_UNKNOWN"]
    assert len(runs) == 1


async def test_a_call_that_runs_on_counts_against_the_limit_of_its_caller(shop: Shop) -> None:
    limited = shop.registries[0].with_policy(Policy(limits=CallLimits(at_once=1))).guarded()
    leaving = asyncio.create_task(limited.execute("shop.slow", {}, Context(identity=ANN, idempotency_key="k")))
    await shop.has_begun()
    leaving.cancel()
    await asyncio.wait({leaving})
    with pytest.raises(CallError) as raised:
        await limited.execute("shop.pay", {"amount": 1}, Context(identity=ANN))
    assert raised.value.code == "RESOURCE_EXHAUSTED"
    shop.go_on.set()
    async with asyncio.timeout(30):
        while await _code(limited.execute("shop.pay", {"amount": 1}, Context(identity=ANN))):  # noqa: ASYNC110  # a call says
            await asyncio.sleep(0.01)


async def _code(call: Awaitable[Any]) -> str:
    try:
        await call
    except CallError as error:
        return error.code
    return ""


async def test_a_handler_whose_nested_call_times_out_leaves_an_unknown_outcome() -> None:
    """The nested call gives up a moment before its own caller does."""
    ops, runs = OperationRegistry("shop"), []

    @ops.mutation
    async def bank() -> None:
        await asyncio.Event().wait()

    @ops.mutation(timeout=0.5, raise_on_error=True)
    async def pay(context: Context) -> None:
        runs.append(1)
        remaining = context.remaining()
        assert remaining is not None
        try:
            async with asyncio.timeout(remaining - 0.02):
                await context.env.shop.bank({})
        except TimeoutError:
            raise CallError("TIMEOUT", "the bank did not answer") from None

    found = [await _code(ops.execute("shop.pay", {}, Context(identity=ANN, idempotency_key="k"))) for _ in range(2)]
    assert (found, len(runs)) == (["TIMEOUT", "OUTCOME_UNKNOWN"], 1)
