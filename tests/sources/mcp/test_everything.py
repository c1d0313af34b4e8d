"""The reference server of the protocol's authors, consumed over every transport: every tool is called."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import not_run
from tests.waiting import PATIENCE

from enfold import Context, OperationRegistry
from enfold.operations import LogMessage, Progress
from enfold.sources.mcp import Connection, MCPLimits, from_mcp

ROOT = Path(__file__).parents[3]
SCRIPT = Path(
    os.environ.get(
        "SERVER_EVERYTHING", ROOT / ".parts/node_modules/@modelcontextprotocol/server-everything/dist/index.js"
    )
)
# Each tool of this release: what it is given, and what its result must say.
CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "echo": ({"message": "hello"}, "Echo: hello"),
    "get-annotated-message": ({"messageType": "success", "includeImage": True}, "'type': 'image'"),
    "get-env": ({}, "PATH"),
    "get-resource-links": ({"count": 2}, "demo://resource/dynamic/text/2"),
    "get-resource-reference": ({"resourceType": "Text", "resourceId": 1}, "demo://resource/dynamic/text/1"),
    "get-roots-list": ({}, "scratch"),
    "get-structured-content": ({"location": "New York"}, "'temperature': 33"),
    "get-sum": ({"a": 20, "b": 22}, "The sum of 20 and 22 is 42."),
    "get-tiny-image": ({}, "'mimeType': 'image/png'"),
    "gzip-file-as-resource": (
        {"name": "x.gz", "data": "data:text/plain;base64,aGVsbG8=", "outputType": "resource"},
        "H4sIAAAAAAAAA8tIzcnJBwCGphA2BQAAAA==",
    ),
    "simulate-research-query": ({"topic": "tea", "ambiguous": False}, "Research Report: tea"),
    "toggle-simulated-logging": ({}, "Started"),
    "toggle-subscriber-updates": ({}, "Started"),
    "trigger-elicitation-request": ({}, "Name: Ann"),
    "trigger-long-running-operation": ({"duration": 0.2, "steps": 2}, "Steps: 2"),
    "trigger-sampling-request": ({"prompt": "Say yes", "maxTokens": 5}, "Yes."),
    "trigger-url-elicitation": ({"url": "https://example.org/consent"}, "User completed"),
}


async def accept(params: dict[str, Any], context: Context) -> dict[str, Any]:
    return {"action": "accept", "content": {"name": "Ann"}} if params.get("mode") != "url" else {"action": "accept"}


async def sample(params: dict[str, Any], context: Context) -> dict[str, Any]:
    return {"role": "assistant", "content": {"type": "text", "text": "Yes."}, "model": "none"}


async def roots(params: dict[str, Any], context: Context) -> dict[str, Any]:
    return {"roots": [{"uri": "file:///tmp", "name": "scratch"}]}


ANSWERS = {"elicitation/create": accept, "sampling/createMessage": sample, "roots/list": roots}


IS_THERE = SCRIPT.exists()


@pytest.fixture(params=["stdio", "streamableHttp", "sse"])
async def target(request: pytest.FixtureRequest, program: Callable[[str], str]) -> AsyncIterator[Any]:
    if not IS_THERE:
        not_run("@modelcontextprotocol/server-everything")
    node = program("node")
    if request.param == "stdio":
        yield [node, str(SCRIPT)]
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        node,
        str(SCRIPT),
        request.param,
        env={**os.environ, "PORT": str(port)},
        stdout=quiet,
        stderr=quiet,
        start_new_session=True,
    )
    try:
        while not await is_listening(port):  # noqa: ASYNC110  # it does not announce it
            await asyncio.sleep(0.05)
        yield f"http://127.0.0.1:{port}/{'sse' if request.param == 'sse' else 'mcp'}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the program may be a wrapper around the real one
        await process.wait()


async def is_listening(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


async def test_every_tool_is_called_and_gives_its_result(target: Any) -> None:
    heard: list[Progress | LogMessage] = []
    async with from_mcp(
        target, namespace="ev", connection=Connection(answers=ANSWERS, limits=MCPLimits(connect=60))
    ) as operations:
        ops = OperationRegistry()
        ops.register_all(operations)
        tools = {spec.name: spec.id for spec in ops.list(namespace="ev") if spec.meta["mcp"]["kind"] == "tool"}
        assert (set(tools), operations.report.skipped) == (set(CALLS), [])
        results = {
            name: await ops.execute(tools[name], given, Context(notify=heard.append))
            for name, (given, _) in CALLS.items()
        }
    assert {
        name: str(results[name].data) for name, (_, word) in CALLS.items() if word not in str(results[name].data)
    } == {}
    assert [name for name, envelope in results.items() if envelope.is_error or envelope.warnings] == []
    assert Progress(2, 2) in [Progress(each.progress, each.total) for each in heard if isinstance(each, Progress)]


async def test_its_resources_prompts_and_completions_are_reachable(target: Any) -> None:
    async with from_mcp(target, connection=Connection(limits=MCPLimits(connect=60))) as operations:
        ops = OperationRegistry()
        ops.register_all(operations)
        text = await ops.execute("resources.Dynamic_Text_Resource", {"resourceId": "1"})
        prompt = await ops.execute("args-prompt", {"city": "Paris"})
        values = await ops.execute("complete_completable-prompt", {"argument": "department", "value": "E"})
    assert text.data[0]["uri"] == "demo://resource/dynamic/text/1"
    assert "Paris" in prompt.data[0]["content"]["text"]
    assert values.data == ["Engineering"]


async def test_its_news_of_a_resource_arrive(target: Any) -> None:
    uri = "demo://resource/dynamic/text/1"
    async with from_mcp(target, connection=Connection(limits=MCPLimits(connect=60))) as operations:
        ops = OperationRegistry()
        ops.register_all(operations)
        async with asyncio.timeout(PATIENCE), aclosing(ops.subscribe("resources.updates", {"uri": uri})) as changes:
            begun = await anext(changes)
            await ops.execute("toggle-subscriber-updates", {})
            changed = await anext(changes)
    assert (begun.data, changed.data) == ({"uri": uri}, {"uri": uri})
