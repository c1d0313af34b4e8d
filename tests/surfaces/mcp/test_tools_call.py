"""Calls of tools: results, failures, content, progress and log messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from enfold import (
    AudioContent,
    CallError,
    Context,
    ImageContent,
    OperationRegistry,
    ResourceLink,
    ResponseEnvelope,
    TextContent,
    mcp_envelope,
)
from enfold.formats import tool_envelope_v1
from enfold.operations import Operation, OperationSpec
from enfold.runtime.deadlines import INTERVAL

if TYPE_CHECKING:
    from tests.surfaces.mcp.conftest import MakeClient


def text_of(result: dict[str, Any]) -> Any:
    [block] = result["content"]
    return json.loads(block["text"])


@pytest.mark.parametrize("name", ["shop_add", "shop.add"])
async def test_a_result_is_text_and_structure(
    make_client: MakeClient, ops: OperationRegistry, revision: str, name: str
) -> None:
    @ops.query
    async def add(x: int, y: int) -> int:
        return x + y

    result = await make_client(ops, revision).call(name, {"x": 1, "y": "2"})
    assert text_of(result) == result["structuredContent"] == {"result": 3}
    assert result["isError"] is False


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26"])
async def test_older_clients_get_text_only(make_client: MakeClient, ops: OperationRegistry, revision: str) -> None:
    ops.query(name="one")(lambda: 1)
    result = await make_client(ops, revision).call("shop_one")
    assert (text_of(result), "structuredContent" in result) == ({"result": 1}, False)


async def test_several_values_are_numbered_and_none_is_empty(make_client: MakeClient, ops: OperationRegistry) -> None:
    @ops.query
    def pair() -> tuple[int, str]:
        return 1, "a"

    @ops.query
    def nothing() -> None: ...

    client = make_client(ops)
    assert (await client.call("shop_pair"))["structuredContent"] == {"result0": 1, "result1": "a"}
    assert (await client.call("shop_nothing"))["structuredContent"] == {}


async def test_a_failure_is_a_result_a_model_can_read(
    make_client: MakeClient, ops: OperationRegistry, revision: str
) -> None:
    @ops.query
    async def rate() -> int:
        raise CallError("RESOURCE_EXHAUSTED", "Come back later", {"retry_after": 5})

    result = await make_client(ops, revision).call("shop_rate")
    told = result["_meta"]["enfold/error"]
    assert (result["isError"], text_of(result)) == (True, {"error": "Come back later"})
    assert (told["code"], told["retryable"], told["details"]) == ("RESOURCE_EXHAUSTED", True, {"retry_after": 5})
    assert told["requestId"]
    assert "structuredContent" not in result


async def test_an_exception_gives_its_text_and_nothing_more(make_client: MakeClient, ops: OperationRegistry) -> None:
    @ops.query
    async def fail() -> int:
        raise ValueError("broken")

    shown = await make_client(ops).call("shop_fail")
    hidden = await make_client(ops, expose_errors=False).call("shop_fail")
    assert (text_of(shown), text_of(hidden)) == ({"error": "broken"}, {"error": "Operation shop.fail failed"})
    assert shown["_meta"]["enfold/error"]["code"] == "EXECUTION_ERROR"


async def test_a_missing_argument_is_reported_by_name(
    make_client: MakeClient, ops: OperationRegistry, revision: str
) -> None:
    @ops.query
    async def add(x: int, y: int) -> int:
        return x + y

    result = await make_client(ops, revision).call("shop_add", {"x": 2})
    told = result["_meta"]["enfold/error"]
    assert told["code"] == "VALIDATION_ERROR"
    assert told["details"] == {"argument": "y", "reason": "missing", "expected": "integer"}


async def test_arguments_that_are_not_an_object_are_reported(
    make_client: MakeClient, ops: OperationRegistry, revision: str
) -> None:
    ops.query(name="one")(lambda: 1)
    result = await make_client(ops, revision).call("shop_one", [1, 2])
    assert text_of(result)["error"].startswith("Invalid arguments format: ")


async def test_an_unknown_tool_is_an_error_of_the_protocol(
    make_client: MakeClient, ops: OperationRegistry, revision: str
) -> None:
    answer = await make_client(ops, revision).ask("tools/call", {"name": "nowhere"})
    assert (answer["error"]["code"], answer["error"]["message"]) == (-32602, "Unknown tool: nowhere")


@pytest.mark.parametrize(
    ("spoken", "params"),
    [("2026-07-28", {}), ("2025-11-25", {"name": None}), ("2025-11-25", {"name": ["shop_one"]})],
    ids=["nothing", "null", "a list"],
)
async def test_a_call_without_the_name_of_a_tool_names_what_is_missing(
    make_client: MakeClient, ops: OperationRegistry, spoken: str, params: dict[str, Any]
) -> None:
    ops.query(name="one")(lambda: 1)
    ops.prompt(name="greeting")(lambda: "Hello")
    for method in ("tools/call", "prompts/get"):
        error = (await make_client(ops, spoken).ask(method, params))["error"]
        assert error["code"] == -32602
        assert error["message"].startswith(f"The params of {method} are not valid: ")
        assert "name`" in error["message"]


async def test_an_operation_that_a_caller_may_not_call_is_denied(
    make_client: MakeClient, ops: OperationRegistry
) -> None:
    ops.query(name="secret", access={"required_scopes": ["write"]})(lambda: 1)
    result = await make_client(ops).call("shop_secret")
    assert result["_meta"]["enfold/error"]["code"] == "ACCESS_DENIED"


async def test_data_kept_although_it_does_not_fit_is_an_error_in_text(
    make_client: MakeClient, ops: OperationRegistry, revision: str
) -> None:
    @ops.query
    async def prices() -> dict[str, int]:
        return {"apple": "many"}  # type: ignore[dict-item]  # what this test is about

    result = await make_client(ops, revision).call("shop_prices")
    assert (result["isError"], text_of(result)) == (True, {"result": {"apple": "many"}})
    assert [warning["path"] for warning in result["_meta"]["enfold/warnings"]] == ["/apple"]
    assert "structuredContent" not in result


async def test_a_repair_is_a_success_with_a_warning(make_client: MakeClient, ops: OperationRegistry) -> None:
    @ops.query
    async def prices() -> dict[str, int]:
        return {"apple": "3"}  # type: ignore[dict-item]  # what this test is about

    result = await make_client(ops).call("shop_prices")
    assert (result["isError"], result["structuredContent"]) == (False, {"result": {"apple": 3}})
    assert [warning["code"] for warning in result["_meta"]["enfold/warnings"]] == ["convert"]


# --- formats ------------------------------------------------------------------------------------------------------


async def test_a_caller_chooses_the_format_of_the_text(make_client: MakeClient, ops: OperationRegistry) -> None:
    ops.query(name="one")(lambda: 1)
    result = await make_client(ops).call("shop_one", meta={"enfold/format": "envelope"})
    assert text_of(result)["meta"]["source"] == "local"
    assert result["structuredContent"] == {"result": 1}


async def test_a_failure_has_the_chosen_format_too(make_client: MakeClient, ops: OperationRegistry) -> None:
    @ops.query
    async def fail() -> int:
        raise CallError("OUT_OF_STOCK", "No apples")

    result = await make_client(ops).call("shop_fail", meta={"enfold/format": "envelope"})
    assert text_of(result)["error"]["code"] == "OUT_OF_STOCK"


async def test_an_unknown_format_is_a_failure(make_client: MakeClient, ops: OperationRegistry) -> None:
    ops.query(name="one")(lambda: 1)
    result = await make_client(ops).call("shop_one", meta={"enfold/format": "prose"})
    assert result["_meta"]["enfold/error"]["details"]["argument"] == "format"


async def test_a_surface_of_two_blocks_advertises_no_structure(make_client: MakeClient, ops: OperationRegistry) -> None:
    ops.query(name="one")(lambda: 1)
    client = make_client(ops, format="tool_envelope_v1")
    [tool] = (await client.result("tools/list"))["tools"]
    result = await client.call("shop_one")
    assert "outputSchema" not in tool
    assert "structuredContent" not in result
    assert tool_envelope_v1.read({"content": result["content"], "isError": False}).data == 1


# --- content ------------------------------------------------------------------------------------------------------


async def test_content_blocks_go_out_as_they_are(
    make_client: MakeClient, ops: OperationRegistry, revision: str
) -> None:
    @ops.query
    async def photo() -> list[TextContent | ImageContent]:
        return [TextContent(text="A cat"), ImageContent(data="aGk=", mime_type="image/png")]

    result = await make_client(ops, revision).call("shop_photo")
    assert result["content"] == [
        {"type": "text", "text": "A cat"},
        {"type": "image", "data": "aGk=", "mimeType": "image/png"},
    ]


async def test_an_image_is_not_sent_twice(make_client: MakeClient, ops: OperationRegistry) -> None:
    """A handler that may give other things promises a structure, and keeps the promise without the image."""

    @ops.query
    async def photo() -> ImageContent | int:
        return ImageContent(data="aGk=", mime_type="image/png")

    result = await make_client(ops).call("shop_photo")
    assert result["structuredContent"] == {"result": [{"type": "image", "mimeType": "image/png"}]}


async def test_content_alone_has_no_structure_besides_it(
    make_client: MakeClient, ops: OperationRegistry, revision: str
) -> None:
    @ops.query
    async def photo() -> ImageContent:
        return ImageContent(data="aGk=", mime_type="image/png")

    result = await make_client(ops, revision).call("shop_photo")
    assert (result["isError"], "structuredContent" in result) == (False, False)


async def test_kinds_an_old_client_does_not_know_become_text(make_client: MakeClient, ops: OperationRegistry) -> None:
    @ops.query
    async def both() -> list[AudioContent | ResourceLink]:
        return [AudioContent(data="aGk=", mime_type="audio/wav"), ResourceLink(uri="file:///a", name="a")]

    async def kinds(revision: str) -> list[str]:
        result = await make_client(ops, revision).call("shop_both")
        return [block["type"] for block in result["content"]]

    assert await kinds("2024-11-05") == ["text", "text"]
    assert await kinds("2025-03-26") == ["audio", "text"]
    assert await kinds("2025-06-18") == ["audio", "resource_link"]


IMPORTED = {"mcp": {"kind": "tool"}}


async def test_the_result_of_another_server_is_passed_on_with_its_own_content(
    make_client: MakeClient, ops: OperationRegistry, revision: str
) -> None:
    @ops.query(meta=IMPORTED)
    async def weather() -> ResponseEnvelope[Any]:
        data = {"degrees": 20}
        return mcp_envelope(data, content=[TextContent(text="Mild")], structured_content=data, _meta={"a": 1})

    result = await make_client(ops, revision).call("shop_weather")
    assert result["content"] == [{"type": "text", "text": "Mild"}]
    assert (result["structuredContent"], result["_meta"]["a"]) == ({"degrees": 20}, 1)


async def test_an_unwrapped_structure_is_passed_on_unchanged(make_client: MakeClient, ops: OperationRegistry) -> None:
    advertised = {"type": "object", "properties": {"result": {"type": "integer"}}}

    @ops.query(meta={"mcp": {"kind": "tool", "outputSchema": advertised}})
    async def count() -> ResponseEnvelope[Any]:
        return mcp_envelope(3, content=[TextContent(text="3")], structured_content={"result": 3})

    client = make_client(ops)
    assert (await client.result("tools/list"))["tools"][0]["outputSchema"] == advertised
    assert (await client.call("shop_count"))["structuredContent"] == {"result": 3}


async def test_a_result_whose_schema_cannot_be_decided_is_believed(
    make_client: MakeClient, ops: OperationRegistry, revision: str
) -> None:
    elsewhere = {"type": "object", "properties": {"degrees": {"$ref": "https://example.org/degrees.json"}}}

    async def weather(input: dict[str, Any], context: Context) -> ResponseEnvelope[Any]:
        return mcp_envelope({"degrees": 20}, content=[], structured_content={"degrees": 20})

    ops.register(Operation(OperationSpec(name="weather", output_schema=elsewhere, meta=IMPORTED), weather))
    client = make_client(ops, revision)
    assert (await client.result("tools/list"))["tools"][0]["outputSchema"] == elsewhere
    result = await client.call("weather")
    assert (result["isError"], result["structuredContent"]) == (False, {"degrees": 20})


async def test_the_error_of_another_server_stays_one(make_client: MakeClient, ops: OperationRegistry) -> None:
    @ops.query(meta=IMPORTED)
    async def weather() -> ResponseEnvelope[Any]:
        return mcp_envelope([], is_error=True, content=[TextContent(text="No such town")])

    result = await make_client(ops).call("shop_weather")
    assert (result["isError"], result["content"]) == (True, [{"type": "text", "text": "No such town"}])
    assert "structuredContent" not in result


async def test_structure_that_is_not_an_object_is_kept_from_older_clients(
    make_client: MakeClient, ops: OperationRegistry
) -> None:
    @ops.query(meta=IMPORTED)
    async def numbers() -> ResponseEnvelope[Any]:
        return mcp_envelope([1, 2], content=[TextContent(text="1, 2")], structured_content=[1, 2])

    assert (await make_client(ops).call("shop_numbers"))["structuredContent"] == [1, 2]
    assert "structuredContent" not in await make_client(ops, "2025-11-25").call("shop_numbers")


# --- streams ------------------------------------------------------------------------------------------------------


async def test_a_stream_is_collected(make_client: MakeClient, ops: OperationRegistry, revision: str) -> None:
    @ops.subscription
    async def ticks(to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number

    result = await make_client(ops, revision).call("shop_ticks", {"to": 3})
    assert text_of(result) == result["structuredContent"] == {"result": [0, 1, 2]}


async def test_a_stream_without_an_end_is_cut_and_says_so(make_client: MakeClient, ops: OperationRegistry) -> None:
    @ops.subscription
    async def ticks() -> AsyncIterator[int]:
        while True:
            yield 1

    result = await make_client(ops).call("shop_ticks")
    assert len(result["structuredContent"]["result"]) == 1000
    assert result["_meta"]["enfold/truncated"] is True


async def test_a_stream_that_falls_silent_is_cut_at_the_deadline(
    make_client: MakeClient, ops: OperationRegistry
) -> None:
    @ops.subscription
    async def ticks() -> AsyncIterator[int]:
        yield 1
        await asyncio.Event().wait()

    result = await make_client(ops, collect_for=0.05).call("shop_ticks")
    assert result["structuredContent"] == {"result": [1]}
    assert result["_meta"]["enfold/truncated"] is True


# --- on the way ---------------------------------------------------------------------------------------------------


async def test_progress_comes_before_the_answer(make_client: MakeClient, ops: OperationRegistry, revision: str) -> None:
    @ops.query
    async def work(context: Context) -> str:
        for step in (1, 2, 2, 1, 3):
            context.progress(step, 3, "on it")
        return "done"

    conversation = make_client(ops, revision).begin("tools/call", {"name": "shop_work"}, {"progressToken": "t"})
    *told, answer = await conversation.messages()
    assert conversation.headers["content-type"] == "text/event-stream"
    assert [message["params"] for message in told] == [
        {"progressToken": "t", "progress": step, "total": 3, "message": "on it"} for step in (1, 2, 3)
    ]
    assert answer["result"]["structuredContent"] == {"result": "done"}


async def test_a_def_in_a_thread_reports_progress_too(make_client: MakeClient, ops: OperationRegistry) -> None:
    @ops.query
    def work(context: Context) -> str:
        context.progress(1)
        return "done"

    messages = await make_client(ops).begin("tools/call", {"name": "shop_work"}, {"progressToken": 1}).messages()
    assert [message.get("method") for message in messages] == ["notifications/progress", None]


async def test_without_a_progress_token_there_is_no_progress(make_client: MakeClient, ops: OperationRegistry) -> None:
    @ops.query
    async def work(context: Context) -> str:
        context.progress(1)
        return "done"

    conversation = make_client(ops).begin("tools/call", {"name": "shop_work"})
    assert len(await conversation.messages()) == 1
    assert conversation.headers["content-type"] == "application/json"


async def test_log_messages_come_at_the_level_asked_for(make_client: MakeClient, ops: OperationRegistry) -> None:
    @ops.query
    async def work(context: Context) -> str:
        context.log("small", "debug")
        context.log("large", "warning", {"n": 1})
        return "done"

    level = {"io.modelcontextprotocol/logLevel": "info"}
    *told, _ = await make_client(ops).begin("tools/call", {"name": "shop_work"}, level).messages()
    data = {"message": "large", "data": {"n": 1}}
    assert [message["params"] for message in told] == [{"level": "warning", "logger": "shop.work", "data": data}]


async def test_a_session_sets_its_level_once(make_client: MakeClient, ops: OperationRegistry) -> None:
    @ops.query
    async def work(context: Context) -> str:
        context.log("said")
        return "done"

    client = make_client(ops, "2025-11-25")
    await client.initialize()
    assert len(await client.begin("tools/call", {"name": "shop_work"}).messages()) == 2
    assert await client.result("logging/setLevel", {"level": "error"}) == {}
    assert len(await client.begin("tools/call", {"name": "shop_work"}).messages()) == 1


async def test_a_level_that_does_not_exist_is_refused(make_client: MakeClient, ops: OperationRegistry) -> None:
    answer = await make_client(ops).ask("tools/list", meta={"io.modelcontextprotocol/logLevel": "loud"})
    assert answer["error"]["code"] == -32602


async def test_heartbeats_are_sent_during_a_long_silence(
    make_client: MakeClient, ops: OperationRegistry, monkeypatch: pytest.MonkeyPatch, revision: str
) -> None:
    monkeypatch.setattr("enfold.surfaces.asgi.SILENCE", 0.06)  # instead of ten seconds

    go_on = asyncio.Event()

    @ops.query
    async def think() -> str:
        await go_on.wait()
        return "thought"

    conversation = make_client(ops, revision).begin("tools/call", {"name": "shop_think"})
    await conversation.began()
    go_on.set()
    [answer] = await conversation.messages()
    assert conversation.headers["content-type"] == "text/event-stream"
    assert answer["result"]["structuredContent"] == {"result": "thought"}


# --- cancelling ---------------------------------------------------------------------------------------------------


class Patient:
    """An operation that waits until it is ended."""

    def __init__(self, ops: OperationRegistry) -> None:
        self.began = asyncio.Event()
        self.ended = asyncio.Event()
        ops.register(self.wait, name="wait", type="query")

    async def wait(self) -> str:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()
        return "never"


async def test_a_client_that_leaves_ends_the_work(make_client: MakeClient, ops: OperationRegistry) -> None:
    patient = Patient(ops)
    conversation = make_client(ops).begin("tools/call", {"name": "shop_wait"})
    await patient.began.wait()
    conversation.leave()
    await patient.ended.wait()
    await conversation.task


async def test_in_a_session_a_notification_ends_the_work(make_client: MakeClient, ops: OperationRegistry) -> None:
    patient = Patient(ops)
    client = make_client(ops, "2025-11-25")
    await client.initialize()
    message = client.message("tools/call", {"name": "shop_wait"})
    conversation = client.post(message)
    await patient.began.wait()
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": message["id"]}}
    assert (await client.post(cancelled).began()).status == 202
    await patient.ended.wait()
    assert await conversation.body() == b""


async def test_in_a_session_to_leave_is_not_to_cancel(make_client: MakeClient, ops: OperationRegistry) -> None:
    done = asyncio.Event()
    go_on = asyncio.Event()

    @ops.query
    async def wait() -> str:
        await go_on.wait()
        done.set()
        return "done"

    client = make_client(ops, "2025-11-25")
    await client.initialize()
    conversation = client.begin("tools/call", {"name": "shop_wait"})
    conversation.leave()
    # By then a client without a session would have been missed, and its work ended.
    asyncio.get_running_loop().call_later(2 * INTERVAL, go_on.set)
    await done.wait()
    await conversation.task


async def test_calls_run_side_by_side(make_client: MakeClient, ops: OperationRegistry, revision: str) -> None:
    meeting = asyncio.Barrier(3)

    @ops.query
    async def meet(name: str) -> str:
        await meeting.wait()
        return name

    client = make_client(ops, revision)
    results = await asyncio.gather(*(client.call("shop_meet", {"name": name}) for name in "abc"))
    assert [result["structuredContent"]["result"] for result in results] == ["a", "b", "c"]
