"""The tasks extension over HTTP and on the standard streams: the lifecycle of a task, and who may follow it."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.calls.processes import IS_FULL
from tests.waiting import PATIENCE

from enfold import CallError, Context, Identity, OperationRegistry
from enfold.auth.tokens import Tokens
from enfold.mcp import elicit
from enfold.provenance import Recorder
from enfold.surfaces.mcp import to_mcp
from enfold.tasks import Task, Tasks
from enfold.tasks.memory import MemoryTasks
from enfold.tasks.sqlite import SQLiteTasks
from enfold.testing.asgi import Conversation

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
    if year == 9999:
        await asyncio.Event().wait()
    return f"report of {year}"


@ops.mutation(durable=True)
async def clean(context: Context) -> str:
    """Ask before cleaning."""
    return (await elicit(context, "Sure?", {"type": "object", "properties": {"yes": {"type": "boolean"}}})).action


@ops.mutation(durable="required")
async def archive() -> str:
    """Only ever a task."""
    return "archived"


@ops.mutation(durable=True)
async def stock(n: int) -> Any:
    """A long result."""
    return {"items": list(range(n)), "total": n}


@ops.mutation(durable="required")
async def old_stock(n: int) -> Any:
    """The same, only ever as a task."""
    return {"items": list(range(n)), "total": n}


@dataclass
class Row:
    n: int


TOKENS = Tokens(
    {name: Identity(name) for name in ("ann", "bob")} | {"root": Identity("root", frozenset({"enfold:admin"}))}
)


class WaveringTasks(MemoryTasks):
    """A store that can be away for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False
        self.was_missed = asyncio.Event()

    def _be_there(self) -> None:
        if self.is_away:
            self.was_missed.set()
            raise CallError("UNAVAILABLE", "The task store is unavailable", {"reason": "store"})

    async def accept(self, *order: Any, **how: Any) -> Any:
        self._be_there()
        return await super().accept(*order, **how)

    async def watch(self, owner: str | None, task_id: str) -> AsyncGenerator[Task]:
        async for task in super().watch(owner, task_id):
            self._be_there()
            yield task


class Talk:
    """A client of 2026-07-28 without a socket."""

    def __init__(
        self,
        tokens: Tokens | None = None,
        tasks: Tasks | None = None,
        registry: OperationRegistry = ops,
        **settings: Any,
    ) -> None:
        self.store = WaveringTasks()
        self.tasks = tasks or Tasks(registry, self.store)
        self.app = to_mcp(registry, tokens=tokens, tasks=self.tasks, **settings)

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


async def test_an_operation_with_asks_first_that_ends_in_the_call_responds_like_a_plain_call() -> None:
    quick = OperationRegistry("shop")

    @quick.mutation(durable=True, asks_first=True)
    async def count(n: int) -> list[Row]:
        return [Row(each) for each in range(n)]

    talk = Talk(registry=quick, recorder=Recorder(record="all"))
    meta = {"enfold/format": "tool_envelope_v1"}
    call = {"name": "shop.count", "arguments": {"n": 2}, "_meta": meta}
    with_tasks = await talk.ask("tools/call", call)
    without = await talk.ask("tools/call", call, capabilities={})
    assert with_tasks["content"][0] == without["content"][0]
    assert "| n |" in with_tasks["content"][0]["text"]
    assert with_tasks["_meta"].keys() == without["_meta"].keys()
    await talk.tasks.close()


async def test_clients_that_do_not_declare_the_extension_see_no_tasks(talk: Talk) -> None:
    plain = {"name": "shop.report", "arguments": {"year": 2026}}
    assert (await talk.ask("tools/call", plain, capabilities={}))["structuredContent"] == {"result": "report of 2026"}
    needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
    refused = await talk.ask("tools/call", {"name": "shop.archive"}, capabilities={})
    assert (refused["code"], refused["data"]) == (-32021, needed)
    for method in ("tasks/get", "tasks/update", "tasks/cancel"):
        for params in ({"taskId": "unknown"}, {}, {"taskId": 7}):
            refused = await talk.ask(method, params, capabilities={})
            assert (refused["code"], refused["data"]) == (-32021, needed)
    listen = {"notifications": {"taskIds": ["unknown"]}}
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


async def test_answers_that_are_too_large_are_the_clients_fault(talk: Talk) -> None:
    task_id = await talk.start("report", year=1)
    told = await talk.ask("tasks/update", {"taskId": task_id, "inputResponses": {"x": {"text": "x" * 1_000_000}}})
    assert (told["code"], "the limit of 1000000 bytes" in told["message"]) == (-32602, True)


async def test_another_callers_task_looks_like_one_that_never_existed(closed: Talk) -> None:
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


async def test_followers_of_tasks_are_notified_of_their_states_and_ends(closed: Talk) -> None:
    """Check 7: a hundred times, the acknowledgement, the present state and the end, in this order."""
    await follow_to_the_end(closed, 100)


async def test_followers_of_tasks_of_another_process_are_notified_alike(tmp_path: Path) -> None:
    """Check 7 on a file: the runner of the tasks does not know their followers."""
    file = tmp_path / "tasks.db"
    talk = Talk(TOKENS, Tasks(ops, SQLiteTasks(file), at_once=0))
    async with Tasks(ops, SQLiteTasks(file)):
        await follow_to_the_end(talk, 100 if IS_FULL else 5)
    await talk.tasks.close()


async def follow_to_the_end(closed: Talk, times: int) -> None:
    for _ in range(times):
        mine, other = await closed.start("clean", "ann"), await closed.start("report", "bob", year=1)
        await closed.until(mine, "input_required", "ann")
        asked = {"notifications": {"taskIds": [mine, other, "A" * 32, 7]}}
        stream = await closed.send("subscriptions/listen", asked, "ann")
        heard = (json.loads(event.data) async for event in stream.events() if event.data.strip())
        acknowledged = await anext(heard)
        assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
        assert acknowledged["params"]["notifications"]["taskIds"] == [mine]
        now = await anext(heard)
        assert (now["method"], now["params"]["status"]) == ("notifications/tasks", "input_required")
        answers = {key: {"action": "accept", "content": {}} for key in now["params"]["inputRequests"]}
        await closed.ask("tasks/update", {"taskId": mine, "inputResponses": answers}, "ann")
        told = [await anext(heard)]
        while told[-1]["params"]["status"] == "working":
            told.append(await anext(heard))
        assert {each["params"]["taskId"] for each in told} == {mine}
        assert told[-1]["params"]["result"]["structuredContent"] == {"result": "accept"}
        stream.leave()
        await stream.task


async def test_followers_of_a_task_are_notified_again_when_its_store_is_back(talk: Talk) -> None:
    mine = await talk.start("clean")
    key = next(iter((await talk.until(mine, "input_required"))["inputRequests"]))
    stream = await talk.send("subscriptions/listen", {"notifications": {"taskIds": [mine]}})
    heard = (json.loads(event.data) async for event in stream.events() if event.data.strip())
    for _ in range(2):  # the acknowledgement, and how it is now
        await anext(heard)
    talk.store.is_away = True
    await talk.ask("tasks/update", {"taskId": mine, "inputResponses": {key: {"action": "decline"}}})
    await talk.store.was_missed.wait()
    talk.store.is_away = False
    async with asyncio.timeout(PATIENCE):
        while (told := (await anext(heard))["params"])["status"] != "completed":
            pass
    assert told["result"]["structuredContent"] == {"result": "decline"}
    stream.leave()
    await stream.task


async def test_an_unknown_format_is_refused_before_anything_is_sent(talk: Talk) -> None:
    mine, meta = await talk.start("report", year=1), {"enfold/format": "no-such"}
    for method, params in (
        ("subscriptions/listen", {"notifications": {"taskIds": [mine]}}),
        ("tasks/get", {"taskId": mine}),
    ):
        await talk.until(mine, "completed")
        assert (await talk.ask(method, {**params, "_meta": meta}))["code"] == -32602, method


async def test_an_unreachable_store_is_a_protocol_error(talk: Talk) -> None:
    talk.store.is_away = True
    told = await talk.ask("tools/call", {"name": "shop.report", "arguments": {"year": 1}})
    assert (told["code"], told["message"]) == (-32603, "The task store is unavailable")
    assert (await as_before(talk, "tools/call", {"name": "shop.archive", "arguments": {}}))["error"]["code"] == -32603
    plain = await talk.ask("tools/call", {"name": "shop.report", "arguments": {"year": 1}}, capabilities={})
    assert plain["structuredContent"] == {"result": "report of 1"}


async def test_a_repeat_and_the_task_say_the_same_status_of_a_failure(talk: Talk) -> None:
    params = {"name": "shop.report", "arguments": {"year": -1}, "_meta": {"enfold/idempotencyKey": "k"}}
    begun = await talk.ask("tools/call", params)
    found = await talk.until(begun["taskId"], "completed")
    again = await talk.ask("tools/call", params)
    assert (found["result"]["isError"], again["status"]) == (True, "completed")
    assert again.keys() <= found.keys() - {"result"}


async def test_selections_and_formats_apply_to_results_of_tasks() -> None:
    """A limit of tokens, a format and a selection: of a task that is asked for, and of one that an older client waits for."""
    talk = Talk(max_result_tokens=50)
    many = {"name": "shop.stock", "arguments": {"n": 500}}
    inline = await talk.ask("tools/call", many, capabilities={})
    task = await talk.until(await talk.start("stock", n=500), "completed")
    assert inline["_meta"]["enfold/truncated"] == task["result"]["_meta"]["enfold/truncated"]
    assert inline["content"] == task["result"]["content"]
    for meta in ({}, {"enfold/format": "envelope"}, {"enfold/select": "total"}):
        plain, must = [
            (await as_before(talk, "tools/call", {"name": name, "arguments": {"n": 500}, "_meta": meta}))["result"]
            for name in ("shop.stock", "shop.old_stock")
        ]
        assert _without_ids(plain) == _without_ids(must).replace("old_stock", "stock"), meta
    assert talk.tasks.runner.started == 3  # a selection would break what the tools promise
    await talk.tasks.close()


def _without_ids(result: Any) -> str:
    return re.sub(r'(timestamp|requestId)[\\": ]*[0-9a-f]+', "", json.dumps(result))


async def test_an_older_client_gets_no_task_but_the_result_of_one(talk: Talk) -> None:
    archived = await as_before(talk, "tools/call", {"name": "shop.archive", "arguments": {}, "task": {"ttl": 1}})
    assert archived["result"]["structuredContent"] == {"result": "archived"}
    assert (await as_before(talk, "tasks/get", {"taskId": "A" * 32}))["error"]["code"] == -32601


async def as_before(talk: Talk, method: str, params: dict[str, Any]) -> Any:
    """Ask as a client of 2025-11-25, which knows no tasks."""
    headers = {"host": "localhost:8000", "content-type": "application/json", "mcp-protocol-version": "2025-11-25"}
    wire = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer = await Conversation(talk.app, "POST", "/mcp", headers, msgspec.json.encode(wire)).began()
    return await answer.json()


async def test_the_same_lifecycle_on_the_standard_streams(talk: Talk) -> None:
    """Check 9: a result, a question, a failure, a cancellation and what is refused, compared with those over HTTP."""
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

    here, there = await life_of_tasks(ask), await life_of_tasks(talk.ask)
    assert here == there
    assert [each["status"] for each in here[3:]] == ["completed"] * 3 + ["cancelled"]
    assert [each["result"]["isError"] for each in here[3:-1]] == [False, False, True]
    process.stdin.close()
    assert await process.wait() == 0


async def life_of_tasks(ask: Callable[[str, dict[str, Any]], Awaitable[Any]]) -> list[Any]:
    """What a client hears of refusals and of four tasks, without what differs from task to task."""
    heard = [
        (await ask("server/discover", {}))["capabilities"],
        await ask("tasks/get", {"taskId": "A" * 32}),
        await ask("tasks/update", {"taskId": 7, "inputResponses": {}}),
    ]
    for name, given in (("report", {"year": 1}), ("clean", {}), ("report", {"year": -1}), ("report", {"year": 9999})):
        begun = await ask("tools/call", {"name": f"shop.{name}", "arguments": given})
        which = {"taskId": begun["taskId"]}
        if given.get("year") == 9999:
            await ask("tasks/cancel", which)
        while (task := await ask("tasks/get", which))["status"] in ("working", "input_required"):
            if keys := task.get("inputRequests", {}):
                await ask("tasks/update", {**which, "inputResponses": {key: {"action": "decline"} for key in keys}})
        heard.append(task)
    return [_without_what_differs(each) for each in heard]


def _without_what_differs(told: Any) -> Any:
    if not isinstance(told, dict):
        return told
    own = ("taskId", "createdAt", "lastUpdatedAt", "requestId", "ttlMs", "statusMessage")
    return {name: _without_what_differs(value) for name, value in told.items() if name not in own}
