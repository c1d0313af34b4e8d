"""Tasks of another server, driven to their end for callers who wait for a result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.sources.mcp.conftest import Serve
from tests.sources.mcp.task_server import CAPABILITIES, EXTENSION, TaskServer, asking, completed, text, working
from tests.waiting import until

from enfold import CallError, Context, OperationRegistry
from enfold.operations import Progress
from enfold.sources.mcp import Connection, from_mcp

DONE = completed(text("done"))


async def agree(params: dict[str, Any], context: Context) -> dict[str, Any]:
    return {"action": "accept", "content": {"yes": True}}


@asynccontextmanager
async def opened(serve: Serve, server: TaskServer) -> AsyncIterator[OperationRegistry]:
    registry = OperationRegistry()
    async with (
        serve(server) as url,
        from_mcp(
            f"{url}/mcp", connection=Connection(protocol="2026-07-28", answers={"elicitation/create": agree})
        ) as operations,
    ):
        registry.register_all(operations)
        yield registry


async def test_a_task_is_asked_for_as_often_as_it_says_until_its_result_is_there(serve: Serve) -> None:
    script = [working(40, statusMessage="one"), working(80, statusMessage="two"), working("often"), working(0), DONE]
    server = TaskServer({"slow": script})
    heard: list[Progress] = []
    async with opened(serve, server) as registry:
        context = Context(notify=lambda told: heard.append(told) if isinstance(told, Progress) else None)
        envelope = await registry.execute("slow", {}, context)
    assert envelope.text() == "done"
    assert [each.message for each in heard] == ["one", "two"]
    waits = [after - before for before, after in zip(server.times, server.times[1:], strict=False)]
    assert all(wait >= 0.079 for wait in waits)  # the newest interval that can be read holds
    for method in ("tools/call", "tasks/get"):
        for params in server.said(method):
            assert params["_meta"][CAPABILITIES]["extensions"] == {EXTENSION: {}}
    assert {each["headers"]["mcp-name"] for each in server.requests if each["method"] == "tasks/get"} == {"id-of-slow"}


async def test_each_question_is_answered_once_however_often_it_is_shown(serve: Serve) -> None:
    script = [working(), asking("a"), asking("a"), asking("a", "b"), asking("b"), working(), DONE]
    server = TaskServer({"curious": script})
    async with opened(serve, server) as registry:
        assert (await registry.execute("curious", {})).text() == "done"
    answer = {"action": "accept", "content": {"yes": True}}
    assert [each["inputResponses"] for each in server.said("tasks/update")] == [{"a": answer}, {"b": answer}]


FAILED = {"status": "failed", "error": {"code": -32602, "message": "The year is wrong", "data": {"year": 1}}}


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        ([working(), FAILED], "VALIDATION_ERROR", "The year is wrong"),
        ([working(), {"status": "failed"}], "EXECUTION_ERROR", "a failed task without its error"),
        ([working(), {"status": "cancelled"}], "ABORTED", "has cancelled the task"),
        ([working(), {"status": "completed"}], "EXECUTION_ERROR", "a completed task without its result"),
        ([working(), completed({"resultType": "task"})], "EXECUTION_ERROR", "a completed task without its result"),
        ([working(), {"status": "asleep"}], "EXECUTION_ERROR", "a task whose status is 'asleep'"),
        ([working(), {"resultType": "task"}], "EXECUTION_ERROR", "tasks/get with a result of the kind 'task'"),
        ([{"resultType": "task"}], "EXECUTION_ERROR", "a task without a usable taskId"),
        ([{"resultType": "dream"}], "EXECUTION_ERROR", "a result of the kind 'dream'"),
        ([working(), {"error_now": {"code": -32602, "message": "No such task"}}], "OPERATION_NOT_FOUND", "No such"),
        ([working(), *[{"http": 503}] * 7], "UNAVAILABLE", "503"),
    ],
)
async def test_a_task_that_gives_no_result_is_an_error(
    serve: Serve, script: list[dict[str, Any]], code: str, words: str
) -> None:
    async with opened(serve, TaskServer({"bad": script})) as registry:
        with pytest.raises(CallError, match=words) as failed:
            await registry.execute("bad", {})
    assert failed.value.code == code


async def test_a_short_outage_of_a_server_does_not_lose_its_task(serve: Serve) -> None:
    async with opened(serve, TaskServer({"shaky": [working(), {"http": 503}, {"http": 503}, DONE]})) as registry:
        assert (await registry.execute("shaky", {})).text() == "done"


async def test_a_prompt_is_not_a_task(serve: Serve) -> None:
    server = TaskServer({"a_prompt": [working()]})
    async with opened(serve, server) as registry:
        with pytest.raises(CallError, match="prompts/get with a result of the kind 'task'"):
            await registry.execute("a_prompt", {})
    assert "extensions" not in server.said("prompts/get")[0]["_meta"][CAPABILITIES]


@pytest.mark.parametrize("how", ["abort", "deadline", "unaskable"])
async def test_cancelling_a_call_cancels_its_task_on_the_server(serve: Serve, how: str) -> None:
    roots = {"status": "input_required", "inputRequests": {"a": {"method": "roots/list"}}}
    server = TaskServer({"slow": [working(), roots if how == "unaskable" else working()]})
    async with opened(serve, server) as registry:
        context = Context(timeout=0.3 if how == "deadline" else None)
        running = asyncio.create_task(registry.execute("slow", {}, context))
        if how == "abort":
            await until(lambda: server.times)
            running.cancel()
        expected = {"abort": asyncio.CancelledError, "deadline": CallError, "unaskable": CallError}[how]
        with pytest.raises(expected) as ended:
            await running
        await server.cancelled.wait()
    assert server.said("tasks/cancel")[0]["taskId"] == "id-of-slow"
    assert getattr(ended.value, "code", None) == {"abort": None, "deadline": "TIMEOUT", "unaskable": "UNAVAILABLE"}[how]
