"""Registries kept in sync with a source whose operations come and go, and the callbacks of those who watch it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from enfold.operation import Operation
from enfold.registry import OperationRegistry
from enfold.source_states import SourceKind, Watched

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
        self._kept.append((registry, registry.sources.follow(name, self._kind, self._source)))

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
            callback()

    def log(self, name: str, params: dict[str, Any]) -> None:
        """Pass on a log message that belongs to no call."""
        for registry, _ in self._kept:
            registry.sources.log(name, params)

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
