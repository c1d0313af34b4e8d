"""What a program says about itself: the operations of the namespace `enfold`, which every surface serves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from enfold.operations import Operation
from enfold.runtime.registry import Registry

if TYPE_CHECKING:
    from enfold.provenance import Recorder
    from enfold.surfaces.introspection.calls import CallLog, Payloads
    from enfold.tasks import Tasks

__all__ = ["introduce", "keep_calls"]


def introduce(
    registry: Registry, surfaces: Mapping[str, str], recorder: Recorder | None = None, tasks: Tasks | None = None
) -> None:
    """Let a registry tell about itself; `surfaces` serve it, each at its address; `recorder` keeps runs, `tasks` tasks."""
    reserved = registry.reserved
    registry.services.surfaces.update(surfaces)
    reserved.offer("about", _later("about", registry))
    reserved.offer("operations", _later("operations", registry))
    if recorder is not None and recorder.store is not None:
        reserved.offer("runs", _later("runs", recorder.store))
    if tasks is not None:
        reserved.offer("tasks", _later("tasks", tasks))
    if not reserved.has("calls"):  # kept from the first request for them
        reserved.offer("calls", _later("calls", registry))


def _later(module: str, about: object) -> Callable[[], Iterable[Operation]]:
    """Return the operations of a module of this package, which is imported on request and not at startup."""
    return lambda: import_module(f"{__name__}.{module}").operations(about)


def keep_calls(registry: Registry, payloads: Payloads | None = None) -> CallLog:
    """Keep the last calls of a registry from now on, for later requests.

    `payloads` take what each was given and gave; they are those of the registry's policy.
    """
    from enfold.surfaces.introspection.calls import CallLog, operations_of  # on request, and not at startup

    log = CallLog(registry, payloads)
    log.begin()
    operations = list(operations_of(log))
    registry.reserved.offer("calls", lambda: operations)
    return log
