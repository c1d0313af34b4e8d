"""Durable operations over HTTP: a call that becomes a task, and the paths below `/tasks`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from math import ceil
from typing import Any, Final

import msgspec

from enfold.envelope import ResponseEnvelope, local_envelope
from enfold.errors import invalid_argument
from enfold.operations import Context
from enfold.operations.outcomes import Deferred, envelope_of
from enfold.surfaces.endpoints import NO_STORE, Functions, Route
from enfold.surfaces.request import Request, Response, query_value, read_prefer, read_wait
from enfold.surfaces.responses import encode_failure
from enfold.surfaces.tasks import shown_task
from enfold.tasks import Task, TaskHandle, Tasks
from enfold.tasks.model import Status

TASKS_PATH: Final = "/tasks"
MAX_WAIT: Final = 60.0  # seconds that one request waits for a task

_APPLIED: Final = (b"preference-applied", b"respond-async")


class TaskPages:
    """The tasks of one registry, over HTTP."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks

    # a call

    async def call(self, functions: Functions, route: Route, request: Request) -> Response | None:
        """Call an operation that may run as a task: at once where its caller does not want to wait."""
        preference = read_prefer(request.headers)
        if not preference.is_async:
            return await functions.call(route, request)
        route, given = await functions.arguments(route, request)
        context = functions.context(route, request)
        if route.spec.durable != "never":
            handle = await self._tasks.order(route.spec.id, given, context)
        else:  # the server behind it may make a task of the call
            self._tasks.offer_to_take(route.prepared, context)
            outcome = await route.prepared.execute(given, context)
            if not isinstance(outcome, Deferred):
                return functions.answer_with_result(envelope_of(outcome), request)
            handle = await self._tasks.get(outcome.task.id, identity=request.identity)
        task = handle.last or await handle.state()
        if preference.wait:
            task = await _wait_for_change(handle, preference.wait)
            if task.is_ended:
                return self._outcome(functions, request, task)
        place = f"{request.root}{TASKS_PATH}/{handle.id}".encode()
        return self._accepted(request, task, [(b"location", place), _APPLIED])

    # pages

    def methods(self, path: str) -> tuple[str, ...] | None:
        """Return the methods of a path below `/tasks`; None if there is nothing."""
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

    def has_stream(self, request: Request) -> bool:
        """Whether the changes of a task can be followed by this request: it is one for the task itself."""
        return request.method == "GET" and "DELETE" in (self.methods(request.path) or ())

    async def answer(self, functions: Functions, request: Request) -> Response:
        """Handle a request below `/tasks` whose path and method are known."""
        _, _, task_id, *rest = request.path.split("/") if request.path != TASKS_PATH else ("", "", "")
        if not task_id:
            own = await self._tasks.list(identity=request.identity)
            return _json({"tasks": [shown_task(self._tasks, task, request.format) for task in own]})
        handle = await self._tasks.get(task_id, identity=request.identity)
        if request.method == "DELETE":
            return self._accepted(request, await handle.cancel())
        if rest == ["input"]:
            return self._accepted(request, await handle.answer(await _read_answers(functions, request)))
        task = await _wait_for_change(handle, _wait_seconds(request))
        if rest != ["result"]:
            return _json(shown_task(self._tasks, task, request.format))
        if not task.is_ended:
            return self._accepted(request, task)
        return self._outcome(functions, request, task)

    async def follow(self, request: Request) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """Stream the task at a path: as it is now, and after every change."""
        shown_in = request.format
        # What is sent has been written already.
        request.format = msgspec.structs.replace(shown_in, write=lambda envelope, _: envelope.data)
        handle = await self._tasks.get(request.path.removeprefix(f"{TASKS_PATH}/"), identity=request.identity)
        changes = handle.watch()
        try:
            async for task in changes:
                yield local_envelope(shown_task(self._tasks, task, shown_in), "")
        finally:
            await changes.aclose()

    def _accepted(self, request: Request, task: Task, headers: Sequence[tuple[bytes, bytes]] = ()) -> Response:
        shown = shown_task(self._tasks, task, request.format)
        after = (b"retry-after", b"%d" % ceil(shown.get("pollIntervalMs", 1000) / 1000))
        return _json(shown, 202, [*headers, after])

    def _outcome(self, functions: Functions, request: Request, task: Task) -> Response:
        """Return what the plain call would have returned."""
        registry = self._tasks.registry
        request.context = request.context or Context(identity=request.identity)
        request.context.reply_headers = task.reply_headers
        if task.operation in registry:
            request.operation = registry.get(task.operation)
        return functions.answer_with_result(self._tasks.outcome(task), request)


async def _wait_for_change(handle: TaskHandle, seconds: float) -> Task:
    """Return the task when it has ended, has a question, or the time is over."""
    task = handle.last or await handle.state()
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


def _wait_seconds(request: Request) -> float:
    given = query_value(request.query, "wait")
    return 0.0 if given is None else read_wait(given, MAX_WAIT)


async def _read_answers(functions: Functions, request: Request) -> dict[str, Any]:
    given = (await functions.body_object(request)).get("inputResponses")
    if not isinstance(given, dict):
        message = 'The body needs "inputResponses", with an answer for each key'
        raise invalid_argument("inputResponses", "type", "object", message)
    return given


def _json(value: Any, status: int = 200, headers: Sequence[tuple[bytes, bytes]] = ()) -> Response:
    return Response(encode_failure(value), status, [NO_STORE, *headers])
