"""`enfold.tasks.…`: the caller's own tasks. Over calls, these operations give access to tasks on another machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Annotated, Any

import msgspec

from enfold.envelope import to_wire
from enfold.errors import CallError
from enfold.operations import Context, Operation, OperationType
from enfold.operations.idempotency import checked_key
from enfold.runtime.reserved import reserved_operation
from enfold.tasks import Status, Task, Tasks
from enfold.tasks.model import Attempt, Exchange, TaskFilter

_GONE = {"code": "TASK_NOT_FOUND", "description": "Unknown task", "http_status": 404, "category": "not_found"}


class TaskSummary(msgspec.Struct, frozen=True):
    """A task at this moment. Times are Unix milliseconds; lists leave out how a task ended."""

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
    caller: str | None = None  # who started it
    deadline: int = 0  # for all attempts together
    attempts: list[Attempt] = []  # the last ones, the oldest first
    exchanges: list[Exchange] = []  # the last questions with their answers
    input: Any = None  # without secrets; of a single task
    result: dict[str, Any] | None = None  # the envelope of one that has completed
    error: dict[str, Any] | None = None  # the CallError that ended one


def operations(tasks: Tasks) -> Iterable[Operation]:
    async def list_tasks(
        context: Context,
        status: Status | None = None,
        operation: str | None = None,
        caller: str | None = None,
        since: int | None = None,
        until: int | None = None,
        limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100,
    ) -> list[TaskSummary]:
        """List the caller's tasks, newest first; without authentication, ids are secrets and none is listed.

        Args:
            status: Only tasks in this state.
            operation: Only tasks of operations with this in their id.
            caller: Only tasks that this identity has started; without `enfold:admin` always the caller itself.
            since: Only tasks that were started at this time or later, in Unix milliseconds.
            until: Only tasks that were started before this time, in Unix milliseconds.
            limit: How many at most.
        """
        wanted = TaskFilter(status, operation, caller, since, until)
        return [_summary(task) for task in await tasks.list(identity=context.identity, limit=limit, wanted=wanted)]

    async def start(
        operation: str, context: Context, input: dict[str, Any] | None = None, idempotency_key: str | None = None
    ) -> TaskSummary:
        """Order a durable operation; the task is stored when this answers. The same key gives the first task."""
        if idempotency_key is not None:
            checked_key(idempotency_key, context.identity, vouched=tasks.registry.services.has_identities)
        handle = await tasks.start(
            operation,
            input or {},
            identity=context.identity,
            idempotency_key=idempotency_key,
            request_id=context.request_id,
            provenance=None if context.recording is None else context.recording.wishes(),
        )
        return _whole(tasks, handle.last or await handle.state())

    async def retry(task_id: str, context: Context) -> TaskSummary:
        """Start a new task with the operation and input of one that has ended; the answer is the new task."""
        handle = await tasks.retry(task_id, identity=context.identity, request_id=context.request_id)
        return _whole(tasks, handle.last or await handle.state())

    async def get(task_id: str, context: Context) -> TaskSummary:
        """Tell how far one task is, which answers it wants, and how it ended."""
        handle = await tasks.get(task_id, identity=context.identity)
        return _whole(tasks, handle.last or await handle.state())

    async def answer(task_id: str, answers: dict[str, dict[str, Any]], context: Context) -> TaskSummary:
        """Answer questions of a task by key: each `{"action": "accept", "content": {…}}`, or another action."""
        return _summary(await (await tasks.get(task_id, identity=context.identity)).answer(answers))

    async def cancel(task_id: str, context: Context) -> TaskSummary:
        """Cancel a task; a finished one does not change."""
        return _summary(await (await tasks.get(task_id, identity=context.identity)).cancel())

    async def watch(task_id: str, context: Context) -> AsyncIterator[TaskSummary]:
        """Stream a task as it is now, and after every change until it has ended."""
        handle = await tasks.get(task_id, identity=context.identity)
        async for task in handle.watch():
            yield _whole(tasks, task)

    functions: tuple[tuple[Callable[..., Any], str, OperationType, dict[str, Any]], ...] = (
        (list_tasks, "list", OperationType.QUERY, {}),
        (get, "get", OperationType.QUERY, {"error_schemas": [_GONE]}),
        (start, "start", OperationType.MUTATION, {}),
        (retry, "retry", OperationType.MUTATION, {"error_schemas": [_GONE]}),
        (answer, "answer", OperationType.MUTATION, {"idempotent": True, "error_schemas": [_GONE]}),
        (cancel, "cancel", OperationType.MUTATION, {"idempotent": True, "error_schemas": [_GONE]}),
        (watch, "watch", OperationType.SUBSCRIPTION, {"error_schemas": [_GONE]}),
    )
    for function, name, kind, fields in functions:
        # Everybody may see their own tasks. MCP has an extension of its own for them: there these are no tools.
        yield reserved_operation(function, f"enfold.tasks.{name}", type=kind, scopes=(), meta={"tool": False}, **fields)


def _whole(tasks: Tasks, task: Task) -> TaskSummary:
    """Return a task with its input and outcome, written as in the call protocol."""
    summary = msgspec.structs.replace(_summary(task), input=_input(tasks, task))
    if not task.is_ended:
        return summary
    try:
        return msgspec.structs.replace(summary, result=to_wire(tasks.outcome(task)))
    except CallError as error:
        return msgspec.structs.replace(summary, error=error.to_wire())


def _input(tasks: Tasks, task: Task) -> Any:
    """Return the input of a task without secrets; empty if the operation no longer exists."""
    from enfold.provenance.redaction import redact  # with the first task that is shown

    if task.operation not in tasks.registry:
        return None
    return redact(task.order.input, tasks.registry.get_spec(task.operation).input_schema).value


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
        None if task.order.identity is None else task.order.identity.id,
        task.order.deadline,
        list(task.attempts),
        list(task.exchanges),
    )
