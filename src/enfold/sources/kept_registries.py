"""Registries in step with a source that lives: what it has now is in them, and their tables of sources say how it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from enfold.operation import Operation
from enfold.registry import OperationRegistry
from enfold.source_states import SourceKind, Watched

ById: TypeAlias = Mapping[str, Operation]


class KeptRegistries:
    """The registries that have the operations of one source."""

    def __init__(self, source: Watched, kind: SourceKind) -> None:
        self._source = source
        self._kind = kind
        self._kept: list[tuple[OperationRegistry, Callable[[], None]]] = []  # with what ends the entry in its table
        self._watchers: list[Callable[[], None]] = []

    def add(self, registry: OperationRegistry, name: str) -> None:
        """Keep a registry that has the operations there are now; its table of sources calls the source `name`."""
        self._kept.append((registry, registry.sources.follow(name, self._kind, self._source)))

    def remove(self, registry: OperationRegistry) -> None:
        """Keep a registry no longer; it has the operations still."""
        for _, leave in [pair for pair in self._kept if pair[0] is registry]:
            leave()
        self._kept = [pair for pair in self._kept if pair[0] is not registry]

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back when the source was lost or is back, or its operations are others."""
        self._watchers.append(callback)

    def tell(self) -> None:
        """The source came or went."""
        for callback in list(self._watchers):
            callback()

    def update(self, before: ById, after: ById) -> None:
        """The operations of the source are others."""
        for registry, _ in self._kept:
            bring_up_to_date(registry, before, after)
        self.tell()

    def close(self) -> None:
        """The source is closed, which is the last that is told of it."""
        self.tell()
        for _, leave in self._kept:
            leave()
        self._watchers.clear()


def bring_up_to_date(registry: OperationRegistry, before: ById, after: ById) -> None:
    """Bring a registry from some operations to others; what stays as it was, or is not ours, is not touched."""
    ours = {own_id for own_id, known in before.items() if own_id in registry and registry.get(own_id) is known}
    for own_id in ours - after.keys():
        registry.unregister(own_id)
    for own_id, operation in after.items():
        if own_id not in registry:
            registry.register(operation)
        elif own_id in ours and operation is not before[own_id]:
            registry.replace(operation)
