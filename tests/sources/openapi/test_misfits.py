"""Over MCP, a result with wrong details is a success with warnings; only one with a wrong root is an error."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import parse_qs

import jsonschema_rs
import pytest
from tests.formats.surfaces import Call, Seen, in_the_shell, over_cgi, over_http
from tests.gateway.conftest import serve as serve_app
from tests.surfaces.mcp.conftest import HANDSHAKE, STATELESS, Client

import mcp
from enfold import OperationRegistry
from enfold.app.reconciler import open_config
from enfold.calls.memory import MemoryTransport
from enfold.sources.calls import from_calls
from enfold.sources.openapi import from_openapi
from enfold.surfaces.calls import serve_calls
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp
from enfold.surfaces.mcp.catalog import Catalog
from enfold.tasks import Tasks
from enfold.tasks.memory import MemoryTasks
from mcp import StdioServerParameters

if TYPE_CHECKING:
    from tests.sources.openapi.conftest import Connect, Received, Serve, Words

FILE: dict[str, Any] = {
    "type": "object",
    "required": ["name", "writable", "kind", "made"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]+$"},
        "writable": {"type": "boolean"},
        "kind": {"type": "string", "enum": ["file", "folder"]},
        "made": {"type": "string", "format": "date-time"},
        "size": {"type": "integer", "minimum": 0},
        "owner": {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}},
        "parts": {"type": "array", "items": {"type": "integer"}},
    },
}
GOOD: dict[str, Any] = {"name": "a", "writable": True, "kind": "file", "made": "2026-01-01T00:00:00Z"}
MISFITS: dict[str, dict[str, Any]] = {
    "null for what is required": {**GOOD, "writable": None},
    "missing": {key: value for key, value in GOOD.items() if key != "made"},
    "a new member of an enum": {**GOOD, "kind": "notebook"},
    "another pattern": {**GOOD, "name": "A1"},
    "below a bound": {**GOOD, "size": -1},
    "another type": {**GOOD, "size": "large"},
    "half a number": {**GOOD, "size": 1.5},
    "an empty list for an object": {**GOOD, "owner": []},
    "an object for a list": {**GOOD, "parts": {"0": 1}},
    "inside": {**GOOD, "owner": {"id": None}},
    "in a list": {**GOOD, "parts": [1, None, "x"]},
    "a field that a closed schema does not have": {**GOOD, "more": 1},
}


async def called(serve: Serve, connect: Connect, http: Words, answer: Any, schema: dict[str, Any]) -> tuple[Any, Any]:
    """The envelope of an answer, and the tool that gave it as MCP clients see it."""
    server = await serve(lambda _: http.reply(answer))
    document = http.document({"responses": http.json_response(schema)}, method="put")
    registry = connect(document, base_url=server.url)
    assert registry.get_spec("x").output_schema == schema
    return await registry.execute("x", {}), Catalog(registry, "result", "safe").tool("x")


@pytest.mark.parametrize("answer", MISFITS.values(), ids=MISFITS)
@pytest.mark.parametrize("nested", [False, True])
async def test_details_that_misfit_are_a_success_with_warnings(
    serve: Serve, connect: Connect, http: Words, answer: dict[str, Any], nested: bool
) -> None:
    schema = {"type": "array", "items": FILE} if nested else FILE
    envelope, tool = await called(serve, connect, http, [answer] if nested else answer, schema)
    assert not envelope.is_error
    assert envelope.warnings
    jsonschema_rs.validator_for(tool.output_schema).validate({"result": envelope.data})


@pytest.mark.parametrize("answer", [None, [], "text", 1, {"error": "x"}], ids=str)
async def test_a_root_that_misfits_is_an_error(serve: Serve, connect: Connect, http: Words, answer: Any) -> None:
    envelope, _ = await called(serve, connect, http, answer, FILE)
    assert envelope.is_error


# --- real clients -------------------------------------------------------------------------------------------------

Era: TypeAlias = Literal["legacy", "2026-07-28"]
Open: TypeAlias = Callable[[], AbstractAsyncContextManager[mcp.Client]]

ROOTS: dict[str, Any] = {"null": None, "a list": [GOOD], "text": "ok", "another object": {"error": "no"}}


def answers_of(http: Words) -> dict[str, bytes]:
    """What the service answers, by the case that is asked for; each answer ends its connection."""
    headers = {"Connection": "close", "ETag": '"7"'}
    replies = {name: http.reply(answer, headers=headers) for name, answer in {**MISFITS, **ROOTS}.items()}
    replies["a number beyond all ranges"] = http.reply(
        json.dumps({**GOOD, "size": 0}).replace("0}", "1e400}").encode(), headers=headers
    )
    empty = {"nothing": "204 No Content", "not modified": "304 Not Modified"}
    return replies | {
        name: http.reply(status=status, content_type=None, headers=headers) for name, status in empty.items()
    }


def document_at(url: str) -> dict[str, Any]:
    case = {"name": "case", "in": "query", "required": True, "schema": {"type": "string"}}
    ok = {"description": "ok"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "t", "version": "1"},
        "servers": [{"url": url}],
        "paths": {
            "/files": {
                "put": {
                    "operationId": "save",
                    "parameters": [case],
                    "responses": {"200": {**ok, "content": {"application/json": {"schema": FILE}}}},
                }
            },
            "/events": {
                "get": {
                    "operationId": "events",
                    "responses": {"200": {**ok, "content": {"text/event-stream": {"itemSchema": FILE}}}},
                }
            },
        },
    }


@pytest.fixture
async def upstream(serve: Serve, http: Words) -> str:
    """The address of a service whose answers differ from its document."""
    replies = answers_of(http)
    events = "".join(f"data: {json.dumps(each)}\n\n" for each in (GOOD, *MISFITS.values(), "ping"))

    def answer(received: Received) -> bytes:
        if received.path == "/events":
            return http.reply(events.encode(), content_type="text/event-stream")
        return replies[parse_qs(received.query)["case"][0]]

    return (await serve(answer)).url


@pytest.fixture(params=["a document", "a configuration"])
def target(request: pytest.FixtureRequest, upstream: str, tmp_path: Path) -> Path:
    """What is served: the document itself, or a gateway with the document as one of its sources."""
    document, config = tmp_path / "files.json", tmp_path / "enfold.toml"
    document.write_text(json.dumps(document_at(upstream)))
    config.write_text(f'[sources.disk]\nopenapi = "{document.name}"\n')
    return document if request.param == "a document" else config


@asynccontextmanager
async def served(target: Path) -> AsyncIterator[str]:
    """The address of the MCP endpoint of a target."""
    if target.suffix == ".toml":
        async with open_config(target, {}) as registry, serve_mcp(registry) as url:
            yield url
    else:
        async with from_openapi(target) as imported:
            own = OperationRegistry()
            own.register_all(imported)
            async with serve_mcp(own) as url:
                yield url


@asynccontextmanager
async def serve_mcp(registry: Any) -> AsyncIterator[str]:
    app = to_http(registry, mounts={"/mcp": to_mcp(registry)})
    async with serve_app(app, app.stop) as url:
        yield f"{url}/mcp"


@pytest.fixture(params=["stdio", "http"])
def connected(request: pytest.FixtureRequest, target: Path, era: Era) -> Open:
    """The client of the SDK, which checks structured content against the schema that it was shown."""

    @asynccontextmanager
    async def over_stdio() -> AsyncIterator[mcp.Client]:
        words = ["-m", "enfold", "mcp", str(target)]
        async with mcp.Client(StdioServerParameters(command=sys.executable, args=words), mode=era) as client:
            yield client

    @asynccontextmanager
    async def over_http() -> AsyncIterator[mcp.Client]:
        async with served(target) as url, mcp.Client(url, mode=era) as client:
            yield client

    return over_stdio if request.param == "stdio" else over_http


@pytest.fixture(params=["legacy", "2026-07-28"])
def era(request: pytest.FixtureRequest) -> Any:
    return request.param


async def tools_by_name(client: mcp.Client) -> dict[str, Any]:
    """The listed tools by the last word of their names."""
    return {tool.name.rpartition("_")[2]: tool for tool in (await client.list_tools()).tools}


async def test_an_mcp_client_is_given_every_answer_whose_root_fits(connected: Open) -> None:
    async with connected() as client:
        save = (await tools_by_name(client))["save"]
        results = {case: await client.call_tool(save.name, {"case": case}) for case in MISFITS}
    assert {case for case, result in results.items() if result.is_error} == set()
    for case, result in results.items():
        jsonschema_rs.validate(save.output_schema, result.structured_content)
        assert result.structured_content is not None
        assert set(result.structured_content["result"]) >= set(MISFITS[case]) - {"more"}
        assert (result.meta or {})["enfold/warnings"]


async def test_an_mcp_client_is_given_a_number_beyond_all_ranges_as_text(connected: Open) -> None:
    async with connected() as client:
        save = (await tools_by_name(client))["save"]
        result = await client.call_tool(save.name, {"case": "a number beyond all ranges"})
    assert (result.is_error, result.structured_content) == (False, {"result": {**GOOD, "size": "1e400"}})
    assert (result.meta or {})["enfold/warnings"][0]["code"] == "large_number"


async def test_an_mcp_client_gets_an_error_for_a_root_of_another_type(connected: Open) -> None:
    async with connected() as client:
        save = (await tools_by_name(client))["save"]
        results = {case: await client.call_tool(save.name, {"case": case}) for case in ROOTS}
    found = {case: (result.is_error, result.structured_content) for case, result in results.items()}
    assert found == dict.fromkeys(ROOTS, (True, None))


async def test_an_mcp_client_is_given_an_answer_without_content(connected: Open) -> None:
    async with connected() as client:
        save = (await tools_by_name(client))["save"]
        results = [await client.call_tool(save.name, {"case": case}) for case in ("nothing", "not modified")]
    assert [(each.is_error, each.structured_content) for each in results] == [(False, {"result": None})] * 2
    assert not any("enfold/warnings" in (each.meta or {}) for each in results)


async def test_an_mcp_client_is_given_every_event_of_a_stream(connected: Open) -> None:
    async with connected() as client:
        events = (await tools_by_name(client))["events"]
        result = await client.call_tool(events.name, {})
    assert not result.is_error
    jsonschema_rs.validate(events.output_schema, result.structured_content)
    assert result.structured_content is not None
    assert len(result.structured_content["result"]) == len(MISFITS) + 2


# --- every other way out ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", [HANDSHAKE, STATELESS])
@pytest.mark.parametrize("case", MISFITS)
async def test_the_fields_that_are_selected_by_default_are_a_success(
    connect: Connect, upstream: str, revision: str, case: str
) -> None:
    registry = connect(document_at(upstream), select="name,kind,owner(id)")
    client = Client(to_mcp(registry), revision)
    tool = next(each for each in (await client.result("tools/list"))["tools"] if each["name"] == "save")
    result = await client.call("save", {"case": case})
    assert result["isError"] is False
    jsonschema_rs.validate(tool["outputSchema"], result["structuredContent"])


@pytest.mark.parametrize("case", MISFITS)
async def test_a_shortened_answer_is_a_success(connect: Connect, upstream: str, case: str) -> None:
    client = Client(to_mcp(connect(document_at(upstream)), max_result_tokens=5), STATELESS)
    tool = next(each for each in (await client.result("tools/list"))["tools"] if each["name"] == "save")
    result = await client.call("save", {"case": case})
    assert result["isError"] is False
    jsonschema_rs.validate(tool["outputSchema"], result["structuredContent"])


@pytest.mark.parametrize("case", MISFITS)
async def test_a_task_ends_with_the_same_success(upstream: str, tmp_path: Path, case: str) -> None:
    document, config = tmp_path / "files.json", tmp_path / "enfold.toml"
    document.write_text(json.dumps(document_at(upstream)))
    config.write_text('[sources.disk]\nopenapi = "files.json"\ndurable = "save"\n')
    async with open_config(config, {}) as registry, Tasks(registry, MemoryTasks()) as tasks:
        client = Client(to_mcp(registry, tasks=tasks), STATELESS)
        client.capabilities = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
        started = await client.call("disk_save", {"case": case})
        await (await tasks.get(started["taskId"])).result()
        ended = (await client.result("tasks/get", {"taskId": started["taskId"]}))["result"]
    assert ended["isError"] is False
    assert ended["structuredContent"]["result"]
    assert ended["_meta"]["enfold/warnings"]


SURFACES: tuple[Call, ...] = (over_http, over_cgi, in_the_shell)


@pytest.mark.parametrize("case", ["nothing", "not modified"])
async def test_an_answer_without_content_is_a_success_with_its_headers(upstream: str, case: str) -> None:
    def call(surface: Call) -> Seen:
        registry = OperationRegistry()
        registry.register_all(from_openapi(document_at(upstream)))
        return surface(registry, "save", "envelope", {"case": case})

    seen = [await asyncio.to_thread(call, each) for each in SURFACES]
    assert [each.status for each in seen] == [200, 200, 0]
    assert [(each.body["data"], each.body["meta"]["headers"]["etag"]) for each in seen] == [(None, '"7"')] * 3
    assert not any("enfold-warnings" in each.headers for each in seen)
    assert "root_mismatch" not in seen[2].messages


@pytest.mark.parametrize("case", MISFITS)
async def test_http_cgi_and_the_command_line_give_the_same_success(upstream: str, case: str) -> None:
    def call(surface: Call) -> Seen:
        registry = OperationRegistry()
        registry.register_all(from_openapi(document_at(upstream)))
        return surface(registry, "save", "result", {"case": case})

    http, cgi, shell = [await asyncio.to_thread(call, each) for each in SURFACES]
    assert (http.status, cgi.status, shell.status) == (200, 200, 0)
    assert set(http.body["result"]) >= set(MISFITS[case]) - {"more"}
    assert http.body == cgi.body
    assert http.headers["enfold-warnings"] == cgi.headers["enfold-warnings"]
    assert shell.messages


async def test_an_operation_that_was_found_by_a_search_gives_the_same_success(connect: Connect, upstream: str) -> None:
    client = Client(to_mcp(connect(document_at(upstream)), expose="search"), STATELESS)
    arguments = [{"id": "save", "arguments": {"case": case}, "select": "name"} for case in MISFITS]
    results = [await client.call("call_operation", each) for each in arguments]
    assert [(each["isError"], bool(each["_meta"]["enfold/warnings"])) for each in results] == [(False, True)] * len(
        MISFITS
    )


async def test_a_call_of_another_process_is_the_same_success(connect: Connect, upstream: str) -> None:
    bus = MemoryTransport("worker")
    async with serve_calls(connect(document_at(upstream)), bus), from_calls(bus.join("caller")) as operations:
        registry = OperationRegistry()
        registry.register_all(operations)
        client = Client(to_mcp(registry), STATELESS)
        results = {case: await client.call("save", {"case": case}) for case in MISFITS}
    assert {case for case, result in results.items() if result["isError"]} == set()
