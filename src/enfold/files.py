"""Files that several programs use at the same time: whether one has changed, one put in the place of another, a lock."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from stat import S_ISDIR
from typing import TypeAlias

FileVersion: TypeAlias = tuple[int, int, int] | None  # modification time, size, inode; None: there is no such file


def file_version(path: str | os.PathLike[str]) -> FileVersion:
    """A value that differs when the file has changed."""
    try:
        found = os.stat(path)  # noqa: PTH116  # runs for every verified token, and a `Path` takes longer
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def replace_file(path: Path, content: bytes) -> None:
    """Write a new file beside the old one and rename it: readers see the old or the new one, and only its owner can read it."""
    from tempfile import mkstemp  # few programs write files

    handle, name = mkstemp(dir=path.parent, prefix=".new-")  # readable by its owner alone
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


def try_lock(descriptor: int) -> bool | None:
    """Lock an open file until it is closed or the process dies. False: another process holds it. None: locks do not work here."""
    try:
        import fcntl  # which Windows does not have
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
    import importlib  # mypy on another system knows no msvcrt

    msvcrt = importlib.import_module("msvcrt")  # which only Windows has
    try:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    except OSError:
        return False
    return True


def make_private_folder(folder: Path) -> None:
    """Make a folder that only its owner can read, unless it exists; OSError if it is somebody else's, or no folder."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        if not S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise
