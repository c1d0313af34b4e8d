"""Tools of an MCP server that run as tasks here: the server is called once, whichever process runs the task by then."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.conftest import serve
from tests.sources.mcp.task_server import TaskServer, asking, completed, text, working
from tests.tasks.processes import TaskProcess
from tests.waiting import PATIENCE, until

from enfold import CallError, OperationRegistry
from enfold.sources.mcp import Connection, from_mcp
from enfold.sources.options import Rules
from enfold.tasks import Status, Task, TaskHandle, Tasks
from enfold.tasks.sqlite import SQLiteTasks
from enfold.tasks.store import TaskStore

DONE = completed(text("done"))
YES = {"action": "accept", "content": {"yes": True}}


@asynccontextmanager
async def worker(
    url: str, store: TaskStore, on_crash: Any = None, protocol: str = "2026-07-28"
) -> AsyncIterator[Tasks]:
    """A gateway that runs the tasks of a store, with a connection of its own to the server."""
    registry = OperationRegistry()
    rules = Rules(durable=True, on_crash=on_crash)
    connection = Connection(protocol=protocol)
    async with from_mcp(f"{url}/mcp", namespace="far", connection=connection, rules=rules) as operations:
        registry.register_all(operations)
        tasks = Tasks(registry, store)
        tasks.begin()
        yield tasks
        await tasks.runner.stop()


async def seen(handle: TaskHandle, status: Status) -> Task:
    async with asyncio.timeout(PATIENCE):
        async for task in handle.watch():
            if task.status is status:
                return task
    raise AssertionError(f"it was never {status}")


@pytest.mark.parametrize("on_crash", ["retry", "fail"])
async def test_a_worker_that_stops_leaves_the_servers_task_to_the_next(store: TaskStore, on_crash: str) -> None:
    server = TaskServer({"slow": [working(20), working(20)]})
    async with serve(server) as url:
        async with worker(url, store, on_crash) as first:
            task_id = str((await first.start("far.slow")).id)
            await until(lambda: len(server.said("tasks/get")) > 1)
        server.scripts["slow"].append(DONE)
        async with worker(url, store, on_crash) as second, asyncio.timeout(PATIENCE):
            assert (await (await second.get(task_id)).result()).text() == "done"
    assert (len(server.said("tools/call")), server.said("tasks/cancel")) == (1, [])


@pytest.mark.parametrize("on_crash", ["retry", "fail"])
async def test_a_gateway_that_is_killed_and_started_again_continues_with_the_servers_task(
    tmp_path: Path, on_crash: str
) -> None:
    server = TaskServer({"slow": [working(20), working(20)]})
    running: list[TaskProcess] = []
    async with serve(server) as url:
        config = f'[sources.far]\nurl = "{url}/mcp"\ndurable = true\non_crash = "{on_crash}"\n'
        (tmp_path / "enfold.toml").write_text(config)

        async def started() -> TaskProcess:
            running.append(await asyncio.to_thread(TaskProcess, tmp_path, "enfold.toml"))
            return running[-1]

        async def ask(method: str, path: str, **more: Any) -> Any:
            return (await asyncio.to_thread(running[-1].ask, method, path, **more))[1]

        try:
            await started()
            told = await ask("POST", "/functions/far.slow", body={}, prefer="respond-async")
            await until(lambda: len(server.said("tasks/get")) > 1)
            running[-1].kill()
            server.scripts["slow"].append(DONE)
            await started()
            ended = await ask("GET", f"/tasks/{told['taskId']}?wait=20")
        finally:
            for each in running:
                each.kill()
    assert (ended["status"], ended["result"]) == ("completed", {"result": [{"type": "text", "text": "done"}]})
    assert (len(server.said("tools/call")), server.said("tasks/cancel")) == (1, [])


class OlderServer:
    """A server of 2025-11-25 with one tool, which only runs as a task; its result is there when `done` is set."""

    def __init__(self) -> None:
        self.methods: list[str] = []
        self.done = asyncio.Event()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        message = json.loads((await receive())["body"] or b"{}")
        self.methods.append(str(message.get("method")))
        answer = await self._answer(self.methods[-1])
        status = 202 if "id" not in message else 200
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        told = {"jsonrpc": "2.0", "id": message.get("id"), "result": answer}
        await send({"type": "http.response.body", "body": json.dumps(told).encode() if status == 200 else b""})

    async def _answer(self, method: str) -> dict[str, Any]:
        if method == "initialize":
            about = {"name": "older", "version": "1"}
            return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": about}
        if method == "tools/list":
            tool = {"name": "slow", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}}
            return {"tools": [tool]}
        if method == "tasks/result":
            await self.done.wait()
            return text("done")
        return {"task": {"taskId": "t1", "status": "working"}} if method == "tools/call" else {}


async def test_the_task_of_an_older_server_is_fetched_by_the_next_worker(tmp_path: Path) -> None:
    server, store = OlderServer(), SQLiteTasks(tmp_path / "tasks.db")
    async with serve(server) as url:
        async with worker(url, store, protocol="2025-11-25") as first:
            handle = await first.start("far.slow")
            await until(lambda: "tasks/result" in server.methods)
        server.done.set()
        async with worker(url, store, protocol="2025-11-25") as second, asyncio.timeout(PATIENCE):
            assert (await (await second.get(str(handle.id))).result()).text() == "done"
        await store.close()
    assert [server.methods.count(name) for name in ("tools/call", "tasks/result", "tasks/cancel")] == [1, 2, 0]


async def test_a_question_of_the_server_is_answered_by_the_process_that_took_over_the_task(store: TaskStore) -> None:
    server = TaskServer({"asks": [working(20), asking("sure"), asking("sure"), asking("sure")]})
    async with serve(server) as url:
        async with worker(url, store) as first:
            handle = await first.start("far.asks")
            (key,) = (await seen(handle, Status.INPUT_REQUIRED)).questions
        async with worker(url, store) as second, asyncio.timeout(PATIENCE):
            server.scripts["asks"] += [working(20), DONE]
            later = await second.get(str(handle.id))
            await later.answer({key: YES})
            assert (await later.result()).text() == "done"
    assert (len(server.said("tools/call")), server.said("tasks/cancel")) == (1, [])
    assert [each["inputResponses"] for each in server.said("tasks/update")] == [{"sure": YES}]


async def test_a_cancel_reaches_the_server_after_another_process_took_over_the_task(store: TaskStore) -> None:
    server = TaskServer({"slow": [working(20), working(20)]})
    async with serve(server) as url:
        async with worker(url, store) as first:
            handle = await first.start("far.slow")
            await until(lambda: server.said("tasks/get"))
        before = len(server.said("tasks/get"))
        async with worker(url, store) as second, asyncio.timeout(PATIENCE):
            later = await second.get(str(handle.id))
            await until(lambda: len(server.said("tasks/get")) > before)
            await later.cancel()
            with pytest.raises(CallError) as ended:
                await later.result()
            await server.cancelled.wait()
    assert ended.value.code == "ABORTED"
    assert [each["taskId"] for each in server.said("tasks/cancel")] == ["id-of-slow"]


async def test_a_cancel_reaches_the_server_while_no_worker_runs_the_task(store: TaskStore) -> None:
    server = TaskServer({"asks": [working(20), asking("sure")]})
    async with serve(server) as url, worker(url, store) as tasks:
        handle = await tasks.start("far.asks")
        await seen(handle, Status.INPUT_REQUIRED)
        assert (await handle.cancel()).status is Status.CANCELLED
        await handle.cancel()  # which has ended, so this changes nothing
    assert [each["taskId"] for each in server.said("tasks/cancel")] == ["id-of-asks"]
