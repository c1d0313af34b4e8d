"""The tasks extension over HTTP and on the standard streams: the life of a task, who may follow it, and who may not."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from enfold import CallError, Context, Identity, OperationRegistry
from enfold.identities.tokens import Tokens
from enfold.mcp import elicit
from enfold.surfaces.mcp import to_mcp
from enfold.tasks import Tasks
from enfold.tasks.memory import MemoryTasks
from enfold.testing.asgi_client import Conversation

EXTENSION = "io.modelcontextprotocol/tasks"
DECLARED: dict[str, Any] = {"elicitation": {}, "extensions": {EXTENSION: {}}}
HERE = Path(__file__).parent

ops = OperationRegistry("shop")


@ops.mutation(durable=True)
async def report(year: int, context: Context) -> str:
    """Write a report."""
    await context.progress(1, 2, "reading")
    if year < 0:
        raise CallError("SOLD_OUT", "No such year")
    await asyncio.sleep(60 if year == 9999 else 0)
    return f"report of {year}"


@ops.mutation(durable=True)
async def clean(context: Context) -> str:
    """Ask before cleaning."""
    return (await elicit(context, "Sure?", {"type": "object", "properties": {"yes": {"type": "boolean"}}})).action


@ops.mutation(durable="required")
async def archive() -> str:
    """Only ever a task."""
    return "archived"


TOKENS = Tokens(
    {name: Identity(name) for name in ("ann", "bob")} | {"root": Identity("root", frozenset({"enfold:admin"}))}
)


class Talk:
    """A client of 2026-07-28 without a socket."""

    def __init__(self, tokens: Tokens | None = None) -> None:
        self.tasks = Tasks(ops, MemoryTasks())
        self.app = to_mcp(ops, tokens=tokens, tasks=self.tasks)

    async def send(self, method: str, params: dict[str, Any], caller: str | None = None, **more: Any) -> Conversation:
        capabilities = more.pop("capabilities", DECLARED)
        own = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": capabilities,
        }
        headers = {"host": "localhost:8000", "content-type": "application/json", "mcp-method": method}
        headers |= {"mcp-protocol-version": "2026-07-28"}
        headers |= {"mcp-name": params["name"]} if "name" in params else {}
        headers |= {"authorization": f"Bearer {caller}"} if caller else {}
        wire = {**params, "_meta": {**own, **params.get("_meta", {})}}
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": wire})
        return await Conversation(self.app, "POST", "/mcp", {**headers, **more}, body).began()

    async def ask(self, method: str, params: dict[str, Any], caller: str | None = None, **more: Any) -> Any:
        answer = await (await self.send(method, params, caller, **more)).json()
        return answer["result"] if "result" in answer else answer["error"]

    async def start(self, name: str, caller: str | None = None, **arguments: Any) -> str:
        begun = await self.ask("tools/call", {"name": f"shop.{name}", "arguments": arguments}, caller)
        assert begun["resultType"] == "task", begun
        return str(begun["taskId"])

    async def until(self, task_id: str, status: str, caller: str | None = None) -> Any:
        while True:
            task = await self.ask("tasks/get", {"taskId": task_id}, caller)
            if task["status"] == status:
                return task
            assert task["status"] in ("working", "input_required"), task
            await asyncio.sleep(0.01)


@pytest.fixture
async def talk() -> AsyncIterator[Talk]:
    made = Talk()
    yield made
    await made.tasks.close()


@pytest.fixture
async def closed() -> AsyncIterator[Talk]:
    made = Talk(TOKENS)
    yield made
    await made.tasks.close()


async def test_a_task_lives_from_its_call_to_its_result(talk: Talk) -> None:
    done = await talk.until(await talk.start("report", year=2026), "completed")
    assert done["result"]["structuredContent"] == {"result": "report of 2026"}
    assert (done["statusMessage"], done["resultType"]) == ("1 of 2: reading", "complete")
    failed = await talk.until(await talk.start("report", year=-1), "completed")
    assert (failed["result"]["isError"], failed["result"]["_meta"]["enfold/error"]["code"]) == (True, "SOLD_OUT")
    asking = await talk.start("clean")
    requests = (await talk.until(asking, "input_required"))["inputRequests"]
    answers = {key: {"action": "decline"} for key in requests}
    assert set(await talk.ask("tasks/update", {"taskId": asking, "inputResponses": answers})) == {"_meta", "resultType"}
    assert (await talk.until(asking, "completed"))["result"]["structuredContent"] == {"result": "decline"}
    long = await talk.start("report", year=9999)
    assert set(await talk.ask("tasks/cancel", {"taskId": long})) == {"_meta", "resultType"}
    assert "result" not in await talk.until(long, "cancelled")


async def test_who_does_not_declare_the_extension_hears_nothing_of_tasks(talk: Talk) -> None:
    plain = {"name": "shop.report", "arguments": {"year": 2026}}
    assert (await talk.ask("tools/call", plain, capabilities={}))["structuredContent"] == {"result": "report of 2026"}
    needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
    refused = await talk.ask("tools/call", {"name": "shop.archive"}, capabilities={})
    assert (refused["code"], refused["data"]) == (-32021, needed)
    for method in ("tasks/get", "tasks/update", "tasks/cancel"):
        for params in ({"taskId": "nobody's"}, {}, {"taskId": 7}):
            refused = await talk.ask(method, params, capabilities={})
            assert (refused["code"], refused["data"]) == (-32021, needed)
    listen = {"notifications": {"taskIds": ["nobody's"]}}
    assert (await talk.ask("subscriptions/listen", listen, capabilities={}))["code"] == -32021


async def test_input_and_key_are_looked_at_before_a_task_is_made(talk: Talk) -> None:
    wrong = await talk.ask("tools/call", {"name": "shop.report", "arguments": {"year": "soon"}})
    assert (wrong["resultType"], wrong["isError"]) == ("complete", True)
    keyed = {"name": "shop.report", "arguments": {"year": 1}, "_meta": {"enfold/idempotencyKey": "k"}}
    first, second = [await talk.ask("tools/call", keyed) for _ in range(2)]
    assert first["taskId"] == second["taskId"]
    other = await talk.ask("tools/call", {**keyed, "arguments": {"year": 2}})
    assert other["_meta"]["enfold/error"]["code"] == "VALIDATION_ERROR"


async def test_the_header_may_be_missing_but_not_wrong(talk: Talk) -> None:
    task_id = await talk.start("report", year=1)
    assert (await talk.ask("tasks/get", {"taskId": task_id}))["taskId"] == task_id
    assert (await talk.ask("tasks/get", {"taskId": task_id}, **{"mcp-name": task_id}))["taskId"] == task_id
    wrong = await talk.send("tasks/get", {"taskId": task_id}, **{"mcp-name": "another"})
    assert (wrong.status, (await wrong.json())["error"]["code"]) == (400, -32020)


async def test_another_s_task_looks_like_one_that_never_was(closed: Talk) -> None:
    task_id = await closed.start("report", "ann", year=2026)
    await closed.until(task_id, "completed", "ann")
    for method in ("tasks/get", "tasks/update", "tasks/cancel"):
        params: dict[str, Any] = {"inputResponses": {}} if method == "tasks/update" else {}
        told = [
            await closed.ask(method, {"taskId": each, **params}, "bob")
            for each in (task_id, "A" * 32, task_id[:-1], "../etc", "s.x")
        ]
        assert told == [told[0]] * 5, told
        assert told[0]["code"] == -32602
    assert (await closed.ask("tasks/get", {"taskId": task_id}, "root"))["status"] == "completed"
    assert (await closed.send("tasks/get", {"taskId": task_id})).status == 401


async def test_who_follows_tasks_is_told_how_they_are_and_how_they_end(closed: Talk) -> None:
    mine, other = await closed.start("clean", "ann"), await closed.start("report", "bob", year=1)
    await closed.until(mine, "input_required", "ann")
    asked = {"notifications": {"taskIds": [mine, other, "A" * 32, 7]}}
    stream = await closed.send("subscriptions/listen", asked, "ann")
    events = aiter(stream.events())

    async def heard() -> Any:
        while not (event := await anext(events)).data.strip():
            pass
        return json.loads(event.data)

    acknowledged = await heard()
    assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
    assert acknowledged["params"]["notifications"]["taskIds"] == [mine]
    now = await heard()
    assert (now["method"], now["params"]["status"]) == ("notifications/tasks", "input_required")
    answers = {key: {"action": "accept", "content": {}} for key in now["params"]["inputRequests"]}
    await closed.ask("tasks/update", {"taskId": mine, "inputResponses": answers}, "ann")
    while (last := await heard())["params"]["status"] == "working":
        pass
    assert last["params"]["result"]["structuredContent"] == {"result": "accept"}
    stream.leave()


async def test_an_older_client_gets_no_task_but_the_result_of_one(talk: Talk) -> None:
    headers = {"host": "localhost:8000", "content-type": "application/json", "mcp-protocol-version": "2025-11-25"}

    async def ask(method: str, params: dict[str, Any]) -> Any:
        wire = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = await Conversation(talk.app, "POST", "/mcp", headers, msgspec.json.encode(wire)).began()
        return await answer.json()

    archived = await ask("tools/call", {"name": "shop.archive", "arguments": {}, "task": {"ttl": 1}})
    assert archived["result"]["structuredContent"] == {"result": "archived"}
    assert (await ask("tasks/get", {"taskId": "A" * 32}))["error"]["code"] == -32601


async def test_the_same_life_on_the_standard_streams() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "from test_task_methods import ops; from enfold.surfaces.mcp import serve_stdio;"
        "from enfold.tasks import Tasks; from enfold.tasks.memory import MemoryTasks;"
        "serve_stdio(ops, tasks=Tasks(ops, MemoryTasks()))"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(HERE), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None

    async def ask(method: str, params: dict[str, Any]) -> Any:
        assert process.stdin is not None
        assert process.stdout is not None
        own = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": DECLARED,
        }
        wire = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": own}}
        process.stdin.write(json.dumps(wire).encode() + b"\n")
        answer = json.loads(await process.stdout.readline())
        return answer.get("result", answer.get("error"))

    assert (await ask("server/discover", {}))["capabilities"]["extensions"] == {EXTENSION: {}}
    assert (await ask("tasks/get", {"taskId": "A" * 32}))["code"] == -32602
    task_id = (await ask("tools/call", {"name": "shop.clean", "arguments": {}}))["taskId"]
    while (task := await ask("tasks/get", {"taskId": task_id}))["status"] != "completed":
        answers = {key: {"action": "cancel"} for key in task.get("inputRequests", {})}
        await ask("tasks/update", {"taskId": task_id, "inputResponses": answers})
    assert task["result"]["structuredContent"] == {"result": "cancel"}
    process.stdin.close()
    assert await process.wait() == 0
