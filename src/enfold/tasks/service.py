"""Durable calls: ordering one, finding it again, and the handle through which a caller follows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from re import match
from typing import TYPE_CHECKING, Any, Final, Self

from enfold.access import EVERYTHING
from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError
from enfold.idempotency.outcomes import result_of
from enfold.operation import Context, Identity
from enfold.operation.handing_over import TakeTask, TaskQuestion
from enfold.operation.repeats import MAX_KEY, input_digest
from enfold.registry import Registry
from enfold.tasks.handed_over import SEALED, HandedOverTask, SealedTasks, Secret, watch
from enfold.tasks.runner import AT_ONCE, MAX_RESULT, Current, Runner
from enfold.tasks.store import Answers, Cancel, TaskStore, now_ms
from enfold.tasks.task import TASK_ID, Order, Task, new_task_id, owner_of

if TYPE_CHECKING:
    from enfold.provenance import Recorder

__all__ = ["ADMIN", "TaskHandle", "Tasks"]

ADMIN: Final = "enfold:admin"  # the scope that sees and cancels everybody's tasks

_NOTHING: Final[Mapping[str, Any]] = {}
MAX_LIST: Final = 1000
MAX_ANSWERS: Final = 1_000_000


class Tasks:
    """The durable operations of a registry. Unless `at_once` is 0, the process that orders tasks also runs them."""

    def __init__(
        self,
        registry: Registry,
        store: TaskStore,
        *,
        limit: int = 100,
        keep: float = 86_400.0,
        attempts: int = 3,
        deadline: float = 86_400.0,
        at_once: int = AT_ONCE,
        max_result: int = MAX_RESULT,
        current: Current | None = None,
        recorder: Recorder | None = None,
        secret: Secret = None,
    ) -> None:
        """`limit` is how many unfinished tasks one identity may have; `keep` and `deadline` are seconds.

        `attempts` is how many workers may die of a task that is retried; `at_once` how many tasks run here at a time;
        `current` gives an identity as it is known now: a task runs with no more scopes than that. `secret` signs the
        handles of other servers' tasks; processes that serve the same callers share one.
        """
        self.registry = registry
        self.store = store
        self._guarded = registry.guarded()
        self._limit = limit
        self._keep = keep
        self._attempts = attempts
        self._deadline = deadline
        self._works = at_once > 0
        self._sealed = SealedTasks(registry, secret, deadline + keep)
        self.runner = Runner(
            registry, store, at_once=at_once, max_result=max_result, current=current, recorder=recorder
        )

    async def __aenter__(self) -> Self:
        self.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def begin(self) -> None:
        """Begin to run what was ordered, here or elsewhere; the first `start` does so too."""
        if self._works and not self.runner.is_running:
            self.runner.start()

    async def close(self, grace: float = 0.0) -> None:
        """Run nothing any more, and close the store; what runs longer than `grace` seconds is given up."""
        await self.runner.stop(grace)
        await self.store.close()

    async def start(
        self,
        operation_id: str,
        input: Mapping[str, Any] = _NOTHING,
        *,
        identity: Identity | None = None,
        idempotency_key: str | None = None,
        deadline: float | None = None,
        answers: Mapping[str, Any] = _NOTHING,
        capabilities: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> TaskHandle:
        """Order a task, which is stored when this returns; with a key that was used before, the first one.

        `answers` are those that the caller has given before it became a task; `capabilities` what the caller can be
        asked, in MCP's words; `deadline` in seconds can only shorten.
        """
        prepared = self._guarded.prepared(operation_id)
        prepared.check(input, identity)
        spec = prepared.spec
        if spec.durable == "never":
            message = f"{spec.id} cannot run as a task: call it, or declare it with durable=True"
            raise CallError("INVALID_OPERATION_TYPE", message)
        if idempotency_key is not None and not 0 < len(idempotency_key) <= MAX_KEY:
            raise _wrong("idempotencyKey", f"1 to {MAX_KEY} characters")
        now = now_ms()
        allowed = self._deadline if deadline is None else min(self._deadline, max(0.0, deadline))
        order = Order(
            id=new_task_id(),
            owner=owner_of(identity),
            operation=spec.id,
            input=dict(input),
            created=now,
            deadline=now + int(allowed * 1000),
            keep=self._keep,
            attempts=self._attempts,
            retries=spec.on_crash == "retry",
            identity=identity,
            key=idempotency_key,
            digest=_digest(input),
            answers=dict(answers),
            capabilities=None if capabilities is None else dict(capabilities),
            request_id=request_id,
            provenance=None if provenance is None else dict(provenance),
        )
        task = await self.store.accept(order, self._limit)
        self.begin()
        return TaskHandle(self, order.owner, task)

    async def get(self, task_id: str, *, identity: Identity | None = None) -> TaskHandle:
        """The handle of a task; another's, an expired one and one that never was are TASK_NOT_FOUND alike."""
        if task_id.startswith(SEALED):
            place = self._sealed.opened(task_id, _seen_by(identity), identity)
            if place is None:
                raise _not_found()
            return _SealedHandle(self, self._sealed, place, task_id)
        handle = TaskHandle(self, _seen_by(identity), None, task_id)
        await handle.state()
        return handle

    def taker(self, operation_id: str, *, identity: Identity | None = None) -> TakeTask:
        """What makes a task of the caller's own of one that another server has begun for them; nothing is stored."""
        return partial(self._sealed.taken, operation_id, owner_of(identity))

    async def run(self, operation_id: str, input: Mapping[str, Any], context: Context) -> ResponseEnvelope[Any]:
        """Order a task and wait for its end, for a caller who knows no tasks: where it takes too long they learn its id."""
        handle = await self.start(
            operation_id,
            input,
            identity=context.identity,
            idempotency_key=context.unused_key,
            capabilities={},  # nobody is there to be asked
            request_id=context.request_id,
        )
        limits = (context.remaining(), self.registry.get_spec(operation_id).timeout)
        wait = min((limit for limit in limits if limit is not None), default=None)
        try:
            return await asyncio.wait_for(handle.result(), wait)
        except CallError as error:
            error.details = {**error.details, "task": handle.id} if error.code == "TIMEOUT" else error.details
            raise
        except TimeoutError:
            message = f"{operation_id} takes longer than its caller waits, and goes on as the task {handle.id}"
            raise CallError("TIMEOUT", message, {"task": handle.id}, retryable=False) from None

    def outcome(self, task: Task) -> ResponseEnvelope[Any]:
        """The envelope of a task that has ended; the CallError it ended with is raised."""
        if task.outcome is None:
            raise _not_found()
        try:
            return result_of(task.outcome)
        except CallError as error:
            if task.operation in self.registry:
                error.row = self.registry.get_spec(task.operation).declared_row(error.code) or error.row
            raise

    async def list(self, *, identity: Identity | None = None, limit: int = 100) -> list[Task]:
        """The caller's tasks, the newest first, without outcomes. Without identities an id is a secret: no list."""
        if identity is None:
            return []
        return await self.store.list(_seen_by(identity), min(limit, MAX_LIST))


class TaskHandle:
    """One task as its caller sees it."""

    def __init__(self, tasks: Tasks, owner: str | None, task: Task | None, task_id: str | None = None) -> None:
        self._tasks = tasks
        self._owner = owner
        self._last = task
        self.id = task_id if task is None else task.id

    def __repr__(self) -> str:
        return f"<TaskHandle {self.id}>"

    @property
    def last(self) -> Task | None:
        """The task as this handle has last seen it, without asking the store."""
        return self._last

    async def state(self) -> Task:
        """The task as it is now."""
        self._last = _found(await self._tasks.store.get(self._owner, _checked(self.id)))
        return self._last

    async def watch(self) -> AsyncGenerator[Task]:
        """The task now, and after every change, until it has ended."""
        seen = False
        changes = self._tasks.store.watch(self._owner, _checked(self.id))
        try:
            async for task in changes:
                self._last, seen = task, True
                yield task
        finally:
            await changes.aclose()
        if not seen:
            raise _not_found()

    async def answer(self, answers: Mapping[str, Any]) -> Task:
        """Answer questions by their keys, some or all; keys that are unknown or answered already are ignored."""
        given = Answers(_given(answers))
        return _found(await self._tasks.store.signal(self._owner, _checked(self.id), given))

    async def cancel(self) -> Task:
        """Ask for the end of the task; one that has ended stays as it is."""
        return _found(await self._tasks.store.signal(self._owner, _checked(self.id), Cancel()))

    async def result(self) -> ResponseEnvelope[Any]:
        """Wait for the end: the envelope, or the CallError it ended with."""
        async for task in self.watch():
            if task.is_ended:
                return self.outcome(task)
        raise _not_found()

    def outcome(self, task: Task) -> ResponseEnvelope[Any]:
        """The envelope of a task that has ended; the CallError it ended with is raised."""
        return self._tasks.outcome(task)


class _SealedHandle(TaskHandle):
    """A task that another server runs, as its caller sees it here."""

    def __init__(self, tasks: Tasks, sealed: SealedTasks, place: HandedOverTask, task_id: str) -> None:
        super().__init__(tasks, None, None, task_id)
        self._handle = task_id
        self._sealed = sealed
        self._place = place

    async def state(self) -> Task:
        return await self._ask(TaskQuestion(self._place.task_id))

    async def watch(self) -> AsyncGenerator[Task]:
        async for task in watch(self.state):
            yield task

    async def answer(self, answers: Mapping[str, Any]) -> Task:
        return await self._ask(TaskQuestion(self._place.task_id, answers=_given(answers)))

    async def cancel(self) -> Task:
        return await self._ask(TaskQuestion(self._place.task_id, cancels=True))

    async def _ask(self, question: TaskQuestion) -> Task:
        self._last = _found(await self._sealed.ask(self._handle, self._place, question))
        return self._last


def _given(answers: Mapping[str, Any]) -> dict[str, Any]:
    given = {key: value for key, value in answers.items() if isinstance(value, dict)}
    if len(given) < len(answers):
        raise _wrong("inputResponses", "an object for each key")
    return given


def _digest(input: Mapping[str, Any]) -> str:
    """What tells one input from another; what cannot be written down cannot be kept."""
    try:
        return input_digest(input)
    except (TypeError, ValueError, RecursionError):
        raise _wrong("input", "JSON") from None


def _seen_by(identity: Identity | None) -> str | None:
    """Whose tasks a caller sees: their own, or everybody's."""
    is_admin = identity is not None and not identity.scopes.isdisjoint((ADMIN, EVERYTHING))
    return None if is_admin else owner_of(identity)


def _checked(task_id: str | None) -> str:
    """An id that has the form of one; anything else is not even looked up."""
    if not isinstance(task_id, str) or not match(TASK_ID, task_id):
        raise _not_found()
    return task_id


def _found(task: Task | None) -> Task:
    if task is None:
        raise _not_found()
    return task


def _not_found() -> CallError:
    """The same words for an id that never was, one that has expired, and another's."""
    return CallError("TASK_NOT_FOUND", "There is no such task, or it is not kept any more")


def _wrong(argument: str, expected: str) -> CallError:
    details = {"argument": argument, "reason": "constraint", "expected": expected}
    return CallError("VALIDATION_ERROR", f'"{argument}" must be {expected}', details)
