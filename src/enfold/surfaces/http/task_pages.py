"""Durable operations over HTTP: a call that becomes a task, and the paths below `/tasks` at which it is found again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from math import ceil
from typing import Any, Final

import msgspec

from enfold.envelope import ResponseEnvelope, local_envelope
from enfold.errors import CallError
from enfold.formats import Format
from enfold.surfaces import reading
from enfold.surfaces.functions.request import FunctionAnswer, FunctionRequest
from enfold.surfaces.functions.routes import Route
from enfold.surfaces.functions.service import NO_STORE, Functions
from enfold.surfaces.query_string import query_pairs
from enfold.surfaces.task_wire import flat_task, input_requests, poll_interval_ms
from enfold.surfaces.writing import encode_result
from enfold.tasks import Task, TaskHandle, Tasks
from enfold.tasks.task import Status

__all__ = ["TASKS_PATH", "TaskPages", "task_methods"]

TASKS_PATH: Final = "/tasks"
LONGEST_WAIT: Final = 60.0  # seconds that one request waits for a task

_APPLIED: Final = (b"preference-applied", b"respond-async")


def task_methods(path: str) -> tuple[str, ...] | None:
    """The methods of a path below `/tasks`; None where there is nothing."""
    match path.removeprefix(TASKS_PATH).split("/"):
        case [""]:
            return ("GET", "HEAD", "OPTIONS")
        case ["", task_id] if task_id:
            return ("GET", "HEAD", "DELETE", "OPTIONS")
        case ["", task_id, "result"] if task_id:
            return ("GET", "HEAD", "OPTIONS")
        case ["", task_id, "input"] if task_id:
            return ("POST", "OPTIONS")
    return None


class TaskPages:
    """The tasks of one registry, over HTTP."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks

    # a call

    async def call(self, functions: Functions, route: Route, request: FunctionRequest, root: str) -> FunctionAnswer:
        """Call an operation that may run as a task: as one where its caller or its author wants that."""
        wish = reading.read_prefer(request.headers)
        if not wish.is_async:
            if route.spec.durable != "required":
                return await functions.call(route, request)
            given, context = await functions.arguments(route, request), functions.context(route, request)
            return functions.written(await self._tasks.run(route.spec.id, given, context), request)
        given, context = await functions.arguments(route, request), functions.context(route, request)
        handle = await self._tasks.start(
            route.spec.id,
            given,
            identity=request.identity,
            idempotency_key=context.unused_key,
            request_id=request.known_id(),
        )
        task = handle.last or await handle.state()
        if wish.wait:
            task = await _waited(handle, wish.wait)
            if task.is_ended:
                return self._outcome(functions, request, task)
        place = f"{root}{TASKS_PATH}/{task.id}".encode()
        return self._accepted(request, task, [(b"location", place), _APPLIED])

    # pages

    async def answer(self, functions: Functions, request: FunctionRequest) -> FunctionAnswer:
        """The answer to a request below `/tasks`, of a path and a method that are known."""
        _, _, task_id, *rest = request.path.split("/") if request.path != TASKS_PATH else ("", "", "")
        if not task_id:
            own = await self._tasks.list(identity=request.identity)
            return _json({"tasks": [self._shown(request.format, task) for task in own]})
        handle = await self._tasks.get(task_id, identity=request.identity)
        if request.method == "DELETE":
            return self._accepted(request, await handle.cancel())
        if rest == ["input"]:
            return self._accepted(request, await handle.answer(await _answers(functions, request)))
        task = await _waited(handle, _wait(request))
        if rest != ["result"]:
            return _json(self._shown(request.format, task))
        if not task.is_ended:
            return self._accepted(request, task)
        return self._outcome(functions, request, task)

    async def follow(self, request: FunctionRequest) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """The task at a path now, and after every change, each as an item of a stream."""
        shown_in = request.format
        # What is sent has been written already.
        request.format = msgspec.structs.replace(shown_in, write=lambda envelope, _: envelope.data)
        handle = await self._tasks.get(request.path.removeprefix(f"{TASKS_PATH}/"), identity=request.identity)
        changes = handle.watch()
        try:
            async for task in changes:
                yield local_envelope(self._shown(shown_in, task), "")
        finally:
            await changes.aclose()

    # a task as it is shown

    def _shown(self, format: Format, task: Task) -> dict[str, Any]:
        """The flat task; with its questions, or with its result or error in this format."""
        told = {**flat_task(task), "operation": task.operation}
        if task.status is Status.INPUT_REQUIRED:
            told["inputRequests"] = input_requests(task)
        elif task.outcome is not None and task.status is not Status.CANCELLED:
            told |= self._ended(format, task)
        return told

    def _ended(self, format: Format, task: Task) -> dict[str, Any]:
        registry = self._tasks.registry
        try:
            spec = registry.get_spec(task.operation) if task.operation in registry else None
            wire = format.write(self._tasks.outcome(task), spec)
            return {"result": msgspec.Raw(encode_result(wire))}
        except CallError as error:
            return {"error": format.write_error(error, task.operation)}

    def _accepted(
        self, request: FunctionRequest, task: Task, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> FunctionAnswer:
        """The answer to what has been taken and goes on."""
        after = (b"retry-after", b"%d" % ceil(poll_interval_ms(task) / 1000))
        return _json(self._shown(request.format, task), 202, [*headers, after])

    def _outcome(self, functions: Functions, request: FunctionRequest, task: Task) -> FunctionAnswer:
        """What the plain call would have said."""
        registry = self._tasks.registry
        if task.operation in registry:
            request.operation = registry.get_spec(task.operation)
        return functions.written(self._tasks.outcome(task), request)


async def _waited(handle: TaskHandle, seconds: float) -> Task:
    """The task when it has ended or has a question, or when the time is over."""
    task = await handle.state()
    if seconds <= 0 or task.is_ended or task.status is Status.INPUT_REQUIRED:
        return task
    try:
        async with asyncio.timeout(seconds):
            async for task in handle.watch():
                if task.is_ended or task.status is Status.INPUT_REQUIRED:
                    break
    except TimeoutError:
        return await handle.state()
    return task


def _wait(request: FunctionRequest) -> float:
    given = dict(query_pairs(request.query)).get("wait") if request.query else None
    return 0.0 if given is None else reading.read_wait(given, LONGEST_WAIT)


async def _answers(functions: Functions, request: FunctionRequest) -> dict[str, Any]:
    given = (await functions.object_in(request)).get("inputResponses")
    if not isinstance(given, dict):
        details = {"argument": "inputResponses", "reason": "type", "expected": "object"}
        raise CallError("VALIDATION_ERROR", 'The body needs "inputResponses": an answer for each key', details)
    return given


def _json(value: Any, status: int = 200, headers: Sequence[tuple[bytes, bytes]] = ()) -> FunctionAnswer:
    return FunctionAnswer(encode_result(value), status, [NO_STORE, *headers])
