"""Durable calls over HTTP: accepted immediately, visible to their owner only, with the same result as the call."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from tests.calls.processes import IS_FULL, say
from tests.waiting import PATIENCE, until

from enfold import CallError, Context, Identity, OperationRegistry
from enfold.auth.tokens import Tokens
from enfold.mcp import elicit
from enfold.surfaces.http import HTTPSettings, to_http
from enfold.surfaces.mcp import to_mcp
from enfold.tasks import Tasks
from enfold.tasks.memory import MemoryTasks
from enfold.tasks.model import new_task_id
from enfold.tasks.store import Waiter
from enfold.testing.asgi import Conversation, living

ops = OperationRegistry("shop")
STOCK: dict[str, Any] = {"code": "SOLD_OUT", "description": "Nothing left", "http_status": 409}


@ops.mutation(durable=True, error_schemas=[STOCK])
async def report(year: int) -> str:
    if year < 0:
        raise CallError("SOLD_OUT", "No such year")
    if year == 9999:
        await asyncio.Event().wait()
    return f"report of {year}"


@ops.mutation(durable=True)
async def clean(context: Context) -> str:
    return (await elicit(context, "Sure?")).action


@ops.mutation(durable="required", timeout=0.05)
async def archive(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "archived"


@ops.mutation(durable=True)
async def burn(how: str) -> str:
    if how == "program":
        await asyncio.to_thread(subprocess.run, ["sh", "-c", "echo hunter2 >&2; exit 3"], check=True, stderr=-1)
    raise ValueError("The password is hunter2")


@ops.mutation
async def plain() -> str:
    return "plain"


TOKENS = Tokens(
    {name: Identity(name) for name in ("ann", "bob")} | {"root": Identity("root", frozenset({"enfold:admin"}))}
)


class Client:
    def __init__(self, *, expose_errors: bool = True) -> None:
        self.tasks = Tasks(ops, MemoryTasks())
        mcp = to_mcp(ops, tokens=TOKENS, tasks=self.tasks, expose_errors=expose_errors)
        self.app = to_http(
            ops, HTTPSettings(expose_errors=expose_errors), tokens=TOKENS, tasks=self.tasks, mounts={"/mcp": mcp}
        )

    async def send(
        self, method: str, path: str, body: Any = None, caller: str | None = "ann", **more: str
    ) -> Conversation:
        headers = {"host": "localhost:8000", "content-type": "application/json"}
        headers |= {"authorization": f"Bearer {caller}"} if caller else {}
        headers |= {name.replace("_", "-"): value for name, value in more.items()}
        text = b"" if body is None else msgspec.json.encode(body)
        return await Conversation(self.app, method, path, headers, text).began()

    async def ask(self, method: str, path: str, body: Any = None, caller: str | None = "ann", **more: str) -> Any:
        answer = await self.send(method, path, body, caller, **more)
        return answer.status, await answer.json()

    async def start(self, name: str, body: Any = None, **more: str) -> str:
        answer = await self.send("POST", f"/functions/shop.{name}", body or {}, prefer="respond-async", **more)
        assert answer.status == 202
        task = await answer.json()
        assert answer.headers["location"] == f"/tasks/{task['taskId']}"
        assert (answer.headers["preference-applied"], answer.headers["retry-after"]) == ("respond-async", "1")
        return str(task["taskId"])


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    made = Client()
    async with living(made.app):
        yield made
    await made.tasks.close()


async def test_a_call_is_accepted_at_once_and_its_result_is_what_the_call_would_have_said(client: Client) -> None:
    task_id = await client.start("report", {"year": 2026})
    status, task = await client.ask("GET", f"/tasks/{task_id}?wait=10")
    assert (status, task["status"], task["result"]) == (200, "completed", {"result": "report of 2026"})
    assert await client.ask("GET", f"/tasks/{task_id}/result") == (200, {"result": "report of 2026"})
    assert (await client.ask("GET", f"/tasks/{task_id}/result", enfold_format="envelope"))[1][
        "data"
    ] == "report of 2026"
    failed = await client.start("report", {"year": -1})
    status, task = await client.ask("GET", f"/tasks/{failed}?wait=10")
    assert (status, task["status"], task["error"]) == (200, "failed", {"error": "No such year"})
    plain = await client.ask("POST", "/functions/shop.report", {"year": -1})
    assert (
        await client.ask("GET", f"/tasks/{failed}/result") == (409, {"error": "Function error: No such year"}) == plain
    )
    in_time = await client.ask("POST", "/functions/shop.report", {"year": 1}, prefer="respond-async, wait=10")
    assert in_time == (200, {"result": "report of 1"})


async def test_questions_are_answered_and_unwanted_tasks_end(client: Client) -> None:
    task_id = await client.start("clean")
    _, task = await client.ask("GET", f"/tasks/{task_id}?wait=10")
    assert task["status"] == "input_required"
    assert (await client.ask("POST", f"/tasks/{task_id}/input", {"inputResponses": []}))[0] == 400
    answers = {"inputResponses": {key: {"action": "accept"} for key in task["inputRequests"]}}
    assert (await client.ask("POST", f"/tasks/{task_id}/input", answers))[0] == 202
    assert (await client.ask("GET", f"/tasks/{task_id}/result?wait=10")) == (200, {"result": "accept"})
    long = await client.start("report", {"year": 9999})
    assert (await client.ask("GET", f"/tasks/{long}/result"))[0] == 202
    assert (await client.ask("DELETE", f"/tasks/{long}"))[0] == 202
    assert (await client.ask("GET", f"/tasks/{long}?wait=10"))[1]["status"] == "cancelled"
    assert (await client.ask("GET", f"/tasks/{long}/result"))[0] == 499
    assert (await client.ask("DELETE", f"/tasks/{task_id}"))[1]["status"] == "completed"


async def test_a_task_can_be_followed(client: Client) -> None:
    task_id = await client.start("clean")
    stream = await client.send("GET", f"/tasks/{task_id}", accept="text/event-stream")
    seen: list[str] = []
    async for event in stream.events():
        if event.event == "complete":
            break
        task = json.loads(event.data)
        seen.append(task["status"])
        if task["status"] == "input_required":
            answers = {"inputResponses": {key: {"action": "decline"} for key in task["inputRequests"]}}
            await client.ask("POST", f"/tasks/{task_id}/input", answers)
    assert (seen[-2:], task["result"]) == (["working", "completed"], {"result": "decline"})
    assert "input_required" in seen


async def test_a_follower_of_a_task_that_disconnects_leaves_nothing_behind(client: Client) -> None:
    task_id = await client.start("report", {"year": 9999})
    waiting_before = number_of_waiters()
    streams = [await client.send("GET", f"/tasks/{task_id}", accept="text/event-stream") for _ in range(20)]
    waits = [await client.send("GET", f"/tasks/{task_id}?wait=0.01") for _ in range(3)]
    for stream in streams:
        await anext(stream.events())
    assert number_of_waiters() >= waiting_before + 20
    for stream in streams:
        stream.leave()
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(each.task for each in (*streams, *waits)))
        await until(lambda: number_of_waiters() <= waiting_before)
    assert (await client.ask("GET", f"/tasks/{task_id}"))[1]["status"] == "working"


def number_of_waiters() -> int:
    return sum(isinstance(each, Waiter) for each in gc.get_objects())


async def test_a_task_is_seen_by_its_owner_alone(client: Client) -> None:
    task_id = await client.start("report", {"year": 9999})
    wrong = ["A" * 32, task_id[:-1], "..%2F", "s.x", "x" * 5000]
    for method, tail, body in (
        ("GET", "", None),
        ("GET", "/result", None),
        ("POST", "/input", {"inputResponses": {}}),
        ("DELETE", "", None),
    ):
        told = [await client.ask(method, f"/tasks/{each}{tail}", body, "bob") for each in (task_id, *wrong)]
        assert told == [(404, {"error": "Task not found, or expired"})] * len(told)
        assert (await client.ask(method, f"/tasks/{task_id}{tail}", body, None))[0] == 401
    stream = await client.send("GET", f"/tasks/{task_id}", caller="bob", accept="text/event-stream")
    assert stream.status == 404
    assert (await client.ask("GET", "/tasks", caller="bob"))[1] == {"tasks": []}
    assert [each["taskId"] for each in (await client.ask("GET", "/tasks"))[1]["tasks"]] == [task_id]
    assert [each["taskId"] for each in (await client.ask("GET", "/tasks", caller="root"))[1]["tasks"]] == [task_id]
    assert (await client.ask("GET", f"/tasks/{task_id}"))[1]["status"] == "working"


async def test_ids_cannot_be_guessed_at_any_endpoint(client: Client) -> None:
    """Check 32 through HTTP and MCP: by a caller without tasks, and by one who sees all of them."""
    for _ in range(20):
        await client.start("clean")
    guesses, hits = 100_000 if IS_FULL else 200, 0
    for n in range(guesses):
        guess = new_task_id() if n % 2 else f"{n:032d}"
        if n % 4 < 2:
            status, _ = await client.ask("GET", f"/tasks/{guess}", caller="root" if n % 3 else "bob")
            hits += status != 404
        else:
            hits += "status" in await mcp(client, "tasks/get", {"taskId": guess})
    say("32", f"HTTP and MCP: {hits} hits of {guesses}")
    assert hits == 0


async def test_only_what_is_durable_becomes_a_task_and_what_must_be_one_names_it(client: Client) -> None:
    asked = {"prefer": "respond-async"}
    assert await client.ask("POST", "/functions/shop.plain", {}, **asked) == (200, {"result": "plain"})
    assert (await client.ask("POST", "/functions/shop.report", {"year": "x"}, **asked))[0] == 400
    assert await client.ask("POST", "/functions/shop.report", {"year": 5}) == (200, {"result": "report of 5"})
    assert await client.ask("POST", "/functions/shop.archive", {"seconds": 0}) == (200, {"result": "archived"})
    late = await client.send("POST", "/functions/shop.archive", {"seconds": 60}, enfold_format="envelope")
    assert late.status == 504
    assert (await client.ask("GET", f"/tasks/{(await late.json())['error']['details']['task']}"))[0] == 200


async def test_the_same_key_gives_the_same_task(client: Client) -> None:
    first, second = [await client.start("report", {"year": 2}, idempotency_key="k") for _ in range(2)]
    assert first == second
    other = await client.ask("POST", "/functions/shop.report", {"year": 3}, prefer="respond-async", idempotency_key="k")
    assert other[0] == 400


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/tasks", 405),
        ("PUT", "/tasks/x", 405),
        ("GET", "/tasks/x/input", 405),
        ("GET", "/tasks/x/y", 404),
        ("GET", "/tasksx", 404),
        ("GET", "/tasks/x/result/", 404),
    ],
)
async def test_other_paths_below_tasks_are_refused(client: Client, method: str, path: str, status: int) -> None:
    assert (await client.ask(method, path))[0] == status
    assert (await client.ask("GET", f"/tasks/{'A' * 32}?wait=x"))[0] == 404


async def mcp(client: Client, method: str, params: dict[str, Any]) -> Any:
    own = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
    }
    wire = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": own}}
    headers = {"mcp_method": method, "mcp_protocol_version": "2026-07-28"}
    answer = (await client.ask("POST", "/mcp", wire, **headers))[1]
    return answer["result"] if "result" in answer else answer["error"]


async def test_a_task_begun_over_http_is_the_same_over_mcp(client: Client) -> None:
    task_id = await client.start("report", {"year": -1})
    _, here = await client.ask("GET", f"/tasks/{task_id}?wait=10")
    there = await mcp(client, "tasks/get", {"taskId": task_id})
    same = ("taskId", "createdAt", "lastUpdatedAt", "ttlMs")
    assert {name: here[name] for name in same} == {name: there[name] for name in same}
    assert (here["status"], there["status"]) == ("failed", "completed")
    assert there["result"]["isError"]


@pytest.mark.parametrize("how", ["exception", "program"])
async def test_the_text_of_an_exception_can_be_hidden_from_callers_of_tasks(how: str) -> None:
    """The store keeps the full message, and each surface shows what it may."""
    hiding = Client(expose_errors=False)
    task_id = await hiding.start("burn", {"how": how})
    plain = await hiding.ask("POST", "/functions/shop.burn", {"how": how})
    assert plain == (500, {"error": "Function error: Operation shop.burn failed"})
    _, task = await hiding.ask("GET", f"/tasks/{task_id}?wait=10", enfold_format="envelope")
    assert task["error"]["error"]["message"] == "Operation shop.burn failed"
    assert await hiding.ask("GET", f"/tasks/{task_id}/result") == plain
    assert await hiding.ask("POST", "/functions/shop.burn", {"how": how}, idempotency_key="k") == plain
    verb = await hiding.ask("POST", "/functions/enfold.tasks.get", {"task_id": task_id})
    told = await mcp(hiding, "tasks/get", {"taskId": task_id})
    assert "hunter2" not in f"{task}{verb}{told}"
    assert (verb[0], told["result"]["isError"]) == (200, True)
    kept = await (await hiding.tasks.get(task_id, identity=Identity("ann"))).state()
    assert "hunter2" in str(kept.outcome)
    await hiding.tasks.close()


async def test_the_document_says_where_tasks_are_found(client: Client) -> None:
    _, document = await client.ask("GET", "/openapi.json")
    OpenAPIV31SpecValidator(document).validate()
    assert {path for path in document["paths"] if path.startswith("/tasks")} == {
        "/tasks",
        "/tasks/{id}",
        "/tasks/{id}/result",
        "/tasks/{id}/input",
    }
    report = document["paths"]["/functions/shop.report"]["post"]
    assert ("202" in report["responses"], report["parameters"][0]["name"]) == (True, "Prefer")
    assert "202" not in document["paths"]["/functions/shop.plain"]["post"]["responses"]
    for path, statuses in {
        "/tasks": {"200", "401", "500", "503"},
        "/tasks/{id}/input": {"202", "400", "404", "415"},
    }.items():
        (operation,) = (each for each in document["paths"][path].values() if isinstance(each, dict))
        assert statuses <= set(operation["responses"])
