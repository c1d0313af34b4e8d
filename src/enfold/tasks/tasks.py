"""Durable calls: starting and finding tasks, and the handle of a task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from copy import copy
from functools import partial
from re import match
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError, invalid_argument
from enfold.mcp.tasks import poll_seconds
from enfold.middleware.idempotency_store import result_of
from enfold.observability.log import Log
from enfold.operations import Context, Identity, Progress
from enfold.operations.access import EVERYTHING
from enfold.operations.idempotency import IN_PROGRESS, check_key, input_digest
from enfold.operations.outcomes import NeedsInput
from enfold.operations.questions import Peer
from enfold.runtime.registry import Registry
from enfold.runtime.reserved import ADMIN
from enfold.tasks.model import EVERY_TASK, SERVER_TASK, TASK_ID, Order, Task, TaskFilter, new_task_id, owner_of
from enfold.tasks.runner import AT_ONCE, Current, Runner
from enfold.tasks.store import Answers, Cancel, TaskLimits, TaskStore, check_answers, now_ms, task_not_found
from enfold.tasks.upstream import (
    HANDLE_PREFIX,
    HandleContent,
    Secret,
    TakeTask,
    TaskQuestion,
    UpstreamTasks,
)

if TYPE_CHECKING:
    from enfold.provenance import Recorder
    from enfold.runtime.prepared import PreparedOperation

_NOTHING: Final[Mapping[str, Any]] = {}
MAX_LIST: Final = 1000
LAST_WORD: Final = 1.0  # seconds at most, in which the id of a task reaches who waits for it no longer


class Tasks:
    """The durable operations of a registry. Unless `at_once` is 0, the process that starts tasks also runs them."""

    def __init__(
        self,
        registry: Registry,
        store: TaskStore,
        *,
        limits: TaskLimits = TaskLimits(),
        at_once: int = AT_ONCE,
        current: Current | None = None,
        recorder: Recorder | None = None,
        secret: Secret = None,
        runs_own: bool = False,
        elsewhere: str | None = None,
    ) -> None:
        """`at_once` is how many tasks run here concurrently; with 0 and `runs_own`, only those that `run` waits for.

        `current` gives an identity as it is known now: a task runs with no more scopes than that. `secret` signs the
        handles of other servers' tasks; processes that serve the same callers share one. `elsewhere` is the source of
        peers who work for the same store: their operations are ordered here, and run there.
        """
        self.registry = registry
        self.store = store
        registry.services.tasks = self
        self._guarded = registry.guarded()
        self._limits = limits
        self._works = at_once > 0
        self._runs_own = runs_own
        self._upstream = UpstreamTasks(registry, secret, limits.deadline + limits.keep)
        self.runner = Runner(
            registry,
            store,
            at_once=at_once,
            max_result=limits.max_result,
            current=current,
            recorder=recorder,
            elsewhere=elsewhere,
        )

    async def __aenter__(self) -> Self:
        self.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def begin(self) -> None:
        """Start to run queued tasks, of this process or others; the first `start` does this, too."""
        if self._works:
            self.runner.start()

    async def close(self, grace: float = 0.0) -> None:
        """Stop running tasks and close the store; tasks that run longer than `grace` seconds are abandoned."""
        if self.registry.services.tasks is self:
            self.registry.services.tasks = None
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
        select: str | None = None,
    ) -> TaskHandle:
        """Start a task, which is stored when this returns; with a key that was used before, return the first one.

        `answers` are those that the caller gave before the call became a task; `capabilities` are the questions that the caller
        can answer, in MCP's terms; `deadline` in seconds can only shorten; `select` is the selection of fields.
        """
        return await self._submit(
            self._guarded.prepared(operation_id),
            input,
            identity,
            deadline,
            key=idempotency_key,
            answers=dict(answers),
            capabilities=None if capabilities is None else dict(capabilities),
            request_id=request_id,
            provenance=None if provenance is None else dict(provenance),
            select=select,
        )

    async def _submit(
        self,
        prepared: PreparedOperation,
        input: Mapping[str, Any],
        identity: Identity | None,
        deadline: float | None = None,
        *,
        select: str | None,
        **wishes: Any,
    ) -> TaskHandle:
        """Store an order; `wishes` are further fields of it."""
        read = prepared.check(input, identity, select)
        spec = prepared.spec
        if spec.durable == "never":
            message = f"{spec.id} cannot run as a task: call it, or declare it with durable=True"
            raise CallError("INVALID_OPERATION_TYPE", message)
        digest = ""  # only repeats with the same key are compared
        if wishes["key"] is not None:
            check_key(wishes["key"])
            digest = input_digest(read, select)
        now, limits = now_ms(), self._limits
        allowed = limits.deadline if deadline is None else min(limits.deadline, max(0.0, deadline))
        order = Order(
            id=new_task_id(),
            owner=owner_of(identity),
            operation=spec.id,
            input_json=msgspec.Raw(msgspec.json.encode(input)),
            created=now,
            deadline=now + int(allowed * 1000),
            keep=limits.keep,
            attempts=limits.attempts,
            retries=spec.on_crash == "retry",
            identity=identity,
            digest=digest,
            select=select,
            **wishes,
        )
        self.begin()
        try:
            task = await self.runner.accept(order, limits)
        except CallError as error:
            if error.code == "RESOURCE_EXHAUSTED":
                Log("enfold.tasks").warning("a task of %s was refused: %s", order.owner or "a caller", error)
            raise
        return TaskHandle(self, order.owner, task.order.id, task)

    async def get(self, task_id: str, *, identity: Identity | None = None) -> TaskHandle:
        """Return the handle of a task; raise TASK_NOT_FOUND if it is unknown, expired or another caller's."""
        if task_id.startswith(HANDLE_PREFIX):
            content = self._upstream.opened(task_id, _seen_by(identity), identity)
            if content is None:
                raise task_not_found()
            return _UpstreamHandle(self, self._upstream, content, task_id)
        owner = _seen_by(identity)
        task = await self.store.get(owner, task_id) if match(TASK_ID, task_id) else None
        return TaskHandle(self, owner, task_id, _found(task))

    def taker(self, operation_id: str, *, identity: Identity | None = None) -> TakeTask:
        """Return a function that wraps another server's task for this caller in a signed handle; nothing is stored."""
        return partial(self._upstream.taken, operation_id, owner_of(identity))

    def offer_to_take(self, prepared: PreparedOperation, context: Context) -> None:
        """Let a call return the task of an upstream server as a handle, if its result needs no processing here."""
        if not prepared.is_wrapped and not context.asks_for_more:
            context.take_task = self.taker(prepared.id, identity=context.identity)

    def order(
        self,
        operation_id: str,
        input: Mapping[str, Any],
        context: Context,
        *,
        answers: Mapping[str, Any] = _NOTHING,
        capabilities: Mapping[str, Any] | None = None,
        is_admitted: bool = False,
    ) -> Coroutine[Any, Any, TaskHandle]:
        """Start a task for a call of a surface, with the options of its context.

        `is_admitted`: access and limits have been checked for the call that becomes this task.
        """
        return self._submit(
            (self.registry if is_admitted else self._guarded).prepared(operation_id),
            input,
            context.identity,
            key=context.unused_key,
            answers=dict(answers),
            capabilities=None if capabilities is None else dict(capabilities),
            request_id=context.request_id,
            provenance=None if context.recording is None else context.recording.wishes(),
            select=context.select,
        )

    async def defer(self, operation_id: str, input: Mapping[str, Any], context: Context) -> Task:
        """Start a task for a call that continues as one, with the answers of its caller."""
        peer = context.invocation.client
        answers, capabilities = ({}, None) if peer is None else (peer.answers, peer.capabilities)
        handle = await self.order(
            operation_id, input, context, answers=answers, capabilities=capabilities, is_admitted=True
        )
        return handle.last or await handle.state()

    def offers(self, operation_id: str) -> bool:
        """Whether an operation of this id can run as a task here."""
        return operation_id in self.registry

    async def run(
        self, operation_id: str, input: Mapping[str, Any], context: Context
    ) -> ResponseEnvelope[Any] | NeedsInput:
        """Start a task and wait for it, for a caller without support for tasks; a TIMEOUT contains its id."""
        peer = context.invocation.client
        capabilities = {} if peer is None else peer.capabilities
        handle = await self.order(operation_id, input, context, capabilities=capabilities, is_admitted=True)
        limits = (_in_time_to_answer(context.remaining()), self.registry.get_spec(operation_id).timeout)
        wait = min((limit for limit in limits if limit is not None), default=None)
        try:
            outcome = await asyncio.wait_for(self._waited(handle, context, peer), wait)
        except CallError as error:
            error.details = {**error.details, "task": handle.id} if error.code == "TIMEOUT" else error.details
            raise
        except TimeoutError:
            goes_on = "is no longer awaited: see" if self._runs_own else "continues as"
            message = f"{operation_id} takes longer than its caller waits, and {goes_on} the task {handle.id}"
            if context.unused_key is None:
                raise CallError("TIMEOUT", message, {"task": handle.id}, retryable=False) from None
            details = {"reason": IN_PROGRESS, "task": handle.id}
            raise CallError("TIMEOUT", message, details, retryable=True) from None
        if context.recording is not None and isinstance(outcome, ResponseEnvelope):
            context.recording.recorded_elsewhere(outcome.provenance)
        return outcome

    async def _waited(
        self, handle: TaskHandle, context: Context, peer: Peer | None
    ) -> ResponseEnvelope[Any] | NeedsInput:
        """Wait for the result of a task; forward its progress and questions to the caller."""
        told: Progress | None = None
        async for task in handle.watch():
            if task.is_ended:
                context.reply_headers = task.reply_headers
                return self.outcome(task)
            if task.is_queued and self._runs_own:
                await self.runner.take(task.id)
            if task.progress is not None and task.progress != told:
                told = task.progress
                context.progress(told.progress, told.total, told.message)
            if task.questions and peer is not None:
                answers = await peer.ask(task.questions)
                if isinstance(answers, NeedsInput):
                    return answers
                await handle.answer(answers)
            elif task.questions:
                raise _cannot_be_asked(task)
        raise task_not_found()

    async def cancel_at_server(self, task: Task) -> None:
        """Cancel the upstream task that does the work of this one."""
        await self._upstream.cancel(task.operation, task.notes[SERVER_TASK])

    def outcome(self, task: Task) -> ResponseEnvelope[Any]:
        """Return the envelope of a task that has ended, or raise its CallError."""
        if task.outcome is None:
            raise task_not_found()
        try:
            return result_of(task.outcome)
        except CallError as error:
            self.registry.error_for_caller(task.operation, error)
            raise

    def with_registry(self, registry: Registry) -> Tasks:
        """Return the same tasks for a surface that serves the registry under its own policy."""
        same = copy(self)
        same.registry = registry
        return same

    async def list(
        self, *, identity: Identity | None = None, limit: int = 100, wanted: TaskFilter = EVERY_TASK
    ) -> list[Task]:
        """List the caller's `wanted` tasks, newest first, without outcomes.

        Without identities, knowing the id gives access, so nothing is listed.
        """
        if identity is None:
            return []
        return await self.store.list(_seen_by(identity), min(limit, MAX_LIST), wanted)

    async def retry(
        self, task_id: str, *, identity: Identity | None = None, request_id: str | None = None
    ) -> TaskHandle:
        """Start a new task with the operation and the input of one that has ended; only who started that one may."""
        task = await (await self.get(task_id, identity=identity)).state()
        if task.elsewhere is not None or not task.is_ended:
            raise CallError("INVALID_OPERATION_TYPE", "Only a task of this server that has ended can be retried")
        if task.owner != owner_of(identity):
            raise CallError("ACCESS_DENIED", "Only the caller who started a task can retry it")
        order = task.order
        return await self.start(
            order.operation,
            order.input,
            identity=identity,
            capabilities=order.capabilities,
            request_id=request_id,
            provenance=order.provenance,
            select=order.select,
        )


class TaskHandle:
    """One task as its caller sees it."""

    def __init__(self, tasks: Tasks, owner: str | None, task_id: str, last: Task | None = None) -> None:
        self._tasks = tasks
        self._owner = owner
        self.id = task_id
        self.last = last  # the state in which the task was accepted or last read

    def __repr__(self) -> str:
        return f"<TaskHandle {self.id}>"

    async def state(self) -> Task:
        """Return the current state of the task."""
        self.last = _found(await self._tasks.store.get(self._owner, self.id))
        return self.last

    def watch(self) -> AsyncGenerator[Task]:
        """Yield the task now and after every change, until it has ended."""
        return self._tasks.store.watch(self._owner, self.id)

    async def answer(self, answers: Mapping[str, Any]) -> Task:
        """Answer some or all questions by key; unknown or answered keys are ignored."""
        given = Answers(_given(answers))
        return _found(await self._tasks.store.signal(self._owner, self.id, given))

    async def cancel(self) -> Task:
        """Cancel the task; a finished one does not change."""
        before = await self.state()
        after = _found(await self._tasks.store.signal(self._owner, self.id, Cancel()))
        if after.is_ended and SERVER_TASK in before.notes:  # no worker hears of it
            await self._tasks.cancel_at_server(before)
        return after

    async def result(self) -> ResponseEnvelope[Any]:
        """Wait until the task has ended; return the envelope, or raise the CallError."""
        last: Task | None = None
        async for task in self.watch():
            last = task
        return self.outcome(_found(last))

    def outcome(self, task: Task) -> ResponseEnvelope[Any]:
        """Return the envelope of a task that has ended, or raise its CallError."""
        return self._tasks.outcome(task)


class _UpstreamHandle(TaskHandle):
    """A task of an MCP server behind this one, as its caller sees it here."""

    def __init__(self, tasks: Tasks, upstream: UpstreamTasks, content: HandleContent, task_id: str) -> None:
        super().__init__(tasks, None, task_id)
        self._upstream = upstream
        self._content = content

    async def state(self) -> Task:
        return await self._ask(TaskQuestion(self._content.task_id))

    async def watch(self) -> AsyncGenerator[Task]:
        """Yield the task now and after every change, polled at the interval of its server, until it has ended."""
        before: Task | None = None
        while before is None or not before.is_ended:
            task = await self.state()
            if task != before:
                yield task
            before = task
            if not task.is_ended:
                interval = None if task.elsewhere is None else task.elsewhere.poll_ms
                await asyncio.sleep(poll_seconds({"pollIntervalMs": interval}))

    async def answer(self, answers: Mapping[str, Any]) -> Task:
        return await self._ask(TaskQuestion(self._content.task_id, answers=_given(answers)))

    async def cancel(self) -> Task:
        return await self._ask(TaskQuestion(self._content.task_id, cancels=True))

    async def _ask(self, question: TaskQuestion) -> Task:
        self.last = _found(await self._upstream.ask(self.id, self._content, question))
        return self.last


def _in_time_to_answer(remaining: float | None) -> float | None:
    """Return a little less time than the caller waits, so that the task id reaches them in time."""
    return None if remaining is None else remaining - min(LAST_WORD, remaining / 10)


def _given(answers: Mapping[str, Any]) -> dict[str, Any]:
    given = {key: value for key, value in answers.items() if isinstance(value, dict)}
    if len(given) < len(answers):
        raise invalid_argument("inputResponses", "constraint", "an object for each key")
    check_answers(given)
    return given


def _seen_by(identity: Identity | None) -> str | None:
    """Return whose tasks a caller sees: their own, or everyone's."""
    is_admin = identity is not None and not identity.scopes.isdisjoint((ADMIN, EVERYTHING))
    return None if is_admin else owner_of(identity)


def _found(task: Task | None) -> Task:
    if task is None:
        raise task_not_found()
    return task


def _cannot_be_asked(task: Task) -> CallError:
    message = f"The task {task.id} has open questions: answer them there, and call again with the same key"
    return CallError("UNAVAILABLE", message, {"task": task.id, "questions": list(task.questions)}, retryable=False)
