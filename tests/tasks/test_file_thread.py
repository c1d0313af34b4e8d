"""The thread that owns a file of tasks: every job gets a result, even if the store is closed meanwhile."""

import asyncio
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from enfold import OperationRegistry
from enfold.tasks import Task, Tasks, tables
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
