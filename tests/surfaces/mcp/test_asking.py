"""Handlers that ask the client: on the open stream of a session, or in several rounds without one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from enfold import CallError, Context, OperationRegistry
from enfold.auth.tokens import Tokens
from enfold.mcp import ask, elicit, elicitation, list_roots, remember, sample, sampling

if TYPE_CHECKING:
    from tests.surfaces.mcp.conftest import Client, MakeClient

FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
ANN = {"action": "accept", "content": {"name": "Ann"}}


@pytest.fixture
def ops() -> OperationRegistry:
    """Operations that ask in every way."""
    ops = OperationRegistry()
    numbers = iter([7])  # to take a second one would fail

    @ops.query
    async def greet(context: Context) -> str:
        answer = await elicit(context, "Your name?", FORM, key="name")
        return f"Hello, {answer.content['name']}" if answer.accepted else f"They {answer.action}"

    @ops.query
    def greet_from_a_thread(context: Context) -> str:
        answer: Any = elicit(context, "Your name?", FORM, key="name")
        return f"Hello, {answer.content['name']}"

    @ops.query
    async def two_rounds(context: Context) -> str:
        number = remember(context, "number", lambda: next(numbers))
        first = await elicit(context, "First?", FORM)
        second = await elicit(context, "Second?", FORM)
        return f"{first.content['name']} and {second.content['name']}: {number}"

    @ops.query
    async def think(context: Context) -> str:
        return str((await sample(context, "Think", max_tokens=9, systemPrompt="Be brief"))["content"]["text"])

    @ops.query
    async def folders(context: Context) -> list[str]:
        return [root["uri"] for root in await list_roots(context)]

    @ops.query
    async def both(context: Context) -> list[str]:
        return sorted(await ask(context, {"a": elicitation("A?"), "b": sampling("B?")}))

    @ops.query
    async def open_page(context: Context) -> str:
        return (await elicit(context, "Pay here", url="https://pay.example.org")).action

    return ops


# --- without a session: in rounds ---------------------------------------------------------------------------------


def stateless(make_client: MakeClient, ops: OperationRegistry, **options: Any) -> Client:
    client = make_client(ops, **options)
    client.capabilities = {"elicitation": {}, "sampling": {}, "roots": {}}
    return client


async def test_the_first_round_gives_the_question(make_client: MakeClient, ops: OperationRegistry) -> None:
    result = await stateless(make_client, ops).call("greet")
    question = {"method": "elicitation/create", "params": {"message": "Your name?", "requestedSchema": FORM}}
    assert (result["resultType"], result["inputRequests"]) == ("input_required", {"name": question})
    assert isinstance(result["requestState"], str)


@pytest.mark.parametrize("tool", ["greet", "greet_from_a_thread"])
async def test_the_second_round_has_the_answer(make_client: MakeClient, ops: OperationRegistry, tool: str) -> None:
    client = stateless(make_client, ops)
    state = (await client.call(tool))["requestState"]
    result = await client.call(tool, inputResponses={"name": ANN}, requestState=state)
    assert (result["resultType"], result["structuredContent"]) == ("complete", {"result": "Hello, Ann"})


async def test_a_user_may_decline(make_client: MakeClient, ops: OperationRegistry) -> None:
    client = stateless(make_client, ops)
    result = await client.call("greet", inputResponses={"name": {"action": "decline"}})
    assert result["structuredContent"] == {"result": "They decline"}


async def test_answers_and_memory_last_over_many_rounds(make_client: MakeClient, ops: OperationRegistry) -> None:
    client = stateless(make_client, ops)
    first = await client.call("two_rounds")
    assert list(first["inputRequests"]) == ["question1"]
    second = await client.call("two_rounds", inputResponses={"question1": ANN}, requestState=first["requestState"])
    assert list(second["inputRequests"]) == ["question2"]
    bob = {"action": "accept", "content": {"name": "Bob"}}
    last = await client.call("two_rounds", inputResponses={"question2": bob}, requestState=second["requestState"])
    assert last["structuredContent"] == {"result": "Ann and Bob: 7"}


async def test_an_operation_that_was_found_by_search_asks_and_gets_its_answer(
    make_client: MakeClient, ops: OperationRegistry
) -> None:
    client = stateless(make_client, ops, expose="search")
    first = await client.call("call_operation", {"id": "greet"})
    assert list(first["inputRequests"]) == ["name"]
    last = await client.call(
        "call_operation", {"id": "greet"}, inputResponses={"name": ANN}, requestState=first["requestState"]
    )
    assert last["structuredContent"] == {"result": "Hello, Ann"}


async def test_several_questions_are_asked_at_once(make_client: MakeClient, ops: OperationRegistry) -> None:
    client = stateless(make_client, ops)
    first = await client.call("both")
    methods = {key: question["method"] for key, question in first["inputRequests"].items()}
    assert methods == {"a": "elicitation/create", "b": "sampling/createMessage"}
    half = await client.call("both", inputResponses={"a": ANN}, requestState=first["requestState"])
    assert list(half["inputRequests"]) == ["b"]


FORGERIES = {
    "changed": lambda state: state[:-1] + ("0" if state[-1] != "0" else "1"),
    "longer": lambda state: state + "-",
    "made up": lambda _: "e30=.00",
    "no text": lambda _: 7,
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
async def test_a_state_that_is_not_ours_is_refused(make_client: MakeClient, ops: OperationRegistry, forge: Any) -> None:
    client = stateless(make_client, ops)
    state = forge((await client.call("greet"))["requestState"])
    answer = await client.ask("tools/call", {"name": "greet", "arguments": {}, "requestState": state})
    assert answer["error"]["code"] == -32602


async def test_a_state_fits_only_its_own_request(make_client: MakeClient, ops: OperationRegistry) -> None:
    client = stateless(make_client, ops)
    state = (await client.call("greet"))["requestState"]
    answer = await client.ask("tools/call", {"name": "two_rounds", "arguments": {}, "requestState": state})
    assert answer["error"]["code"] == -32602


async def test_a_state_fits_only_its_own_caller(
    make_client: MakeClient, ops: OperationRegistry, tokens: Tokens
) -> None:
    client = stateless(make_client, ops, token="ann-token", tokens=tokens)
    state = (await client.call("greet"))["requestState"]
    client.token = "bob-token"
    answer = await client.ask("tools/call", {"name": "greet", "arguments": {}, "requestState": state})
    assert answer["error"]["code"] == -32602


async def test_servers_with_one_secret_take_each_others_states(make_client: MakeClient, ops: OperationRegistry) -> None:
    one, other = (stateless(make_client, ops, secret=b"s" * 32) for _ in range(2))
    state = (await one.call("greet"))["requestState"]
    result = await other.call("greet", inputResponses={"name": ANN}, requestState=state)
    assert result["structuredContent"] == {"result": "Hello, Ann"}


@pytest.mark.parametrize(
    ("tool", "required"),
    [("think", {"sampling": {}}), ("greet", {"elicitation": {}}), ("open_page", {"elicitation": {"url": {}}})],
)
async def test_a_client_that_cannot_answer_gets_the_missing_capability(
    make_client: MakeClient, ops: OperationRegistry, tool: str, required: dict[str, Any]
) -> None:
    client = make_client(ops)
    client.capabilities = {"elicitation": {}} if tool == "open_page" else {}
    conversation = client.begin("tools/call", {"name": tool})
    error = (await conversation.json())["error"]
    assert (conversation.status, error["code"]) == (400, -32021)
    assert error["data"] == {"requiredCapabilities": required}


# --- in a session: on the stream ----------------------------------------------------------------------------------


async def answered(client: Client, tool: str, answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of a call, whose question is answered as soon as it comes."""
    messages: list[dict[str, Any]] = []
    async for _, message in client.begin("tools/call", {"name": tool}).answers():
        if message is None:
            continue
        messages.append(message)
        if "method" in message and "id" in message:
            await client.post({"jsonrpc": "2.0", "id": message["id"], **answer}).body()
    return messages


ASKED = {
    "greet": ("elicitation/create", ANN, "Hello, Ann"),
    "greet_from_a_thread": ("elicitation/create", ANN, "Hello, Ann"),
    "think": ("sampling/createMessage", {"role": "assistant", "content": {"type": "text", "text": "42"}}, "42"),
    "folders": ("roots/list", {"roots": [{"uri": "file:///home"}]}, ["file:///home"]),
}


@pytest.mark.parametrize(
    ("tool", "method", "answer", "result"), [(tool, *row) for tool, row in ASKED.items()], ids=ASKED
)
async def test_the_client_is_asked_on_the_stream(
    make_client: MakeClient, ops: OperationRegistry, tool: str, method: str, answer: dict[str, Any], result: Any
) -> None:
    client = make_client(ops, "2025-11-25")
    await client.initialize(elicitation={}, sampling={}, roots={})
    question, last = await answered(client, tool, {"result": answer})
    assert question["method"] == method
    assert last["result"]["structuredContent"] == {"result": result}


async def test_a_client_may_refuse_to_answer(make_client: MakeClient, ops: OperationRegistry) -> None:
    client = make_client(ops, "2025-11-25")
    await client.initialize(elicitation={})
    _, last = await answered(client, "greet", {"error": {"code": -1, "message": "Not now"}})
    assert last["result"]["isError"] is True
    assert "Not now" in last["result"]["content"][0]["text"]


@pytest.mark.parametrize("has_session", [True, False], ids=["a session", "no session"])
async def test_a_client_that_offers_nothing_is_not_asked(
    make_client: MakeClient, ops: OperationRegistry, has_session: bool
) -> None:
    client = make_client(ops, "2025-11-25")
    if has_session:
        await client.initialize()
    result = await client.call("greet")
    assert result["_meta"]["enfold/error"]["details"] == {"reason": "capability", "capability": "elicitation"}


async def test_outside_of_mcp_no_client_can_be_asked(ops: OperationRegistry) -> None:
    with pytest.raises(CallError, match="elicitation"):
        await ops.execute("greet", {})
