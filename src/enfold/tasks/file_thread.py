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

from enfold.log import Log

T = TypeVar("T")

MAX_BATCH: Final = 256  # jobs of one transaction

Job = Callable[[sqlite3.Connection], Any]


class _QueuedJob(msgspec.Struct, eq=False):
    job: Job
    writes: bool
    answer: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None


class FileThread:
    """Runs jobs on a connection of its own, in a thread that is started with the first of them.

    `open` makes the connection, in the thread; `idle` is called after jobs and about every `pause` seconds, with the connection;
    `check` raises OSError where what was written is not where others look for it.
    """

    def __init__(
        self, open: Callable[[], sqlite3.Connection], check: Callable[[], None], idle: Job, pause: float | None
    ) -> None:
        self._open = open
        self._check = check
        self._idle = idle
        self._pause = pause
        self._jobs: queue.SimpleQueue[_QueuedJob | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._giving = threading.Lock()  # no job is given to a thread that has just been told to end

    def submit(self, job: Callable[[sqlite3.Connection], T], *, writes: bool = True) -> asyncio.Future[T]:
        """The future result of a job, which is done even if nobody waits. What it raises undoes what it wrote alone."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._giving:
            self._start()
            self._jobs.put(_QueuedJob(job, writes, answer))
        return answer

    def close(self) -> None:
        """End the thread after its queued jobs; a later job starts another."""
        with self._giving:
            thread, self._thread = self._thread, None
            self._jobs.put(None)
        if thread is not None and self._pid == os.getpid():
            thread.join()

    def _start(self) -> None:
        if self._thread is None or self._pid != os.getpid():  # threads do not survive a fork
            self._jobs = queue.SimpleQueue()
            self._pid = os.getpid()
            self._thread = threading.Thread(target=self._work, args=(self._jobs,), daemon=True, name="enfold-tasks")
            self._thread.start()

    # in the thread

    def _work(self, jobs: queue.SimpleQueue[_QueuedJob | None]) -> None:
        connection: sqlite3.Connection | None = None
        is_closing = False
        while not is_closing:
            batch, is_closing = self._next(jobs)
            # Who only reads is answered before the disk is waited for.
            for writes in (False, True):
                connection = self._answer(connection, [asked for asked in batch if asked.writes is writes])
            if connection is not None and not is_closing:
                connection = self._poll(connection)
        _close(connection)

    def _answer(self, connection: sqlite3.Connection | None, batch: list[_QueuedJob]) -> sqlite3.Connection | None:
        """Run a batch and deliver its answers; returns the connection, or None where it must be reopened."""
        if not batch:
            return connection
        try:
            connection = connection or self._open()
            _run(connection, batch)
            if batch[0].writes:
                self._check()  # before anybody is told that it is stored
        except (sqlite3.Error, OSError) as error:
            _fail(batch, error)
            _close(connection)
            connection = None
        _deliver(batch)
        return connection

    def _poll(self, connection: sqlite3.Connection) -> sqlite3.Connection | None:
        try:
            self._idle(connection)
        except Exception as error:  # noqa: BLE001  # nobody has asked: the next job opens it again, and is told
            if not isinstance(error, (sqlite3.Error, OSError)):
                Log("enfold.tasks").error("a look at the tasks failed", error=error)
            _close(connection)
            return None
        return connection

    def _next(self, jobs: queue.SimpleQueue[_QueuedJob | None]) -> tuple[list[_QueuedJob], bool]:
        """The next batch of jobs, and whether the thread is to end after it."""
        batch: list[_QueuedJob] = []
        with suppress(queue.Empty):
            while len(batch) < MAX_BATCH:
                asked = jobs.get_nowait() if batch else jobs.get(timeout=self._pause)
                if asked is None:
                    return batch, True
                batch.append(asked)
        return batch, False


def _run(connection: sqlite3.Connection, batch: list[_QueuedJob]) -> None:
    """Run a batch of readers or of writers in one transaction; a job that fails is rolled back alone."""
    connection.execute("BEGIN IMMEDIATE" if batch[0].writes else "BEGIN")
    try:
        for asked in batch:
            _run_one(connection, asked, alone=len(batch) == 1)
        if connection.in_transaction:
            connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _run_one(connection: sqlite3.Connection, asked: _QueuedJob, *, alone: bool) -> None:
    if not alone:
        connection.execute("SAVEPOINT job")
    try:
        asked.result = asked.job(connection)
    except sqlite3.Error:
        raise
    except Exception as error:  # noqa: BLE001  # it belongs to who asked
        connection.execute("ROLLBACK" if alone else "ROLLBACK TO job")
        asked.error = error
    if not alone:
        connection.execute("RELEASE job")


def _fail(batch: list[_QueuedJob], error: BaseException) -> None:
    for asked in batch:
        asked.result, asked.error = None, error


def _close(connection: sqlite3.Connection | None) -> None:
    if connection is not None:
        with suppress(sqlite3.Error):
            connection.close()


def _deliver(batch: list[_QueuedJob]) -> None:
    """Deliver the answers to the loops that wait for them, with one call for each loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_QueuedJob]] = {}
    for asked in batch:
        by_loop.setdefault(asked.answer.get_loop(), []).append(asked)
    for loop, mine in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_answer, mine)


def _answer(batch: list[_QueuedJob]) -> None:
    for asked in batch:
        if asked.answer.done():
            continue  # who asked has left
        if asked.error is None:
            asked.answer.set_result(asked.result)
        else:
            asked.answer.set_exception(asked.error)
