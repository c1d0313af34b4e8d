"""SQLite files that several processes share: readable by their owner alone, with a write-ahead log."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

RETRY_PAUSE: Final = 0.02  # seconds before a file is tried again that another process has locked
QUICK: Final = 0.01  # seconds; a write that takes no longer is not checked again
_creating: Final = threading.Lock()
_NO_FILE: Final[tuple[int, ...]] = ()
_BUSY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class SharedFile:
    """A SQLite file whose removal is noticed: a write to a file that was deleted or replaced must not count as stored.

    Threads that share one connection use `with file as connection`; a thread with its own uses `open` and `check`.
    """

    def __init__(
        self,
        path: Path,
        prepare: Callable[[sqlite3.Connection], object],
        *,
        synchronous: Literal["full", "normal"],
        patience: float,
        create: bool = True,
    ) -> None:
        """`prepare` creates the tables in one transaction; without `create` the file must exist.

        Several processes may open it at the same moment: opening, and every statement, waits up to `patience` seconds.
        """
        self.path = path
        self._prepare = prepare
        self._synchronous = synchronous
        self._patience = patience
        self._create = create
        self._names = (str(path), f"{path}-wal")
        self._opened_file = _NO_FILE  # the inodes of the open file and its log
        self._connection: sqlite3.Connection | None = None
        self._is_closed = False
        self._checked_at = 0.0
        self._lock = threading.Lock()

    def open(self) -> sqlite3.Connection:
        """A new connection to the file at the path, which is created if there is none."""
        if not self._create and not self.path.exists():
            raise FileNotFoundError(f"There is no store at {self.path}")
        _create_for_owner(self.path)
        connection = sqlite3.connect(self.path, timeout=self._patience, isolation_level=None, check_same_thread=False)
        until = time.monotonic() + self._patience
        try:
            while not self._is_prepared(connection, until):
                time.sleep(RETRY_PAUSE)
        except BaseException:
            connection.close()
            raise
        self._opened_file = self._found()
        return connection

    def _found(self) -> tuple[int, ...]:
        """The inodes of the file and its log as they are at the path now."""
        try:
            file, log = map(os.stat, self._names)
        except FileNotFoundError:  # it was removed
            return _NO_FILE
        return file.st_ino, log.st_ino, file.st_dev, log.st_dev

    def _is_prepared(self, connection: sqlite3.Connection, until: float) -> bool:
        """Create the tables; False if another process has locked the file and there is time to try again."""
        try:
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            connection.execute("BEGIN")
            self._prepare(connection)
            connection.execute("COMMIT")
            connection.execute("PRAGMA journal_mode = WAL")  # last: a file that `prepare` refuses stays unchanged
            connection.execute("PRAGMA user_version")  # reading creates the log, whose inode `_found` needs
        except BaseException as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if not _is_busy(error) or time.monotonic() > until:
                raise
            return False
        return True

    def check(self) -> None:
        """Raise OSError if the file at the path is not the open one any more."""
        if self._found() != self._opened_file:
            raise OSError("the file was removed, or replaced by another")

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._disconnect()

    def __enter__(self) -> sqlite3.Connection:
        """The connection, for one thread at a time."""
        self._lock.acquire()
        try:
            connection = self._current()
            self._checked_at = time.monotonic()
            return connection  # noqa: TRY300  # any failure above must release the lock
        except BaseException:
            self._lock.release()
            raise

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            # A writer that had to wait may have written to a file that was replaced meanwhile. A quick one need not check
            # again: a file can be removed a moment later just as well.
            if kind is None and time.monotonic() - self._checked_at > QUICK:
                self.check()
        finally:
            self._lock.release()

    def _current(self) -> sqlite3.Connection:
        """The connection to the file at the path; a new one if the file was replaced."""
        if self._is_closed:
            raise sqlite3.ProgrammingError("it has been closed")
        if self._found() != self._opened_file:
            self._disconnect()
        self._connection = self._connection or self.open()
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Transaction:
    """All writes of the block, or none if it raises."""

    __slots__ = ("_connection",)

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> sqlite3.Cursor:
        return self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, *_: object) -> None:
        self._connection.execute("COMMIT" if kind is None else "ROLLBACK")


def run_script(script: str, connection: sqlite3.Connection) -> None:
    """Run statements inside the current transaction, which `executescript` would commit."""
    for statement in script.split(";"):
        connection.execute(statement)


def _create_for_owner(path: Path) -> None:
    """Create the file if there is none. An existing one is not opened here: closing any descriptor of a file drops all locks
    of this process on it, and another process would then remove its log.
    """
    with _creating, suppress(FileExistsError):  # no thread opens a new file before our descriptor is closed
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _is_busy(error: BaseException) -> bool:
    return isinstance(error, sqlite3.OperationalError) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _BUSY
