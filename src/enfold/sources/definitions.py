"""What upstreams have said of their operations since the process began: a definition that changes is noticed.

Digests alone are kept. What an upstream once called a mutation stays one, whatever it says later.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from enfold.log import Log
from enfold.source_states import Problem

log: Final = Log("enfold.sources")

PARTS: Final = ("wording", "arguments", "output", "annotations")
MAX_KNOWN: Final = 50_000  # operations; beyond it, one that is not known counts as a mutation
MAX_TOLD: Final = 100  # changes of one source that are shown
MAX_LOGGED: Final = 20  # changes that are logged when a source is read again


class Definition(msgspec.Struct, frozen=True):
    """What an upstream says of one operation: whether it only reads, and the digest of each part."""

    is_mutation: bool
    digests: tuple[bytes, ...]


def definition_of(*parts: Any, is_mutation: bool) -> Definition:
    """The definition with these parts, in the order of `PARTS`."""
    return Definition(is_mutation, tuple(map(_digest, parts)))


def _digest(part: Any) -> bytes:
    try:
        text = msgspec.json.encode(part, order="deterministic")
    except (TypeError, ValueError, RecursionError):  # such as a cycle in YAML
        return b""
    return hashlib.blake2b(text, digest_size=8).digest()


class _Changes:
    """The changes of one source."""

    def __init__(self) -> None:
        self.count = 0
        self.latest: deque[Problem] = deque(maxlen=MAX_TOLD)


class DefinitionLedger:
    """The definitions of all operations that sources have had, whether they still have them or not."""

    def __init__(self) -> None:
        self._known: dict[str, Definition] = {}  # by operation id
        self._changes: dict[str, _Changes] = {}  # by source

    def is_held(self, operation_id: str) -> bool:
        """Whether the operation is to stay a mutation, because it was one."""
        known = self._known.get(operation_id)
        return len(self._known) >= MAX_KNOWN if known is None else known.is_mutation

    def record(self, source: str, found: Mapping[str, Definition]) -> None:
        """Remember the definitions that a source has now, by operation id; those that are others than before are logged."""
        changed = [(own_id, what) for own_id, new in found.items() if (what := self._changed_parts(own_id, new))]
        for own_id, new in found.items():
            known = self._known.get(own_id)
            if known is not None or len(self._known) < MAX_KNOWN:
                is_mutation = new.is_mutation or (known is not None and known.is_mutation)
                self._known[own_id] = Definition(is_mutation, new.digests)
        for own_id, what in changed:
            self._note(source, own_id, what)
        for own_id, what in changed[:MAX_LOGGED]:
            log.warning("%s changed the definition of %s: %s", source, own_id, what)
        if len(changed) > MAX_LOGGED:
            log.warning("%s changed the definitions of %d further operations", source, len(changed) - MAX_LOGGED)

    def latest_changes(self, source: str) -> tuple[Problem, ...]:
        """The last changes of a source, the newest first: the operation, and what was changed of it."""
        changes = self._changes.get(source)
        return () if changes is None else tuple(changes.latest)

    def count_changes(self, source: str) -> int:
        changes = self._changes.get(source)
        return 0 if changes is None else changes.count

    def _changed_parts(self, operation_id: str, new: Definition) -> str:
        known = self._known.get(operation_id)
        if known is None or known.digests == new.digests:
            return ""
        pairs = zip(PARTS, known.digests, new.digests, strict=True)
        parts = ", ".join(name for name, before, after in pairs if before != after)
        return f"{parts}; it stays a mutation" if known.is_mutation and not new.is_mutation else parts

    def _note(self, source: str, operation_id: str, what: str) -> None:
        changes = self._changes.setdefault(source, _Changes())
        changes.count += 1
        changes.latest.appendleft(Problem(operation_id, what))
