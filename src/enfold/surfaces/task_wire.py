"""A task as callers see it: the flat object of MCP's extension, which HTTP and the shell show too. No I/O."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from enfold.tasks.store import now_ms
from enfold.tasks.task import Status, Task

__all__ = ["flat_task", "input_requests", "poll_interval_ms"]

# How often a task of this age (in seconds) should be asked for.
_POLLS: Final = ((2.0, 100), (30.0, 500), (600.0, 2_000))
_OLD: Final = 5_000


def flat_task(task: Task) -> dict[str, Any]:
    """What every surface shows of a task, but for its outcome."""
    told: dict[str, Any] = {
        "taskId": task.id,
        "status": task.status.value,
        "createdAt": _iso(task.created),
        "lastUpdatedAt": _iso(task.updated),
        "ttlMs": task.ttl_ms,
    }
    if not task.is_ended:
        told["pollIntervalMs"] = poll_interval_ms(task)
    message = _message(task)
    if message is not None:
        told["statusMessage"] = message
    return told


def input_requests(task: Task) -> dict[str, Any]:
    """The questions that wait for an answer, by their keys."""
    return {key: {"method": each.method, "params": each.params} for key, each in task.questions.items()}


def poll_interval_ms(task: Task) -> int:
    """How long to wait before asking again: as another server says of its own, else the longer the older a task is."""
    if task.elsewhere is not None and task.elsewhere.poll_ms is not None:
        return task.elsewhere.poll_ms
    age = (now_ms() - task.created) / 1000
    return next((interval for until, interval in _POLLS if age < until), _OLD)


def _message(task: Task) -> str | None:
    if task.status is Status.CANCELLED:
        return "cancelled"
    return "cancelling" if task.is_cancelling and not task.is_ended else task.message


def _iso(moment: int) -> str:
    return datetime.fromtimestamp(moment / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
