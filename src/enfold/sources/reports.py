"""What a source reports: imported and skipped operations, changed definitions, and updates of the registries that follow it."""

from __future__ import annotations

import hashlib
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from enfold.observability.log import Log
from enfold.operations import Operation
from enfold.runtime.registry import OperationRegistry
from enfold.runtime.source_states import DefinitionChange, Problem, SourceKind, Watched

__all__ = ["ImportReport", "Problem", "SchemeNeed"]

MAX_LISTED: Final = 50


class SchemeNeed(msgspec.Struct, frozen=True):
    """A security scheme for the operator: the variable to set, and whether it already has a credential."""

    name: str
    kind: str
    variable: str
    is_filled: bool


class ImportReport:
    """The result of an import. `degraded` is computed on first access, because it may take long."""

    def __init__(
        self,
        imported: Iterable[str] = (),
        skipped: Iterable[Problem] = (),
        degraded: Iterable[Problem] | Callable[[], Iterable[Problem]] = (),
        schemes: Iterable[SchemeNeed] = (),
    ) -> None:
        self.imported: list[str] = list(imported)
        self.skipped: list[Problem] = list(skipped)
        self.schemes: list[SchemeNeed] = list(schemes)
        self._degraded = degraded

    @property
    def degraded(self) -> list[Problem]:
        """What was imported incompletely: a schema read as `{}`, an unsupported security scheme."""
        if not isinstance(self._degraded, list):
            found = self._degraded() if callable(self._degraded) else self._degraded
            self._degraded = list(dict.fromkeys(found))
        return self._degraded

    @property
    def needs(self) -> list[str]:
        """The missing credentials, as a sentence; empty if at least one scheme has credentials."""
        if not self.schemes or any(each.is_filled for each in self.schemes):
            return []
        return [f"no credentials: set {' or '.join(dict.fromkeys(each.variable for each in self.schemes))}"]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return {
            "imported": self.imported,
            "skipped": msgspec.to_builtins(self.skipped),
            "degraded": msgspec.to_builtins(self.degraded),
            **({"schemes": msgspec.to_builtins(self.schemes)} if self.schemes else {}),
        }

    def __str__(self) -> str:
        lines = [f"{len(self.imported)} imported, {len(self.skipped)} skipped, {len(self.degraded)} degraded"]
        for word, problems in (("skipped", self.skipped), ("degraded", self.degraded)):
            lines += [f"  {word} {each.where}: {each.why}" for each in problems[:MAX_LISTED]]
            if len(problems) > MAX_LISTED:
                lines.append(f"  … and {len(problems) - MAX_LISTED} more")
        for each in self.schemes:
            lines.append(f"  scheme {each.name} ({each.kind}): {'there' if each.is_filled else f'set {each.variable}'}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<ImportReport {len(self.imported)} imported, {len(self.skipped)} skipped>"


log: Final = Log("enfold.sources")

PARTS: Final = ("wording", "arguments", "output", "annotations")
MAX_KNOWN: Final = 50_000  # operations; beyond it, one that is not known counts as a mutation
MAX_TOLD: Final = 100  # changes of one source that are shown
MAX_TEXT: Final = 4_000  # characters that are kept of each part of a definition
MAX_TEXTS: Final = 8_000_000  # characters of all definitions together; beyond it only digests are kept
MAX_LOGGED: Final = 20  # changes that are logged when a source is read again


class Definition(msgspec.Struct, frozen=True):
    """What an upstream says of one operation: whether it only reads, and the digest of each part."""

    is_mutation: bool
    digests: tuple[bytes, ...]
    texts: tuple[str, ...] = ()


def definition_of(*parts: Any, is_mutation: bool) -> Definition:
    """Return the definition with these parts, in the order of `PARTS`."""
    texts = list(map(_text, parts))
    digests = tuple(hashlib.blake2b(text, digest_size=8).digest() if text else b"" for text in texts)
    return Definition(is_mutation, digests, tuple(text[:MAX_TEXT].decode(errors="ignore") for text in texts))


def _text(part: Any) -> bytes:
    try:
        return msgspec.json.encode(part, order="deterministic")
    except (TypeError, ValueError, RecursionError):  # such as a cycle in YAML
        return b""


class DefinitionLedger:
    """The definitions of all operations that sources have had, whether they still have them or not."""

    def __init__(self) -> None:
        self._known: dict[str, Definition] = {}  # by operation id
        self._counts: Counter[str] = Counter()  # of changes, by source
        self._latest: dict[str, deque[DefinitionChange]] = {}
        self._kept = 0  # characters of all texts

    def is_held(self, operation_id: str) -> bool:
        """Whether the operation is to stay a mutation, because it was one."""
        known = self._known.get(operation_id)
        return len(self._known) >= MAX_KNOWN if known is None else known.is_mutation

    def record(self, source: str, found: Mapping[str, Definition]) -> None:
        """Remember the definitions that a source has now, by operation id; those that are others than before are logged."""
        changed = [(own_id, what) for own_id, new in found.items() if (what := self._changed_parts(own_id, new))]
        for own_id, what in changed:
            self._note(source, own_id, what, found[own_id])
        for own_id, new in found.items():
            known = self._known.get(own_id)
            if known is not None or len(self._known) < MAX_KNOWN:
                is_mutation = new.is_mutation or (known is not None and known.is_mutation)
                self._known[own_id] = Definition(is_mutation, new.digests, self._texts_to_keep(known, new))
        for own_id, what in changed[:MAX_LOGGED]:
            log.warning("%s changed the definition of %s: %s", source, own_id, what)
        if len(changed) > MAX_LOGGED:
            log.warning("%s changed the definitions of %d further operations", source, len(changed) - MAX_LOGGED)

    def _texts_to_keep(self, known: Definition | None, new: Definition) -> tuple[str, ...]:
        self._kept -= 0 if known is None else sum(map(len, known.texts))
        size = sum(map(len, new.texts))
        if self._kept + size > MAX_TEXTS:
            return ()
        self._kept += size
        return new.texts

    def latest_changes(self, source: str) -> tuple[DefinitionChange, ...]:
        """Return the last changes of a source, newest first: the operation, what changed, and both texts."""
        return tuple(self._latest.get(source, ()))

    def count_changes(self, source: str) -> int:
        return self._counts[source]

    def _changed_parts(self, operation_id: str, new: Definition) -> str:
        known = self._known.get(operation_id)
        if known is None or known.digests == new.digests:
            return ""
        pairs = zip(PARTS, known.digests, new.digests, strict=True)
        parts = ", ".join(name for name, before, after in pairs if before != after)
        return f"{parts}; it stays a mutation" if known.is_mutation and not new.is_mutation else parts

    def _note(self, source: str, operation_id: str, what: str, new: Definition) -> None:
        known = self._known[operation_id]
        differs = [before != after for before, after in zip(known.digests, new.digests, strict=True)]
        before, after = (
            "\n".join(text for text, is_other in zip(each.texts, differs, strict=False) if is_other)
            for each in (known, new)
        )
        self._counts[source] += 1
        change = DefinitionChange(operation_id, what, time.time_ns() // 1_000_000, before, after)
        self._latest.setdefault(source, deque(maxlen=MAX_TOLD)).appendleft(change)


ById: TypeAlias = Mapping[str, Operation]


class SyncedRegistries:
    """The registries that have the operations of one source."""

    def __init__(self, source: Watched, kind: SourceKind) -> None:
        self._source = source
        self._kind = kind
        self._kept: list[tuple[OperationRegistry, Callable[[], None]]] = []  # with what ends the entry in its table
        self._watchers: list[Callable[[], None]] = []

    def add(self, registry: OperationRegistry, name: str) -> None:
        """Sync a registry that has the current operations from now on; its table of sources calls the source `name`."""
        self._kept.append((registry, registry.services.sources.follow(name, self._kind, self._source)))

    def remove(self, registry: OperationRegistry) -> None:
        """Stop syncing a registry; it keeps the operations it has."""
        for _, unfollow in [pair for pair in self._kept if pair[0] is registry]:
            unfollow()
        self._kept = [pair for pair in self._kept if pair[0] is not registry]

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back when the source is lost or back, or its operations have changed."""
        self._watchers.append(callback)

    def tell(self) -> None:
        """Call the watchers: the source is lost or back."""
        for callback in list(self._watchers):
            try:
                callback()
            except Exception as fault:  # noqa: BLE001  # what follows the source must go on
                log.error("A function that watches a source failed", error=fault)  # noqa: TRY400  # it logs the stack

    def log(self, name: str, params: dict[str, Any]) -> None:
        """Pass on a log message that belongs to no call."""
        for registry, _ in self._kept:
            registry.services.sources.log(name, params)

    def update(self, before: ById, after: ById) -> None:
        """Sync all registries, and call the watchers: the operations of the source have changed."""
        for registry, _ in self._kept:
            sync(registry, before, after)
        self.tell()

    def close(self) -> None:
        """Call the watchers a last time, and stop syncing: the source is closed."""
        self.tell()
        for _, unfollow in self._kept:
            unfollow()
        self._watchers.clear()


def sync(registry: OperationRegistry, before: ById, after: ById) -> None:
    """Change a registry from the operations before to those after; what did not change, or is not ours, is not touched."""
    ours = {own_id for own_id, known in before.items() if own_id in registry and registry.get(own_id) is known}
    for own_id in ours - after.keys():
        registry.unregister(own_id)
    for own_id, operation in after.items():
        if own_id not in registry:
            registry.register(operation)
        elif own_id in ours and operation is not before[own_id]:
            registry.replace(operation)
