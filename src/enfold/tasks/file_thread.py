"""One thread that owns an SQLite connection: the event loop never waits for a disk or a lock.

What arrives while a transaction is under way is written in the next one, all together: the disk is waited for once.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec

__all__ = ["FileThread"]

T = TypeVar("T")

MOST_TOGETHER: Final = 256  # jobs of one transaction

Job = Callable[[sqlite3.Connection], Any]


class _Asked(msgspec.Struct, eq=False):
    job: Job
    writes: bool
    answer: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None


class FileThread:
    """Runs jobs on a connection of its own, in a thread that is started with the first of them.

    `open` makes the connection, in the thread; `idle` is called about every `pause` seconds, with the connection.
    """

    def __init__(self, open: Callable[[], sqlite3.Connection], idle: Job, pause: float) -> None:
        self._open = open
        self._idle = idle
        self._pause = pause
        self._jobs: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._starting = threading.Lock()

    def submit(self, job: Callable[[sqlite3.Connection], T], *, writes: bool = True) -> asyncio.Future[T]:
        """The future result of a job. What it raises undoes what it wrote, and nothing of others."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._start()
        self._jobs.put(_Asked(job, writes, answer))
        return answer

    def close(self) -> None:
        """Let the thread end after what it has been given; a later job starts another."""
        with self._starting:
            thread, self._thread = self._thread, None
        if thread is not None and self._pid == os.getpid():
            self._jobs.put(None)
            thread.join()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None or self._pid != os.getpid():  # threads do not survive a fork
                self._jobs = queue.SimpleQueue()
                self._pid = os.getpid()
                self._thread = threading.Thread(target=self._work, args=(self._jobs,), daemon=True, name="enfold-tasks")
                self._thread.start()

    # in the thread

    def _work(self, jobs: queue.SimpleQueue[_Asked | None]) -> None:
        connection: sqlite3.Connection | None = None
        is_closing = False
        while not is_closing:
            batch, is_closing = self._next(jobs)
            try:
                if connection is None and batch:
                    connection = self._open()
                if connection is not None:
                    _run(connection, batch)
            except (sqlite3.Error, OSError) as error:
                _fail(batch, error)
                _close(connection)
                connection = None
            _deliver(batch)
            if connection is not None and not is_closing:
                connection = self._look(connection)
        _close(connection)

    def _look(self, connection: sqlite3.Connection) -> sqlite3.Connection | None:
        try:
            self._idle(connection)
        except (sqlite3.Error, OSError):
            _close(connection)  # the next job opens it again, and is told what is wrong
            return None
        return connection

    def _next(self, jobs: queue.SimpleQueue[_Asked | None]) -> tuple[list[_Asked], bool]:
        """What is to be done now; and whether that is all."""
        batch: list[_Asked] = []
        with suppress(queue.Empty):
            while len(batch) < MOST_TOGETHER:
                asked = jobs.get_nowait() if batch else jobs.get(timeout=self._pause)
                if asked is None:
                    return batch, True
                batch.append(asked)
        return batch, False


def _run(connection: sqlite3.Connection, batch: list[_Asked]) -> None:
    """All jobs in one transaction; each alone is undone where it fails."""
    if not batch:
        return
    connection.execute("BEGIN IMMEDIATE" if any(asked.writes for asked in batch) else "BEGIN")
    try:
        for asked in batch:
            _run_one(connection, asked)
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _run_one(connection: sqlite3.Connection, asked: _Asked) -> None:
    connection.execute("SAVEPOINT job")
    try:
        asked.result = asked.job(connection)
    except sqlite3.Error:
        raise
    except Exception as error:  # noqa: BLE001  # it belongs to who asked
        connection.execute("ROLLBACK TO job")
        asked.error = error
    connection.execute("RELEASE job")


def _fail(batch: list[_Asked], error: BaseException) -> None:
    for asked in batch:
        asked.result, asked.error = None, error


def _close(connection: sqlite3.Connection | None) -> None:
    if connection is not None:
        with suppress(sqlite3.Error):
            connection.close()


def _deliver(batch: list[_Asked]) -> None:
    """Give the answers to the loops that wait for them, with one call for each loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Asked]] = {}
    for asked in batch:
        by_loop.setdefault(asked.answer.get_loop(), []).append(asked)
    for loop, mine in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_answer, mine)


def _answer(batch: list[_Asked]) -> None:
    for asked in batch:
        if asked.answer.done():
            continue
        if asked.error is None:
            asked.answer.set_result(asked.result)
        else:
            asked.answer.set_exception(asked.error)
