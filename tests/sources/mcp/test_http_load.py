"""Servers over HTTP whose answers are large, whose lists have no end, and who have many clients at once."""

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from enfold import CallError, Context, OperationRegistry
from enfold.sources.mcp import Connection, Content, MCPLimits, MCPOperations, from_mcp
from enfold.surfaces.mcp import to_mcp

Serve = Callable[..., AbstractAsyncContextManager[str]]

REVISIONS = pytest.mark.parametrize("protocol", ["2025-11-25", "2026-07-28"])


def registry_of(operations: MCPOperations) -> OperationRegistry:
    ops = OperationRegistry()
    ops.register_all(operations)
    return ops


@pytest.fixture
def big() -> OperationRegistry:
    """What the servers here serve."""
    ops = OperationRegistry()

    @ops.query
    async def words(size: int) -> str:
        return "x" * size

    @ops.query
    async def hang(context: Context) -> None:
        context.progress(1)
        await asyncio.Event().wait()

    return ops


@asynccontextmanager
async def serving(serve: Serve, ops: OperationRegistry) -> AsyncIterator[str]:
    app = to_mcp(ops)
    async with serve(app) as url:
        yield url
        app.stop()


@REVISIONS
async def test_a_result_of_twenty_megabytes_arrives_whole(serve: Serve, big: OperationRegistry, protocol: str) -> None:
    async with (
        serving(serve, big) as url,
        from_mcp(url, connection=Connection(protocol=protocol), content=Content(reads="result")) as operations,
    ):
        envelope = await registry_of(operations).execute("words", {"size": 20_000_000})
    assert len(envelope.data) == 20_000_000


@REVISIONS
async def test_a_hundred_clients_open_and_close_in_any_order(
    serve: Serve, big: OperationRegistry, protocol: str
) -> None:
    """Some leave in the middle of a call; in the end neither side has a task or a connection left."""
    chance = random.Random(7)  # noqa: S311  # the same at every run
    gate = asyncio.Semaphore(16)

    async def one(url: str) -> str:
        async with gate:
            source = from_mcp(url, connection=Connection(protocol=protocol), content=Content(reads="result"))
            ops = registry_of(await source.__aenter__())
            tool, given = chance.choice([("words", {"size": 3}), ("hang", {})])
            call = asyncio.create_task(ops.execute(tool, given, Context(timeout=0.2)))
            await asyncio.sleep(chance.random() * 0.05)
            await asyncio.create_task(source.aclose())
            try:
                return str((await call).data)
            except CallError as error:
                return error.code

    before = open_files()
    async with serving(serve, big) as url:
        outcomes = await asyncio.gather(*(one(url) for _ in range(100)))
    assert set(outcomes) <= {"xxx", "UNAVAILABLE", "TIMEOUT"}
    assert "xxx" in outcomes
    assert open_files() <= before


def open_files() -> int:
    """How many files and connections this process has open; none where there is no /proc."""
    place = Path(f"/proc/{os.getpid()}/fd")
    return len(list(place.iterdir())) if place.exists() else 0


class Endless:
    """A server of the newest revision whose list of tools always has another page."""

    def __init__(self) -> None:
        self.pages = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        message = json.loads((await receive())["body"])
        result: dict[str, Any] = {"resultType": "complete"}
        if message["method"] == "server/discover":
            result |= {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
        elif message["method"] == "tools/list":
            self.pages += 1
            tool = {"name": f"tool{self.pages}", "inputSchema": {"type": "object"}}
            result |= {"tools": [tool], "nextCursor": str(self.pages)}
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def test_a_list_without_an_end_is_read_as_far_as_we_are_willing_to(serve: Serve) -> None:
    server = Endless()
    async with serve(server) as url, from_mcp(url, connection=Connection(limits=MCPLimits(pages=5))) as operations:
        assert operations.report.imported == [f"tool{number}" for number in range(1, 6)]
    assert server.pages == 5
