"""A task as callers see it: the flat object of MCP's extension, which HTTP and the shell show too. No I/O."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from enfold.errors import CallError
from enfold.formats import Format
from enfold.surfaces.responses import encode_result
from enfold.tasks import Tasks
from enfold.tasks.model import Status, Task
from enfold.tasks.store import now_ms

# Up to which age in seconds a task should be polled how often, in milliseconds.
_POLLS: Final = ((2.0, 100), (30.0, 500), (600.0, 2_000))
_OLD: Final = 5_000


def flat_task(task: Task) -> dict[str, Any]:
    """Return the fields of a task that every surface shows, without questions and outcome."""
    order = task.order
    told: dict[str, Any] = {
        "taskId": order.id,
        "status": task.status.value,
        "createdAt": _iso(order.created),
        "lastUpdatedAt": _iso(task.updated),
        "ttlMs": task.ttl_ms,
    }
    if not task.is_ended:
        told["pollIntervalMs"] = _poll_interval_ms(task)
    if (message := task.message) is not None:
        told["statusMessage"] = message
    return told


def shown_task(tasks: Tasks, task: Task, format: Format) -> dict[str, Any]:
    """Return the task with its questions, or its result or error in this format, for HTTP and the shell."""
    told = {**flat_task(task), "operation": task.operation}
    if task.status is Status.INPUT_REQUIRED:
        told["inputRequests"] = input_requests(task)
    elif task.outcome is not None and task.status is not Status.CANCELLED:
        told |= _ended(tasks, task, format)
    return told


def _ended(tasks: Tasks, task: Task, format: Format) -> dict[str, Any]:
    try:
        spec = tasks.registry.get_spec(task.operation) if task.operation in tasks.registry else None
        envelope = tasks.outcome(task)
        return {"result": msgspec.Raw(encode_result(format.write, envelope, spec))}
    except CallError as error:
        return {"error": format.write_error(error, task.operation)}


def input_requests(task: Task) -> dict[str, Any]:
    """Return the unanswered questions by key."""
    return {key: {"method": each.method, "params": each.params} for key, each in task.questions.items()}


def _poll_interval_ms(task: Task) -> int:
    """Return how long to wait before polling again: as the upstream says, else longer for older tasks."""
    if task.elsewhere is not None and task.elsewhere.poll_ms is not None:
        return task.elsewhere.poll_ms
    age = (now_ms() - task.order.created) / 1000
    for until, interval in _POLLS:
        if age < until:
            return interval
    return _OLD


def _iso(moment: int) -> str:
    return datetime.fromtimestamp(moment / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
