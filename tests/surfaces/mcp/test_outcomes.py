"""What user middleware sees of calls that ask their client, over MCP without sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from enfold import (
    Call,
    Context,
    Deferred,
    Middleware,
    NeedsInput,
    Next,
    OperationRegistry,
    Outcome,
    ResponseEnvelope,
)
from enfold.mcp.tasks import TASKS
from enfold.tasks import Tasks
from enfold.tasks.memory import MemoryTasks

if TYPE_CHECKING:
    from tests.surfaces.mcp.conftest import Client, MakeClient, Message

ASKED: Message = {"elicitation": {}}
YES = {"action": "accept", "content": {"sure": True}}


class Outcomes:
    """Notes what each attempt came to."""

    def __init__(self) -> None:
        self.seen: list[Outcome] = []

    async def __call__(self, call: Call, next: Next) -> Outcome:
        outcome = await next(call)
        self.seen.append(outcome)
        return outcome


async def ask_twice(client: Client, tool: str) -> tuple[Message, Message]:
    """The questions of a tool, and what it gives when each is answered with yes."""
    client.capabilities = {**ASKED, **client.capabilities}
    questions = await client.call(tool)
    answers = dict.fromkeys(questions["inputRequests"], YES)
    state = questions["requestState"]
    return questions, await client.call(tool, inputResponses=answers, requestState=state)


async def test_middleware_sees_the_questions_and_then_the_result(
    make_client: MakeClient, ops: OperationRegistry
) -> None:
    outcomes = Outcomes()
    ops.middleware(outcomes)

    @ops.mutation
    async def clean(context: Context) -> str:
        return (await context.ask("Sure?", key="sure")).action

    questions, result = await ask_twice(make_client(ops), "shop.clean")
    assert questions["resultType"] == "input_required"
    assert result["structuredContent"] == {"result": "accept"}
    first, second = outcomes.seen
    assert isinstance(first, NeedsInput)
    assert list(first.questions) == ["sure"]
    assert isinstance(second, ResponseEnvelope)


async def test_middleware_may_ask_the_client_itself(make_client: MakeClient, ops: OperationRegistry) -> None:
    runs = []

    @ops.middleware
    async def confirm(call: Call, next: Next) -> Outcome:
        answer = await call.context.ask(f"Run {call.operation.spec.id}?", key="confirm")
        assert answer.accepted
        return await next(call)

    @ops.mutation
    async def clean() -> int:
        runs.append(1)
        return len(runs)

    questions, result = await ask_twice(make_client(ops), "shop.clean")
    assert list(questions["inputRequests"]) == ["confirm"]
    assert result["structuredContent"] == {"result": 1}


@pytest.mark.parametrize("kind", ["async", "def"])
async def test_the_question_of_a_nested_call_stops_both_handlers(
    make_client: MakeClient, ops: OperationRegistry, kind: str
) -> None:
    ended: list[str] = []

    @ops.mutation
    async def inner(context: Context) -> str:
        return (await context.ask("Sure?", key="sure")).action

    if kind == "async":

        @ops.mutation
        async def outer(context: Context) -> str:
            envelope = await context.env.shop.inner()
            ended.append("outer")
            return str(envelope.data)

    else:

        @ops.mutation(name="outer")
        def blocking(context: Context) -> str:
            envelope = context.env.shop.inner()
            ended.append("outer")
            return str(envelope.data)

    questions, result = await ask_twice(make_client(ops), "shop.outer")
    assert list(questions["inputRequests"]) == ["sure"]
    assert result["structuredContent"] == {"result": "accept"}
    assert ended == ["outer"]


async def test_a_stream_that_asks_is_asked_again_with_the_answers(
    make_client: MakeClient, ops: OperationRegistry
) -> None:
    @ops.subscription
    async def steps(context: Context) -> AsyncIterator[str]:
        yield "before"
        yield (await context.ask("Sure?", key="sure")).action

    questions, result = await ask_twice(make_client(ops), "shop.steps")
    assert list(questions["inputRequests"]) == ["sure"]
    assert result["structuredContent"]["result"] == ["before", "accept"]


async def test_middleware_never_sees_the_task_that_a_handler_detaches_to(
    make_client: MakeClient, ops: OperationRegistry
) -> None:
    outcomes = Outcomes()

    @ops.mutation(durable=True, asks_first=True, middleware=[outcomes])
    async def archive(context: Context) -> str:
        answer = await context.ask("Sure?", key="sure")
        context.detach()
        return answer.action

    async with Tasks(ops, MemoryTasks()) as tasks:
        client = make_client(ops, tasks=tasks)
        client.capabilities = {"extensions": {TASKS: {}}}
        _, begun = await ask_twice(client, "shop.archive")
        assert begun["resultType"] == "task"
        handle = await tasks.get(begun["taskId"])
        assert (await handle.result()).data == "accept"
    asked, detached, done = outcomes.seen
    assert isinstance(asked, NeedsInput)
    assert list(asked.questions) == ["sure"]
    assert isinstance(detached, NeedsInput)
    assert detached.questions == {}
    assert isinstance(done, ResponseEnvelope)
    assert not any(isinstance(each, Deferred) for each in outcomes.seen)


async def first_of_two(call: Call, next: Next) -> Outcome:
    first = await next(call)
    await next(call)
    return first


async def first_of_two_at_once(call: Call, next: Next) -> Outcome:
    return (await asyncio.gather(next(call), next(call)))[0]


async def copied(call: Call, next: Next) -> Outcome:
    outcome = await next(call)
    return NeedsInput(outcome.questions) if isinstance(outcome, NeedsInput) else outcome


async def asks_in_a_task_group(call: Call, next: Next) -> Outcome:
    async with asyncio.TaskGroup() as group:
        group.create_task(call.context.ask("Log it?", key="log"))  # type: ignore[arg-type]  # a coroutine
    return await next(call)


@pytest.mark.parametrize("middleware", [first_of_two, first_of_two_at_once, copied, asks_in_a_task_group])
async def test_questions_reach_the_client_through_middleware(
    make_client: MakeClient, ops: OperationRegistry, middleware: Middleware
) -> None:
    @ops.mutation(middleware=[Outcomes(), middleware])
    async def clean(context: Context) -> str:
        return (await context.ask("Sure?")).action

    assert await answer_all(make_client(ops), "shop.clean") == "accept"


@pytest.mark.parametrize("questions", [{}, {"sure": "yes?"}])
async def test_questions_that_nobody_can_answer_are_an_error_of_the_middleware(
    make_client: MakeClient, ops: OperationRegistry, questions: Any
) -> None:
    @ops.middleware
    async def made_up(call: Call, next: Next) -> Outcome:
        return NeedsInput(questions)

    @ops.query
    async def stock() -> int:
        return 3

    result = await make_client(ops).call("shop.stock")
    assert "the middleware made_up returned NeedsInput" in result["content"][0]["text"]


@pytest.mark.parametrize("group", ["asyncio", "anyio", "nested calls"])
async def test_questions_in_a_task_group_are_asked_together(
    make_client: MakeClient, ops: OperationRegistry, group: str
) -> None:
    @ops.mutation
    async def inner(number: int, context: Context) -> str:
        return (await context.ask(f"Sure of {number}?", key=f"sure{number}")).action

    @ops.mutation
    async def outer(context: Context) -> list[str]:
        answers: list[str] = []

        async def ask(number: int) -> None:
            if group == "nested calls":
                answers.append((await context.env.shop.inner(number=number)).data)
            else:
                answers.append((await context.ask(f"Sure of {number}?", key=f"sure{number}")).action)

        if group == "anyio":
            async with anyio.create_task_group() as tasks:
                for number in range(3):
                    tasks.start_soon(ask, number)
        else:
            async with asyncio.TaskGroup() as running:
                for number in range(3):
                    running.create_task(ask(number))
        return answers

    questions, result = await ask_twice(make_client(ops), "shop.outer")
    assert sorted(questions["inputRequests"]) == ["sure0", "sure1", "sure2"]
    assert result["structuredContent"] == {"result": ["accept"] * 3}


async def test_a_stream_may_ask_in_a_task_group(make_client: MakeClient, ops: OperationRegistry) -> None:
    @ops.subscription
    async def steps(context: Context) -> AsyncIterator[str]:
        async def ask() -> str:
            return (await context.ask("Sure?", key="sure")).action

        async with asyncio.TaskGroup() as group:
            asked = group.create_task(ask())
        yield asked.result()

    _, result = await ask_twice(make_client(ops), "shop.steps")
    assert result["structuredContent"]["result"] == ["accept"]


async def answer_all(client: Client, tool: str) -> Any:
    """What a tool gives when all its questions, in as many rounds as it needs, are answered with yes."""
    client.capabilities = ASKED
    result = await client.call(tool)
    for _ in range(4):
        if result["resultType"] != "input_required":
            break
        answers = dict.fromkeys(result["inputRequests"], YES)
        result = await client.call(tool, inputResponses=answers, requestState=result["requestState"])
    return result["structuredContent"]["result"]
