"""The tasks of a server: polled until they end for callers that wait, or asked about once for callers with a handle."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from enfold.errors import CallError
from enfold.mcp.json_rpc import ProtocolError
from enfold.mcp.messages import AboutTask, Progress, UpdateTask, read_error, read_loosely
from enfold.mcp.results import Object, TaskDetails
from enfold.mcp.tasks import MAX_TASK_ID, poll_seconds
from enfold.operations.outcomes import Deferred, Suspension
from enfold.sources.mcp.callers import MCPCaller
from enfold.sources.mcp.failures import protocol_failure
from enfold.tasks.upstream import TaskQuestion

MAX_FAILED_POLLS: Final = 5  # in a row, for a reason that passes
CANCEL_SECONDS: Final = 2.0  # that a server may take to cancel a task

# Sends one request about the task and gives its result.
Send: TypeAlias = Callable[[str, AboutTask], Awaitable[Object]]


async def wait_for_task(send: Send, name: str, begun: Object, caller: MCPCaller) -> Object:
    """Poll the task that the server `name` has begun and give its result; a caller who gives up cancels the task."""
    task = _read(begun)
    if not 0 < len(task.task_id) <= MAX_TASK_ID:
        raise _invalid(name, "a task without a usable taskId")
    try:
        outcome = await _PolledTask(send, name, task.task_id, caller).outcome(task)
    except BaseException:
        if not caller.leaves_task:
            await cancel_quietly(send, task.task_id)
        raise
    if isinstance(outcome, CallError):
        raise outcome
    return outcome


async def ask_about_task(send: Send, name: str, question: TaskQuestion) -> Object:
    """The result of a task that its caller has taken over; Deferred while it goes on, or the error it ended with."""
    about = AboutTask(question.task_id)
    if question.answers is not None:
        await send("tasks/update", UpdateTask(question.task_id, dict(question.answers)))
    if question.cancels:
        await send("tasks/cancel", about)
    try:
        task = await send("tasks/get", about)
    except CallError as error:
        if not question.cancels or "rpc_code" not in error.details:
            raise
        task = {"status": "cancelled"}  # and forgotten at once
    outcome = _outcome(name, _read(task))
    question.reported = task
    if outcome is None:
        taken: Any = None if question.take is None else question.take(task)
        raise Suspension(Deferred(taken))
    if isinstance(outcome, CallError):
        raise outcome
    return outcome


async def cancel_quietly(send: Send, task_id: str) -> None:
    """Ask the server to cancel a task, and ignore its answer."""
    cancelling = asyncio.get_running_loop().create_task(_cancel(send, task_id))
    with suppress(asyncio.CancelledError):
        await asyncio.shield(cancelling)


async def _cancel(send: Send, task_id: str) -> None:
    with suppress(CallError, TimeoutError):
        async with asyncio.timeout(CANCEL_SECONDS):
            await send("tasks/cancel", AboutTask(task_id))


class _PolledTask(msgspec.Struct, eq=False):
    """One task while it is waited for."""

    _send: Send
    _name: str
    _task_id: str
    _caller: MCPCaller
    _answered: set[str] = set()
    _message: str | None = None
    _steps: int = 0
    _failed_polls: int = 0

    async def outcome(self, begun: TaskDetails) -> Object | CallError:
        task, interval, is_noted = begun, poll_seconds(begun.poll_interval_ms), False
        while True:
            is_noted = is_noted or await self._caller.note_task(self._task_id)
            self._tell_progress(task.status_message)
            if task is not begun:
                outcome = _outcome(self._name, task)
                if outcome is not None:
                    return outcome
                if task.status == "input_required":
                    await self._answer(task.input_requests or {})
            if task.status == "working" or task is not begun:
                await asyncio.sleep(interval)
            task = await self._poll(interval)
            interval = poll_seconds(task.poll_interval_ms, interval)

    async def _poll(self, interval: float) -> TaskDetails:
        """The task as it is now; a server that is unreachable for a moment is asked again."""
        while True:
            try:
                task = await self._send("tasks/get", AboutTask(self._task_id))
            except CallError as error:
                self._failed_polls += 1
                if not error.retryable or self._failed_polls > MAX_FAILED_POLLS:
                    raise
                wait = error.details.get("retry_after")
                await asyncio.sleep(max(interval, wait if isinstance(wait, int | float) else 0.0))
            else:
                self._failed_polls = 0
                return _read(task)

    async def _answer(self, requests: Object) -> None:
        """Ask the caller the questions that have not been asked yet."""
        new = {key: request for key, request in requests.items() if key not in self._answered}
        if not new:
            return  # the answers are on their way
        self._answered.update(new)
        try:
            answers = await self._caller.ask_all(new)
        except ProtocolError as error:
            raise protocol_failure(error) from error
        await self._send("tasks/update", UpdateTask(self._task_id, answers))

    def _tell_progress(self, message: str | UnsetType) -> None:
        if message is UNSET or message == self._message or not self._caller.is_heard:
            return
        self._message = message
        self._steps += 1
        self._caller.notify(Progress(self._task_id, self._steps, message=message))


def _read(task: Object) -> TaskDetails:
    return read_loosely(task, TaskDetails) or TaskDetails()


def _outcome(name: str, task: TaskDetails) -> Object | CallError | None:
    """The result of a completed task, the error of one that has ended otherwise, None of one that goes on."""
    match task.status:
        case "working" | "input_required":
            return None
        case "completed":
            result = task.result
            if isinstance(result, dict) and result.get("resultType", "complete") == "complete":
                return result
            return _invalid(name, "a completed task without its result")
        case "failed":
            if isinstance(task.error, dict):
                return protocol_failure(read_error(task.error))
            return _invalid(name, "a failed task without its error")
        case "cancelled":
            return CallError("ABORTED", f"{name} has cancelled the task", {"reason": "cancelled"})
        case other:
            raise _invalid(name, f"a task whose status is {other!r:.40}")


def _invalid(name: str, what: str) -> CallError:
    return CallError("EXECUTION_ERROR", f"{name} answered with {what}", {"reason": "protocol"})
