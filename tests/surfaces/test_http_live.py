"""Calls that their clients follow over HTTP: progress, log messages and questions as events, and the response at the end."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from enfold import CallError, Context, Identity, OperationRegistry
from enfold.auth.tokens import Tokens
from enfold.surfaces.http import to_http
from enfold.testing.asgi import Conversation, living

EVENTS = {"accept": "text/event-stream", "content-type": "application/json", "host": "localhost:8000"}
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def shop() -> OperationRegistry:
    ops = OperationRegistry("shop")

    @ops.query
    async def count(context: Context, to: int) -> int:
        for number in range(to):
            context.progress(number + 1, to, f"number {number + 1}")
        context.log("counted", data={"to": to})
        return to

    @ops.query
    def slow(context: Context) -> str:
        context.progress(1, 2)
        context.log("from a thread", "warning")
        return "done"

    @ops.mutation
    async def greet(context: Context) -> str:
        answer = await context.ask("Your name?", FORM)
        return f"Hello {answer.content['name']}" if answer.accepted else "No name"

    @ops.query
    def broken() -> str:
        raise CallError("NOT_TODAY", "Come back tomorrow")

    return ops


async def followed(app: Any, name: str, body: Any = None, **headers: str) -> Conversation:
    asked = {**EVENTS, **headers}
    return await Conversation(app, "POST", f"/functions/shop.{name}", asked, json.dumps(body or {}).encode()).began()


async def events(answer: Conversation) -> AsyncIterator[tuple[str, Any]]:
    rest = ""
    async for chunk in answer.chunks():
        rest += chunk.decode()
        *whole, rest = rest.split("\n\n")
        for block in whole:
            fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
            if "event" in fields:
                yield fields["event"], json.loads(fields["data"])


async def posted(app: Any, path: str, body: Any, **headers: str) -> tuple[int, Any]:
    answer = await Conversation(
        app, "POST", path, {**EVENTS, "accept": "*/*", **headers}, json.dumps(body).encode()
    ).began()
    return answer.status, json.loads(await answer.body())


async def test_a_followed_call_sends_progress_and_log_messages_and_then_its_response() -> None:
    app = to_http(shop())
    async with living(app):
        told = [each async for each in events(await followed(app, "count", {"to": 2}))]
        assert [name for name, _ in told] == ["started", "progress", "progress", "log", "response"]
        assert told[1][1] == {"progress": 1, "total": 2, "message": "number 1"}
        assert told[3][1] == {"message": "counted", "level": "info", "data": {"to": 2}}
        assert (told[-1][1]["status"], told[-1][1]["body"]) == (200, {"result": 2})
        names = [name async for name, _ in events(await followed(app, "slow"))]
        assert names == ["started", "progress", "log", "response"]


@pytest.mark.parametrize(("name", "status", "code"), [("broken", 500, "NOT_TODAY"), ("count", 400, "VALIDATION_ERROR")])
async def test_the_response_of_a_call_that_fails_has_its_status_and_code(name: str, status: int, code: str) -> None:
    app = to_http(shop())
    async with living(app):
        told = [data async for event, data in events(await followed(app, name)) if event == "response"]
        assert (told[0]["status"], told[0]["headers"]["enfold-code"]) == (status, code)


async def test_a_question_is_answered_while_the_call_waits() -> None:
    app = to_http(shop())
    async with living(app):
        call, told = "", list[str]()
        async for event, data in events(await followed(app, "greet", **{"enfold-answers": "elicitation"})):
            told.append(event)
            if event == "started":
                call = data["call"]
            if event == "question":
                assert data["params"]["message"] == "Your name?"
                assert data["params"]["requestedSchema"] == FORM
                answer = {data["key"]: {"action": "accept", "content": {"name": "Ann"}}}
                assert (await posted(app, f"/calls/{call}/input", {"inputResponses": {"other": {}}}))[1] == {
                    "accepted": []
                }
                assert (await posted(app, f"/calls/{call}/input", {"inputResponses": "Ann"}))[0] == 400
                assert (await posted(app, f"/calls/{call}/input", {"inputResponses": answer}))[0] == 202
            if event == "response":
                assert data["body"] == {"result": "Hello Ann"}
        assert told == ["started", "question", "answered", "response"]
        assert (await posted(app, f"/calls/{call}/input", {"inputResponses": {}}))[0] == 404  # it has ended


async def test_a_client_that_answers_nothing_is_not_asked() -> None:
    app = to_http(shop())
    async with living(app):
        told = dict([each async for each in events(await followed(app, "greet"))])
        assert "question" not in told
        assert (told["response"]["status"], told["response"]["headers"]["enfold-code"]) == (503, "UNAVAILABLE")
        assert "elicitation" in str(told["response"]["body"])


async def test_only_the_caller_answers_and_a_stopping_server_refuses_what_waits() -> None:
    tokens = Tokens({"ann": Identity("ann"), "ben": Identity("ben")})
    app = to_http(shop(), tokens=tokens)
    async with living(app):
        asked = {"enfold-answers": "elicitation", "authorization": "Bearer ann"}
        call = ""
        async for event, data in events(await followed(app, "greet", **asked)):
            if event == "started":
                call = data["call"]
            if event == "question":
                answer = {"inputResponses": {data["key"]: {"action": "decline"}}}
                assert (await posted(app, f"/calls/{call}/input", answer, authorization="Bearer ben"))[0] == 404
                assert (await posted(app, f"/calls/{call}/input", answer))[0] == 401
                app.stop()
            if event == "response":
                assert (data["status"], data["headers"]["enfold-code"]) == (503, "UNAVAILABLE")


async def test_a_client_that_leaves_with_the_response_has_not_aborted_the_call() -> None:
    ops, codes, has_all = OperationRegistry("shop"), list[str](), asyncio.Event()

    @ops.query
    async def wait() -> int:
        await asyncio.sleep(0.1)  # longer than it takes until clients are watched
        return 1

    ops.observe(lambda record: codes.append(record.code))
    messages = iter([{"type": "http.request", "body": b"{}"}])

    async def receive() -> Any:
        message = next(messages, None)
        if message is None:
            await has_all.wait()
        return message or {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if not message.get("more_body", True):
            has_all.set()
            for _ in range(10):  # what comes from the client now is seen before the server goes on
                await asyncio.sleep(0)

    headers = [(name.encode(), value.encode()) for name, value in EVENTS.items()]
    path = {"path": "/functions/shop.wait", "raw_path": b"/functions/shop.wait", "query_string": b""}
    app = to_http(ops)
    async with living(app):
        await app(
            {"type": "http", "method": "POST", "headers": headers, "server": ("localhost", 8000), **path}, receive, send
        )
    assert codes == ["OK"]


async def test_a_client_that_leaves_ends_the_call() -> None:
    ops, ended = OperationRegistry("shop"), asyncio.Event()

    @ops.query
    async def wait(context: Context) -> None:
        context.progress(1)
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    app = to_http(ops)
    async with living(app):
        answer = await followed(app, "wait")
        async for event, _ in events(answer):
            if event == "progress":
                break
        answer.leave()
        await asyncio.wait_for(ended.wait(), 20)
