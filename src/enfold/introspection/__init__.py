"""What a program says about itself: the operations of the namespace `enfold`, which every surface serves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from enfold.operation import Operation
from enfold.registry import Registry

__all__ = ["introduce"]


def introduce(registry: Registry, surfaces: Mapping[str, str]) -> None:
    """Let a registry tell about itself; `surfaces` are those that serve it, each with its address."""
    registry.reserved.surfaces.update(surfaces)
    registry.reserved.offer("about", lambda: _operations(registry))


def _operations(registry: Registry) -> Iterable[Operation]:
    from enfold.introspection.about import about_operations  # which starting a program does not need

    return about_operations(registry)
