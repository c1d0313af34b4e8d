"""Durable calls: a call that must run as a task, or may and has a key, becomes a task, and the caller waits for it.

With `asks_first`, it continues as a task when its handler detaches.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from enfold.errors import CallError
from enfold.operations.outcomes import Deferred, NeedsInput

if TYPE_CHECKING:
    from enfold.envelope import ResponseEnvelope
    from enfold.operations.call import Call, Next
    from enfold.operations.context import Context
    from enfold.operations.outcomes import Outcome
    from enfold.runtime.application import Services
    from enfold.runtime.failures import Failures
    from enfold.tasks import Task

T = TypeVar("T")


class DurableCalls(Protocol):
    """Runs durable operations as tasks: under one key there is one task, however it is asked for."""

    def offers(self, operation_id: str) -> bool: ...

    async def run(self, operation_id: str, input: Any, context: Context) -> ResponseEnvelope[Any] | NeedsInput:
        """Return the result of the first task with the context's key; NeedsInput while the task has questions."""

    async def defer(self, operation_id: str, input: Any, context: Context) -> Task:
        """Order a task that goes on with a call which has asked its caller all that it asks first."""


class RunAsTask:
    """Orders a task for the call, unless it is run for one already."""

    def __init__(self, services: Services, failures: Failures, *, is_required: bool) -> None:
        """With `is_required`, a call without a key also becomes a task."""
        self._services = services
        self._failures = failures
        self._is_required = is_required

    async def __call__(self, call: Call, next: Next) -> Outcome:
        tasks = self._tasks_for(call)
        if tasks is not None:
            return await self._with_ids(tasks.run(call.operation.spec.id, call.input, call.context), call)
        outcome, tasks = await next(call), self._services.tasks
        is_detached = isinstance(outcome, NeedsInput) and not outcome.questions
        if is_detached and tasks is not None and not call.context.is_nested:
            return Deferred(await self._with_ids(tasks.defer(call.operation.spec.id, call.input, call.context), call))
        return outcome

    async def _with_ids(self, running: Coroutine[Any, Any, T], call: Call) -> T:
        """Await the task store; its errors get the ids of the call."""
        try:
            return await running
        except CallError as error:
            raise self._failures.with_ids(error, call.context) from error.__cause__

    def _tasks_for(self, call: Call) -> DurableCalls | None:
        """Return the task store if the call becomes a task: it is not one yet, and asks its caller nothing first."""
        tasks, context = self._services.tasks, call.context
        if tasks is None or not (self._is_required or call.idempotency_key is not None):
            return None
        return (
            None
            if context.task is not None or context.accepts_task or not tasks.offers(call.operation.spec.id)
            else tasks
        )
