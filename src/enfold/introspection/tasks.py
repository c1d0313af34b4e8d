"""`enfold.tasks.…`: the caller's tasks, how far they are, the answers they want, and a way to end them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from enfold.operation import Context, Operation, OperationType
from enfold.reserved import reserved_operation
from enfold.tasks import Task, Tasks

__all__ = ["TaskSummary", "task_operations"]

_GONE = {"code": "TASK_NOT_FOUND", "description": "There is no such task", "http_status": 404, "category": "not_found"}


class TaskSummary(msgspec.Struct, frozen=True):
    """A task at this moment, without its outcome. Times are Unix milliseconds."""

    task_id: str
    operation: str
    status: str  # working, input_required, completed, failed, cancelled
    created: int
    updated: int
    ttl_ms: int
    message: str | None
    progress: float | None
    total: float | None
    is_cancelling: bool
    questions: dict[str, dict[str, Any]]  # by its key, each that waits for an answer


def task_operations(tasks: Tasks) -> Iterable[Operation]:
    async def list_tasks(
        context: Context, limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    ) -> list[TaskSummary]:
        """List the caller's tasks, the newest first; where nobody has an identity, ids are secrets and none is listed."""
        return [_summary(task) for task in await tasks.list(identity=context.identity, limit=limit)]

    async def get(task_id: str, context: Context) -> TaskSummary:
        """Tell how far one task is, and which answers it wants."""
        return _summary(await (await tasks.get(task_id, identity=context.identity)).state())

    async def answer(task_id: str, answers: dict[str, dict[str, Any]], context: Context) -> TaskSummary:
        """Answer questions of a task, by their keys: each `{"action": "accept", "content": {…}}`, or another action."""
        return _summary(await (await tasks.get(task_id, identity=context.identity)).answer(answers))

    async def cancel(task_id: str, context: Context) -> TaskSummary:
        """Ask for the end of a task; one that has ended stays as it is."""
        return _summary(await (await tasks.get(task_id, identity=context.identity)).cancel())

    yield reserved_operation(list_tasks, "enfold.tasks.list")
    yield reserved_operation(get, "enfold.tasks.get", error_schemas=[_GONE])
    for function, name in ((answer, "answer"), (cancel, "cancel")):
        kind = OperationType.MUTATION
        yield reserved_operation(function, f"enfold.tasks.{name}", type=kind, idempotent=True, error_schemas=[_GONE])


def _summary(task: Task) -> TaskSummary:
    progress = task.progress
    return TaskSummary(
        task.id,
        task.operation,
        task.status.value,
        task.created,
        task.updated,
        task.ttl_ms,
        task.message,
        None if progress is None else progress.progress,
        None if progress is None else progress.total,
        task.is_cancelling,
        {key: {"method": each.method, "params": each.params} for key, each in task.questions.items()},
    )
