"""One key, one run, whatever way a durable call is asked for; and what a caller asks of a call, a task gives too (checks 10, 25)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import msgspec
import pytest
from tests.waiting import PATIENCE, until

from enfold import CallError, Context, Identity, OperationRegistry
from enfold.auth.tokens import Tokens
from enfold.provenance import Recorder
from enfold.surfaces.http import to_http
from enfold.surfaces.introspection import introduce
from enfold.surfaces.mcp import to_mcp
from enfold.tasks import Tasks
from enfold.tasks.store import TaskStore
from enfold.testing.asgi import Conversation, living

ANN = Identity("ann")
TOKENS = Tokens({"ann": ANN, "bob": Identity("bob")})
KNOWS_TASKS: dict[str, Any] = {"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}


class Shop:
    """Durable operations whose effects can be counted, behind HTTP, MCP and the verbs of calls."""

    def __init__(self, store: Any) -> None:
        self.effects: list[int] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        ops = self.ops = OperationRegistry("shop")

        @ops.mutation(durable=True)
        async def pay(amount: int, context: Context) -> dict[str, int]:
            self.effects.append(amount)
            context.progress(len(self.effects), 10, "paying")
            await self.go_on.wait()
            if amount == 13:
                raise CallError("SOLD_OUT", "Nothing left")
            if amount == 14:
                raise CallError("UNAVAILABLE", "Not now")
            return {"amount": amount, "nth": len(self.effects)}

        @ops.mutation(durable=True)
        async def sign(context: Context) -> str:
            name = await context.ask("Who signs?", FORM)
            self.effects.append(0)
            return str(name.content["name"])

        @ops.mutation(durable=True, asks_first=True)
        async def order(amount: int, context: Context) -> int:
            self.effects.append(amount)
            if amount > 100:  # what is large is done later
                context.detach()
            return len(self.effects)

        self.tasks = Tasks(ops, store, recorder=Recorder())
        introduce(ops, {}, tasks=self.tasks)
        shared: dict[str, Any] = {
            "tokens": TOKENS,
            "tasks": self.tasks,
            "recorder": Recorder(),
            "allow_anonymous": True,
        }
        self.app = to_http(ops, mounts={"/mcp": to_mcp(ops, **shared)}, **shared)

    async def http(self, path: str, body: Any = None, caller: str | None = "ann", **more: str) -> tuple[Any, Any]:
        headers = {"host": "localhost", "content-type": "application/json"}
        headers |= {} if caller is None else {"authorization": f"Bearer {caller}"}
        headers |= {name.replace("_", "-"): value for name, value in more.items()}
        sent = b"" if body is None else msgspec.json.encode(body)
        answer = await Conversation(self.app, "GET" if body is None else "POST", path, headers, sent).began()
        return answer, await answer.json()

    async def mcp(self, method: str, params: dict[str, Any], capabilities: Any, **meta: Any) -> Any:
        own = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": capabilities,
        }
        name = {"mcp_name": params["name"]} if "name" in params else {}
        wire = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": {**own, **meta}}}
        _, told = await self.http("/mcp", wire, mcp_method=method, mcp_protocol_version="2026-07-28", **name)
        return told["result"] if "result" in told else told["error"]

    # the ways to ask for one thing: each gives the data of the result

    async def plainly_over_http(self, amount: int, key: str) -> Any:
        answer, told = await self.http("/functions/shop.pay", {"amount": amount}, idempotency_key=key)
        return told["result"] if answer.status == 200 else answer.status

    async def later_over_http(self, amount: int, key: str) -> Any:
        asked = {"idempotency_key": key, "prefer": "respond-async"}
        answer, told = await self.http("/functions/shop.pay", {"amount": amount}, **asked)
        if answer.status != 202:
            return answer.status
        answer, told = await self.http(f"/tasks/{told['taskId']}/result?wait=20")
        return told["result"] if answer.status == 200 else answer.status

    async def plainly_over_mcp(self, amount: int, key: str) -> Any:
        return _structure(await self._tool(amount, key, {}))

    async def later_over_mcp(self, amount: int, key: str) -> Any:
        told = await self._tool(amount, key, KNOWS_TASKS)
        while told.get("resultType") == "task" or told.get("status") in ("working", "input_required"):
            told = await self.mcp("tasks/get", {"taskId": told["taskId"]}, KNOWS_TASKS)
        return _structure(told.get("result", told))

    async def _tool(self, amount: int, key: str, capabilities: Any) -> Any:
        params = {"name": "shop.pay", "arguments": {"amount": amount}}
        return await self.mcp("tools/call", params, capabilities, **{"enfold/idempotencyKey": key})

    async def in_process(self, amount: int, key: str) -> Any:
        context = Context(identity=ANN, idempotency_key=key)
        return (await self.ops.guarded().execute("shop.pay", {"amount": amount}, context)).data

    async def in_words(self, amount: int, key: str) -> Any:
        """As a shell writes arguments, and a program whole numbers."""
        context = Context(identity=ANN, idempotency_key=key)
        given = {"amount": str(amount) if amount % 2 else float(amount)}
        return (await self.ops.guarded().execute("shop.pay", given, context)).data

    async def by_the_verb_of_calls(self, amount: int, key: str) -> Any:
        given = {"operation": "shop.pay", "input": {"amount": amount}, "idempotency_key": key}
        begun = (await self.ops.guarded().execute("enfold.tasks.start", given, Context(identity=ANN))).data
        return (await (await self.tasks.get(begun["task_id"], identity=ANN)).result()).data


def _structure(result: Any) -> Any:
    if result.get("isError"):
        return result["_meta"]["enfold/error"]["code"]
    return result["structuredContent"]["result"]


WAYS: list[Callable[..., Coroutine[Any, Any, Any]]] = [
    Shop.plainly_over_http,
    Shop.later_over_http,
    Shop.plainly_over_mcp,
    Shop.later_over_mcp,
    Shop.in_process,
    Shop.in_words,
    Shop.by_the_verb_of_calls,
]


@pytest.fixture
async def shop(store: TaskStore) -> AsyncIterator[Shop]:
    made = Shop(store)
    async with living(made.app):
        yield made
    await made.tasks.close()


async def test_one_key_is_one_run_whatever_way_it_is_asked(shop: Shop) -> None:
    for n, first in enumerate(WAYS):
        ran = len(shop.effects)
        results = [await way(shop, n, f"k{n}") for way in (first, *WAYS)]  # one after the other
        assert len(shop.effects) == ran + 1, first
        assert results == [{"amount": n, "nth": ran + 1}] * len(results)
    ran = len(shop.effects)
    shop.go_on.clear()
    together = [asyncio.create_task(way(shop, 99, "all")) for way in WAYS]  # all at once
    await until(lambda: len(shop.effects) != ran)
    shop.go_on.set()
    async with asyncio.timeout(PATIENCE):
        assert await asyncio.gather(*together) == [{"amount": 99, "nth": ran + 1}] * len(WAYS)
    assert len(shop.effects) == ran + 1
    for way in (Shop.plainly_over_http, Shop.later_over_http):
        assert await way(shop, 98, "all") == 400  # the same key with another input
    assert (await shop.http("/functions/shop.pay", {"amount": 98}, "bob", idempotency_key="all"))[0].status == 200
    assert shop.effects[ran + 1 :] == [98]


async def test_a_final_failure_is_kept_and_a_temporary_one_is_retried(shop: Shop) -> None:
    kept = [await way(shop, 13, "no") for way in (Shop.later_over_http, Shop.plainly_over_http, Shop.later_over_mcp)]
    assert (kept[0], kept[2], shop.effects) == (kept[1], "SOLD_OUT", [13])
    for way in (Shop.plainly_over_http, Shop.later_over_http, Shop.plainly_over_mcp):
        assert await way(shop, 14, "again") in (503, "UNAVAILABLE")
    assert shop.effects == [13, 14, 14, 14]


async def test_a_plain_call_under_a_key_reports_progress_and_can_ask(shop: Shop) -> None:
    heard: list[Any] = []
    context = Context(identity=ANN, idempotency_key="far", notify=heard.append)
    shop.go_on.clear()
    calling = asyncio.create_task(shop.ops.guarded().execute("shop.pay", {"amount": 1}, context))
    await until(lambda: heard)
    shop.go_on.set()
    await calling
    assert (heard[0].progress, heard[0].total, heard[0].message) == (1, 10, "paying")
    # A client that knows no tasks is asked in rounds; each round finds the same task.
    sign: dict[str, Any] = {"name": "shop.sign", "arguments": {}}
    key = {"enfold/idempotencyKey": "s"}
    round_one = await shop.mcp("tools/call", sign, {"elicitation": {}}, **key)
    answers = {each: {"action": "accept", "content": {"name": "Ann"}} for each in round_one["inputRequests"]}
    again = {**sign, "inputResponses": answers, "requestState": round_one.get("requestState")}
    for _ in range(2):
        told = await shop.mcp("tools/call", again, {"elicitation": {}}, **key)
        assert told["structuredContent"] == {"result": "Ann"}
    assert shop.effects == [1, 0]
    # Who cannot be asked hears which task waits for an answer.
    _, begun = await shop.http("/functions/shop.sign", {}, idempotency_key="t", prefer="respond-async")
    answer, told = await shop.http("/functions/shop.sign", {}, idempotency_key="t", enfold_format="envelope")
    assert (answer.status, told["error"]["details"]["task"]) == (503, begun["taskId"])


async def test_options_of_a_call_apply_to_its_task(shop: Shop) -> None:
    """Provenance and a selection, on both surfaces, in the result and at the page of the task."""
    wish = {"enfold_capture_provenance": "full", "enfold_format": "envelope"}
    plain, _ = await shop.http("/functions/shop.pay", {"amount": 1}, **wish)
    for more in ({"idempotency_key": "p"}, {"prefer": "respond-async, wait=20"}, {"prefer": "respond-async"}):
        answer, told = await shop.http("/functions/shop.pay", {"amount": 1}, **wish, **more)
        if answer.status == 202:
            answer, told = await shop.http(f"/tasks/{told['taskId']}/result?wait=20", enfold_format="mcp_envelope_v0_1")
            assert told["provenance"]["run_id"] == answer.headers["enfold-run-id"]
        assert answer.headers["enfold-run-id"] != plain.headers["enfold-run-id"]
    meta = {"capture_provenance": True, "provenance_mode": "full"}
    begun = await shop.mcp("tools/call", {"name": "shop.pay", "arguments": {"amount": 2}}, KNOWS_TASKS, **meta)
    while (task := await shop.mcp("tasks/get", {"taskId": begun["taskId"]}, KNOWS_TASKS))["status"] == "working":
        pass
    found = task["result"]["_meta"]
    assert found["enfold/provenance"]["run_id"] == found["enfold/runId"]
    named = [each["labels"]["id"] for each in found["enfold/provenance"]["inputs"] if "id" in each.get("labels", {})]
    assert begun["taskId"] in named
    _, begun = await shop.http("/functions/shop.pay", {"amount": 13}, **wish, prefer="respond-async")
    _, told = await shop.http(f"/tasks/{begun['taskId']}/result?wait=20", enfold_format="mcp_envelope_v0_1")
    assert "run_id" in told["provenance"]  # of a run that failed, too
    for more in ({"idempotency_key": "q"}, {"prefer": "respond-async, wait=20"}):
        _, told = await shop.http("/functions/shop.pay", {"amount": 3}, enfold_select="amount", **more)
        assert told == {"result": {"amount": 3}}
        refused, _ = await shop.http("/functions/shop.pay", {"amount": 3}, enfold_select="amount(", **more)
        assert refused.status == 400


@pytest.mark.parametrize("amount", [5, 500], ids=["done in the call", "done later"])
async def test_an_operation_with_asks_first_has_its_effect_once_per_key(shop: Shop, amount: int) -> None:
    """With a key it is a task from its beginning: only there are its first result and its input kept."""
    key = {"enfold/idempotencyKey": "k"}
    asked = {"name": "shop.order", "arguments": {"amount": amount}}
    first, again = [await shop.mcp("tools/call", asked, KNOWS_TASKS, **key) for _ in range(2)]
    assert (first["resultType"], again["taskId"]) == ("task", first["taskId"])
    answer, told = await shop.http("/functions/shop.order", asked["arguments"], idempotency_key="k")
    assert (answer.status, told, shop.effects) == (200, {"result": 1}, [amount])
    other = await shop.mcp("tools/call", {**asked, "arguments": {"amount": 6}}, KNOWS_TASKS, **key)
    assert _structure(other) == "VALIDATION_ERROR"
    assert shop.effects == [amount]


async def test_anonymous_callers_cannot_use_keys_where_others_have_identities(shop: Shop) -> None:
    given = {"operation": "shop.pay", "input": {"amount": 1}}
    begun, _ = await shop.http("/functions/enfold.tasks.start", given, None)
    refused, _ = await shop.http("/functions/enfold.tasks.start", {**given, "idempotency_key": "k"}, None)
    assert (begun.status, refused.status) == (200, 401)
    allowed, _ = await shop.http("/functions/enfold.tasks.start", {**given, "idempotency_key": "k"})
    assert allowed.status == 200
