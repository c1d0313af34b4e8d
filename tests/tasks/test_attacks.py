"""Tasks under attack: others' ids, forged and replayed words, direct writes on NATS, lost scopes, files that are locked or full."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import random
import resource
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.calls.networks import Server, nats_server_program
from tests.calls.processes import IS_FULL, ROOT, say
from tests.waiting import PATIENCE, until

from enfold import CallError, Context, Identity, OperationRegistry
from enfold.auth.token_file import TokenFile, add_token
from enfold.auth.tokens import AnyOf, Tokens
from enfold.calls.nats import NATSTransport
from enfold.calls.transports.nats_streams import NATSUser, nats_permissions
from enfold.commands.main import main
from enfold.operations.questions import elicit
from enfold.provenance import Recorder
from enfold.surfaces.http import to_http
from enfold.tasks import Status, TaskHandle, Tasks
from enfold.tasks.memory import MemoryTasks
from enfold.tasks.model import new_task_id
from enfold.tasks.nats import NATSTasks
from enfold.tasks.nats_streams import Names, Streams, slot_key, task_key, token_of
from enfold.tasks.sqlite import SQLiteTasks
from enfold.tasks.store import TaskLimits, TaskStore, check_kept_bytes, is_large_share, now_ms
from enfold.testing.asgi import Conversation

ANN = Identity("ann", frozenset({"write"}))
EVE = Identity("eve", frozenset({"write"}))
BOSS = Identity("boss", frozenset({"enfold:admin"}))
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
YES = {"action": "accept", "content": {"name": "Ann"}}

ops = OperationRegistry("shop")
ran: list[str] = []
wording = ["Who signs?"]


@ops.mutation(durable=True, access={"required_scopes": ["write"]})
async def sign(year: int, context: Context) -> str:
    ran.append(str(context.task and context.task.id))
    name = await elicit(context, wording[0], FORM, key="name")
    return f"{year} {name.content['name']}"


@ops.mutation(
    durable=True,
    access={"required_scopes": ["write"], "resource_type": "year", "resource_action": "sign", "resource_id": "year"},
)
async def sign_year(year: int) -> int:
    return year


@ops.mutation(durable=True)
async def insist(context: Context) -> str:
    while True:
        name = str((await context.ask("Your name?", FORM)).content["name"])
        if len(name) < 100:
            return name


@ops.mutation(durable=True)
async def large(size: int) -> str:
    return "x" * size


@ops.mutation(durable=True)
async def wait() -> None:
    await asyncio.Event().wait()


@ops.mutation(durable=True)
async def hold(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


ops.register(hold, name="hold_again", durable=True, on_crash="retry")


@ops.mutation(durable=True)
async def noise(seed: int, size: int) -> str:
    return made_of(seed, size)


def made_of(seed: int, size: int) -> str:
    return random.Random(seed).randbytes(size // 2 + 1).hex()[:size]  # noqa: S311  # the same each time


async def refused(call: Any) -> CallError:
    with pytest.raises(CallError) as raised:
        await call
    return raised.value


async def asked(tasks: Tasks, handle: Any) -> Any:
    async with asyncio.timeout(PATIENCE):
        async for task in handle.watch():
            if task.status is Status.INPUT_REQUIRED:
                return task
    raise AssertionError("it asks for nothing")


async def test_ids_cannot_be_guessed_and_tasks_of_others_cannot_be_reached(store: TaskStore) -> None:
    async with Tasks(ops, store) as tasks:
        handle = await tasks.start("shop.sign", {"year": 1}, identity=ANN)
        before = await asked(tasks, handle)
        (key,) = before.questions
        assert await hits(store, 100_000 if IS_FULL else 500) == 0
        for other in (EVE, None, Identity("ann", frozenset({"write"}), on_behalf_of="eve"), Identity('["ann"]')):
            assert (await refused(tasks.get(str(handle.id), identity=other))).code == "TASK_NOT_FOUND"
        for wrong in ("", "x", "a" * 33, "../../etc/passwd", "' OR 1=1 --", "ä" * 32, "a" * 32 + "\n", "*", ">", "a.>"):
            for who in (ANN, BOSS):
                assert (await refused(tasks.get(wrong, identity=who))).code == "TASK_NOT_FOUND"
        assert await handle.state() == before
        await handle.answer({key: YES})
        assert (await handle.result()).data == "1 Ann"
        ended = await handle.state()
        await handle.answer({key: {"action": "accept", "content": {"name": "Eve"}}})  # replayed, with other words
        await handle.cancel()
        assert await handle.state() == ended


async def hits(store: TaskStore, guesses: int) -> int:
    """How many guessed ids are found by a caller who may see every task."""
    found = 0
    for start in range(0, guesses, 500):
        ids = [new_task_id() if n % 2 else f"{start + n:032d}" for n in range(500)]
        found += sum(each is not None for each in await asyncio.gather(*(store.get(None, each) for each in ids)))
    say("32", f"{type(store).__name__}: {found} hits of {guesses}")
    return found


async def test_a_question_that_was_changed_gets_a_new_key_and_no_old_answer(store: TaskStore) -> None:
    async with Tasks(ops, store) as tasks:
        handle = await tasks.start("shop.sign", {"year": 2}, identity=ANN)
        (first,) = (await asked(tasks, handle)).questions
        wording[0] = "Who pays?"
        try:
            await handle.answer({first: YES})
            async with asyncio.timeout(PATIENCE):
                async for task in handle.watch():
                    if task.questions and first not in task.questions:
                        break
            (second,) = task.questions
            assert second != first
            assert task.questions[second].params["message"] == "Who pays?"
            await handle.answer({first: YES, second: {"action": "accept", "content": {"name": "Bob"}}})
            assert (await handle.result()).data == "2 Bob"
        finally:
            wording[0] = "Who signs?"


async def test_a_scope_lost_between_start_and_run_is_recorded_and_nothing_runs(
    store: TaskStore, tmp_path: Path
) -> None:
    """With the file of tokens that a server reads: the scope is taken away, and then the token."""
    file = tmp_path / "tokens.json"
    who = TokenFile(_with_tokens(file, ["write"]))
    for left in (["read"], None):  # another scope, and no token at all
        _with_tokens(file, ["write"])
        edge = Tasks(ops, store, at_once=0)
        handle = await edge.start("shop.sign", {"year": 3}, identity=ANN)
        _with_tokens(file, left)
        async with Tasks(ops, store, current=AnyOf([who]).current):
            assert (await refused(handle.result())).code == "ACCESS_DENIED"
            assert (await handle.state()).status is Status.FAILED
        assert handle.id not in ran
    assert AnyOf([who, Issuer()]).current(ANN) is None  # who may be known to an issuer keeps what they had
    # What became wider meanwhile is no loss.
    for now in (Identity("ann", frozenset({"write"}), {"year:*": ["sign"]}), Identity("ann", frozenset({"*"}))):
        before = Identity("ann", frozenset({"write"}), {"year:3": ["sign"]})
        handle = await Tasks(ops, store, at_once=0).start("shop.sign_year", {"year": 3}, identity=before)
        async with Tasks(ops, store, current=partial(_known_as, now)):
            assert (await handle.result()).data == 3


def _known_as(now: Identity, _: Identity) -> Identity:
    return now


class Issuer:
    """Accepts no token."""

    def identify(self, token: str) -> Identity | None:
        del token
        return None


def _with_tokens(file: Path, scopes: list[str] | None) -> Path:
    file.unlink(missing_ok=True)
    add_token(file, "bob", scopes=["write"])
    for scope in scopes or ():
        add_token(file, "ann", scopes=[scope])
    return file


async def test_a_record_of_provenance_names_the_task() -> None:
    async with Tasks(ops, MemoryTasks(), recorder=Recorder()) as tasks:
        handle = await tasks.start("shop.large", {"size": 1}, provenance={"mode": "full"})
        record = (await handle.result()).provenance
    assert record is not None
    named = [each for each in record["inputs"] if each["artifact_id"] == "enfold:task"]
    assert [each["labels"]["id"] for each in named] == [handle.id]


async def test_expiry_comes_after_the_promised_time_and_not_before(store: TaskStore) -> None:
    async with Tasks(ops, store, limits=TaskLimits(keep=0.5, deadline=4.0)) as tasks:
        await store.list(None)  # what a store makes with its first use takes time, too
        waiting = await tasks.start("shop.sign", {"year": 1}, identity=ANN)
        handle = await tasks.start("shop.large", {"size": 1}, idempotency_key="k")
        await handle.result()
        task = await handle.state()
        assert task.ttl_ms == 4500
        async with asyncio.timeout(PATIENCE):
            assert (await refused(waiting.result())).code == "TIMEOUT"
        assert now_ms() >= (await waiting.state()).order.deadline
        asked_at = now_ms()
        while (found := await store.get(None, task.id)) is not None:
            assert (found.status, asked_at < task.order.expires) == (Status.COMPLETED, True)
            await asyncio.sleep(0.01)
            asked_at = now_ms()
        assert now_ms() >= task.order.expires
        for gone in (handle, waiting):
            assert (await refused(gone.state())).code == "TASK_NOT_FOUND"
        assert (await tasks.start("shop.large", {"size": 1}, idempotency_key="k")).id != handle.id


async def test_a_result_of_8_mb_is_equal_by_its_digest_and_one_over_the_limit_too_large(store: TaskStore) -> None:
    async with Tasks(ops, store, limits=TaskLimits(max_result=9_000_000)) as tasks:
        noise = (await (await tasks.start("shop.noise", {"seed": 1, "size": 8_000_000})).result()).data
        assert hashlib.sha256(noise.encode()).digest() == hashlib.sha256(made_of(1, 8_000_000).encode()).digest()
        error = await refused((await tasks.start("shop.noise", {"seed": 1, "size": 9_000_001})).result())
        assert (error.code, error.details["limit"]) == ("PAYLOAD_TOO_LARGE", 9_000_000)


async def test_stored_bytes_of_one_callers_finished_tasks_are_limited_and_no_task_is_deleted_early(
    store: TaskStore,
) -> None:
    size = 70_000  # on NATS kept in parts
    async with Tasks(ops, store, limits=TaskLimits(kept_bytes_per_identity=3 * size)) as tasks:
        first = await tasks.start("shop.large", {"size": size}, identity=ANN, idempotency_key="first")
        done = [first, *[await tasks.start("shop.large", {"size": size}, identity=ANN) for _ in range(2)]]
        assert [len((await each.result()).data) for each in done] == [size] * 3
        error = await refused(tasks.start("shop.large", {"size": 1}, identity=ANN))
        assert (error.code, error.details["reason"], error.details["limit"]) == (
            "RESOURCE_EXHAUSTED",
            "task_bytes",
            3 * size,
        )
        assert 3 * size < error.details["size"] < 3 * size + 10_000
        assert 172_000 < error.details["retry_after"] < 2 * 86_400 + 3_601  # with the hour in which they expire
        again = await tasks.start("shop.large", {"size": size}, identity=ANN, idempotency_key="first")
        assert (again.id, len((await again.result()).data)) == (first.id, size)
        assert len((await (await tasks.start("shop.large", {"size": size}, identity=EVE)).result()).data) == size
        # Over the common limit, only callers with more than a tenth of it wait.
        crowded = Tasks(ops, store, at_once=0, limits=TaskLimits(kept_bytes_per_identity=6 * size, kept_bytes=1))
        error = await refused(crowded.start("shop.large", {"size": 1}, identity=EVE))
        assert (error.details["limit"], "while the store is full" in error.message) == (6 * size // 10, True)
        await (await crowded.start("shop.large", {"size": 1}, identity=BOSS)).result()


def test_expired_tasks_no_longer_count() -> None:
    limits, hour = TaskLimits(kept_bytes_per_identity=1_000, kept_bytes=10_000), 3_600_000
    kept = {10: 600, 11: 500}
    check_kept_bytes(kept, 0, limits, 10 * hour)
    with pytest.raises(CallError) as raised:
        check_kept_bytes(kept, 0, limits, 10 * hour - 5_000)
    assert raised.value.details == {"reason": "task_bytes", "size": 1_100, "limit": 1_000, "retry_after": 5}
    with pytest.raises(CallError):
        check_kept_bytes(kept, 10_000, limits, 10 * hour)
    assert [is_large_share(kept, limits, now * hour) for now in (9, 10, 11)] == [True, True, False]


async def test_a_key_is_any_text_and_distinguishes_its_inputs(store: TaskStore) -> None:
    odd = ["\x00", "a\nb", "é😀", "' OR 1=1 --", "../../x", "*", ">", ".", "a.b", " ", "%s%n", "x" * 256]
    tasks = Tasks(ops, store, at_once=0, limits=TaskLimits(limit=1_000))
    twice = [[await tasks.start("shop.wait", identity=ANN, idempotency_key=key) for _ in range(2)] for key in odd]
    assert [first.id == second.id for first, second in twice] == [True] * len(odd)
    assert len({first.id for first, _ in twice}) == len(odd)
    for key in odd:
        first = await tasks.start("shop.large", {"size": 1}, identity=ANN, idempotency_key=key)  # another operation
        assert first.id not in {each.id for pair in twice for each in pair}
        again = await refused(tasks.start("shop.large", {"size": 2}, identity=ANN, idempotency_key=key))
        assert again.details["argument"] == "idempotencyKey"
    for key in ("", "x" * 257, "\udcff"):  # the last is what a shell makes of bytes that are no text
        error = await refused(tasks.start("shop.wait", identity=ANN, idempotency_key=key))
        assert (error.code, error.details["argument"]) == ("VALIDATION_ERROR", "idempotencyKey")
    await tasks.close()


@pytest.mark.parametrize("operation", ["shop.hold", "shop.hold_again"], ids=["started once", "started again"])
async def test_one_caller_does_not_fill_a_worker(store: TaskStore, operation: str) -> None:
    async with Tasks(ops, store, at_once=8) as tasks:
        for _ in range(60):
            await tasks.start(operation, {"seconds": 3600}, identity=ANN)
        for _ in range(2):
            quick = await tasks.start(operation, {"seconds": 0}, identity=EVE)
            assert (await asyncio.wait_for(quick.result(), 20)).data == 0
        assert tasks.runner.working <= 8
        await tasks.runner.stop()


async def test_answers_that_are_too_large_are_refused(store: TaskStore) -> None:
    async with Tasks(ops, store) as tasks:
        handle = await tasks.start("shop.sign", {"year": 1}, identity=ANN)
        (key,) = (await asked(tasks, handle)).questions
        error = await refused(handle.answer({key: {"action": "accept", "content": {"name": "x" * 1_000_000}}}))
        assert (error.code, error.details["reason"]) == ("PAYLOAD_TOO_LARGE", "inputResponses")
        await handle.answer({key: YES})
        assert (await handle.result()).data == "1 Ann"


async def test_the_answers_to_one_task_are_bounded_together(store: TaskStore) -> None:
    async with Tasks(ops, store) as tasks:
        handle = await tasks.start("shop.insist", identity=ANN)
        long = {"action": "accept", "content": {"name": "x" * 300_000}}
        for _ in range(3):
            (key,) = (await asked(tasks, handle)).questions
            await handle.answer({key: long})
        (key,) = (await asked(tasks, handle)).questions
        assert (await refused(handle.answer({key: long}))).code == "PAYLOAD_TOO_LARGE"
        await handle.answer({key: YES})
        assert (await handle.result()).data == "Ann"


# --- SQLite -------------------------------------------------------------------------------------------------------


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process grows beyond 400 kB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_file_that_is_locked_full_or_broken_is_unavailable_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    tasks = Tasks(ops, SQLiteTasks(path), at_once=0)
    kept = await tasks.start("shop.large", {"size": 1})
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("BEGIN EXCLUSIVE")
        error = await refused(tasks.start("shop.large", {"size": 1}))
        assert (error.code, error.details) == ("UNAVAILABLE", {"reason": "store"})
        other.rollback()
    other.close()
    await kept.state()
    with full_disk():
        assert (await refused(tasks.start("shop.large", {"size": 1}, request_id="r" * 500_000))).code == "UNAVAILABLE"
    again = await tasks.start("shop.large", {"size": 1})
    assert {task.id for task in await tasks.store.list("")} == {kept.id, again.id}
    await tasks.close()
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"no database" * 1000)
    tasks = Tasks(ops, SQLiteTasks(broken), at_once=0)
    assert (await refused(tasks.start("shop.large", {"size": 1}))).code == "UNAVAILABLE"
    await tasks.close()
    assert broken.read_bytes() == b"no database" * 1000


async def test_a_removed_or_replaced_file_takes_no_task_that_would_be_lost(tmp_path: Path) -> None:
    path, other = tmp_path / "t.db", tmp_path / "other.db"
    async with Tasks(ops, SQLiteTasks(other), at_once=0) as elsewhere:
        left = await elsewhere.start("shop.large", {"size": 3})
    tasks = Tasks(ops, SQLiteTasks(path), at_once=0)
    for other_file in (None, other):
        kept = await tasks.start("shop.large", {"size": 1})
        _replace(path, other_file)
        again = await _ordered(tasks)
        async with Tasks(ops, SQLiteTasks(path), at_once=0) as others:
            await others.get(str(again.id))
            assert (await refused(others.get(str(kept.id)))).code == "TASK_NOT_FOUND"
    (tmp_path / "t.db-wal").unlink()  # alone: what was in it is not lost
    more = await _ordered(tasks)
    async with Tasks(ops, SQLiteTasks(path)):
        done = [(await (await tasks.get(str(each.id))).result()).data for each in (left, again, more)]
        assert done == ["xxx", "xx", "xx"]
    await tasks.close()


async def test_a_file_is_the_same_wherever_its_process_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tasks = Tasks(ops, SQLiteTasks("t.db"), at_once=0)
    (tmp_path / "elsewhere").mkdir()
    await tasks.start("shop.large", {"size": 1})
    monkeypatch.chdir(tmp_path / "elsewhere")
    await tasks.start("shop.large", {"size": 1})
    await tasks.close()
    assert len(await SQLiteTasks(tmp_path / "t.db").list(None)) == 2


def _replace(path: Path, other: Path | None) -> None:
    for each in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        each.unlink()
    if other is not None:
        other.replace(path)


async def _ordered(tasks: Tasks) -> TaskHandle:
    """A task that was accepted: unless the store has seen by itself that its file is another, at the second time."""
    try:
        return await tasks.start("shop.large", {"size": 2})
    except CallError as error:
        if (error.code, error.details) != ("UNAVAILABLE", {"reason": "store"}):
            raise
        return await tasks.start("shop.large", {"size": 2})


@pytest.mark.parametrize("column", ["state", "ordered"])
@pytest.mark.parametrize("garbage", [b"\x00\xff", "text", b"{}"], ids=["bytes", "text", "json"])
async def test_a_corrupted_row_ends_its_own_task_and_no_other(tmp_path: Path, column: str, garbage: Any) -> None:
    path = tmp_path / "t.db"
    edge = Tasks(ops, SQLiteTasks(path), at_once=0, limits=TaskLimits(deadline=0.3))
    lost = [await edge.start("shop.large", {"size": 1}, identity=ANN) for _ in range(2)]
    deadline = now_ms() + 300
    edge = Tasks(ops, edge.store, at_once=0)
    good = await edge.start("shop.large", {"size": 2}, identity=ANN)
    with closing(sqlite3.connect(path)) as connection, connection:
        ids = [each.id for each in lost]
        connection.execute(f"UPDATE tasks SET {column} = ? WHERE id IN (?, ?)", (garbage, *ids))  # noqa: S608
        connection.execute("UPDATE tasks SET holder = 'gone' WHERE id = ?", (ids[1],))  # as if its worker had died
    connection.close()
    assert [task.id for task in await edge.list(identity=ANN)] == [good.id]
    async with Tasks(ops, edge.store) as tasks:
        assert (await (await tasks.get(str(good.id), identity=ANN)).result()).data == "xx"
        for each in lost:
            assert (await refused(each.state())).code == "DATA_LOSS"
        await until(lambda: now_ms() > deadline)
        await tasks.store.expire()
        with closing(sqlite3.connect(path)) as connection, connection:  # they are not run again
            left = connection.execute("SELECT COUNT(*) FROM tasks WHERE outcome IS NULL").fetchone()
            assert left == (0,)
        connection.close()


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The number of steps that databases have taken, and of looks at it."""
    count, connect = itertools.count(), sqlite3.connect

    def counting(*args: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **options)
        connection.set_progress_handler(lambda: next(count) < 0, 10)
        return connection

    monkeypatch.setattr(sqlite3, "connect", counting)
    return count


async def test_many_tasks_make_no_verb_of_the_file_slower(tmp_path: Path, steps: Iterator[int]) -> None:
    store = SQLiteTasks(tmp_path / "t.db", fsync="normal")
    tasks = Tasks(ops, store, at_once=0, limits=TaskLimits(limit=100_000))
    spent: dict[str, list[int]] = {}
    for _ in range(2):
        for verb, run in {
            "accept": lambda: tasks.start("shop.large", {"size": 1}, identity=EVE),
            "list": lambda: tasks.list(identity=ANN, limit=10),
            "list all": lambda: tasks.list(identity=BOSS, limit=10),
            "claim": lambda: store.claim(lambda: ["shop.large", "shop.wait"], lambda: 4, 0),
            "expire": store.expire,
        }.items():
            before = next(steps)
            await run()
            spent.setdefault(verb, []).append(next(steps) - before)
        each = [(name, {"size": 1} if name == "large" else {}) for name in ("large", "wait") * 500]
        await asyncio.gather(*(tasks.start(f"shop.{name}", given, identity=ANN) for name, given in each))
    await tasks.close()
    few, many = ({verb: steps[place] for verb, steps in spent.items()} for place in (0, 1))
    most = {"list": 150, "list all": 150, "claim": 60, "expire": 1_000}
    assert {verb: many[verb] - few[verb] for verb in few if many[verb] - few[verb] > most.get(verb, 20)} == {}


async def test_a_file_of_many_tasks_is_opened_without_reading_them(tmp_path: Path, steps: Iterator[int]) -> None:
    spent: list[int] = []
    for more in (0, 1_000):
        edge = Tasks(ops, SQLiteTasks(tmp_path / "t.db", fsync="normal"), at_once=0, limits=TaskLimits(limit=100_000))
        last = (await asyncio.gather(*(edge.start("shop.wait", identity=ANN) for _ in range(more + 1))))[-1]
        await edge.close()
        before, opened = next(steps), SQLiteTasks(tmp_path / "t.db")
        await opened.get(None, str(last.id))
        await opened.close()  # after its thread has looked for changes
        spent.append(next(steps) - before)
    assert spent[1] - spent[0] < 50


async def test_two_processes_open_a_new_file_at_once(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys; from tests.tasks.fault_process import *\n"
        "async def main():\n"
        "    tasks = Tasks(operations(Log('/dev/null')), SQLiteTasks(sys.argv[1]), at_once=0)\n"
        "    print((await tasks.start('shop.again', {'n': 1}, idempotency_key='one')).id)\n"
        "asyncio.run(main())"
    )
    words, pipe = (sys.executable, "-c", code, str(tmp_path / "new" / "t.db")), asyncio.subprocess.PIPE
    both = [await asyncio.create_subprocess_exec(*words, cwd=ROOT, stdout=pipe) for _ in range(2)]
    told = await asyncio.gather(*(process.communicate() for process in both))
    assert len({out for out, _ in told}) == 1
    assert len(told[0][0]) == 33


async def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    async with Tasks(ops, SQLiteTasks(tmp_path / "t.db")) as tasks:
        handle = await tasks.start("shop.sign", {"year": 1}, identity=ANN, request_id="r-1")
        await asked(tasks, handle)
    files = [each for each in await asyncio.to_thread(lambda: list(tmp_path.rglob("*"))) if each.is_file()]
    assert {oct(each.stat().st_mode & 0o777) for each in files} == {"0o600"}


# --- NATS ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("guarded")
    users = [
        NATSUser(Identity("edge"), is_edge=True, password="p"),
        NATSUser(Identity("worker"), serves=("shop",), password="p"),
        NATSUser(EVE, password="p"),
        NATSUser(Identity("operator"), is_operator=True, password="p"),
    ]
    rules = nats_permissions(ops.list(), users, more=Names().rights)
    server = Server(nats_server_program(), folder, f'jetstream {{ store_dir: "{folder / "store"}" }}\n{rules}')
    server.wait_until_ready()
    assert main(["nats", "init", server.url.replace("nats://", "nats://operator:p@")]) == 0
    yield server
    server.close()


@pytest.fixture
async def peers(guarded: Server) -> AsyncIterator[dict[str, NATSTransport]]:
    made = {name: NATSTransport(guarded.url, user=name, password="p", name=name) for name in ("edge", "worker", "eve")}
    for transport in made.values():
        await transport.connect()
    yield made
    for transport in made.values():
        await transport.close()


async def test_a_caller_of_the_server_reaches_no_task_however_they_try(peers: dict[str, NATSTransport]) -> None:
    from nats.errors import Error

    names = Names()
    edge = Tasks(ops, NATSTasks(peers["edge"]), at_once=0)
    async with Tasks(ops, NATSTasks(peers["worker"], ack_wait=2)):
        handle = await edge.start("shop.sign", {"year": 5}, identity=ANN)
        before = await asked(edge, handle)
        (key,) = before.questions
        eve, heard = peers["eve"].client, []

        async def hear(message: Any) -> None:
            heard.append(message.subject)

        await eve.subscribe(f"{names.changed}.>", cb=hear)
        await eve.subscribe("$KV.>", cb=hear)
        forged = msgspec.json.encode(before.order)
        for subject, data in (
            (names.key(task_key(before.order)), b"{}"),
            (names.key(task_key(before.order, "cancel")), b"1"),
            (names.queued(token_of(before.owner), "shop.sign"), forged),
            (f"$JS.ACK.{names.queue}.x.1.1.1.1.1", b"+ACK"),
        ):
            await eve.publish(subject, data)
        jetstream = eve.jetstream(timeout=0.3)
        for attempt in (
            jetstream.stream_info(names.bucket),
            jetstream.get_msg(names.bucket, subject=names.key(task_key(before.order)), direct=True),
            jetstream.purge_stream(names.bucket),
            jetstream.delete_stream(names.queue),
            jetstream.consumers_info(names.queue),
        ):
            with pytest.raises((Error, TimeoutError)):
                await attempt
        assert await handle.state() == before
        assert heard == []
        await handle.answer({key: YES})
        assert (await handle.result()).data == "5 Ann"


async def test_no_token_is_in_what_the_server_keeps(jetstream: Server) -> None:
    """Messages and files are searched; what was ordered is found there, so that the search can find something."""
    secret, marker, name = f"tok-{os.urandom(12).hex()}", f"mark-{os.urandom(12).hex()}", f"t{os.urandom(4).hex()}"
    async with NATSTransport(jetstream.url) as transport, Tasks(ops, NATSTasks(transport, name=name)) as tasks:
        app = to_http(ops, tokens=Tokens({secret: ANN}), tasks=tasks)
        headers = {"host": "localhost:8000", "content-type": "application/json", "prefer": "respond-async"}
        headers |= {"authorization": f"Bearer {secret}", "x-request-id": marker, "idempotency-key": marker}
        begun = await Conversation(app, "POST", "/functions/shop.sign", headers, b'{"year": 1}').began()
        handle = await tasks.get((await begun.json())["taskId"], identity=ANN)
        (key,) = (await asked(tasks, handle)).questions
        await handle.answer({key: {"action": "accept", "content": {"name": marker}}})
        await handle.result()
        kept = await messages(transport, f"{name}_queue") + await messages(transport, f"KV_{name}")
    read = [each for each in (jetstream.folder / "store").rglob("*") if each.is_file()]
    found = {"messages": kept, "files": [each.read_bytes() for each in read]}
    say("36", f"JetStream: {len(kept)} messages and {len(read)} files searched")
    for where, texts in found.items():
        assert any(marker.encode() in text for text in texts), where
        assert not [text for text in texts for word in (secret, "Bearer ") if word.encode() in text], where


async def messages(transport: NATSTransport, stream: str) -> list[bytes]:
    """All that a stream keeps, with subjects and headers."""
    from nats.js.errors import NotFoundError

    context = transport.client.jetstream()
    state, found = (await context.stream_info(stream)).state, []
    for sequence in range(state.first_seq, state.last_seq + 1):
        with suppress(NotFoundError):  # a newer one stands in its place
            message = await context.get_msg(stream, sequence)
            found.append(repr((message.subject, message.headers)).encode() + (message.data or b""))
    return found


async def test_garbage_and_forged_orders_become_dead_letters_and_the_others_run(
    peers: dict[str, NATSTransport],
) -> None:
    names = Names()
    edge = Tasks(ops, NATSTasks(peers["edge"]), at_once=0)
    async with Tasks(ops, NATSTasks(peers["worker"], ack_wait=2)):
        good = (await (await edge.start("shop.large", {"size": 1})).state()).order
        streams = Streams(peers["worker"], names, None)
        context = await streams.open()
        forged = [
            msgspec.structs.replace(good, **{"id": new_task_id(), **change})
            for change in (
                {"id": "a.b"},
                {"id": ">"},
                {"id": ""},
                {"operation": "shop.sign"},
                {"owner": "x"},
                {"keep": 1e308},
                {"deadline": 2**63},
            )
        ]
        garbage = [b"", b"garbage", b"\xff\xfe", b'{"id": 1}', os.urandom(1000)]
        for data in (*garbage, *map(msgspec.json.encode, forged)):
            await context.publish(names.queued(token_of(""), "shop.large"), data)
        assert (await (await edge.start("shop.large", {"size": 300_000})).result()).data == "x" * 300_000
        async with asyncio.timeout(PATIENCE):
            while len(await streams.keys("dead.*.*")) < 12 or (await context.stream_info(names.queue)).state.messages:  # noqa: ASYNC110  # of the server
                await asyncio.sleep(0.02)


@pytest.fixture
async def edge_transport(jetstream: Server) -> AsyncIterator[NATSTransport]:
    async with NATSTransport(jetstream.url) as transport:
        yield transport


@pytest.fixture
async def emptied(jetstream: Server, edge_transport: NATSTransport) -> AsyncIterator[tuple[Tasks, Tasks, Any, Names]]:
    """An edge, a worker that does not run yet, and JetStream with all permissions."""
    name = f"t{os.urandom(4).hex()}"
    async with NATSTransport(jetstream.url) as other:
        edge = Tasks(ops, NATSTasks(edge_transport, ack_wait=0.2, name=name), at_once=0, limits=TaskLimits(limit=5))
        worker = Tasks(ops, NATSTasks(other, ack_wait=0.2, name=name))
        await edge.store.list(None)
        yield edge, worker, edge_transport.client.jetstream(), Names(name)
        await worker.close()
        await edge.close()


async def test_deleted_streams_are_created_again_and_no_known_task_is_lost(
    emptied: tuple[Tasks, Tasks, Any, Names],
) -> None:
    edge, worker, jetstream, names = emptied
    waiting = await edge.start("shop.large", {"size": 2})
    long_ago = msgspec.structs.replace((await waiting.state()).order, id=new_task_id(), deadline=1, keep=1)
    await jetstream.publish(names.queued(token_of(""), "shop.large"), msgspec.json.encode(long_ago))
    worker.begin()  # what was forgotten before anybody ran it stays forgotten
    async with asyncio.timeout(PATIENCE):
        assert (await waiting.result()).data == "xx"
        while (await jetstream.stream_info(names.queue)).state.messages:  # noqa: ASYNC110  # of the server
            await asyncio.sleep(0.02)
    assert await edge.store.get(None, long_ago.id) is None
    await worker.close()
    waiting = await edge.start("shop.large", {"size": 2})
    await jetstream.delete_stream(names.queue)
    worker.begin()
    async with asyncio.timeout(PATIENCE):
        assert (await waiting.result()).data == "xx"  # a request for the result queues it again
    for consumer in await jetstream.consumers_info(names.queue):
        await jetstream.delete_consumer(names.queue, consumer.name)
    async with asyncio.timeout(PATIENCE):
        assert (await (await edge.start("shop.large", {"size": 3})).result()).data == "xxx"
    await jetstream.delete_stream(names.bucket)
    error = await refused(edge.start("shop.large", {"size": 1}))
    assert (error.code, error.details) == ("UNAVAILABLE", {"reason": "store"})
    async with asyncio.timeout(PATIENCE):
        assert (await (await edge.start("shop.large", {"size": 4})).result()).data == "xxxx"


async def test_garbage_in_the_bucket_ends_its_own_task_and_no_other(emptied: tuple[Tasks, Tasks, Any, Names]) -> None:
    edge, worker, jetstream, names = emptied
    lost, kept = [await edge.start("shop.large", {"size": n}, identity=ANN) for n in (1, 2)]
    await jetstream.publish(names.key(task_key((await lost.state()).order)), b"garbage")
    assert [task.id for task in await edge.list(identity=ANN)] == [kept.id]
    for call in (lost.state(), lost.cancel(), lost.result()):
        assert (await refused(call)).code == "DATA_LOSS"
    worker.begin()
    held = await edge.start("shop.wait", identity=ANN)
    async for task in held.watch():
        if task.fence:
            break
    await jetstream.publish(names.key(task_key(task.order)), b"[]")
    assert (await kept.result()).data == "xx"
    async with asyncio.timeout(PATIENCE):
        while (await jetstream.stream_info(names.queue)).state.messages:  # noqa: ASYNC110  # of the server
            await asyncio.sleep(0.02)
    for handle in (lost, held):
        assert (await handle.state()).status is Status.FAILED
        assert (await refused(handle.result())).code == "DATA_LOSS"
    assert worker.runner.fenced == 1


async def test_slots_of_edges_that_died_are_released_when_they_are_needed(
    emptied: tuple[Tasks, Tasks, Any, Names], edge_transport: NATSTransport
) -> None:
    edge, _, jetstream, names = emptied
    kept = [await edge.start("shop.large", {"size": 1}) for _ in range(2)]
    order = (await kept[0].state()).order
    for taken in (b"1", b"1", str(now_ms()).encode()):  # two long ago, one by an edge that is about to store its task
        slot = slot_key(msgspec.structs.replace(order, id=new_task_id()))
        await jetstream.publish(names.key(slot), taken)
    for _ in range(2):
        await edge.start("shop.large", {"size": 1})
    assert [(await handle.state()).status for handle in kept] == [Status.WORKING] * 2
    sent = edge_transport.client.stats["out_msgs"]
    for _ in range(20):  # A rejected order costs the server no more than reading the limit.
        assert (await refused(edge.start("shop.large", {"size": 1}))).code == "RESOURCE_EXHAUSTED"
    assert edge_transport.client.stats["out_msgs"] - sent <= 20 * 2


async def test_the_limit_counts_unfinished_tasks_however_many_other_workers_have_just_finished(
    emptied: tuple[Tasks, Tasks, Any, Names],
) -> None:
    edge, worker, *_ = emptied
    worker.begin()
    async with asyncio.timeout(PATIENCE):
        for size in range(30):  # the server lists the slot of a task for another second
            assert (await (await edge.start("shop.large", {"size": size})).result()).data == "x" * size
