"""The life of a task, told on every store: ordered, run, asked, answered, cancelled, found again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from enfold import CallError, Context, Identity, OperationRegistry
from enfold.calls.nats import NATSTransport
from enfold.tasks import Status, Tasks
from enfold.tasks.memory import MemoryTasks
from enfold.tasks.nats import NATSTasks
from enfold.tasks.sqlite import SQLiteTasks
from enfold.tasks.store import TaskStore

ANN, BOB = Identity("ann", frozenset({"write"})), Identity("bob", frozenset({"write"}))
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
YES = {"action": "accept", "content": {"name": "Ann"}}

ops = OperationRegistry("shop")
started: list[str] = []


@ops.mutation(durable=True, access={"required_scopes": ["write"]})
async def report(year: int, context: Context) -> str:
    assert context.task is not None
    started.append(context.task.id)
    return f"{year} for {context.identity.id if context.identity else None}"


@ops.mutation(durable=True)
async def endless(context: Context) -> None:
    context.progress(1, 2, "half way")
    await asyncio.sleep(3600)


@ops.mutation(durable=True)
async def greet(context: Context, twice: bool = False) -> str:
    first = await context.ask("Your name?", FORM)
    second = await context.ask("And yours?", FORM) if twice else first
    return f"Hello {first.content['name']} and {second.content['name']}"


@ops.mutation(durable=True)
async def broken() -> None:
    raise CallError("SOLD_OUT", "nothing left", {"item": "tea"})


@ops.query
def plain() -> int:
    return 1


@pytest.fixture(params=["memory", "sqlite", "nats"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TaskStore]:
    if request.param == "memory":
        yield MemoryTasks()
    elif request.param == "sqlite":
        yield SQLiteTasks(tmp_path / "tasks.db")
    else:
        async with NATSTransport(request.getfixturevalue("jetstream").url) as transport:
            yield NATSTasks(transport, name=f"t{os.urandom(4).hex()}")


@pytest.fixture
async def tasks(store: TaskStore) -> AsyncIterator[Tasks]:
    async with Tasks(ops, store) as made:
        yield made


async def until(tasks: Tasks, task_id: str, is_reached: Callable[[Any], bool], identity: Identity | None = None) -> Any:
    handle = await tasks.get(task_id, identity=identity)
    async with asyncio.timeout(10):
        async for task in handle.watch():
            if is_reached(task):
                return task
    raise AssertionError("the task ended before")


async def refused(call: Any) -> CallError:
    with pytest.raises(CallError) as raised:
        await call
    return raised.value


async def test_a_task_gives_a_handle_and_then_the_result_of_the_call(tasks: Tasks) -> None:
    handle = await tasks.start("shop.report", {"year": 2026}, identity=ANN)
    envelope = await handle.result()
    assert (envelope.data, envelope.meta.source) == ("2026 for ann", "local")
    assert (await handle.state()).status is Status.COMPLETED
    assert started.count(str(handle.id)) == 1


async def test_what_could_not_be_run_is_refused_before_it_is_accepted(tasks: Tasks) -> None:
    stranger = Identity("eve")
    assert (await refused(tasks.start("shop.report", {"year": 1}))).code == "ACCESS_DENIED"
    assert (await refused(tasks.start("shop.report", {"year": 1}, identity=stranger))).code == "OPERATION_NOT_FOUND"
    assert (await refused(tasks.start("shop.report", {"year": "x"}, identity=ANN))).code == "VALIDATION_ERROR"
    assert (await refused(tasks.start("shop.plain"))).code == "INVALID_OPERATION_TYPE"


async def test_a_failure_of_the_handler_is_the_outcome(tasks: Tasks) -> None:
    handle = await tasks.start("shop.broken")
    error = await refused(handle.result())
    assert (error.code, error.message, error.details) == ("SOLD_OUT", "nothing left", {"item": "tea"})
    assert (await handle.state()).status is Status.FAILED


async def test_questions_end_an_attempt_and_are_answered_one_by_one(tasks: Tasks) -> None:
    handle = await tasks.start("shop.greet", {"twice": True}, identity=ANN)
    for _ in range(2):
        task = await until(tasks, str(handle.id), lambda task: task.status is Status.INPUT_REQUIRED, ANN)
        (key,) = task.questions
        assert task.questions[key].method == "elicitation/create"
        await handle.answer({"unknown": YES})
        await handle.answer({key: YES})
        await handle.answer({key: {"action": "decline"}})  # answered already
    assert (await handle.result()).data == "Hello Ann and Ann"
    assert (await handle.state()).attempt == 3


async def test_a_running_task_a_queued_one_and_an_ended_one_are_cancelled(tasks: Tasks) -> None:
    running = await tasks.start("shop.endless")
    await until(tasks, str(running.id), lambda task: task.message == "1 of 2: half way")
    await running.cancel()
    assert (await refused(running.result())).code == "ABORTED"
    await tasks.runner.stop()
    queued = await tasks.store.accept((await waiting_order(tasks)), 100)
    await (await tasks.get(queued.id)).cancel()
    tasks.begin()
    assert (await (await tasks.get(queued.id)).state()).attempt == 0
    before = await running.state()
    assert await running.cancel() == before


async def waiting_order(tasks: Tasks) -> Any:
    from enfold.tasks.store import now_ms
    from enfold.tasks.task import Order, new_task_id

    now = now_ms()
    return Order(new_task_id(), "", "shop.endless", {}, now, now + 10_000, 10, 3, True)


async def test_another_callers_task_looks_like_none(tasks: Tasks) -> None:
    handle = await tasks.start("shop.greet", identity=ANN)
    wrong = await refused(tasks.get("A" * 32, identity=BOB))
    for other in (BOB, None, Identity("ann", on_behalf_of="bob")):
        error = await refused(tasks.get(str(handle.id), identity=other))
        assert (error.code, error.message, error.details) == (wrong.code, wrong.message, wrong.details)
    assert [task.id for task in await tasks.list(identity=ANN)] == [handle.id]
    assert await tasks.list(identity=BOB) == await tasks.list() == []
    boss = Identity("boss", frozenset({"enfold:admin"}))
    assert (await tasks.get(str(handle.id), identity=boss)).id == handle.id


async def test_the_same_key_gives_the_first_task(tasks: Tasks) -> None:
    first = await tasks.start("shop.report", {"year": 1}, identity=ANN, idempotency_key="k")
    again = await tasks.start("shop.report", {"year": 1}, identity=ANN, idempotency_key="k")
    others = await tasks.start("shop.report", {"year": 1}, identity=BOB, idempotency_key="k")
    assert first.id == again.id != others.id
    error = await refused(tasks.start("shop.report", {"year": 2}, identity=ANN, idempotency_key="k"))
    assert (error.code, error.details["argument"]) == ("VALIDATION_ERROR", "idempotencyKey")


async def test_one_caller_has_a_limit_and_another_does_not_feel_it(store: TaskStore) -> None:
    async with Tasks(ops, store, limit=5) as tasks:
        starts = [tasks.start("shop.greet", identity=ANN) for _ in range(8)]
        results = await asyncio.gather(*starts, return_exceptions=True)
        refusals = [each for each in results if isinstance(each, CallError)]
        assert [each.code for each in refusals] == ["RESOURCE_EXHAUSTED"] * 3
        assert refusals[0].details["retry_after"] > 0
        await tasks.start("shop.greet", identity=BOB)
