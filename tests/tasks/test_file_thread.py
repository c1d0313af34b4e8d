"""The thread that owns a file of tasks: every job gets a result, even if the store is closed meanwhile."""

import asyncio
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.waiting import PATIENCE

from enfold import CallError, Identity, OperationRegistry
from enfold.tasks import Task, TaskLimits, Tasks, tables
from enfold.tasks.sqlite import FileThread, SQLiteTasks
from enfold.tasks.store import Calls


@pytest.fixture
def _hasty_threads() -> Iterator[None]:
    """Threads take turns so often that each order of their steps is seen."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("_hasty_threads")
async def test_a_job_that_comes_while_the_thread_is_closed_is_answered() -> None:
    def open_file() -> sqlite3.Connection:
        return sqlite3.connect(":memory:", isolation_level=None)

    def one(connection: sqlite3.Connection) -> int:
        return int(connection.execute("SELECT 1").fetchone()[0])

    for _ in range(300):
        thread = FileThread(open_file, lambda: None, lambda _: None, 0.01, lambda _: ())
        first = thread.submit(one)
        closing = asyncio.create_task(asyncio.to_thread(thread.close))
        await asyncio.sleep(0)
        jobs = [thread.submit(one) for _ in range(20)]
        assert await asyncio.wait_for(asyncio.gather(first, *jobs), 30) == [1] * 21
        await closing
        thread.close()


async def test_only_stored_results_are_published_and_before_they_are_answered() -> None:
    published: list[object] = []
    is_lost = False

    def open_file() -> sqlite3.Connection:
        return sqlite3.connect(":memory:", isolation_level=None)

    def check() -> None:
        if is_lost:
            raise OSError("the file was deleted")

    def fail(_: sqlite3.Connection) -> None:
        raise ValueError("a job that is rolled back")

    def publish(results: Sequence[object]) -> Calls:
        published.extend(results)
        return ()

    thread = FileThread(open_file, check, lambda _: None, 0.01, publish)
    assert await thread.submit(lambda _: "stored") == "stored"
    assert published == ["stored"]
    assert await thread.submit(lambda _: "read", writes=False) == "read"
    with pytest.raises(ValueError, match="rolled back"):
        await thread.submit(fail)
    is_lost = True
    with pytest.raises(OSError, match="deleted"):
        await thread.submit(lambda _: "lost")
    await asyncio.to_thread(thread.close)
    assert published == ["stored"]


async def test_a_watcher_of_a_task_that_runs_here_does_not_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its process stores and reads reaches a watcher from memory: only `Tasks.get` reads."""
    monkeypatch.setattr(tables, "WATCH_POLL", 3600.0)
    ops = OperationRegistry("shop")

    @ops.mutation(durable=True)
    async def pay() -> str:
        return "paid"

    class Counting(SQLiteTasks):
        reads = 0

        async def get(self, owner: str | None, task_id: str) -> Task | None:
            self.reads += 1
            return await super().get(owner, task_id)

    store = Counting(tmp_path / "tasks.db")
    async with Tasks(ops, store) as tasks:
        handle = await tasks.start("shop.pay")
        assert (await (await tasks.get(str(handle.id))).result()).data == "paid"
    assert store.reads == 1


class Clock:
    """The clock of the tasks, which may be set ahead by some seconds."""

    ahead = 0.0

    def time_ns(self) -> int:
        return time.time_ns() + int(self.ahead * 1e9)


async def found(tasks: Tasks, task_id: str, name: str) -> Task | str:
    """A task as an identity finds it; else the code of the error."""
    try:
        return await (await tasks.get(task_id, identity=Identity(name))).state()
    except CallError as error:
        return error.code


@pytest.mark.parametrize("ends", [False, True], ids=["running", "ended"])
async def test_a_task_read_from_memory_is_hidden_from_others_ends_in_time_and_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    clock, go_on = Clock(), asyncio.Event()
    monkeypatch.setattr("enfold.tasks.store.time", clock)
    ops = OperationRegistry("shop")

    @ops.mutation(durable=True)
    async def pay() -> str:
        await go_on.wait()
        return "paid"

    async with Tasks(ops, SQLiteTasks(tmp_path / "tasks.db"), limits=TaskLimits(deadline=100, keep=50)) as tasks:
        handle = await tasks.start("shop.pay", identity=Identity("ann"))
        if ends:
            go_on.set()
            assert (await handle.result()).data == "paid"
        for ahead, status in ((0, "completed" if ends else "working"), (101, "completed" if ends else "failed")):
            clock.ahead = ahead
            task = await found(tasks, handle.id, "ann")
            assert isinstance(task, Task)
            assert task.status == status
            assert await found(tasks, handle.id, "bob") == "TASK_NOT_FOUND"
        clock.ahead = 151
        assert await found(tasks, handle.id, "ann") == "TASK_NOT_FOUND"


async def test_a_task_read_from_memory_is_cancelled_by_another_process_and_gone_with_the_file(tmp_path: Path) -> None:
    ops, path = OperationRegistry("shop"), tmp_path / "tasks.db"

    @ops.mutation(durable=True)
    async def pay() -> str:
        await asyncio.Event().wait()
        return "paid"

    async with Tasks(ops, SQLiteTasks(path)) as tasks, Tasks(ops, SQLiteTasks(path), at_once=0) as other:
        cancelled, lost = [await tasks.start("shop.pay", identity=Identity("ann")) for _ in range(2)]
        await (await other.get(cancelled.id, identity=Identity("ann"))).cancel()
        with pytest.raises(CallError, match="cancelled"):
            await asyncio.wait_for(cancelled.result(), PATIENCE)
        task = await found(tasks, cancelled.id, "ann")
        assert isinstance(task, Task)
        assert task.status == "cancelled"
        for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
            file.unlink()
        async with asyncio.timeout(PATIENCE):
            while isinstance(await found(tasks, lost.id, "ann"), Task):  # noqa: ASYNC110  # a removed file
                await asyncio.sleep(0.01)
