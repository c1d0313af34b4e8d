"""The messages of discovery: a question, the parts of a worker's answer, and announcements of changes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from enfold.operation import OperationSpec


class Ask(msgspec.Struct, frozen=True):
    """Asks all workers what the asker may call; `known` are digests of lists it already has."""

    v: Literal[1] = 1
    known: list[str] = []


class WorkerListing(msgspec.Struct, frozen=True, omit_defaults=True):
    """One part of the list of what a worker serves to the asker."""

    worker: str
    boot: str
    digest: str
    v: Literal[1] = 1
    part: int = 0
    parts: int = 0  # none: the asker has this list already
    specs: list[dict[str, Any]] = []


class Announcement(msgspec.Struct, frozen=True):
    """A worker came, changed what it serves, or goes."""

    worker: str
    boot: str
    state: Literal["up", "changed", "down"]
    v: Literal[1] = 1


def specs_digest(specs: Iterable[OperationSpec]) -> str:
    """The digest of a list of operations."""
    return hashlib.sha256("".join(sorted(spec.digest for spec in specs)).encode()).hexdigest()
