"""Tasks kept in one SQLite file, shared by the processes of a machine. They survive the death of all of them.

Whoever runs tasks holds a lock file that the kernel lets go when its process dies; the others look at it several times a
second, and take over. Changes of other processes are seen as often, by the file's version.
"""

from __future__ import annotations

import sqlite3
import time
from functools import partial
from pathlib import Path
from typing import Final, Literal

from enfold.idempotency.process_lock import ProcessLock, dead_holders, forget_dead, living_holders
from enfold.shared_sqlite import SharedFile, Transaction, run_script
from enfold.tasks import transitions
from enfold.tasks.file_thread import FileThread
from enfold.tasks.store import now_ms
from enfold.tasks.tables import COUNT_ALL, TABLES, WHOLE, TableTasks
from enfold.tasks.wakeups import WORK

__all__ = ["SQLiteTasks"]

VERSION: Final = 3  # of the tables
BUSY_SECONDS: Final = 2.0
POLL_INTERVAL: Final = 0.1  # seconds between looks at what other processes have done
_HOLDERS: Final = "SELECT DISTINCT holder FROM tasks WHERE holder != ''"


class SQLiteTasks(TableTasks):
    """A file of tasks. `fsync="normal"` is faster, and may lose the last moments when the power fails."""

    def __init__(self, path: Path | str, *, fsync: Literal["full", "normal"] = "full") -> None:
        """The file is made with the first task, and its folder where it is not there."""
        if fsync not in ("full", "normal"):
            raise ValueError(f"Unknown fsync {fsync!r}: use full or normal")
        self.path = Path(path).absolute()
        self._file = SharedFile(self.path, _upgrade, synchronous=fsync, patience=BUSY_SECONDS)
        super().__init__(str(self.path), partial(FileThread, self._open, self._file.check, pause=POLL_INTERVAL))
        self._holders = Path(f"{self.path}-workers")
        self._lock: ProcessLock | None = None
        self._version = 0
        self._seen = 0  # the last change that this process knows of
        self._poll_at = 0.0
        self._missing: dict[str, float] = {}

    async def close(self) -> None:
        """Let go of the file; what this process still held is for others."""
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
        if not self._seen:  # who waits from now on looks first: of what was before nobody is told
            self._seen = connection.execute("SELECT COALESCE(MAX(change), 0) FROM tasks").fetchone()[0]
        return connection

    def _holder(self) -> str:
        """The name of our lock file, taken when first needed; every poll checks that it is still there."""
        if self._lock is None:
            self._lock = ProcessLock(self._holders)
            self._lock.hold()
        return self._lock.name

    def _expire(self, connection: sqlite3.Connection) -> bool:
        forget_dead(self._holders, {name for (name,) in connection.execute(_HOLDERS)})
        return super()._expire(connection)

    def _poll(self, connection: sqlite3.Connection) -> None:
        """Wake whoever waits for what has changed; now and then see whether a worker has died."""
        super()._poll(connection)
        now = time.monotonic()
        if now < self._poll_at:
            return
        self._poll_at = now + POLL_INTERVAL
        self._file.check()
        version = connection.execute("PRAGMA data_version").fetchone()[0]
        if version != self._version:
            self._version = version
            self._wake_changed(connection)
        if self._lock is not None or self._wakeups:
            self._take_over(connection)

    def _wake_changed(self, connection: sqlite3.Connection) -> None:
        """Wake those who wait for what other processes have changed since the last look."""
        rows = connection.execute("SELECT id, change FROM tasks WHERE change > ?", (self._seen,)).fetchall()
        self._seen = max((change for _, change in rows), default=self._seen)
        self._wakeups.wake([WORK, *(task_id for task_id, _ in rows)])

    def _take_over(self, connection: sqlite3.Connection) -> None:
        """Queue again, or end, what dead processes held."""
        own = None if self._lock is None else self._lock.name
        if self._lock is not None:
            self._lock.hold()
        found = [name for (name,) in connection.execute(_HOLDERS) if name != own]
        for name in dead_holders(self._holders, found, self._missing):
            with Transaction(connection):
                left = connection.execute(f"{WHOLE} WHERE holder = ?", (name,)).fetchall()
                for task in self._readable(left, connection):
                    self._put(transitions.worker_died(task, now_ms()), connection)
            (self._holders / name).unlink(missing_ok=True)  # only now: until then others may find it dead, too
            super()._poll(connection)


def _upgrade(connection: sqlite3.Connection) -> None:
    """Make the tables, or bring an older version up to ours; a file of a newer one, or somebody else's, is left alone."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    columns = {name for _, name, *_ in connection.execute("PRAGMA table_info(tasks)")}
    if version > VERSION:
        raise OSError("it was written by a newer version of Enfold: use that one, or another file")
    is_new = version == 0 and connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None
    if not is_new and (version == 0 or "ordered" not in columns):
        raise OSError("it is another program's: name another file")
    if version == 1 and "change" not in columns:
        connection.execute("ALTER TABLE tasks ADD COLUMN change INTEGER NOT NULL DEFAULT 0")
    if version < VERSION:
        for index in ("tasks_unfinished", "tasks_due", "tasks_queued"):  # older versions had others
            connection.execute(f"DROP INDEX IF EXISTS {index}")
        run_script(TABLES, connection)
        connection.execute(COUNT_ALL)
        connection.execute(f"PRAGMA user_version = {VERSION}")
