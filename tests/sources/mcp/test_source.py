"""A server written on the official SDK, over every transport and in both eras: what it offers, and what calls give."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.sources.mcp import sdk_server

from enfold import CallError, Context, OperationRegistry, TextContent
from enfold.operations import LogMessage, Progress
from enfold.sources.mcp import Connection, Content, MCPOperations, from_mcp
from enfold.sources.options import Rules, Selection

Serve = Callable[..., AbstractAsyncContextManager[str]]

HERE = Path(__file__).parent
ERAS = ["2025-11-25", "2026-07-28"]


@pytest.fixture(params=["stdio", "http"])
async def target(request: pytest.FixtureRequest, serve: Serve) -> AsyncIterator[Any]:
    if request.param == "stdio":
        yield [sys.executable, str(HERE / "sdk_server.py")]
        return
    async with serve(sdk_server.make_server().streamable_http_app(streamable_http_path="/mcp")) as url:
        yield f"{url}/mcp"


def registry_of(operations: MCPOperations) -> OperationRegistry:
    ops = OperationRegistry()
    ops.register_all(operations)
    return ops


@pytest.mark.parametrize("era", ERAS)
async def test_everything_a_server_offers_becomes_an_operation(target: Any, era: str) -> None:
    async with from_mcp(target, namespace="sdk", connection=Connection(protocol=era)) as operations:
        kinds = {operation.spec.id: operation.spec.meta["mcp"]["kind"] for operation in operations}
    assert kinds == {
        **{f"sdk.{name}": "tool" for name in ("add", "misfit", "wrapped", "steps", "ask", "slow", "near")},
        **{f"sdk.{name}": "tool" for name in ("touch", "mutter", "with_dots_and_spaces")},
        "sdk.weather": "prompt",
        "sdk.resources.first": "resource",
        "sdk.resources.by_author": "resource",
        "sdk.resources.updates": "updates",
        "sdk.complete_weather": "completion",
        "sdk.resources.complete_by_author": "completion",
    }


@pytest.mark.parametrize("era", ERAS)
async def test_a_tool_keeps_its_schemas_its_hints_and_its_name(target: Any, era: str) -> None:
    async with from_mcp(target, connection=Connection(protocol=era)) as operations:
        ops = registry_of(operations)
        add, named = ops.get_spec("add"), ops.get_spec("with_dots_and_spaces")
        assert (await ops.execute("with_dots_and_spaces", {})).data == {"found": True}
    assert (add.type.value, add.title, add.idempotent, add.destructive) == ("query", "Adds", True, False)
    assert (add.input_schema, add.output_schema) == (sdk_server.NUMBERS, sdk_server.SUM)
    assert add.meta["mcp"]["listed"]["annotations"]["readOnlyHint"] is True
    assert named.meta["original_name"] == "with dots.and spaces"


@pytest.mark.parametrize("era", ERAS)
async def test_a_result_is_an_mcp_envelope_with_its_structured_content_as_data(target: Any, era: str) -> None:
    async with from_mcp(target, connection=Connection(protocol=era)) as operations:
        envelope = await registry_of(operations).execute("add", {"x": 20, "y": 22})
    assert (envelope.data, envelope.warnings) == ({"sum": 42}, ())
    assert envelope.to_wire()["meta"] | {"_meta": None} == {
        "source": "mcp",
        "isError": False,
        "content": [{"type": "text", "text": "done"}],
        "structuredContent": {"sum": 42},
        "_meta": None,
    }


@pytest.mark.parametrize("era", ERAS)
async def test_a_result_that_does_not_fit_is_repaired_and_kept(target: Any, era: str) -> None:
    async with from_mcp(target, connection=Connection(protocol=era)) as operations:
        envelope = await registry_of(operations).execute("misfit", {})
    assert envelope.data == {"sum": 42}
    assert {(warning.code, warning.path) for warning in envelope.warnings} == {("convert", "/sum"), ("strip", "/note")}
    assert envelope.to_wire()["meta"]["structuredContent"] == {"sum": "42", "note": "not in the schema"}


@pytest.mark.parametrize("era", ERAS)
async def test_a_wrapper_that_names_itself_is_taken_off(target: Any, era: str) -> None:
    async with from_mcp(target, connection=Connection(protocol=era)) as operations:
        ops = registry_of(operations)
        assert (await ops.execute("wrapped", {})).data == 7
        assert ops.get_spec("wrapped").output_schema == {"type": "integer"}


@pytest.mark.parametrize("era", ERAS)
async def test_progress_reaches_the_caller(target: Any, era: str) -> None:
    heard: list[Progress | LogMessage] = []
    async with from_mcp(target, connection=Connection(protocol=era)) as operations:
        await registry_of(operations).execute("steps", {}, Context(notify=heard.append))
    assert heard == [Progress(1, 2, "step 1"), Progress(2, 2, "step 2")]


@pytest.mark.parametrize("era", ERAS)
async def test_a_question_is_answered_by_the_source_where_the_caller_cannot(target: Any, era: str) -> None:
    async def answer(params: dict[str, Any], context: Context) -> dict[str, Any]:
        assert params["message"] == "Who are you?"
        return {"action": "accept", "content": {"name": "Ann"}}

    async with from_mcp(
        target, connection=Connection(protocol=era, answers={"elicitation/create": answer})
    ) as operations:
        envelope = await registry_of(operations).execute("ask", {})
    assert envelope.meta.content == (TextContent(text="accept: Ann"),)  # type: ignore[union-attr]  # an MCP result


async def test_a_question_that_cannot_be_answered_is_an_error_for_the_server(target: Any) -> None:
    async with from_mcp(target, connection=Connection(protocol="2025-11-25")) as operations:
        ops = registry_of(operations)
        with pytest.raises(CallError) as caught:
            await ops.execute("ask", {})
        assert "cannot be asked" in caught.value.message
        assert (await ops.execute("add", {"x": 1, "y": 1})).data == {"sum": 2}


async def test_in_the_newest_era_a_missing_capability_is_reported_as_such(target: Any) -> None:
    async with from_mcp(target, connection=Connection(protocol="2026-07-28")) as operations:
        with pytest.raises(CallError) as caught:
            await registry_of(operations).execute("ask", {})
    assert (caught.value.code, caught.value.details) == (
        "UNAVAILABLE",
        {"reason": "capability", "capability": "elicitation"},
    )


@pytest.mark.parametrize("era", ERAS)
async def test_a_deadline_ends_the_call(target: Any, era: str) -> None:
    async with from_mcp(target, connection=Connection(protocol=era)) as operations:
        ops = registry_of(operations)
        with pytest.raises(CallError) as caught:
            await ops.execute("slow", {}, Context(timeout=0.2))
        assert caught.value.code == "TIMEOUT"
        assert (await ops.execute("add", {"x": 1, "y": 1})).data == {"sum": 2}


@pytest.mark.parametrize("era", ERAS)
async def test_prompts_resources_and_completions_are_reachable(target: Any, era: str) -> None:
    async with from_mcp(target, connection=Connection(protocol=era)) as operations:
        ops = registry_of(operations)
        prompt = await ops.execute("weather", {"city": "Paris"})
        assert [message["content"]["text"] for message in prompt.data] == ["How is the weather in Paris?"]
        assert (await ops.execute("resources.first", {})).data[0]["text"] == "text of note://first"
        by_author = await ops.execute("resources.by_author", {"author": "a b"})
        assert by_author.data[0]["uri"] == "note://by/a%20b"
        assert (await ops.execute("complete_weather", {"argument": "city", "value": "P"})).data == [
            "Paris",
            "Prague",
            "Porto",
        ]


async def test_many_calls_at_once_share_one_connection(target: Any) -> None:
    async with from_mcp(target) as operations:
        ops = registry_of(operations)
        sums = await asyncio.gather(*(ops.execute("add", {"x": number, "y": 1}) for number in range(50)))
    assert [envelope.data["sum"] for envelope in sums] == list(range(1, 51))


@pytest.mark.parametrize("era", ERAS)
async def test_a_restarted_server_gets_a_new_handshake_and_the_call(serve: Serve, era: str) -> None:
    async with serve(sdk_server.make_server().streamable_http_app()) as url:
        source = from_mcp(f"{url}/mcp", connection=Connection(protocol=era))
        ops = registry_of(await source.__aenter__())
        assert (await ops.execute("add", {"x": 1, "y": 1})).data == {"sum": 2}
    with pytest.raises(CallError) as caught:
        await ops.execute("add", {"x": 1, "y": 1})
    assert (caught.value.code, caught.value.retryable) == ("UNAVAILABLE", True)
    async with serve(sdk_server.make_server().streamable_http_app(), int(url.rpartition(":")[2])):
        assert (await ops.execute("add", {"x": 1, "y": 1})).data == {"sum": 2}
        await source.aclose()


async def test_the_oldest_transport_is_found_out_and_spoken(serve: Serve) -> None:
    async with serve(sdk_server.make_event_stream_app()) as url, from_mcp(f"{url}/sse") as operations:
        ops = registry_of(operations)
        assert (await ops.execute("add", {"x": 1, "y": 1})).data == {"sum": 2}


async def test_headers_and_credentials_go_to_the_server_and_to_no_other(serve: Serve) -> None:
    seen: list[dict[bytes, bytes]] = []

    async def elsewhere(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] in ("lifespan", "http")
        if scope["type"] == "http":
            seen.append(dict(scope["headers"]))
            location = b"http://localhost:1/mcp"
            await send({"type": "http.response.start", "status": 307, "headers": [(b"location", location)]})
            await send({"type": "http.response.body", "body": b""})

    async with serve(elsewhere) as url:
        source = from_mcp(f"{url}/mcp", connection=Connection(headers={"X-Team": "blue"}), auth="secret")
        with pytest.raises(CallError, match="redirects to another server"):
            await source.__aenter__()
    assert {(headers[b"x-team"], headers[b"authorization"]) for headers in seen} == {(b"blue", b"Bearer secret")}


async def test_an_http_error_is_reported_with_its_status_and_body(serve: Serve) -> None:
    async def locked(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 401, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"who are you?"})

    async with serve(locked) as url:
        with pytest.raises(CallError) as caught:
            await from_mcp(url).__aenter__()
    assert (caught.value.code, caught.value.message) == ("EXECUTION_ERROR", "HTTP 401: Unauthorized")
    assert (caught.value.details["status"], caught.value.details["body"]) == (401, "who are you?")


async def test_filters_renames_and_policies_shape_the_import(target: Any) -> None:
    async with from_mcp(
        target,
        selection=Selection(
            include=["add", "mis*", "with dots.*"], exclude="misfit", rename={"with dots.and spaces": "find"}
        ),
        rules=Rules(timeout=5),
        content=Content(kinds=("tool",)),
    ) as operations:
        specs = {operation.spec.id: operation.spec for operation in operations}
    assert set(specs) == {"add", "find"}
    assert specs["find"].timeout == 5


async def test_several_servers_get_their_names_as_namespaces_and_one_that_is_down_does_not_stop_the_others() -> None:
    sdk = {"command": sys.executable, "args": [str(HERE / "sdk_server.py")]}
    config = {
        "mcpServers": {"one": sdk, "my two": sdk, "down": {"command": "no-such-program"}, "off": {"disabled": True}}
    }
    async with from_mcp(config, content=Content(kinds=("tool",)), selection=Selection(include="add")) as operations:
        assert operations.report.imported == ["one.add", "my_two.add"]
        assert [problem.where for problem in operations.report.skipped] == ["down"]
