"""The lifecycle of a task on every store: started, run, asked, answered, cancelled, found again."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.calls.networks import Server
from tests.calls.processes import say
from tests.tasks.stored import left_when_stored
from tests.waiting import PATIENCE

from enfold import CallError, Context, Identity, OperationRegistry
from enfold.calls.nats import NATSTransport
from enfold.formats import find_format
from enfold.tasks import Status, TaskLimits, Tasks
from enfold.tasks.memory import MemoryTasks
from enfold.tasks.model import TaskFilter
from enfold.tasks.nats import NATSTasks
from enfold.tasks.nats_streams import Names, token_of
from enfold.tasks.sqlite import SQLiteTasks
from enfold.tasks.store import TaskStore, now_ms

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
    await asyncio.Event().wait()


@ops.mutation(durable=True)
async def greet(context: Context, twice: bool = False) -> str:
    first = await context.ask("Your name?", FORM)
    second = await context.ask("And yours?", FORM) if twice else first
    return f"Hello {first.content['name']} and {second.content['name']}"


@ops.mutation(durable=True)
async def locked() -> None:
    raise PermissionError("not yours")


@ops.mutation(durable=True)
async def broken() -> None:
    raise CallError("SOLD_OUT", "nothing left", {"item": "tea"})


@ops.mutation(durable=True)
async def basket() -> list[str]:
    await gate[0].wait()
    return ["tea"]


gate: list[asyncio.Event] = []


@pytest.fixture
async def go_on() -> asyncio.Event:
    """What the handler that counts waits for."""
    gate[:] = [asyncio.Event()]
    return gate[0]


@ops.mutation(durable=True)
async def counting(context: Context) -> None:
    context.progress(1, 3, "first")
    await gate[0].wait()
    context.progress(2, 3, "then")
    context.progress(3, 3, "last")


begun: list[asyncio.Queue[int]] = []


@ops.query(durable=True)
async def steady(context: Context) -> int:
    assert context.task is not None
    begun[0].put_nowait(context.task.attempt)
    await gate[0].wait()
    return 1


@ops.mutation(durable=True)
async def insist(context: Context) -> str:
    while True:
        answer = await context.ask("Your name?", FORM, key="name")
        if answer.content["name"]:
            return str(answer.content["name"])


@ops.mutation(durable=True)
async def halved(how: str, context: Context) -> str:
    context.progress(1, 2, "half \ud800")
    context.log("half \ud800")
    if how == "words":
        raise CallError("GONE", "half \ud800", {"half": "\ud800"})
    return "half \ud800" if how == "result" else "whole"


@ops.query
def plain() -> int:
    return 1


@ops.query(durable=True)
async def again(n: int) -> int:
    return n


@ops.mutation(durable=True)
async def once(n: int) -> int:
    return n


@pytest.fixture
async def tasks(store: TaskStore) -> AsyncIterator[Tasks]:
    async with Tasks(ops, store) as made:
        yield made


async def until(tasks: Tasks, task_id: str, is_reached: Callable[[Any], bool], identity: Identity | None = None) -> Any:
    handle = await tasks.get(task_id, identity=identity)
    async with asyncio.timeout(PATIENCE):
        async for task in handle.watch():
            if is_reached(task):
                return task
    raise AssertionError("the task ended before")


async def refused(call: Any) -> CallError:
    with pytest.raises(CallError) as raised:
        await call
    return raised.value


async def test_each_watcher_has_its_own_result(tasks: Tasks, go_on: asyncio.Event) -> None:
    handle = await tasks.start("shop.basket", identity=ANN)
    watchers = [await tasks.get(str(handle.id), identity=ANN) for _ in range(2)]
    waiting = [asyncio.create_task(each.result()) for each in watchers]
    await asyncio.sleep(0)
    go_on.set()
    first, second = [(await each).data for each in waiting]
    first.append("milk")
    assert (second, (await handle.result()).data) == (["tea"], ["tea"])


async def test_a_task_gives_a_handle_and_then_the_result_of_the_call(tasks: Tasks) -> None:
    handle = await tasks.start("shop.report", {"year": 2026}, identity=ANN)
    envelope = await handle.result()
    assert (envelope.data, envelope.meta.source) == ("2026 for ann", "local")
    assert (await handle.state()).status is Status.COMPLETED
    assert started.count(str(handle.id)) == 1


async def test_a_task_that_could_not_run_is_refused_before_it_is_accepted(tasks: Tasks) -> None:
    eve = Identity("eve")
    assert (await refused(tasks.start("shop.report", {"year": 1}))).code == "ACCESS_DENIED"
    assert (await refused(tasks.start("shop.report", {"year": 1}, identity=eve))).code == "OPERATION_NOT_FOUND"
    assert (await refused(tasks.start("shop.report", {"year": "x"}, identity=ANN))).code == "VALIDATION_ERROR"
    assert (await refused(tasks.start("shop.plain"))).code == "INVALID_OPERATION_TYPE"


async def test_a_failure_of_the_handler_is_the_outcome(tasks: Tasks) -> None:
    handle = await tasks.start("shop.broken")
    error = await refused(handle.result())
    assert (error.code, error.message, error.details) == ("SOLD_OUT", "nothing left", {"item": "tea"})
    assert (await handle.state()).status is Status.FAILED


@pytest.mark.parametrize(("how", "code"), [("words", "GONE"), ("result", "EXECUTION_ERROR"), ("neither", None)])
async def test_a_task_ends_although_utf_8_cannot_hold_what_it_says(tasks: Tasks, how: str, code: str | None) -> None:
    handle = await tasks.start("shop.halved", {"how": how}, identity=ANN)
    async with asyncio.timeout(PATIENCE):
        if code is None:
            assert (await handle.result()).data == "whole"
        else:
            assert (await refused(handle.result())).code == code


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


async def test_a_question_that_is_asked_again_is_another_question(tasks: Tasks) -> None:
    handle = await tasks.start("shop.insist")
    keys: list[str] = []
    for name in ("", "", "Ann"):
        (key,) = (await until(tasks, str(handle.id), lambda task: bool(task.questions))).questions
        keys.append(key)
        await handle.answer({key: {"action": "accept", "content": {"name": name}}})
    assert (await handle.result()).data == "Ann"
    assert len(set(keys)) == 3


async def test_workers_that_stop_in_order_cost_a_task_none_of_its_attempts(tasks: Tasks, go_on: asyncio.Event) -> None:
    begun[:] = [asyncio.Queue()]
    handle = await tasks.start("shop.steady")
    for _ in range(4):  # one more than may die of it
        await asyncio.wait_for(begun[0].get(), PATIENCE)
        await tasks.runner.stop()
        tasks.begin()
    go_on.set()
    assert (await asyncio.wait_for(handle.result(), 10)).data == 1
    assert (await handle.state()).attempt == 5


async def test_a_failure_keeps_its_category(tasks: Tasks) -> None:
    handle = await tasks.start("shop.locked", identity=ANN)
    error = await refused(handle.result())
    assert (error.code, error.row.category) == ("EXECUTION_ERROR", "authorization")


async def test_a_running_task_queued_ones_and_an_ended_one_are_cancelled(tasks: Tasks) -> None:
    running = await tasks.start("shop.endless")
    await until(tasks, str(running.id), lambda task: task.message == "1 of 2: half way")
    began = time.monotonic()
    await running.cancel()
    assert (await refused(running.result())).code == "ABORTED"
    say("21", f"{type(tasks.store).__name__}: a running task ended {time.monotonic() - began:.3f} s after its cancel")
    edge = Tasks(ops, tasks.store, at_once=0)
    await tasks.runner.stop()
    queued = [await edge.start("shop.report", {"year": 1}, identity=ANN) for _ in range(20)]
    assert {(await handle.cancel()).status for handle in queued} == {Status.CANCELLED}
    tasks.begin()
    last = await tasks.start("shop.report", {"year": 1}, identity=ANN)
    await last.result()
    assert not {handle.id for handle in queued} & set(started)
    assert {(await handle.state()).attempt for handle in queued} == {0}
    for handle in (running, last):
        before = await handle.state()
        assert await handle.cancel() == before == await handle.state()


async def test_a_cancel_and_an_answer_that_come_together_with_others_count_once(tasks: Tasks) -> None:
    """A cancel while a task ends: one outcome, which stays. Several answers at once: the handler sees one of them."""
    handles = [await tasks.start("shop.report", {"year": n}, identity=ANN) for n in range(30)]
    ends = await asyncio.gather(
        *(handle.result() for handle in handles), *(handle.cancel() for handle in handles), return_exceptions=True
    )
    for handle, end in zip(handles, ends[:30], strict=True):
        task = await handle.state()
        is_cancelled = isinstance(end, CallError)
        assert task.status is (Status.CANCELLED if is_cancelled else Status.COMPLETED)
        assert not is_cancelled or end.code == "ABORTED"
        assert await handle.cancel() == task == await handle.state()
    asking = await tasks.start("shop.greet", identity=ANN)
    (key,) = (await until(tasks, str(asking.id), lambda task: bool(task.questions), ANN)).questions
    names = [f"name{n}" for n in range(10)]
    await asyncio.gather(*(asking.answer({key: {"action": "accept", "content": {"name": name}}}) for name in names))
    said = (await asking.result()).data
    assert said in [f"Hello {name} and {name}" for name in names]
    assert ((await asking.state()).attempt, (await asking.result()).data) == (2, said)


async def test_the_last_message_is_the_last_that_the_handler_said(tasks: Tasks, go_on: asyncio.Event) -> None:
    handle = await tasks.start("shop.counting")
    await until(tasks, str(handle.id), lambda task: task.message == "1 of 3: first")
    go_on.set()  # and the rest is said within a second
    await handle.result()
    assert (await handle.state()).message == "3 of 3: last"


class Clock:
    """The clock of this machine, set forwards and back."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def time_ns(self) -> int:
        return time.time_ns() + int(self.ahead * 1e9)


async def test_a_clock_that_is_set_by_hours_ends_and_forgets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, go_on: asyncio.Event
) -> None:
    """Within the deadline nothing is lost, started twice or set back; beyond it a task ends, and stays ended."""
    for store in (MemoryTasks(), SQLiteTasks(tmp_path / "clock.db")):
        clock = Clock()
        monkeypatch.setattr("enfold.tasks.store.time", clock)
        async with Tasks(ops, store) as tasks:
            running = await tasks.start("shop.counting")
            asking = await tasks.start("shop.greet", identity=ANN)
            await until(tasks, str(running.id), lambda task: task.message is not None)
            question = await until(tasks, str(asking.id), lambda task: bool(task.questions), ANN)
            done = await tasks.start("shop.report", {"year": 1}, identity=ANN, idempotency_key="k")
            await done.result()
            changes = [(await running.state()).updated]
            for ahead in (5 * 3600, -20 * 3600, 11 * 3600):
                clock.ahead = ahead
                await store.expire()
                assert {(await each.state()).is_ended for each in (running, asking)} == {False}
                again = await tasks.start("shop.report", {"year": 1}, identity=ANN, idempotency_key="k")
                assert again.id == done.id
                fresh = await tasks.start("shop.report", {"year": ahead}, identity=ANN)
                assert (await fresh.result()).data.startswith(f"{ahead} for")
                changes.append((await running.state()).updated)
            clock.ahead = -3 * 3600
            await asking.answer(dict.fromkeys(question.questions, YES))
            assert (await asking.result()).data == "Hello Ann and Ann"
            go_on.set()
            await running.result()
            go_on.clear()
            last = await running.state()
            assert (last.attempt, last.status) == (1, Status.COMPLETED)
            assert [*changes, last.updated] == sorted([*changes, last.updated])
            assert last.updated >= last.created
            late = await tasks.start("shop.counting")
            clock.ahead = 30 * 3600
            await store.expire()
            assert (await refused(late.result())).code == "TIMEOUT"
            clock.ahead = 0
            go_on.set()  # its worker comes too late
            assert (await refused(late.result())).code == "TIMEOUT"
            go_on.clear()


async def test_reading_a_task_expires_it_by_the_clock_where_no_worker_runs(
    store: TaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("enfold.tasks.store.time", clock)
    tasks = Tasks(ops, store, limits=TaskLimits(limit=4, deadline=100, keep=50))
    asking = [await tasks.start("shop.greet", identity=ANN) for _ in range(3)]
    for each in asking:
        (key,) = (await until(tasks, str(each.id), lambda task: bool(task.questions), ANN)).questions
    await tasks.runner.stop()
    edge = Tasks(ops, store, at_once=0, limits=TaskLimits(limit=4, deadline=100, keep=50))
    queued = await edge.start("shop.report", {"year": 1}, identity=ANN, idempotency_key="k")
    assert (await refused(edge.start("shop.greet", identity=ANN))).code == "RESOURCE_EXHAUSTED"
    clock.ahead = 101
    assert (await asking[0].cancel()).status is Status.FAILED
    assert (await asking[1].answer({key: YES})).status is Status.FAILED
    assert {task.status for task in await edge.list(identity=ANN)} == {Status.FAILED}
    for each in (*asking, queued):
        assert (await refused(each.result())).code == "TIMEOUT"
    again = await edge.start("shop.report", {"year": 1}, identity=ANN, idempotency_key="k")
    assert again.id != queued.id  # what was never begun may be ordered again
    clock.ahead = 151
    assert [task.id for task in await edge.list(identity=ANN)] == [again.id]
    for verb in (queued.state, queued.cancel, queued.result, asking[0].state):
        assert (await refused(verb())).code == "TASK_NOT_FOUND"
    clock.ahead = 252
    assert (await edge.start("shop.report", {"year": 2}, identity=ANN, idempotency_key="k")).id != again.id
    assert (await refused(again.state())).code == "TASK_NOT_FOUND"
    await edge.close()


async def test_another_callers_task_looks_missing(tasks: Tasks) -> None:
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
    at_once = [tasks.start("shop.report", {"year": 1}, identity=ANN, idempotency_key="k") for _ in range(20)]
    first, *rest = await asyncio.gather(*at_once)
    assert {each.id for each in rest} == {first.id}
    await first.result()
    again = await tasks.start("shop.report", {"year": 1}, identity=ANN, idempotency_key="k")
    assert started.count(str(first.id)) == 1
    others = await tasks.start("shop.report", {"year": 1}, identity=BOB, idempotency_key="k")
    assert first.id == again.id != others.id
    error = await refused(tasks.start("shop.report", {"year": 2}, identity=ANN, idempotency_key="k"))
    assert (error.code, error.details["argument"]) == ("VALIDATION_ERROR", "idempotencyKey")


@pytest.mark.parametrize("is_first", [True, False], ids=["claimed first", "claimed second"])
async def test_an_order_queued_by_an_edge_that_died_is_one_task_with_its_repeat(
    jetstream: Server, is_first: bool
) -> None:
    """A server that was restarted in between does not recognise the second message."""
    async with NATSTransport(jetstream.url) as transport:
        names = Names(f"t{os.urandom(4).hex()}")
        context, edge = transport.client.jetstream(), Tasks(ops, NATSTasks(transport, name=names.name), at_once=0)
        handle = await edge.start("shop.again", {"n": 3}, identity=ANN, idempotency_key="k")
        order = (await handle.state()).order
        earlier = msgspec.structs.replace(order, created=order.created - 1000, request_id="earlier")
        if is_first:
            await context.purge_stream(names.queue)
        for each in (earlier, order) if is_first else (earlier,):
            subject = names.queued(token_of(order.owner), order.operation)
            await context.publish(subject, msgspec.json.encode(each))
        async with Tasks(ops, NATSTasks(transport, name=names.name)), asyncio.timeout(PATIENCE):
            assert (await handle.result()).data == 3
            while (await context.stream_info(names.queue)).state.messages:  # noqa: ASYNC110  # of the server
                await asyncio.sleep(0.01)
            last = await handle.state()
            assert (last.status, last.attempt) == (Status.COMPLETED, 1)
        await edge.close()


async def test_a_caller_who_leaves_while_their_order_is_stored_finds_it_done(store: TaskStore) -> None:
    async with Tasks(ops, store, at_once=4) as tasks:
        for turns in range(8):
            key = f"k{turns}"
            leaving = asyncio.ensure_future(tasks.start("shop.again", {"n": turns}, idempotency_key=key))
            for _ in range(turns):
                await asyncio.sleep(0)
            leaving.cancel()
            await asyncio.wait([leaving])
            found = await tasks.start("shop.again", {"n": turns}, idempotency_key=key)
            async with asyncio.timeout(PATIENCE):
                assert (await found.result()).data == turns
        together = [await tasks.start("shop.again", {"n": n}) for n in range(20)]  # more than have room at once
        assert [(await each.result()).data for each in together] == list(range(20))


class LeftAtOnce(SQLiteTasks):
    """A store whose callers, once `leaves` is set, are cancelled in the very turn of the loop in which they are answered."""

    leaves = False

    async def _asked(self, answer: asyncio.Future[Any]) -> Any:
        caller = asyncio.current_task()
        if self.leaves and caller is not None:
            answer.add_done_callback(lambda _: caller.cancel())
        return await super()._asked(answer)


@pytest.mark.parametrize("operation", ["shop.again", "shop.endless"], ids=["started again", "started once"])
@pytest.mark.parametrize("at_once", [8, 0], ids=["begun as it is stored", "claimed later"])
async def test_a_task_stored_while_its_caller_disconnects_runs(tmp_path: Path, operation: str, at_once: int) -> None:
    store = LeftAtOnce(tmp_path / "tasks.db")
    order = {"n": 5} if operation == "shop.again" else {}
    async with Tasks(ops, store, at_once=8 - at_once) as worker, Tasks(ops, store, at_once=at_once) as tasks:
        store.leaves = True
        leaving = asyncio.ensure_future(tasks.start(operation, order, idempotency_key="k"))
        await asyncio.wait([leaving])
        store.leaves = False
        assert leaving.cancelled()
        for each in (worker, tasks):
            each.begin()  # who runs it was answered in that turn, too
        found = await tasks.start(operation, order, idempotency_key="k")
        await until(tasks, str(found.id), lambda task: task.is_ended or task.progress is not None)
        assert (await found.state()).attempt == 1


async def test_a_task_claimed_while_its_worker_stops_goes_to_another_worker(jetstream: Server) -> None:
    async with NATSTransport(jetstream.url) as transport:
        name = f"t{os.urandom(4).hex()}"
        first, second = NATSTasks(transport, name=name), NATSTasks(transport, name=name)
        edge = Tasks(ops, second, at_once=0)
        handle = await edge.start("shop.report", {"year": 1}, identity=ANN)
        claiming = first.claim(lambda: ["shop.report"], lambda: 1, 5.0)
        leaving = await left_when_stored(transport, str(handle.id), claiming, name)
        assert leaving.cancelled()
        async with asyncio.timeout(4):  # sooner than the server gives it to others by itself
            (claim,) = await second.claim(lambda: ["shop.report"], lambda: 1, 5.0)
        assert (claim.id, claim.task.attempt, claim.task.deaths) == (handle.id, 1, 0)
        await first.close()
        await edge.close()


@pytest.mark.parametrize("operation", ["shop.again", "shop.once"])
async def test_a_task_that_is_run_where_it_was_ordered_waits_for_the_disk_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """Each transaction that writes waits for the disk."""
    statements: list[str] = []
    connect = sqlite3.connect

    def traced(*args: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **options)
        connection.set_trace_callback(statements.append)
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)
    async with Tasks(ops, SQLiteTasks(tmp_path / "t.db")) as tasks:
        await (await tasks.start(operation, {"n": 0})).result()
        statements.clear()
        for n in range(20):
            await (await tasks.start(operation, {"n": n})).result()
        assert 20 <= statements.count("BEGIN IMMEDIATE") <= 2 * 20 + 2  # now and then something is forgotten


async def test_a_result_that_breaks_its_schema_fails_as_a_plain_call_does(store: TaskStore) -> None:
    strict = OperationRegistry("shop", strict_output=True)

    @strict.query(durable=True)
    async def loose() -> int:
        return "much"  # type: ignore[return-value]  # it is refused

    async with Tasks(strict, store) as tasks:
        plain = await refused(strict.execute("shop.loose"))
        kept = await refused((await tasks.start("shop.loose")).result())
    written = [find_format("mcp_envelope_v0_1").write_error(each, "shop.loose") for each in (plain, kept)]
    assert written[0] == written[1]
    assert written[1]["result"] == "much"


async def test_a_task_waits_for_a_thread_where_all_are_busy() -> None:
    """What was accepted is run, whatever else the process does; a call beside it is answered at once."""
    mine, has_begun, may_end = OperationRegistry("shop", threads=1), threading.Event(), threading.Event()

    @mine.query(durable=True)
    def blocking() -> bool:
        has_begun.set()
        return may_end.wait(10)

    async with Tasks(mine, MemoryTasks()) as tasks:
        both = [await tasks.start("shop.blocking") for _ in range(2)]
        await asyncio.to_thread(has_begun.wait, 10)
        assert (await refused(mine.execute("shop.blocking"))).code == "RESOURCE_EXHAUSTED"
        may_end.set()
        assert [(await asyncio.wait_for(each.result(), 10)).data for each in both] == [True, True]


async def test_a_list_has_the_newest_first_and_of_others_nothing(store: TaskStore) -> None:
    edge = Tasks(ops, store, at_once=0)
    mine = []
    for _ in range(3):
        mine.append((await edge.start("shop.greet", {"twice": True}, identity=ANN)).id)
        await edge.start("shop.greet", identity=BOB)
        await asyncio.sleep(0.002)  # tasks of one millisecond are equally new
    await (await edge.get(str(mine[2]), identity=ANN)).cancel()  # which makes it no newer, and no older
    await (await edge.get(str(mine[0]), identity=ANN)).cancel()
    listed = [await edge.list(identity=ANN, limit=limit) for limit in (2, 9)]
    assert [[task.id for task in tasks] for tasks in listed] == [mine[:0:-1], mine[::-1]]
    assert (listed[1][0].outcome, listed[1][0].order.input) == (None, {})  # they may be large
    await edge.close()


async def test_one_caller_has_a_limit_and_another_does_not_feel_it(store: TaskStore) -> None:
    edge = Tasks(ops, store, at_once=0, limits=TaskLimits(limit=100))
    starts = (edge.start("shop.greet", identity=ANN) for _ in range(150))
    results = await asyncio.gather(*starts, return_exceptions=True)
    refusals = [each for each in results if isinstance(each, CallError)]
    assert [each.code for each in refusals] == ["RESOURCE_EXHAUSTED"] * 50
    assert refusals[0].details["retry_after"] > 0
    assert len(await edge.list(identity=ANN, limit=1000)) == 100
    await edge.start("shop.greet", identity=BOB)
    for handle in [each for each in results if not isinstance(each, BaseException)][:3]:
        await handle.cancel()  # which makes room again
        await edge.start("shop.greet", identity=ANN)
    assert (await refused(edge.start("shop.greet", identity=ANN))).code == "RESOURCE_EXHAUSTED"
    await edge.close()


async def test_a_task_remembers_its_attempts_its_questions_and_their_answers(tasks: Tasks) -> None:
    handle = await tasks.start("shop.greet", {"twice": True}, identity=ANN)
    await until(tasks, str(handle.id), lambda task: task.questions, ANN)
    for given in (YES, {"action": "accept", "content": {"name": "B" * 1000, "password": "hush"}}):
        task = await until(tasks, str(handle.id), lambda task: task.questions, ANN)
        await handle.answer(dict.fromkeys(task.questions, given))
        await until(tasks, str(handle.id), lambda task: task.questions or task.is_ended, ANN)
    task = await until(tasks, str(handle.id), lambda task: task.is_ended, ANN)
    assert [each.reason for each in task.attempts] == ["asked", "asked", "completed"]
    assert all(each.worker and each.began <= each.ended for each in task.attempts)
    assert [each.message for each in task.exchanges] == ["Your name?", "And yours?"]
    assert [each.asked <= each.answered for each in task.exchanges] == [True, True]
    assert "Ann" in task.exchanges[0].answer
    assert len(task.exchanges[1].answer) <= 300
    assert "hush" not in task.exchanges[1].answer


async def test_a_list_has_the_tasks_that_are_wanted_page_by_page(tasks: Tasks) -> None:
    first = await tasks.start("shop.report", {"year": 1}, identity=ANN)
    await first.result()
    async with asyncio.timeout(PATIENCE):
        while now_ms() <= (await first.state()).created:  # noqa: ASYNC110  # a clock announces nothing
            await asyncio.sleep(0.001)
    endless = await tasks.start("shop.endless", identity=ANN)
    others = await tasks.start("shop.greet", identity=BOB)
    boss = Identity("boss", frozenset({"enfold:admin"}))

    async def ids(identity: Identity, **wanted: Any) -> list[str | None]:
        return [task.id for task in await tasks.list(identity=identity, wanted=TaskFilter(**wanted))]

    assert await ids(ANN, status=Status.COMPLETED) == [first.id]
    assert await ids(ANN, operation="LESS") == [endless.id]
    assert await ids(ANN, caller="bob") == []
    assert await ids(boss, caller="bob") == [others.id]
    created = (await endless.state()).created
    assert first.id not in await ids(boss, since=created)
    assert endless.id not in await ids(boss, until=created)
    await endless.cancel()
    assert set(await ids(boss)) == {first.id, endless.id, others.id}


async def test_only_who_started_a_task_can_retry_it_and_only_after_its_end(tasks: Tasks) -> None:
    failed = await tasks.start("shop.report", {"year": 7}, identity=ANN)
    await failed.result()
    again = await tasks.retry(str(failed.id), identity=ANN)
    assert again.id != failed.id
    assert (await again.result()).data == "7 for ann"
    boss = Identity("boss", frozenset({"enfold:admin", "write"}))
    assert (await refused(tasks.retry(str(failed.id), identity=boss))).code == "ACCESS_DENIED"
    assert (await refused(tasks.retry(str(failed.id), identity=BOB))).code == "TASK_NOT_FOUND"
    asking = await tasks.start("shop.greet", identity=ANN)
    assert (await refused(tasks.retry(str(asking.id), identity=ANN))).code == "INVALID_OPERATION_TYPE"
