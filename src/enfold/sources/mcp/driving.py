"""A task of another server, asked for until it has ended: for callers who wait for a result and cannot take a task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeAlias

from enfold.errors import CallError
from enfold.mcp.json_rpc import ProtocolError, fields_of
from enfold.mcp.task_extension import MAX_TASK_ID, poll_seconds
from enfold.operation.handing_over import HandedOver, TaskQuestion, is_left, note_task
from enfold.sources.mcp.recipients import Recipient
from enfold.sources.mcp.upstream_failures import protocol_failure, read_rpc_error

MAX_MISSED: Final = 5  # polls in a row that may fail for a reason that passes
CANCELLING: Final = 2.0  # seconds that a server may take to hear that a task is not wanted any more

# Sends one request about the task and gives its result.
Send: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]


async def drive_task(send: Send, name: str, begun: Mapping[str, Any], caller: Recipient) -> dict[str, Any]:
    """Wait for the task that the server `name` has begun and give its result; a caller who gives up cancels the task."""
    task_id = begun.get("taskId")
    if not isinstance(task_id, str) or not 0 < len(task_id) <= MAX_TASK_ID:
        raise _invalid(name, "a task without a usable taskId")
    try:
        return await _Drive(send, name, task_id, caller).run(begun)
    except _OverError as over:
        raise over.error from None
    except BaseException:
        if not is_left(caller.context):
            await cancel_quietly(send, task_id)
        raise


async def inquire(send: Send, name: str, question: TaskQuestion) -> dict[str, Any]:
    """The result of a task that its caller has taken over; HandedOver while it goes on, or the error it ended with."""
    about = {"taskId": question.task_id}
    if question.answers is not None:
        await send("tasks/update", {**about, "inputResponses": dict(question.answers)})
    if question.cancels:
        await send("tasks/cancel", about)
    try:
        task = await send("tasks/get", about)
    except CallError as error:
        if not question.cancels or "rpc_code" not in error.details:
            raise
        task = {"status": "cancelled"}  # and forgotten at once
    try:
        result = _result_of(name, task)
    except _OverError as over:
        question.told = task
        raise over.error from None
    question.told = task
    if result is None:
        raise HandedOver
    return result


async def cancel_quietly(send: Send, task_id: str) -> None:
    """Tell the server that nobody waits any more, and ignore its answer."""
    cancelling = asyncio.get_running_loop().create_task(_cancel(send, task_id))
    with suppress(asyncio.CancelledError):
        await asyncio.shield(cancelling)


async def _cancel(send: Send, task_id: str) -> None:
    with suppress(CallError, TimeoutError):
        async with asyncio.timeout(CANCELLING):
            await send("tasks/cancel", {"taskId": task_id})


class _OverError(Exception):
    """The task has ended without a result; it holds the error for the caller."""

    def __init__(self, error: CallError) -> None:
        super().__init__(error.message)
        self.error = error


class _Drive:
    """One task while it is waited for."""

    def __init__(self, send: Send, name: str, task_id: str, caller: Recipient) -> None:
        self._send = send
        self._name = name
        self._task_id = task_id
        self._caller = caller
        self._answered: set[str] = set()
        self._message: str | None = None
        self._steps = 0
        self._missed = 0

    async def run(self, begun: Mapping[str, Any]) -> dict[str, Any]:
        task, interval, is_noted = begun, poll_seconds(begun), False
        while True:
            is_noted = is_noted or await note_task(self._caller.context, self._task_id)
            self._tell_progress(task.get("statusMessage"))
            if task is not begun and (result := await self._outcome(task)) is not None:
                return result
            if task.get("status") == "working" or task is not begun:
                await asyncio.sleep(interval)
            task = await self._look(interval)
            interval = poll_seconds(task, interval)

    async def _look(self, interval: float) -> Mapping[str, Any]:
        """The task as it is now; a server that is away for a moment is asked again."""
        while True:
            try:
                task = await self._send("tasks/get", {"taskId": self._task_id})
            except CallError as error:
                self._missed += 1
                if not error.retryable or self._missed > MAX_MISSED:
                    raise
                wait = error.details.get("retry_after")
                await asyncio.sleep(max(interval, wait if isinstance(wait, int | float) else 0.0))
            else:
                self._missed = 0
                return task

    async def _outcome(self, task: Mapping[str, Any]) -> dict[str, Any] | None:
        """The result of a task that is completed, None of one that goes on; other ends are raised."""
        result = _result_of(self._name, task)
        if task.get("status") == "input_required":
            await self._answer(task.get("inputRequests"))
        return result

    async def _answer(self, requests: Any) -> None:
        """Put each question to the caller that has not been put yet."""
        new = {key: request for key, request in fields_of(requests).items() if key not in self._answered}
        if not new:
            return  # the answers are on their way
        self._answered.update(new)
        try:
            answers = await self._caller.ask_all(new)
        except ProtocolError as error:
            raise protocol_failure(error) from error
        await self._send("tasks/update", {"taskId": self._task_id, "inputResponses": answers})

    def _tell_progress(self, message: object) -> None:
        if not isinstance(message, str) or message == self._message or not self._caller.is_heard:
            return
        self._message = message
        self._steps += 1
        self._caller.hear("notifications/progress", {"progress": self._steps, "message": message})


def _result_of(name: str, task: Mapping[str, Any]) -> dict[str, Any] | None:
    """The result of a task that is completed, None of one that goes on; other ends are raised."""
    match task.get("status"):
        case "completed":
            return _completed(name, task.get("result"))
        case "failed":
            raise _OverError(_failed(name, task.get("error")))
        case "cancelled":
            raise _OverError(CallError("ABORTED", f"{name} has cancelled the task", {"reason": "cancelled"}))
        case "working" | "input_required":
            return None
        case other:
            raise _invalid(name, f"a task whose status is {other!r:.40}")


def _completed(name: str, result: Any) -> dict[str, Any]:
    if not isinstance(result, dict) or result.get("resultType", "complete") != "complete":
        raise _OverError(_invalid(name, "a completed task without its result"))
    return result


def _failed(name: str, error: Any) -> CallError:
    if not isinstance(error, Mapping):
        return _invalid(name, "a failed task without its error")
    return protocol_failure(read_rpc_error(error))


def _invalid(name: str, what: str) -> CallError:
    return CallError("EXECUTION_ERROR", f"{name} answered with {what}", {"reason": "protocol"})
