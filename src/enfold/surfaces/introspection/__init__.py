"""What a program says about itself: the operations of the namespace `enfold`, which every surface serves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from enfold.operations import Operation
from enfold.runtime.registry import Registry

if TYPE_CHECKING:
    from enfold.provenance import Recorder, RecordStore
    from enfold.surfaces.introspection.calls import CallLog, Payloads
    from enfold.tasks import Tasks

__all__ = ["introduce", "keep_calls"]


def introduce(
    registry: Registry, surfaces: Mapping[str, str], recorder: Recorder | None = None, tasks: Tasks | None = None
) -> None:
    """Let a registry tell about itself; `surfaces` serve it, each at its address; `recorder` keeps runs, `tasks` tasks."""
    reserved = registry.reserved
    registry.services.surfaces.update(surfaces)
    reserved.offer("about", lambda: _about_operations(registry))
    reserved.offer("operations", lambda: _operation_operations(registry))
    if recorder is not None and recorder.store is not None:
        store = recorder.store
        reserved.offer("runs", lambda: _run_operations(store))
    if tasks is not None:
        reserved.offer("tasks", lambda: _task_operations(tasks))
    if not reserved.has("calls"):  # kept from the first request for them
        reserved.offer("calls", lambda: _call_operations(registry))


def keep_calls(registry: Registry, payloads: Payloads | None = None) -> CallLog:
    """Keep the last calls of a registry from now on, for later requests.

    `payloads` take what each was given and gave; they are those of the registry's policy.
    """
    from enfold.surfaces.introspection.calls import CallLog, call_operations  # as below

    log = CallLog(registry, payloads)
    log.begin()
    operations = list(call_operations(log))
    registry.reserved.offer("calls", lambda: operations)
    return log


# Imports inside functions: needed only on request, not at startup.


def _about_operations(registry: Registry) -> Iterable[Operation]:
    from enfold.surfaces.introspection.about import about_operations, source_operations

    return [*about_operations(registry), *source_operations(registry)]


def _operation_operations(registry: Registry) -> Iterable[Operation]:
    from enfold.surfaces.introspection.operations import operation_operations

    return operation_operations(registry)


def _call_operations(registry: Registry) -> Iterable[Operation]:
    from enfold.surfaces.introspection.calls import CallLog, call_operations

    return call_operations(CallLog(registry))


def _task_operations(tasks: Tasks) -> Iterable[Operation]:
    from enfold.surfaces.introspection.tasks import task_operations

    return task_operations(tasks)


def _run_operations(store: RecordStore) -> Iterable[Operation]:
    from enfold.surfaces.introspection.runs import run_operations

    return run_operations(store)
