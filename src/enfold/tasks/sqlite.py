"""Tasks in a SQLite file that the processes of a machine share. They survive a crash of all of them.

A process that runs tasks holds a lock file, which the kernel releases when the process dies. The others check it several
times a second and take over; by the file's version they see what other processes have changed.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec

from enfold.observability.log import Log
from enfold.storage import ProcessLock, SharedFile, Transaction, dead_holders, forget_dead, living_holders, run_script
from enfold.tasks import transitions
from enfold.tasks.model import Task
from enfold.tasks.store import WORK, Calls, call_soon, now_ms
from enfold.tasks.tables import COUNT_ALL, TABLES, WHOLE, Job, Publish, TableTasks

__all__ = ["SQLiteTasks"]

VERSION: Final = 3  # of the tables
BUSY_SECONDS: Final = 2.0
POLL_INTERVAL: Final = 0.1  # seconds between looks at what other processes have done
_HOLDERS: Final = "SELECT DISTINCT holder FROM tasks WHERE holder != ''"


class SQLiteTasks(TableTasks):
    """A file of tasks. `fsync="normal"` is faster, but a power failure may lose the last tasks."""

    def __init__(self, path: Path | str, *, fsync: Literal["full", "normal"] = "full") -> None:
        """Create the file, and its folder, with the first task."""
        if fsync not in ("full", "normal"):
            raise ValueError(f"Unknown fsync {fsync!r}: use full or normal")
        self.path = Path(path).absolute()
        self._file = SharedFile(self.path, _upgrade, synchronous=fsync, patience=BUSY_SECONDS)
        super().__init__(str(self.path), partial(FileThread, self._open, self._file.check, self._poll, POLL_INTERVAL))
        self._holders = Path(f"{self.path}-workers")
        self._lock: ProcessLock | None = None
        self._version = 0
        self._seen = 0  # the last change that this process knows of
        self._missing: dict[str, float] = {}

    async def close(self) -> None:
        """Close the file; other processes take over tasks that this one still held."""
        await super().close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    async def has_worker(self) -> bool | None:
        return bool(living_holders(self._holders))

    # in the thread

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = self._file.open()
        if not self._seen:  # watchers read the store first: earlier changes need no wake-up
            self._version = _data_version(connection)
            self._seen = connection.execute("SELECT COALESCE(MAX(change), 0) FROM tasks").fetchone()[0]
        return connection

    def _holder(self) -> str:
        """Return the name of our lock file, created on first use; every poll checks that it still exists."""
        if self._lock is None:
            self._lock = ProcessLock(self._holders)
            self._lock.hold()
        return self._lock.name

    def _is_settled_here(self, task: Task) -> bool:
        return task.is_ended or (self._lock is not None and task.fence.partition(".")[0] == self._lock.name)

    def _expire(self, connection: sqlite3.Connection) -> bool:
        forget_dead(self._holders, {name for (name,) in connection.execute(_HOLDERS)})
        return super()._expire(connection)

    def _poll(self, connection: sqlite3.Connection) -> None:
        """Wake those who wait for changes of other processes, and see whether a worker has died."""
        try:
            self._file.check()
        except OSError:
            self._wakeups.forget()
            raise
        version = _data_version(connection)
        if version != self._version:
            self._version = version
            self._wake_changed(connection)
        if self._lock is not None or self._wakeups:
            self._take_over(connection)

    def _wake_changed(self, connection: sqlite3.Connection) -> None:
        """Wake those who wait for what other processes have changed since the last look."""
        rows = connection.execute("SELECT id, change FROM tasks WHERE change > ?", (self._seen,)).fetchall()
        self._seen = max((change for _, change in rows), default=self._seen)
        call_soon(self._wakeups.changed({WORK: None, **{task_id: None for task_id, _ in rows}}))

    def _take_over(self, connection: sqlite3.Connection) -> None:
        """Queue again, or end, what dead processes held."""
        own = None if self._lock is None else self._lock.name
        if self._lock is not None:
            self._lock.hold()
        found = [name for (name,) in connection.execute(_HOLDERS) if name != own]
        for name in dead_holders(self._holders, found, self._missing):
            with Transaction(connection):
                self._changed = {}
                left = connection.execute(f"{WHOLE} WHERE holder = ?", (name,)).fetchall()
                for task in self._readable(left, connection):
                    self._put(transitions.worker_died(task, now_ms()), connection)
            (self._holders / name).unlink(missing_ok=True)  # last: until now other processes may take over, too
            call_soon(self._wakeups.changed(self._changed))


def _data_version(connection: sqlite3.Connection) -> int:
    """Return a number that changes when another connection has written to the file."""
    version: int = connection.execute("PRAGMA data_version").fetchone()[0]
    return version


def _upgrade(connection: sqlite3.Connection) -> None:
    """Make the tables, or bring an older version up to ours; a file of a newer version or of another program is refused."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    columns = {name for _, name, *_ in connection.execute("PRAGMA table_info(tasks)")}
    if version > VERSION:
        raise OSError("it was written by a newer version of Enfold: upgrade, or use another file")
    is_new = version == 0 and connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None
    if not is_new and (version == 0 or "ordered" not in columns):
        raise OSError("it belongs to another program: use another file")
    if version == 1 and "change" not in columns:
        connection.execute("ALTER TABLE tasks ADD COLUMN change INTEGER NOT NULL DEFAULT 0")
    if version < VERSION:
        for index in ("tasks_unfinished", "tasks_due", "tasks_queued"):  # older versions had others
            connection.execute(f"DROP INDEX IF EXISTS {index}")
        run_script(TABLES, connection)
        connection.execute(COUNT_ALL)
        connection.execute(f"PRAGMA user_version = {VERSION}")


T = TypeVar("T")

MAX_BATCH: Final = 256  # jobs of one transaction


class _QueuedJob(msgspec.Struct, eq=False):
    job: Job
    writes: bool
    answer: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None

    def deliver(self) -> None:
        if self.answer.done():
            return  # its caller has been cancelled
        if self.error is None:
            self.answer.set_result(self.result)
        else:
            self.answer.set_exception(self.error)


class FileThread:
    """Runs jobs on a connection of its own, in a thread that is started with the first of them.

    `open` makes the connection, in the thread. `check` raises OSError if the file is no longer at its path. `idle` is
    called about every `pause` seconds, also between jobs. `publish` gets what writing jobs return, before they are answered;
    the calls that it returns are made together with the answers.
    """

    def __init__(
        self,
        open: Callable[[], sqlite3.Connection],
        check: Callable[[], None],
        idle: Callable[[sqlite3.Connection], None],
        pause: float,
        publish: Publish,
    ) -> None:
        self._open = open
        self._check = check
        self._idle = idle
        self._pause = pause
        self._publish = publish
        self._jobs: queue.SimpleQueue[_QueuedJob | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._giving = threading.Lock()  # no job is given to a thread that is about to end

    def submit(self, job: Callable[[sqlite3.Connection], T], *, writes: bool = True) -> asyncio.Future[T]:
        """Return the future result of a job, which runs even if its caller is cancelled. An error rolls back only this job."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._giving:
            if self._thread is None or self._pid != os.getpid():  # threads do not survive a fork
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
        self._jobs = queue.SimpleQueue()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._work, args=(self._jobs,), daemon=True, name="enfold-tasks")
        self._thread.start()

    # in the thread

    def _work(self, jobs: queue.SimpleQueue[_QueuedJob | None]) -> None:
        connection: sqlite3.Connection | None = None
        is_closing, poll_at = False, 0.0
        while not is_closing:
            readers, writers, is_closing = self._next(jobs)
            # Readers are answered before the disk is waited for.
            if readers:
                connection = self._answer(connection, readers)
            if writers:
                connection = self._answer(connection, writers)
            if connection is not None and not is_closing and time.monotonic() >= poll_at:
                poll_at = time.monotonic() + self._pause
                connection = self._poll(connection)
        _close(connection)

    def _answer(self, connection: sqlite3.Connection | None, batch: list[_QueuedJob]) -> sqlite3.Connection | None:
        """Run a batch of readers or of writers, and deliver its answers; returns the connection, or None where it must be reopened."""
        wakes: Calls = ()
        try:
            connection = connection or self._open()
            _run(connection, batch)
            if batch[0].writes:
                self._check()  # before it is reported as stored
                wakes = self._publish([asked.result for asked in batch if asked.error is None])
        except (sqlite3.Error, OSError) as error:
            _fail(batch, error)
            _close(connection)
            connection = None
        call_soon([*wakes, *[(asked.answer.get_loop(), asked.deliver) for asked in batch]])
        return connection

    def _poll(self, connection: sqlite3.Connection) -> sqlite3.Connection | None:
        try:
            self._idle(connection)
        except Exception as error:  # noqa: BLE001  # no caller waits for it: the next job reopens the file, and gets the error
            if not isinstance(error, (sqlite3.Error, OSError)):
                Log("enfold.tasks").error("Polling the task store failed", error=error)
            _close(connection)
            return None
        return connection

    def _next(self, jobs: queue.SimpleQueue[_QueuedJob | None]) -> tuple[list[_QueuedJob], list[_QueuedJob], bool]:
        """Return the next jobs that read and those that write, and whether the thread ends after them."""
        readers: list[_QueuedJob] = []
        writers: list[_QueuedJob] = []
        with suppress(queue.Empty):
            asked = jobs.get(timeout=self._pause)
            while asked is not None:
                (writers if asked.writes else readers).append(asked)
                if len(readers) + len(writers) >= MAX_BATCH:
                    return readers, writers, False
                asked = jobs.get_nowait()
            return readers, writers, True
        return readers, writers, False


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
    except Exception as error:  # noqa: BLE001  # it is raised to the caller
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
