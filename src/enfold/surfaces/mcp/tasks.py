"""The extension `io.modelcontextprotocol/tasks`: a tool call that becomes a task, and the methods that ask for it.

Only clients that declare the extension with their request get tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from enfold.envelope import ResponseEnvelope
from enfold.envelope.content import json_text
from enfold.errors import CallError
from enfold.formats import Format, find_format
from enfold.mcp.json_rpc import (
    FORMAT_KEY,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    ErrorObject,
    ProtocolError,
)
from enfold.mcp.messages import AboutTask, UpdateTask, read_params
from enfold.mcp.results import Result, TaskDetails, ToolResult
from enfold.mcp.tasks import MAX_TASK_ID, TASKS, declares_tasks
from enfold.observability.log import Log
from enfold.operations.questions import MissingCapabilityError
from enfold.surfaces.mcp.exchange import ClientExchange
from enfold.surfaces.mcp.results import RUN_KEY, failure, too_many, write_result
from enfold.surfaces.mcp.subscriptions import ChangeListener
from enfold.surfaces.tasks import flat_task, input_requests
from enfold.tasks import Task, TaskHandle, Tasks
from enfold.tasks.model import Status

if TYPE_CHECKING:
    from enfold.surfaces.mcp.server import MCPServer

STORE_RETRY_SECONDS: Final = 1.0  # seconds after which tasks are followed again after an outage of their store

_log: Final = Log("enfold.mcp")


def check_declared(exchange: ClientExchange) -> None:
    """Refuse a client that has not said with this request that it knows tasks."""
    if not declares_tasks(exchange.client.capabilities):
        raise MissingCapabilityError(("extensions", TASKS))


def task_reference(server: MCPServer, exchange: ClientExchange, task: Task) -> Result:
    """The result of a call that goes on as a task."""
    # A repeat with the same key gets the first task, which may have ended: how, `tasks/get` tells.
    told = _flat(task) if task.elsewhere is not None else _task_details(server, exchange, task)
    told.result_type, told.result, told.error, told.input_requests = "task", UNSET, UNSET, UNSET
    return told


# --- the methods --------------------------------------------------------------------------------------------------


async def _get(server: MCPServer, exchange: ClientExchange, params: AboutTask) -> Result:
    handle = await _task_handle(server, exchange, params.task_id)
    return _task_details(server, exchange, handle.last or await handle.state())


async def _update(server: MCPServer, exchange: ClientExchange, params: UpdateTask) -> Result:
    handle = await _task_handle(server, exchange, params.task_id)
    await handle.answer({key: answer for key, answer in params.input_responses.items() if isinstance(answer, dict)})
    return Result()


async def _cancel(server: MCPServer, exchange: ClientExchange, params: AboutTask) -> Result:
    await (await _task_handle(server, exchange, params.task_id)).cancel()
    return Result()


_METHODS: Final[dict[str, tuple[Callable[..., Awaitable[Result]], type[AboutTask]]]] = {
    "tasks/get": (_get, AboutTask),
    "tasks/update": (_update, UpdateTask),
    "tasks/cancel": (_cancel, AboutTask),
}


async def answer_about_task(server: MCPServer, exchange: ClientExchange) -> Result:
    """Answer a method about a task: first of all refuse clients that do not declare tasks, whatever else is wrong."""
    _tasks_of(server, exchange)
    check_declared(exchange)
    answer, kind = _METHODS[exchange.method]
    try:
        return await answer(server, exchange, read_params(exchange.method, exchange.params, kind))
    except CallError as error:
        raise _refusal(error) from error


def _tasks_of(server: MCPServer, exchange: ClientExchange) -> Tasks:
    tasks: Tasks | None = server.settings.tasks
    if tasks is None:
        raise ProtocolError(METHOD_NOT_FOUND, f"Tasks are not enabled on this server: {exchange.method}")
    return tasks


async def _task_handle(server: MCPServer, exchange: ClientExchange, task_id: str) -> TaskHandle:
    if len(task_id) > MAX_TASK_ID:
        raise ProtocolError(INVALID_PARAMS, f"{exchange.method} needs the id of a task")
    return await _tasks_of(server, exchange).get(task_id, identity=exchange.identity)


def _refusal(error: CallError) -> ProtocolError:
    """Return the same error for a task of another caller, an expired one and an unknown one."""
    is_theirs = error.code in ("TASK_NOT_FOUND", "VALIDATION_ERROR", "PAYLOAD_TOO_LARGE")
    return ProtocolError(INVALID_PARAMS if is_theirs else INTERNAL_ERROR, error.message)


# --- a task as a client sees it -----------------------------------------------------------------------------------


def _flat(task: Task) -> TaskDetails:
    return msgspec.convert(flat_task(task), TaskDetails)


def _task_details(server: MCPServer, exchange: ClientExchange, task: Task) -> TaskDetails:
    """The task with its result, its error, or its questions."""
    told = _flat(task)
    if task.status is Status.INPUT_REQUIRED:
        told.input_requests = input_requests(task)
    elif task.status is Status.COMPLETED or task.status is Status.FAILED:
        _add_outcome(told, server, exchange, task)
    return told


def _add_outcome(told: TaskDetails, server: MCPServer, exchange: ClientExchange, task: Task) -> None:
    """Add how it ended; here a call that failed is a completed one, whose result says so."""
    tool = server.catalog.tool(task.operation)
    asked = _asked_format(exchange)
    try:
        envelope = server.settings.tasks.outcome(task)
        result = _plain(envelope) if tool is None else write_result(server, exchange, tool, envelope, asked)
        if envelope.provenance is not None:
            result.add_meta({RUN_KEY: envelope.provenance.get("run_id")})
    except CallError as error:
        told.error = _error_of_protocol(error, task)
        if told.error is not UNSET:
            told.status = Status.FAILED.value
            return
        error.request_id = error.request_id or task.order.request_id
        chosen = asked or (find_format(server.settings.format) if tool is None else tool.format)
        result = failure(error, chosen, task.operation)
    told.status, told.result = Status.COMPLETED.value, result


def _asked_format(exchange: ClientExchange) -> Format | None:
    named = exchange.meta.get(FORMAT_KEY)
    return None if named is None else find_format(str(named))


def _plain(envelope: ResponseEnvelope[Any]) -> ToolResult:
    """Write the result of an operation that is no longer offered."""
    return ToolResult([{"type": "text", "text": json_text(envelope.data)}], envelope.is_error, meta={})


def _error_of_protocol(error: CallError, task: Task) -> ErrorObject | UnsetType:
    """Return the error for a task whose questions its client cannot answer, or which another server ended with one."""
    if error.details.get("reason") == "capability":
        lacking = MissingCapabilityError(tuple(str(error.details.get("capability")).split(".")))
        return ErrorObject(MISSING_CAPABILITY, error.message, {"requiredCapabilities": lacking.required})
    if task.elsewhere is not None and "rpc_code" in error.details:
        return ErrorObject(error.details["rpc_code"], error.message, error.details.get("data", UNSET))
    return UNSET


# --- notifications -------------------------------------------------------------------------------------------------


class TaskUpdates(msgspec.Struct, eq=False):
    """The tasks that a client follows on its stream: which were granted, and their notifications once it is open."""

    _server: MCPServer
    _exchange: ClientExchange
    _handles: dict[str, TaskHandle]
    _watchers: list[asyncio.Task[None]] = []

    @property
    def granted(self) -> list[str]:
        return list(self._handles)

    def begin(self, listener: ChangeListener) -> None:
        """Notify of each task as it is now, and of every change until it has ended."""
        loop = asyncio.get_running_loop()
        self._watchers = [loop.create_task(self._follow(handle, listener)) for handle in self._handles.values()]

    def end(self) -> None:
        for each in self._watchers:
            each.cancel()

    async def _follow(self, handle: TaskHandle, listener: ChangeListener) -> None:
        """Notify of one task until it has ended; retry while its store is unavailable."""
        while True:
            try:
                async for task in handle.watch():
                    listener.notify("notifications/tasks", _task_details(self._server, self._exchange, task))
            except CallError as error:
                _log.debug("Cannot notify of a task: %s", error)
                if error.code == "UNAVAILABLE":
                    await asyncio.sleep(STORE_RETRY_SECONDS)
                    continue
            return


async def follow_tasks(server: MCPServer, exchange: ClientExchange, asked: list[Any]) -> TaskUpdates:
    """Of the tasks that a client asks to follow those that are its own; another's are passed over like wrong ids."""
    _tasks_of(server, exchange)
    check_declared(exchange)
    ids = dict.fromkeys(each for each in asked if isinstance(each, str))
    if len(ids) > server.settings.limits.subscriptions:
        raise too_many("subscriptions", server.settings.limits.subscriptions)
    handles: dict[str, TaskHandle] = {}
    try:
        _asked_format(exchange)
    except CallError as error:  # a wrong format is refused before anything is written
        raise _refusal(error) from error
    for task_id in ids:
        try:
            handles[task_id] = await _task_handle(server, exchange, task_id)
        except CallError as error:
            if error.code != "TASK_NOT_FOUND":
                raise _refusal(error) from error
        except ProtocolError:  # no id at all
            continue
    return TaskUpdates(server, exchange, handles)
