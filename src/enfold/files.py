"""Files that several programs use at the same time: whether one has changed, one put in the place of another, a lock."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from stat import S_ISDIR
from typing import TypeAlias

FileVersion: TypeAlias = tuple[int, int, int] | None  # its time, size and number; None where there is no such file


def file_version(path: str | os.PathLike[str]) -> FileVersion:
    """What differs between two versions of a file, such as its time."""
    try:
        found = os.stat(path)  # noqa: PTH116  # every token that is verified comes this way, and a `Path` takes longer
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def replace_file(path: Path, content: bytes) -> None:
    """Write a file beside the old one, then put it in its place: a reader sees one or the other, and only its owner."""
    from tempfile import mkstemp  # few programs write files

    handle, name = mkstemp(dir=path.parent, prefix=".new-")  # which gives it to its owner alone
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


def try_lock(descriptor: int) -> bool | None:
    """Lock an open file, until it is closed or its process dies; False where another holds it, None where none can be had."""
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
    """Make a folder that nobody else can read, unless it is there; an OSError where another's stands in its place."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        if not S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise
