"""Which files a document may refer to: documents beside or below it, and those in folders the user allowed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import unquote, urlsplit

from enfold.sources.openapi.document import BrokenReferenceError

Folders: TypeAlias = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

_SUFFIXES: Final = (".json", ".yaml", ".yml")


def referred_file(uri: str, home: str, allowed: Folders = ()) -> Path:
    """The file that a `file:` address names, with every link followed; a BrokenReferenceError says why it may not be read."""
    if not home.startswith("file:"):
        raise BrokenReferenceError("only a document that is a file itself may refer to files")
    given = _path(uri)
    # Documents are often not our own: what they can make us read is documents.
    if given.suffix.lower() not in _SUFFIXES:
        raise BrokenReferenceError(f"{given.name} is no .json, .yaml or .yml file")
    path = given.resolve()
    if not any(path.is_relative_to(folder) for folder in _folders(_path(home), allowed)):
        raise BrokenReferenceError(
            f"{given.name} lies outside the document's folder: pass allow_files=[{str(path.parent)!r}] to allow it"
        )
    return path


def _path(uri: str) -> Path:
    parts = urlsplit(uri)
    text = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or "\0" in text:
        raise BrokenReferenceError("a reference to a file names a path of this machine")
    return Path(text)


def _folders(home: Path, allowed: Folders) -> Iterator[Path]:
    """The folder the user sees the document in, the one it really lies in where it is a link, and those allowed."""
    yield home.parent.resolve()
    yield home.resolve().parent
    for each in [allowed] if isinstance(allowed, (str, os.PathLike)) else allowed:
        yield Path(each).resolve()
