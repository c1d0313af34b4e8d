"""Whether a process lives, seen by others on the same machine: it holds a lock that the kernel lets go when it dies.

A process that is only stopped still holds its lock. Nothing here waits, and nothing is written but empty files.
"""

from __future__ import annotations

import os
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["ProcessLock", "dead_holders"]

MISSING_FOR: Final = 3.0  # seconds: a living process puts its file back sooner


class ProcessLock:
    """The lock of one store in this process; `name` is new for each."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / os.urandom(12).hex()
        self.name = self._path.name
        self._descriptor: int | None = None
        _locks.add(self)

    def hold(self) -> None:
        """Take the lock, or see that it is still where others look for it."""
        if self._descriptor is not None and not self._path.exists():
            self._close()  # somebody has removed the file: others would take us for dead
        if self._descriptor is None:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            self._descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600)
            _try_lock(self._descriptor)

    def release(self) -> None:
        with suppress(OSError):
            self._path.unlink()
        self._close()

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_locks: Final[weakref.WeakSet[ProcessLock]] = weakref.WeakSet()


def _close_in_child() -> None:
    """A child that kept its parent's descriptor would keep the parent alive in the eyes of others."""
    for lock in list(_locks):
        lock._close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def dead_holders(folder: Path, names: list[str], missing: dict[str, float]) -> list[str]:
    """Those of the names whose process has died; `missing` remembers since when a file is gone."""
    dead = [name for name in names if _is_dead(folder / name, name, missing)]
    for name in list(missing):
        if name not in names:
            del missing[name]
    return dead


def _is_dead(path: Path, name: str, missing: dict[str, float]) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return time.monotonic() - missing.setdefault(name, time.monotonic()) > MISSING_FOR
    except OSError:
        return False  # we cannot look: then nobody is taken for dead
    missing.pop(name, None)
    try:
        return _try_lock(descriptor)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        import fcntl  # which Windows does not have
    except ImportError:  # Windows
        return _try_lock_windows(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _try_lock_windows(descriptor: int) -> bool:
    import importlib  # mypy on another system knows no msvcrt

    msvcrt = importlib.import_module("msvcrt")  # which only Windows has
    try:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    except OSError:
        return False
    return True
