"""SQLite files that several processes share: for their owner alone, with a write-ahead log, and opened by many at once."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

PAUSE: Final = 0.02  # seconds before a file is tried again that another process keeps to itself
QUICK: Final = 0.01  # seconds
_making: Final = threading.Lock()
_NO_FILE: Final[tuple[int, ...]] = ()
_BUSY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class SharedFile:
    """A file whose removal is noticed: what is written where nobody else looks for it must not be taken for kept.

    Threads that share the connection say `with file as connection`; a thread that has one of its own uses `open` and
    `check`.
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
        """`prepare` makes the tables, all of them or none; without `create` the file must be there.

        Several processes may begin at the same moment: a busy file is tried again for `patience` seconds, and so is every
        statement later.
        """
        self.path = path
        self._prepare = prepare
        self._synchronous = synchronous
        self._patience = patience
        self._create = create
        self._names = (str(path), f"{path}-wal")
        self._marks = _NO_FILE  # which file is open, and its log
        self._connection: sqlite3.Connection | None = None
        self._is_closed = False
        self._looked_at = 0.0
        self._lock = threading.Lock()

    def open(self) -> sqlite3.Connection:
        """A new connection to the file that lies there now, which is made where there is none."""
        if not self._create and not self.path.exists():
            raise FileNotFoundError(f"There is no store at {self.path}")
        _make_for_owner_alone(self.path)
        connection = sqlite3.connect(self.path, timeout=self._patience, isolation_level=None, check_same_thread=False)
        until = time.monotonic() + self._patience
        try:
            while not self._is_prepared(connection, until):
                time.sleep(PAUSE)
        except BaseException:
            connection.close()
            raise
        self._marks = self._found()
        return connection

    def _found(self) -> tuple[int, ...]:
        """What tells the file that lies there now, and its log, from others of the same names."""
        try:
            file, log = map(os.stat, self._names)
        except FileNotFoundError:  # it was removed, or is in memory alone
            return _NO_FILE
        return file.st_ino, log.st_ino, file.st_dev, log.st_dev

    def _is_prepared(self, connection: sqlite3.Connection, until: float) -> bool:
        """Make the tables; False where another process keeps the file to itself, and there is time to try again."""
        try:
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            connection.execute("BEGIN")
            self._prepare(connection)
            connection.execute("COMMIT")
            connection.execute("PRAGMA journal_mode = WAL")  # last: a file that `prepare` refuses stays as it was
            connection.execute("PRAGMA user_version")  # to read is to make the log, by whose marks the file is known
        except BaseException as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if not _is_busy(error) or time.monotonic() > until:
                raise
            return False
        return True

    def check(self) -> None:
        """Raise OSError where others find another file than the one that is open, or none."""
        if self._found() != self._marks:
            raise OSError("the file was removed, or replaced by another")

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._let_go()

    def __enter__(self) -> sqlite3.Connection:
        """The connection, for one thread at a time."""
        self._lock.acquire()
        try:
            connection = self._current()
            self._looked_at = time.monotonic()
            return connection  # noqa: TRY300  # what fails here lets the lock go
        except BaseException:
            self._lock.release()
            raise

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            # Who had to wait for the file may have written to one that was replaced meanwhile. A quick writer need not
            # look again: what is removed in that moment is as lost as what is removed in the next.
            if kind is None and time.monotonic() - self._looked_at > QUICK:
                self.check()
        finally:
            self._lock.release()

    def _current(self) -> sqlite3.Connection:
        """The connection to the file that others find; to another than before, where that one is gone."""
        if self._is_closed:
            raise sqlite3.ProgrammingError("it has been closed")
        if self._found() != self._marks:
            self._let_go()
        self._connection = self._connection or self.open()
        return self._connection

    def _let_go(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Transaction:
    """All of the writes inside of the block, or none where it raises."""

    __slots__ = ("_connection",)

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> sqlite3.Cursor:
        return self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, *_: object) -> None:
        self._connection.execute("COMMIT" if kind is None else "ROLLBACK")


def run_script(script: str, connection: sqlite3.Connection) -> None:
    """Run statements inside of a transaction, which `executescript` would end."""
    for statement in script.split(";"):
        connection.execute(statement)


def _make_for_owner_alone(path: Path) -> None:
    """Make the file where there is none. One that is there is not touched: to close any descriptor of a file drops all
    locks that the process holds on it, so that others would take this process for gone, and remove its log.
    """
    if str(path) == ":memory:":
        return
    with _making, suppress(FileExistsError):  # no thread opens a new file before our descriptor is closed
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _is_busy(error: BaseException) -> bool:
    return isinstance(error, sqlite3.OperationalError) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _BUSY
