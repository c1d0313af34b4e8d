"""The thread that owns a file of tasks: every job is answered, also one that is given while the store is closed."""

import asyncio
import sqlite3
import sys
from collections.abc import Iterator

import pytest

from enfold.tasks.sqlite import FileThread


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
        thread = FileThread(open_file, lambda: None, lambda *_: None, 0.01)
        first = thread.submit(one)
        closing = asyncio.create_task(asyncio.to_thread(thread.close))
        await asyncio.sleep(0)
        jobs = [thread.submit(one) for _ in range(20)]
        assert await asyncio.wait_for(asyncio.gather(first, *jobs), 30) == [1] * 21
        await closing
        thread.close()


async def test_only_results_that_are_stored_are_handed_on() -> None:
    handed: list[object] = []
    is_lost = False

    def open_file() -> sqlite3.Connection:
        return sqlite3.connect(":memory:", isolation_level=None)

    def check() -> None:
        if is_lost:
            raise OSError("the file was deleted")

    def fail(_: sqlite3.Connection) -> None:
        raise ValueError("a job that is rolled back")

    thread = FileThread(open_file, check, lambda _, results: handed.extend(results), 0.01)
    assert await thread.submit(lambda _: "stored") == "stored"
    assert await thread.submit(lambda _: "read", writes=False) == "read"
    with pytest.raises(ValueError, match="rolled back"):
        await thread.submit(fail)
    is_lost = True
    with pytest.raises(OSError, match="deleted"):
        await thread.submit(lambda _: "lost")
    await asyncio.to_thread(thread.close)
    assert handed == ["stored"]
