"""A server's question, log line or progress reaches the client whose call it belongs to, and no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from tests.gateway.conftest import serve
from tests.gateway.puppets import HTTPPuppet, Message, StdioPuppet, http_puppet, stdio_puppet

from enfold import Context, NeedsInput, OperationRegistry
from enfold.operations.context import Invocation
from enfold.sources.mcp import from_mcp
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp
from mcp import Client, types

PIN = {"message": "Type your PIN", "requestedSchema": {"type": "object", "properties": {"pin": {"type": "string"}}}}
WORDS = {"messages": [{"role": "user", "content": {"type": "text", "text": "Go on"}}], "maxTokens": 5}
QUESTIONS: dict[str, Message] = {"elicitation/create": PIN, "sampling/createMessage": WORDS, "roots/list": {}}
LOG = {"method": "notifications/message", "params": {"level": "error", "data": "card 4711 is charged"}}


class Person:
    """A client with a user who answers everything, and remembers what was asked and told."""

    def __init__(self, url: str, mode: Any) -> None:
        self.met: list[str] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.is_asked = asyncio.Event()
        self.client = Client(
            f"{url}/mcp",
            mode=mode,
            elicitation_callback=self._elicit,
            sampling_callback=self._sample,
            list_roots_callback=self._roots,
            logging_callback=self._log,
        )

    def call(self, tool: str) -> asyncio.Task[Any]:
        return asyncio.create_task(self.client.call_tool(tool, {}, progress_callback=self._progress))

    async def _elicit(self, context: Any, params: Any) -> types.ElicitResult:
        del context, params
        await self._met("elicitation/create")
        return types.ElicitResult(action="accept", content={"pin": "1234"})

    async def _sample(self, context: Any, params: Any) -> types.CreateMessageResult:
        del context, params
        await self._met("sampling/createMessage")
        return types.CreateMessageResult(role="assistant", content=types.TextContent(text="Yes"), model="m")

    async def _roots(self, context: Any) -> types.ListRootsResult:
        del context
        await self._met("roots/list")
        return types.ListRootsResult(roots=[])

    async def _met(self, method: str) -> None:
        self.met.append(method)
        self.is_asked.set()
        await self.may_answer.wait()

    async def _log(self, params: Any) -> None:
        del params
        self.met.append("notifications/message")

    async def _progress(self, progress: float, total: float | None, message: str | None) -> None:
        del progress, total, message
        self.met.append("notifications/progress")


class Gateway:
    """A gateway before a puppet, and the people who come to it."""

    def __init__(self, url: str, people: AsyncExitStack) -> None:
        self.url = url
        self._people = people

    async def person(self, mode: str = "legacy") -> Person:
        person = Person(self.url, mode)
        await self._people.enter_async_context(person.client)
        return person

    async def plain_call(self, operation_id: str) -> asyncio.Task[httpx2.Response]:
        """A call over HTTP, whose caller cannot be asked anything."""
        client = await self._people.enter_async_context(httpx2.AsyncClient(timeout=60))
        return asyncio.create_task(client.post(f"{self.url}/functions/{operation_id}", json={}))


@asynccontextmanager
async def gateway(puppet: StdioPuppet | HTTPPuppet) -> AsyncIterator[Gateway]:
    registry = OperationRegistry()
    async with from_mcp(puppet.target, namespace="bank") as operations:
        registry.register_all(operations)
        app = to_http(registry, mounts={"/mcp": to_mcp(registry)})
        async with serve(app, app.stop) as url, AsyncExitStack() as people:
            yield Gateway(url, people)


# --- ways to abandon a call that the server continues ------------------------------------------------------


async def cancel(bank: Gateway, puppet: Any) -> Message:
    ann = await bank.person()
    call = ann.call("bank_pay")
    request = await puppet.call_of("pay")
    call.cancel()
    return await _given_up(puppet, request)


async def time_out(bank: Gateway, puppet: Any) -> Message:
    async with httpx2.AsyncClient() as client:
        headers = {"Enfold-Timeout-Ms": "300"}
        call = asyncio.create_task(client.post(f"{bank.url}/functions/bank.pay", json={}, headers=headers))
        request = await puppet.call_of("pay")
        assert (await call).status_code == 504
    return await _given_up(puppet, request)


async def disconnect(bank: Gateway, puppet: Any) -> Message:
    async with httpx2.AsyncClient() as client:
        call = asyncio.create_task(client.post(f"{bank.url}/functions/bank.pay", json={}))
        request = await puppet.call_of("pay")
        call.cancel()
        await asyncio.wait({call})
    return await _given_up(puppet, request)


async def _given_up(puppet: Any, request: Message) -> Message:
    told = await puppet.next()
    assert (told["method"], told["params"]["requestId"]) == ("notifications/cancelled", request["id"])
    return request


WAYS = [cancel, time_out, disconnect]


@asynccontextmanager
async def puppet_at(transport: str) -> AsyncIterator[Any]:
    async with stdio_puppet("2025-11-25") if transport == "stdio" else http_puppet() as puppet:
        yield puppet


# On the standard streams the calls of two clients that can be asked are never open together, not even an abandoned one.
TOGETHER = [("stdio", time_out), ("stdio", disconnect), ("http", cancel), ("http", time_out), ("http", disconnect)]


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize(("transport", "give_up"), TOGETHER)
async def test_a_question_is_declined_while_a_cancelled_call_may_have_asked_it(
    give_up: Any, question: str, transport: str
) -> None:
    async with puppet_at(transport) as puppet, gateway(puppet) as bank:
        paying = await give_up(bank, puppet)
        bob = await bank.person()
        napping = bob.call("bank_nap")
        nap = await puppet.call_of("nap")

        puppet.write({"id": "whose", "method": question, "params": QUESTIONS[question]})
        refused = await puppet.next()
        assert (refused["id"], "result" in refused, bob.met) == ("whose", False, [])

        puppet.answer(paying)
        puppet.write({"id": "yours", "method": question, "params": QUESTIONS[question]})
        answered = await puppet.next()
        assert (answered["id"], "result" in answered, bob.met) == ("yours", True, [question])
        puppet.answer(nap)
        await napping


@pytest.mark.parametrize("question", QUESTIONS)
async def test_a_cancelled_call_counts_until_the_server_has_answered_it(question: str) -> None:
    async with stdio_puppet("2025-11-25") as puppet, gateway(puppet) as bank:
        paying = await cancel(bank, puppet)
        bob = await bank.person()
        napping = bob.call("bank_nap")
        reading = await bank.plain_call("bank.rest")  # which has been sent: others do not wait
        puppet.answer(await puppet.call_of("rest"))
        await reading
        assert not puppet.has_calls

        puppet.answer(paying)
        nap = await puppet.call_of("nap")
        puppet.write({"id": "yours", "method": question, "params": QUESTIONS[question]})
        answered = await puppet.next()
        assert (answered["id"], "result" in answered, bob.met) == ("yours", True, [question])
        puppet.answer(nap)
        await napping


@pytest.mark.parametrize(("transport", "give_up"), TOGETHER)
async def test_log_messages_and_progress_of_a_cancelled_call_are_dropped(give_up: Any, transport: str) -> None:
    async with puppet_at(transport) as puppet, gateway(puppet) as bank:
        paying = await give_up(bank, puppet)
        bob = await bank.person()
        napping = bob.call("bank_nap")
        nap = await puppet.call_of("nap")
        for token in (paying["id"], str(nap["id"]), True, None, [nap["id"]]):
            puppet.write({"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}})
        puppet.write(LOG)
        puppet.write({"id": "marker", "method": "ping"})
        assert (await puppet.next())["id"] == "marker"
        puppet.answer(nap)
        await napping
    assert bob.met == []


async def test_progress_on_a_calls_own_stream_is_not_taken_for_another_calls() -> None:
    async with http_puppet() as puppet, gateway(puppet) as bank:
        ann, bob = await bank.person(), await bank.person()
        paying, pay = ann.call("bank_pay"), await puppet.call_of("pay")
        napping, nap = bob.call("bank_nap"), await puppet.call_of("nap")
        token = nap["params"]["_meta"]["progressToken"]
        puppet.write_to(pay, {"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}})
        puppet.answer(pay)
        await paying
        puppet.answer(nap)
        await napping
    assert (ann.met, bob.met) == ([], [])


@pytest.mark.parametrize("question", QUESTIONS)
async def test_calls_of_clients_that_can_be_asked_run_one_at_a_time(question: str) -> None:
    async with stdio_puppet("2025-11-25") as puppet, gateway(puppet) as bank:
        people = [await bank.person() for _ in range(3)]
        calls = [person.call("bank_pay") for person in people]
        for count in range(1, 4):
            pay = await puppet.call_of("pay")
            assert not puppet.has_calls
            puppet.write({"id": "whose", "method": question, "params": QUESTIONS[question]})
            assert "result" in await puppet.next()
            assert sum(len(person.met) for person in people) == count
            puppet.answer(pay)
        await asyncio.gather(*calls)
    assert [person.met for person in people] == [[question]] * 3


@pytest.mark.parametrize("question", QUESTIONS)
async def test_a_question_waits_for_a_call_that_cannot_be_asked_to_end(question: str) -> None:
    """Until then it may be the question of either."""
    async with stdio_puppet("2025-11-25") as puppet, gateway(puppet) as bank:
        ann = await bank.person()
        resting, rest = await bank.plain_call("bank.rest"), await puppet.call_of("rest")
        paying, pay = ann.call("bank_pay"), await puppet.call_of("pay")
        puppet.write({"id": "whose", "method": question, "params": QUESTIONS[question]})
        puppet.answer(rest)
        assert "result" in await puppet.next()
        assert ann.met == [question]
        puppet.answer(pay)
        await asyncio.gather(paying, resting)


async def test_a_call_that_waits_for_its_turn_can_be_given_up() -> None:
    async with stdio_puppet("2025-11-25") as puppet, gateway(puppet) as bank:
        ann, cat = await bank.person(), await bank.person()
        paying, pay = ann.call("bank_pay"), await puppet.call_of("pay")
        bob = Person(bank.url, "legacy")
        async with bob.client:
            napping = bob.call("bank_nap")
            reading = await bank.plain_call("bank.pay")
            puppet.answer(await puppet.call_of("pay"))  # which came after the nap, and does not wait forever
            await reading
            napping.cancel()
            await asyncio.wait({napping})
        resting = cat.call("bank_rest")  # the session of the nap has ended
        puppet.answer(pay)
        puppet.answer(await puppet.call_of("rest"))
        await asyncio.gather(paying, resting)


async def test_a_client_is_asked_although_it_has_cancelled_another_of_its_calls() -> None:
    async with stdio_puppet("2025-11-25") as puppet, gateway(puppet) as bank:
        ann = await bank.person()
        first = ann.call("bank_pay")
        await puppet.call_of("pay")
        first.cancel()
        assert (await puppet.next())["method"] == "notifications/cancelled"
        napping, nap = ann.call("bank_nap"), await puppet.call_of("nap")
        puppet.write({"id": 1, "method": "elicitation/create", "params": PIN})
        assert "result" in await puppet.next()
        puppet.answer(nap)
        await napping
    assert ann.met == ["elicitation/create"]


@pytest.mark.parametrize("asked_era", ["legacy", "2026-07-28"])
async def test_while_one_client_is_asked_another_waits_and_a_caller_without_questions_does_not(asked_era: str) -> None:
    async with stdio_puppet("2025-11-25") as puppet, gateway(puppet) as bank:
        ann, bob = await bank.person(asked_era), await bank.person()
        ann.may_answer.clear()
        paying, pay = ann.call("bank_pay"), await puppet.call_of("pay")
        puppet.write({"id": "ann's", "method": "elicitation/create", "params": PIN})
        await ann.is_asked.wait()

        napping = bob.call("bank_nap")
        resting = await bank.plain_call("bank.rest")
        puppet.answer(await puppet.call_of("rest"))
        assert (await resting).status_code == 200
        assert not puppet.has_calls

        ann.may_answer.set()
        answer = await puppet.next()
        assert (answer["id"], answer["result"]["content"]) == ("ann's", {"pin": "1234"})
        puppet.answer(pay)
        await paying
        nap = await puppet.call_of("nap")
        puppet.write({"id": "bob's", "method": "elicitation/create", "params": PIN})
        assert (await puppet.next())["id"] == "bob's"
        puppet.answer(nap)
        await napping
        assert (bob.met, len(puppet.processes)) == (["elicitation/create"], 1)


async def test_a_question_that_the_server_withdraws_is_not_answered() -> None:
    async with stdio_puppet("2025-11-25") as puppet, gateway(puppet) as bank:
        ann = await bank.person()
        ann.may_answer.clear()
        paying, pay = ann.call("bank_pay"), await puppet.call_of("pay")
        puppet.write({"id": 7, "method": "elicitation/create", "params": PIN})
        await ann.is_asked.wait()
        puppet.write({"method": "notifications/cancelled", "params": {"requestId": 7}})
        puppet.write({"id": "marker", "method": "ping"})
        assert (await puppet.next())["id"] == "marker"
        ann.may_answer.set()
        puppet.answer(pay)
        await paying


@pytest.mark.parametrize("question", QUESTIONS)
async def test_the_newest_revision_has_no_questions_of_servers(question: str) -> None:
    async with stdio_puppet("2026-07-28") as puppet, gateway(puppet) as bank:
        ann = await bank.person()
        paying, pay = ann.call("bank_pay"), await puppet.call_of("pay")
        puppet.write({"id": 1, "method": question, "params": QUESTIONS[question]})
        assert (await puppet.next())["error"]["code"] == -32601
        puppet.answer(pay)
        await paying
    assert ann.met == []


async def test_a_question_without_a_running_call_is_declined() -> None:
    async with stdio_puppet("2025-11-25") as puppet, gateway(puppet) as bank:
        ann = await bank.person()
        napping, nap = ann.call("bank_nap"), await puppet.call_of("nap")
        puppet.answer(nap)
        await napping
        puppet.write({"id": 1, "method": "elicitation/create", "params": PIN})
        assert "error" in await puppet.next()
    assert ann.met == []


async def test_a_source_is_busy_while_calls_run_but_not_while_one_waits_for_its_client_to_come_back() -> None:
    async def needs_more(questions: Any) -> NeedsInput:
        return NeedsInput(questions)

    absent: Any = SimpleNamespace(
        capabilities={"elicitation": {}}, client=object(), session=None, meta={}, memory={}, ask=needs_more
    )
    registry = OperationRegistry()
    async with stdio_puppet("2025-11-25") as puppet, from_mcp(puppet.target) as operations:
        registry.register_all(operations)
        context = Context(invocation=Invocation(absent))
        paying = asyncio.create_task(registry.prepared("pay").execute({}, context))
        pay = await puppet.call_of("pay")
        seen = [operations.is_busy]

        puppet.write({"id": "pin", "method": "elicitation/create", "params": PIN})
        assert isinstance(await paying, NeedsInput)
        seen.append(operations.is_busy)

        puppet.answer(pay)  # its client has not come back, and may never do
        napping = asyncio.create_task(registry.execute("nap", {}))
        nap = await puppet.call_of("nap")
        seen.append(operations.is_busy)
        puppet.answer(nap)
        await napping
        assert [*seen, operations.is_busy] == [True, False, True, False]
