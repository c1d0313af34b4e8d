"""Whether a process lives, seen by others on the same machine: it holds a lock that the kernel lets go when it dies.

A process that is only stopped still holds its lock. Nothing here waits, and nothing is written but empty files.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from typing import Final

from enfold.files import try_lock

LOCK_WAIT: Final = 1.0  # seconds: nobody holds another's lock longer than it takes to look
MISSING_GRACE: Final = 3.0  # seconds: a living process puts its file back sooner


class ProcessLock:
    """The lock of one store in this process; `name` is new for each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.name = os.urandom(12).hex()
        self._descriptor: int | None = None
        self._is_locked = False
        _locks.add(self)

    def hold(self) -> None:
        """Take the lock, or take it anew where its file was removed."""
        if self._descriptor is not None and not self._path.exists():
            self._close()  # somebody has removed the file: others would take us for dead
        if self._descriptor is None:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            self._descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600)
            self._is_locked = False
        until = time.monotonic() + LOCK_WAIT
        while not self._is_locked and time.monotonic() < until:  # somebody may just look whether we live
            self._is_locked = try_lock(self._descriptor) is True
            if not self._is_locked:
                time.sleep(0.001)

    def release(self) -> None:
        with suppress(OSError):
            self._path.unlink()
        self._close()

    def reset_after_fork(self) -> None:
        """Take a new name in a forked child: with the parent's descriptor it would make a dead parent look alive."""
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
    """The names whose process has died; `missing` remembers since when a file is gone."""
    dead = [name for name in names if _is_dead(folder / name, name, missing)]
    for name in list(missing):
        if name not in names:
            del missing[name]
    return dead


def living_holders(folder: Path) -> list[str]:
    """The names in a folder whose process lives."""
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
        return False  # we cannot look: then nobody is taken for dead
    missing.pop(name, None)
    try:
        return try_lock(descriptor) is True
    finally:
        os.close(descriptor)
