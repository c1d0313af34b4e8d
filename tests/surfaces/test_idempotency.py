"""Repeated calls with one key: one effect, on every surface, and keys belong to their caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.waiting import until

from enfold import CallError, Context, Identity, OperationRegistry
from enfold.auth.tokens import Tokens
from enfold.operations.questions import elicit
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp
from enfold.testing.asgi import Conversation, living

TOKENS = Tokens({"ann": Identity("ann", frozenset({"pay"})), "bob": Identity("bob", frozenset({"pay"}))})
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
}


class Shop:
    """A registry whose effects can be counted, behind HTTP and MCP."""

    def __init__(self, *, has_tokens: bool) -> None:
        self.effects: list[int] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        ops = OperationRegistry("shop")

        @ops.mutation(access={"required_scopes": ["pay"]} if has_tokens else {})
        async def pay(amount: int) -> int:
            self.effects.append(amount)
            await self.go_on.wait()
            if amount == 13:
                raise CallError("SOLD_OUT", "Nothing left")
            if amount == 14:
                raise CallError("UNAVAILABLE", "Not now")
            return len(self.effects)

        @ops.mutation
        async def halved(how: str) -> str:
            self.effects.append(0)
            if how == "words":
                raise CallError("GONE", "half \ud800", {"half": "\ud800"})
            return "half \ud800"

        @ops.mutation(timeout=0.1)
        async def late() -> None:
            self.effects.append(0)
            await asyncio.Event().wait()

        @ops.mutation
        async def confirmed(context: Context) -> str:
            answer = await elicit(context, "Sure?")
            self.effects.append(0)
            return answer.action

        @ops.query
        async def count() -> int:
            self.effects.append(-1)
            return len(self.effects)

        tokens = TOKENS if has_tokens else None
        mcp = to_mcp(ops, tokens=tokens, allow_anonymous=True)
        self.app = to_http(ops, mounts={"/mcp": mcp}, tokens=tokens, allow_anonymous=True)

    def start(self, name: str, input: dict[str, Any], caller: str | None = None, **headers: str) -> Conversation:
        sent = {"host": "localhost:8000", "content-type": "application/json"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        sent |= {"authorization": f"Bearer {caller}"} if caller else {}
        return Conversation(self.app, "POST", f"/functions/shop.{name}", sent, msgspec.json.encode(input))

    async def http(
        self, name: str, input: dict[str, Any], key: str, caller: str | None = None, **headers: str
    ) -> tuple[int, Any]:
        answer = await self.start(name, input, caller, idempotency_key=key, **headers).began()
        told = await answer.json()
        return answer.status, told.get("result", told.get("error"))

    async def mcp(self, name: str, input: dict[str, Any], key: Any, caller: str | None = None, **params: Any) -> Any:
        sent = {"host": "localhost:8000", "content-type": "application/json", "mcp-method": "tools/call"}
        sent |= {"mcp-name": f"shop.{name}", "mcp-protocol-version": "2026-07-28"}
        sent |= {"authorization": f"Bearer {caller}"} if caller else {}
        meta = {**META, "enfold/idempotencyKey": key}
        wire = {"name": f"shop.{name}", "arguments": input, "_meta": meta, **params}
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": wire})
        answer = await Conversation(self.app, "POST", "/mcp", sent, body).began()
        return (await answer.json())["result"]


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    shop = Shop(has_tokens=False)
    async with living(shop.app):
        yield shop


@pytest.fixture
async def guarded() -> AsyncIterator[Shop]:
    shop = Shop(has_tokens=True)
    async with living(shop.app):
        yield shop


async def test_a_repeat_gets_the_first_result_whichever_way_it_comes(shop: Shop) -> None:
    assert await shop.http("pay", {"amount": 5}, "k") == (200, 1)
    assert await shop.http("pay", {"amount": 5}, '"k"') == (200, 1)  # as structured fields have it
    assert (await shop.mcp("pay", {"amount": 5}, "k"))["structuredContent"] == {"result": 1}
    assert await shop.http("pay", {"amount": 5}, "k", enfold_format="envelope") == (200, None)
    assert await shop.http("pay", {"amount": 5}, "other") == (200, 2)
    assert shop.effects == [5, 5]


async def test_an_input_is_the_same_however_its_numbers_are_written(shop: Shop) -> None:
    for amount in (5, "5", 5.0):
        assert await shop.http("pay", {"amount": amount}, "k") == (200, 1)
    assert shop.effects == [5]


async def test_the_same_key_with_another_input_is_refused(shop: Shop) -> None:
    await shop.http("pay", {"amount": 5}, "k")
    status, told = await shop.http("pay", {"amount": 6}, "k")
    assert (status, told) == (400, "This idempotency key was used with another input")
    assert (await shop.mcp("pay", {"amount": 6}, "k"))["isError"]
    assert shop.effects == [5]


@pytest.mark.parametrize(("amount", "status", "runs"), [(13, 500, 1), (14, 503, 2)], ids=["final", "for now"])
async def test_an_error_is_kept_only_if_it_is_final(shop: Shop, amount: int, status: int, runs: int) -> None:
    answers = [await shop.http("pay", {"amount": amount}, "k") for _ in range(2)]
    assert [each[0] for each in answers] == [status, status]
    assert len(shop.effects) == runs


@pytest.mark.parametrize(
    ("how", "sentence"),
    [("words", "Function error: half ?"), ("result", "Function error: failed to marshal response: ")],
)
async def test_an_outcome_that_utf_8_cannot_hold_is_kept_as_a_failure(shop: Shop, how: str, sentence: str) -> None:
    first, again = [await shop.http("halved", {"how": how}, "k") for _ in range(2)]
    assert (first[0], first[1].startswith(sentence), again) == (500, True, first)
    assert len(shop.effects) == 1


async def test_repeats_at_the_same_time_wait_for_the_first(shop: Shop) -> None:
    shop.go_on.clear()
    calls = [asyncio.create_task(shop.http("pay", {"amount": 5}, "k")) for _ in range(20)]
    await until(lambda: shop.effects)
    late = await shop.http("pay", {"amount": 5}, "k", enfold_timeout_ms="20")
    assert late == (504, "The first call with this idempotency key is still running: retry with the same key")
    shop.go_on.set()
    assert set(await asyncio.gather(*calls)) == {(200, 1)}
    assert shop.effects == [5]


async def test_a_caller_whose_deadline_passes_first_gets_in_progress(shop: Shop) -> None:
    shop.go_on.clear()
    first = asyncio.create_task(shop.http("pay", {"amount": 5}, "k"))
    await until(lambda: shop.effects)
    hurried = {"idempotency_key": "k", "enfold_timeout_ms": "20", "enfold_format": "envelope"}
    answer = await shop.start("pay", {"amount": 5}, **hurried).began()
    error = (await answer.json())["error"]
    assert (answer.status, error["code"], error["retryable"]) == (504, "TIMEOUT", True)
    assert error["details"] == {"reason": "in_progress"}
    shop.go_on.set()
    assert await first == (200, 1)
    assert (await shop.mcp("pay", {"amount": 5}, "k"))["structuredContent"] == {"result": 1}
    assert shop.effects == [5]


async def test_an_unknown_outcome_is_reported_alike_on_every_surface(shop: Shop) -> None:
    assert (await shop.http("late", {}, "k"))[0] == 504
    status, sentence = await shop.http("late", {}, "k")
    told = (await shop.mcp("late", {}, "k"))["_meta"]["enfold/error"]
    assert (status, told["code"], told["retryable"]) == (409, "OUTCOME_UNKNOWN", False)
    assert "is not started again" in sentence
    assert shop.effects == [0]


async def test_a_caller_who_lost_the_connection_finds_the_result_and_not_a_second_effect(shop: Shop) -> None:
    shop.go_on.clear()
    lost = shop.start("pay", {"amount": 5}, idempotency_key="k")
    await until(lambda: shop.effects)
    lost.leave()
    await asyncio.wait({lost.task})
    again = asyncio.create_task(shop.http("pay", {"amount": 5}, "k"))
    await asyncio.sleep(0)
    shop.go_on.set()
    assert (await again, shop.effects) == ((200, 1), [5])


async def test_a_key_is_its_caller_s_own(guarded: Shop) -> None:
    for caller in ("ann", "bob", "ann"):
        await guarded.http("pay", {"amount": 5}, "k", caller)
    await guarded.mcp("pay", {"amount": 5}, "k", "bob")
    assert guarded.effects == [5, 5]
    for answer in (await guarded.http("confirmed", {}, "k"), await guarded.http("pay", {"amount": 5}, "k")):
        assert answer[0] == 401  # who has no identity may not use keys beside those who have one
    assert (await guarded.mcp("confirmed", {}, "k"))["isError"]


@pytest.mark.parametrize("key", ["", "x" * 257], ids=["empty", "long"])
async def test_an_invalid_key_is_refused(shop: Shop, key: str) -> None:
    assert (await shop.http("pay", {"amount": 5}, key))[0] == 400
    assert (await shop.mcp("pay", {"amount": 5}, key))["isError"]
    assert (await shop.mcp("pay", {"amount": 5}, 7))["isError"]
    assert shop.effects == []


async def test_a_query_runs_every_time(shop: Shop) -> None:
    assert [await shop.http("count", {}, "k") for _ in range(2)] == [(200, 1), (200, 2)]


async def test_a_question_on_the_way_is_not_a_result(shop: Shop) -> None:
    asked = await shop.mcp("confirmed", {}, "k")
    assert asked["resultType"] == "input_required"
    rounds = {
        "requestState": asked["requestState"],
        "inputResponses": {key: {"action": "accept", "content": {}} for key in asked["inputRequests"]},
    }
    for _ in range(2):
        assert (await shop.mcp("confirmed", {}, "k", **rounds))["structuredContent"] == {"result": "accept"}
    assert shop.effects == [0]
