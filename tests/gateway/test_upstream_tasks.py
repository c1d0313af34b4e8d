"""Tasks of a server behind the gateway, followed by clients that support tasks, over MCP and HTTP, and attacked."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from tests.gateway.conftest import serve
from tests.sources.mcp.task_server import TaskServer, asking, completed, text, working

from enfold import Call, Context, Identity, Next, OperationRegistry, Outcome, ResponseEnvelope
from enfold.auth.tokens import Tokens
from enfold.commands.main import main
from enfold.commands.shared.stores import open_tasks, task_settings
from enfold.commands.shared.targets import Target
from enfold.mcp.tasks import StateSigner
from enfold.sources.mcp import Connection, from_mcp
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp
from enfold.tasks import Tasks
from enfold.tasks.memory import MemoryTasks
from enfold.testing.asgi import Conversation

DECLARED: dict[str, Any] = {"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}
SECRET = b"a secret of thirty-two bytes or so"
TOKENS = Tokens(
    {name: Identity(name) for name in ("ann", "bob")} | {"root": Identity("root", frozenset({"enfold:admin"}))}
)
DONE = completed(text("done"))
GOES_ON = [working(40, statusMessage="reading"), working(40, statusMessage="reading")]


class Talk:
    """A client of 2026-07-28 and of HTTP, without a socket, at a gateway to a server with tasks."""

    def __init__(self, registry: OperationRegistry, **options: Any) -> None:
        self.registry = registry
        self.tasks = Tasks(registry, MemoryTasks(), at_once=0, secret=SECRET)
        self.app = to_mcp(registry, tokens=TOKENS, tasks=self.tasks, **options)
        self.http = to_http(registry, tokens=TOKENS, tasks=self.tasks)

    async def send(self, method: str, params: dict[str, Any], caller: str, capabilities: Any = None) -> Conversation:
        own = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": DECLARED if capabilities is None else capabilities,
        }
        headers = {"host": "localhost:8000", "content-type": "application/json", "mcp-method": method}
        headers |= {"mcp-protocol-version": "2026-07-28", "authorization": f"Bearer {caller}"}
        name = params.get("name") or params.get("taskId")
        headers |= {"mcp-name": name} if name and name.isascii() else {}
        wire = {**params, "_meta": {**own, **params.get("_meta", {})}}
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": wire})
        return await Conversation(self.app, "POST", "/mcp", headers, body).began()

    async def ask(self, method: str, params: dict[str, Any], caller: str = "ann", capabilities: Any = None) -> Any:
        answer = await (await self.send(method, params, caller, capabilities)).json()
        return answer["result"] if "result" in answer else answer["error"]

    async def call(self, name: str, caller: str = "ann", capabilities: Any = None, **meta: Any) -> Any:
        return await self.ask("tools/call", {"name": name, "arguments": {}, "_meta": meta}, caller, capabilities)

    async def start(self, name: str, caller: str = "ann") -> str:
        begun = await self.call(name, caller)
        assert begun["resultType"] == "task", begun
        return str(begun["taskId"])

    async def page(self, method: str, path: str, caller: str = "ann", body: Any = None, **more: str) -> tuple[int, Any]:
        headers = {"host": "localhost", "authorization": f"Bearer {caller}", "content-type": "application/json", **more}
        sent = b"" if body is None else json.dumps(body).encode()
        answer = await Conversation(self.http, method, path, headers, sent).began()
        return answer.status, await answer.json()


@asynccontextmanager
async def gateway(server: TaskServer) -> AsyncIterator[Talk]:
    registry = OperationRegistry()
    async with (
        serve(server) as url,
        from_mcp(f"{url}/mcp", namespace="far", connection=Connection(protocol="2026-07-28")) as operations,
    ):
        registry.register_all(operations)
        yield Talk(registry)


async def test_a_tool_with_middleware_is_waited_for_so_that_the_middleware_sees_the_result() -> None:
    seen: list[Outcome] = []

    async def look(call: Call, next: Next) -> Outcome:
        seen.append(await next(call))
        return seen[-1]

    async with gateway(TaskServer({"slow": [*GOES_ON, DONE]})) as talk:
        talk.registry.middleware(look)
        result = await talk.call("far.slow")
    assert (result["resultType"], result["content"][0]["text"]) == ("complete", "done")
    assert [isinstance(each, ResponseEnvelope) for each in seen] == [True]


async def test_a_client_that_knows_tasks_follows_that_of_the_server_behind_the_gateway() -> None:
    script = [
        *GOES_ON,
        asking("sure"),
        asking("sure"),
        working(40),
        completed(text("done", structuredContent={"n": 1})),
    ]
    server = TaskServer({"slow": script})
    async with gateway(server) as talk:
        begun = await talk.call("far.slow")
        handle = begun["taskId"]
        assert (begun["resultType"], begun["status"], begun["pollIntervalMs"]) == ("task", "working", 40)
        assert handle.startswith("s.")
        assert len(handle) <= 1_000
        assert begun["statusMessage"] == "reading"
        assert (await talk.ask("tasks/get", {"taskId": handle}))["status"] == "working"
        asked = await talk.ask("tasks/get", {"taskId": handle})
        assert asked["inputRequests"]["sure"]["params"]["message"] == "Sure?"
        answers = {"sure": {"action": "accept", "content": {"yes": True}}}
        ack = await talk.ask("tasks/update", {"taskId": handle, "inputResponses": answers})
        assert ack.keys() == {"resultType", "_meta"}
        assert server.said("tasks/update")[0]["inputResponses"] == answers
        assert (await talk.ask("tasks/get", {"taskId": handle}))["status"] == "working"
        ended = await talk.ask("tasks/get", {"taskId": handle})
        assert (ended["status"], ended["result"]["structuredContent"]) == ("completed", {"n": 1})
        assert (ended["taskId"], ended["createdAt"], ended["ttlMs"]) == (handle, begun["createdAt"], begun["ttlMs"])
        # The same handle over HTTP; it is listed nowhere.
        assert (await talk.page("GET", f"/tasks/{handle}"))[1]["result"]["result"] == {"n": 1}
        assert await talk.page("GET", f"/tasks/{handle}/result") == (200, {"result": {"n": 1}})
        assert await talk.page("GET", "/tasks") == (200, {"tasks": []})
        assert {each["taskId"] for each in server.said("tasks/get")} == {"id-of-slow"}
        # Another process of the same secret knows it too: nothing of it is kept in this one.
        talk.tasks = Tasks(talk.registry, MemoryTasks(), at_once=0, secret=SECRET)
        assert (await (await talk.tasks.get(handle, identity=Identity("ann"))).result()).text() == "done"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ([working(), completed(text("no", isError=True))], {"status": "completed"}),
        (
            [working(), {"status": "failed", "error": {"code": -32050, "message": "Broken", "data": {"x": 1}}}],
            {"status": "failed", "error": {"code": -32050, "message": "Broken", "data": {"x": 1}}},
        ),
        ([working(), {"status": "cancelled"}], {"status": "cancelled"}),
        ([working(), {"error_now": {"code": -32602, "message": "What task?"}}], {"code": -32602}),
        ([working(), {"http": 503}], {"code": -32603}),
        ([working(), {"status": "asleep"}], {"code": -32603}),
        ([working(), working("often", ttlMs=-1, lastUpdatedAt="9999-12-31T23:59:59-12:00")], {"pollIntervalMs": 1_000}),
    ],
)
async def test_every_end_of_a_task_is_notified(script: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    async with gateway(TaskServer({"slow": script})) as talk:
        handle = await talk.start("far.slow")
        told = await talk.ask("tasks/get", {"taskId": handle})
    assert {name: told.get(name) for name in expected} == expected


async def test_clients_without_tasks_wait_for_the_result() -> None:
    long = {**working(), "taskId": "x" * 900}
    scripts = {f"slow{i}": [working(), DONE] for i in range(5)} | {"long": [long, DONE]}
    async with gateway(TaskServer(scripts)) as talk:

        @talk.registry.query(namespace="here")
        async def nested(context: Context) -> str:
            """Call the server from inside another call."""
            return str((await context.env.far.slow4({})).text())

        inline = [
            await talk.call("far.slow0", capabilities={}),
            await talk.call("far.slow1", **{"enfold/idempotencyKey": "k1"}),
            await talk.call("here.nested"),
        ]
        assert ["done" in json.dumps(each["content"]) for each in inline] == [True] * 3
        assert (await talk.page("POST", "/functions/far.slow3", body={}))[0] == 200
        too_long = await talk.call("far.long")
        assert "taskId" not in too_long


async def test_respond_async_gives_the_task_of_the_server_over_http() -> None:
    names = ("slow", "soon", "keyed", "quick")
    server = TaskServer({name: [working(40), DONE] for name in names} | {"quick": [text("at once")]})
    async with gateway(server) as talk:

        async def ask(name: str, prefer: str = "respond-async", **more: str) -> tuple[int, Any]:
            return await talk.page("POST", f"/functions/far.{name}", body={}, prefer=prefer, **more)

        status, task = await ask("slow")
        assert (status, task["operation"], task["taskId"][:2]) == (202, "far.slow", "s.")
        assert (await talk.page("GET", f"/tasks/{task['taskId']}/result"))[0] == 200
        assert (await talk.page("GET", f"/tasks/{task['taskId']}", "bob"))[0] == 404
        status, told = await ask("soon", "respond-async, wait=10")
        assert (status, "done" in json.dumps(told)) == (200, True)
        status, told = await ask("keyed", **{"idempotency-key": "k"})  # whose result is kept here
        assert (status, "done" in json.dumps(told)) == (200, True)
        assert (await ask("quick"))[0] == 200  # of which the server has made no task


shop = OperationRegistry("shop")


@shop.mutation(durable=True)
async def sign(context: Context) -> str:
    """A tool whose task asks any client that can be asked."""
    return (await context.ask("Sure?")).action


@shop.mutation
async def ask_now(context: Context) -> str:
    """A tool that asks in the call, where a client that prefers not to wait cannot answer."""
    return (await context.ask("Sure?")).action


async def test_questions_of_the_servers_task_are_answered_over_http() -> None:
    registry = OperationRegistry()
    async with Tasks(shop, MemoryTasks()) as behind:
        app = to_http(shop, mounts={"/mcp": to_mcp(shop, tasks=behind)}, tasks=behind)
        async with serve(app, app.stop) as url, from_mcp(f"{url}/mcp", namespace="far") as operations:
            registry.register_all(operations)
            talk = Talk(registry)
            prefer = "respond-async, wait=10"
            status, task = await talk.page("POST", "/functions/far.shop_sign", body={}, prefer=prefer)
            assert (status, task["status"]) == (202, "input_required")
            (key,) = task["inputRequests"]
            place, answers = f"/tasks/{task['taskId']}", {key: {"action": "accept", "content": {}}}
            assert (await talk.page("POST", f"{place}/input", body={"inputResponses": answers}))[0] == 202
            assert await talk.page("GET", f"{place}/result?wait=10") == (200, {"result": "accept"})
            status, refused = await talk.page("POST", "/functions/far.shop_ask_now", body={}, prefer=prefer)
            assert (status, "elicitation" in json.dumps(refused)) == (503, True)


async def test_the_shell_follows_a_task_of_a_server_behind_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    server = TaskServer({"slow": [working(40), working(40), DONE, DONE], "other": GOES_ON})
    async with serve(server) as url:
        config = tmp_path / "mcp.json"
        config.write_text(json.dumps({"mcpServers": {"far": {"url": f"{url}/mcp"}}}))
        (tmp_path / "empty.json").write_text('{"mcpServers": {}}')
        tasks = open_tasks(OperationRegistry(), task_settings(Target("configuration", str(config))))
        assert tasks is not None
        handles = [
            tasks.taker(f"far.{name}", identity=Identity("ann"))({"taskId": f"id-of-{name}", "status": "working"}).id
            for name in ("slow", "other")
        ]

        async def shell(*words: str) -> tuple[int, str]:
            code = await asyncio.to_thread(main, ["tasks", *words])
            told = capfd.readouterr()
            return code, told.out or told.err

        code, told = await shell("get", handles[0], "--target", "mcp.json")
        assert (code, json.loads(told)["status"]) == (0, "working")
        code, told = await shell("wait", handles[0], "--target", "mcp.json", "--timeout", "20")
        assert (code, json.loads(told)) == (0, {"result": [{"type": "text", "text": "done"}]})
        assert (await shell("cancel", handles[1], "--target", "mcp.json"))[0] == 0
        assert [each["taskId"] for each in server.said("tasks/cancel")] == ["id-of-other"]
        code, told = await shell("get", handles[0])
        assert (code, "--target" in told) == (2, True)
        assert (await shell("get", handles[0][:-1] + "!", "--target", "mcp.json"))[0] == 3
        assert (await shell("get", handles[0], "--target", "empty.json"))[0] == 3


async def test_the_shell_takes_no_handle_that_was_changed_or_has_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Check 34 in the shell, which sees everybody's tasks: but for those, all attacks on a handle."""
    monkeypatch.chdir(tmp_path)
    server = TaskServer({"slow": GOES_ON, "other": GOES_ON})
    async with serve(server) as url:
        source = f'[sources.far]\nurl = "{url}/mcp"\n'
        (tmp_path / "enfold.toml").write_text(f'[tasks]\nsecret = "{SECRET.decode()}"\n{source}')
        tasks = open_tasks(OperationRegistry(), task_settings(Target("configuration", "enfold.toml")))
        assert tasks is not None
        taken = tasks.taker("far.slow", identity=Identity("ann"))({"taskId": "id-of-slow", "status": "working"})
        told: dict[str, tuple[int, str]] = {}
        for name, attack in ATTACKS.items():
            forged, caller = attack(taken.id)
            if forged.startswith("s.") and caller == "ann":
                code = await asyncio.to_thread(main, ["tasks", "cancel", forged, "--target", "enfold.toml"])
                told[name] = code, capfd.readouterr().err.strip()
        assert set(told.values()) == {(3, "TASK_NOT_FOUND: Task not found, or expired")}, told
        assert len(told) >= 12
        assert server.said("tasks/cancel") == []
        code = await asyncio.to_thread(main, ["tasks", "cancel", taken.id, "--target", "enfold.toml"])
        assert (code, [each["taskId"] for each in server.said("tasks/cancel")]) == (0, ["id-of-slow"])


async def test_a_cancel_reaches_the_server_over_mcp_and_http() -> None:
    server = TaskServer({"slow": [working(), working()]})
    async with gateway(server) as talk:
        handle = await talk.start("far.slow")
        assert (await talk.ask("tasks/cancel", {"taskId": handle})).keys() == {"resultType", "_meta"}
        assert (await talk.page("DELETE", f"/tasks/{handle}"))[0] == 202
        status, told = await talk.page("POST", f"/tasks/{handle}/input", body={"inputResponses": {"a": {}}})
        assert (status, told["taskId"], told["operation"]) == (202, handle, "far.slow")
    assert [each["taskId"] for each in server.said("tasks/cancel")] == ["id-of-slow"] * 2


async def test_a_stream_follows_a_task_until_its_end_and_grants_no_other() -> None:
    server = TaskServer({"slow": [working(), working(statusMessage="one"), DONE]})
    async with gateway(server) as talk:
        handle = await talk.start("far.slow")
        asked = {"notifications": {"taskIds": [handle, f"{handle}0", "s.x.y"]}}
        stream = await talk.send("subscriptions/listen", asked, "ann")
        events = stream.events()
        first = [json.loads((await anext(events)).data) for _ in range(3)]
        stream.leave()
        assert first[0]["params"]["notifications"]["taskIds"] == [handle]
        assert [each["params"]["status"] for each in first[1:]] == ["working", "completed"]
        other = await talk.send("subscriptions/listen", {"notifications": {"taskIds": [handle]}}, "bob")
        granted = json.loads((await anext(other.events())).data)
        other.leave()
    assert granted["params"]["notifications"]["taskIds"] == []


def changed_in(handle: str, **fields: Any) -> str:
    """The handle with other content, under the old signature."""
    return signed(handle, b"mine", b"", **fields).rpartition(".")[0] + "." + handle.rpartition(".")[2]


def signed(handle: str, secret: bytes, purpose: bytes, **fields: Any) -> str:
    content = msgspec.json.decode(StateSigner(SECRET, b"task ").content_of(handle.removeprefix("s.")) or b"")
    places = ["operation", "task_id", "owner", "created", "expires"]
    made = [fields.get(name, value) for name, value in zip(places, content, strict=True)]
    return "s." + StateSigner(secret, purpose).sign(msgspec.json.encode(made))


ATTACKS: dict[str, Callable[[str], tuple[str, str]]] = {
    "another's": lambda handle: (handle, "bob"),
    "another operation": lambda handle: (changed_in(handle, operation="far.other"), "ann"),
    "another task": lambda handle: (changed_in(handle, task_id="id-of-other"), "ann"),
    "another owner": lambda handle: (changed_in(handle, owner=""), "bob"),
    "a longer life": lambda handle: (changed_in(handle, expires=2**60), "ann"),
    "one letter": lambda handle: (handle[:9] + ("a" if handle[9] != "a" else "b") + handle[10:], "ann"),
    "cut": lambda handle: (handle[:-1], "ann"),
    "padded": lambda handle: (handle.replace(".", "=.", 2).replace("s=.", "s."), "ann"),
    "no signature": lambda handle: (handle.rpartition(".")[0], "ann"),
    "empty": lambda _: ("s.", "ann"),
    "long": lambda handle: (handle + "0" * 3_000, "ann"),
    "beyond ASCII": lambda handle: (handle + "é", "ann"),
    "an own secret": lambda handle: (signed(handle, b"mine", b"task "), "ann"),
    "a request state": lambda handle: (signed(handle, SECRET, b""), "ann"),
    "expired": lambda handle: (signed(handle, SECRET, b"task ", expires=int(time.time() * 1000) - 1), "ann"),
    "in clear": lambda _: ("far+id-of-slow", "ann"),
    "the server's own": lambda _: ("id-of-slow", "ann"),
    "what never was": lambda _: ("A" * 32, "ann"),
    # Signed by us, but for an operation that is no tool of a server: it must not be run.
    "an operation of ours": lambda handle: (signed(handle, SECRET, b"task ", operation="here.effect"), "ann"),
    "an operation that is gone": lambda handle: (signed(handle, SECRET, b"task ", operation="far.gone"), "ann"),
}


async def test_a_handle_that_is_changed_expired_or_anothers_is_not_a_task() -> None:
    server = TaskServer({"slow": GOES_ON, "other": GOES_ON})
    effects: list[str] = []
    async with gateway(server) as talk:

        @talk.registry.mutation(namespace="here")
        async def effect() -> None:
            """Must not be run by a handle."""
            effects.append("ran")

        handle = await talk.start("far.slow")
        before = len(server.requests)
        words = {"code": -32602, "message": "Task not found, or expired"}
        for name, attack in ATTACKS.items():
            forged, caller = attack(handle)
            for method in ("tasks/get", "tasks/update", "tasks/cancel"):
                told = await talk.ask(method, {"taskId": forged, "inputResponses": {}}, caller)
                assert told == words, (name, method, told)
            for method, path in (("GET", ""), ("GET", "/result"), ("DELETE", "")):
                status, refused = await talk.page(method, f"/tasks/{quote(forged)}{path}", caller)
                assert (status, "not found, or expired" in json.dumps(refused)) == (404, True), (name, method, refused)
        reached = server.requests[before:]
        assert [each["method"] for each in reached if each["params"].get("taskId") == "id-of-other"] == []
        assert effects == []
        # The handle itself is good: while a server is unreachable it may be that one.
        away = signed(handle, SECRET, b"task ", operation="late.slow")
        talk.registry.services.sources.enter("late", "mcp", "down")
        assert (await talk.ask("tasks/get", {"taskId": away}))["code"] == -32603
        assert (await talk.ask("tasks/get", {"taskId": handle}, "root"))["status"] == "working"  # who sees all


async def test_the_secret_is_made_once_with_the_first_handle_and_kept_beside_the_store(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"far": {"url": "http://127.0.0.1:1/mcp"}}}))
    settings = task_settings(Target("configuration", str(config)))
    made = [open_tasks(OperationRegistry(), settings) for _ in range(2)]
    assert not (tmp_path / ".enfold").exists()  # nothing is kept, and nothing was signed
    begun = {"taskId": "t1", "status": "working"}
    handles = [tasks.taker("far.slow")(begun) for tasks in made if tasks is not None]
    kept = tmp_path / ".enfold" / "tasks.secret"
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]
    assert kept.stat().st_mode & 0o777 == 0o600
    assert made[1] is not None
    assert (await made[1].get(handles[0].id)).id == handles[0].id
    for tasks in made:
        assert tasks is not None
        await tasks.close()
