"""Files shared by several processes: change detection, atomic replacement, SQLite, and locks that show live processes."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Container
from contextlib import suppress
from pathlib import Path
from stat import S_ISDIR
from typing import Final, Literal, TypeAlias

FileVersion: TypeAlias = tuple[int, int, int] | None  # modification time, size, inode; None if there is no such file


def file_version(path: str | os.PathLike[str]) -> FileVersion:
    """Return a value that changes with the file."""
    try:
        found = os.stat(path)  # noqa: PTH116  # runs for every verified token, and a `Path` takes longer
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically by renaming; only its owner can read it."""
    from tempfile import mkstemp  # few programs write files

    handle, name = mkstemp(dir=path.parent, prefix=".new-")  # readable only by its owner
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


def try_lock(descriptor: int) -> bool | None:
    """Lock an open file until it is closed or the process dies. False: held by another process. None: not supported."""
    try:
        import fcntl  # not available on Windows
    except ImportError:
        return _try_lock_windows(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _try_lock_windows(descriptor: int) -> bool:
    import importlib  # mypy has no msvcrt on other systems

    msvcrt = importlib.import_module("msvcrt")  # available only on Windows
    try:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    except OSError:
        return False
    return True


def make_private_folder(folder: Path) -> None:
    """Create a private directory unless it exists; raise OSError if it belongs to another user or is not a directory."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        if not S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise


RETRY_PAUSE: Final = 0.02  # seconds before retrying a file locked by another process
QUICK: Final = 0.01  # seconds; faster writes are not checked again
_creating: Final = threading.Lock()
_NO_FILE: Final[tuple[int, ...]] = ()
_BUSY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class SharedFile:
    """A SQLite file that detects its own removal, so that a write to a deleted or replaced file does not count as stored.

    Threads that share a connection use `with file as connection`; a thread with its own uses `open` and `check`.
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

        Several processes may open it concurrently: opening, and every statement, waits up to `patience` seconds.
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
        """Open a new connection to the file, which is created if missing."""
        if not self._create and not self.path.exists():
            raise FileNotFoundError(f"No store at {self.path}")
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
        """Return the current inodes of the file and its log."""
        try:
            file, log = map(os.stat, self._names)
        except FileNotFoundError:  # removed
            return _NO_FILE
        return file.st_ino, log.st_ino, file.st_dev, log.st_dev

    def _is_prepared(self, connection: sqlite3.Connection, until: float) -> bool:
        """Create the tables; return False if the file is locked by another process and there is time to retry."""
        try:
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            connection.execute("BEGIN")
            self._prepare(connection)
            connection.execute("COMMIT")
            connection.execute(
                "PRAGMA journal_mode = WAL"
            )  # last, so that a file rejected by `prepare` stays unchanged
            connection.execute("PRAGMA user_version")  # reading creates the log, whose inode `_found` needs
        except BaseException as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if not _is_busy(error) or time.monotonic() > until:
                raise
            return False
        return True

    def check(self) -> None:
        """Raise OSError if the file at the path is no longer the open one."""
        if self._found() != self._opened_file:
            raise OSError("the file was removed, or replaced by another")

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._disconnect()

    def __enter__(self) -> sqlite3.Connection:
        """Return the connection, for one thread at a time."""
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
            # A writer that had to wait may have written to a file replaced in the meantime. A fast write is not checked
            # again, since a file can also be removed a moment later.
            if kind is None and time.monotonic() - self._checked_at > QUICK:
                self.check()
        finally:
            self._lock.release()

    def _current(self) -> sqlite3.Connection:
        """Return the connection to the file at the path; a new one if the file was replaced."""
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
    """Run the block in a transaction that is rolled back if it raises."""

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
    """Create the file if it does not exist. An existing one is not opened: closing any descriptor of a file drops all locks
    of this process on it, and another process would then remove its log.
    """
    with _creating, suppress(FileExistsError):  # no thread opens a new file before our descriptor is closed
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _is_busy(error: BaseException) -> bool:
    return isinstance(error, sqlite3.OperationalError) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _BUSY


LOCK_WAIT: Final = 1.0  # seconds: liveness checks hold a lock only briefly
MISSING_GRACE: Final = 3.0  # seconds: a live process restores its file sooner


class ProcessLock:
    """The lock of one store in this process, with a unique `name`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.name = os.urandom(12).hex()
        self._descriptor: int | None = None
        self._is_locked = False
        _locks.add(self)

    def hold(self) -> None:
        """Take the lock, or take it again if its file was removed."""
        if self._descriptor is not None and not self._path.exists():
            self._close()  # the file was removed: other processes would consider this one dead
        if self._descriptor is None:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            self._descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600)
            self._is_locked = False
        until = time.monotonic() + LOCK_WAIT
        while (
            not self._is_locked and time.monotonic() < until
        ):  # another process may be checking whether this one is alive
            self._is_locked = try_lock(self._descriptor) is True
            if not self._is_locked:
                time.sleep(0.001)

    def release(self) -> None:
        with suppress(OSError):
            self._path.unlink()
        self._close()

    def reset_after_fork(self) -> None:
        """Take a new name in a forked child, whose inherited descriptor would make a dead parent look alive."""
        self._close()
        self.name = os.urandom(12).hex()

    @property
    def _path(self) -> Path:
        return self._folder / self.name

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_locks: Final[weakref.WeakSet[ProcessLock]] = weakref.WeakSet()


def _reset_after_fork() -> None:
    for lock in list(_locks):
        lock.reset_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


def dead_holders(folder: Path, names: list[str], missing: dict[str, float]) -> list[str]:
    """Return the names whose process has died; `missing` records since when a file is gone."""
    dead = [name for name in names if _is_dead(folder / name, name, missing)]
    for name in list(missing):
        if name not in names:
            del missing[name]
    return dead


def living_holders(folder: Path) -> list[str]:
    """Return the names in a directory whose process is alive."""
    return [path.name for path in _files(folder) if not _is_dead(path, path.name, {})]


def forget_dead(folder: Path, kept: Container[str]) -> None:
    """Remove the lock files of dead processes, except those in `kept`, whose work is still to be taken over."""
    for path in _files(folder):
        if path.name not in kept and _is_dead(path, path.name, {}):
            path.unlink(missing_ok=True)


def _files(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _is_dead(path: Path, name: str, missing: dict[str, float]) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return time.monotonic() - missing.setdefault(name, time.monotonic()) > MISSING_GRACE
    except OSError:
        return False  # cannot check: treat the process as alive
    missing.pop(name, None)
    try:
        return try_lock(descriptor) is True
    finally:
        os.close(descriptor)
