"""Durable calls: a call that has to be a task, or may be one and has a key, is run as one, and waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from enfold.errors import CallError
from enfold.operations.context import DETACHABLE, TASK

if TYPE_CHECKING:
    from enfold.envelope import ResponseEnvelope
    from enfold.operations.call import Call, Next, Outcome
    from enfold.operations.context import Context
    from enfold.runtime.failures import Failures
    from enfold.runtime.lifespan import Lifetime


class DurableCalls(Protocol):
    """Runs durable operations as tasks: under one key there is one task, however it is asked for."""

    def offers(self, operation_id: str) -> bool: ...

    async def run(self, operation_id: str, input: Any, context: Context) -> ResponseEnvelope[Any]:
        """The result of the first task with the key of this context."""


class RunAsTask:
    """Orders a task for the call, unless it is run for one already."""

    def __init__(self, lifetime: Lifetime, failures: Failures, *, is_required: bool) -> None:
        """`is_required`: also a call without a key becomes a task."""
        self._lifetime = lifetime
        self._failures = failures
        self._is_required = is_required

    async def __call__(self, call: Call, next: Next) -> Outcome:
        tasks = self._tasks_for(call)
        if tasks is None:
            return await next(call)
        try:
            return await tasks.run(call.operation.spec.id, call.input, call.context)
        except CallError as error:
            raise self._failures.with_ids(error, call.context) from error.__cause__

    def _tasks_for(self, call: Call) -> DurableCalls | None:
        """The store of tasks if the call becomes one: it is none yet, and asks its caller nothing first."""
        tasks, context = self._lifetime.tasks, call.context
        if tasks is None or not (self._is_required or context.unused_key is not None):
            return None
        has_begun = context.meta is not None and (TASK in context.meta or DETACHABLE in context.meta)
        return None if has_begun or not tasks.offers(call.operation.spec.id) else tasks
