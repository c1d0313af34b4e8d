"""Clients and servers of other projects that support tasks: FastMCP, and the inspector (checks 4, 5 and 6)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.tasks.fastmcp_server import INTERVAL
from tests.waiting import until

from enfold import CallError, Context, OperationRegistry
from enfold.sources.mcp import Connection, from_mcp

HERE = Path(__file__).parent
APP = """
import asyncio
from enfold import CallError, Context, OperationRegistry
ops = OperationRegistry("shop")
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}

@ops.mutation(durable=True)
async def report(year: int) -> dict[str, int]:
    if year < 0:
        raise CallError("SOLD_OUT", "No such year")
    if year == 9999:
        await asyncio.Event().wait()
    return {"year": year}

@ops.mutation(durable="required")
async def archive(year: int) -> str:
    return f"archived {year}"

@ops.mutation(durable="required")
async def sign(context: Context) -> str:
    return str((await context.ask("Who signs?", FORM)).content["name"])
"""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Where `enfold serve` gives the app over MCP."""
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    words = [sys.executable, "-m", "enfold", "serve", "app.py", "--port", "0"]
    with subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        found = next(match for line in server.stderr if (match := re.search(r"http://\S+/mcp", line)))
        try:
            yield found[0]
        finally:
            server.terminate()
            server.wait(30)


def test_the_client_of_fastmcp_calls_waits_cancels_answers_and_gets_failures(url: str) -> None:
    words = [sys.executable, str(HERE / "fastmcp_client.py"), url]
    done = subprocess.run(words, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "call": {"result": {"year": 2026}},
        "handle": [32, {"result": {"year": 7}}],
        "cancel": "cancelled",
        "question": {"result": "Ann"},
        "failure": [True, '{"error":"No such year"}'],
    }


@pytest.mark.parametrize(("tool", "result"), [("shop_report", {"year": 7}), ("shop_archive", "archived 7")])
def test_the_inspector_calls_what_may_and_what_must_be_a_task(
    program: Callable[[str], str], tmp_path: Path, url: str, tool: str, result: Any
) -> None:
    node, inspect = Path(program("node")), program("mcp-inspector")
    environment = {**os.environ, "PATH": f"{node.parent}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path)}
    words = [inspect, "--cli", url, "--transport", "http", "--protocol-era", "modern", "--method", "tools/call"]
    words += ["--tool-name", tool, "--tool-args-json", '{"year": 7}', "-q", "--format", "json"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["result"]["structuredContent"] == {"result": result}


# --- a server of FastMCP ------------------------------------------------------------------------------------------


class Heard:
    """What a server was sent, method by method, and when."""

    def __init__(self, lines: asyncio.StreamReader) -> None:
        self._lines = lines
        self.methods: list[tuple[str, float]] = []

    async def listen(self) -> None:
        async for line in self._lines:
            self.methods.append(tuple(json.loads(line)))

    def times(self, method: str) -> list[float]:
        return [at for each, at in self.methods if each == method]


async def answer(params: dict[str, Any], context: Context) -> dict[str, Any]:
    return {"action": "accept", "content": {"name": "Ann"}}


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[OperationRegistry, Heard]]:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(HERE / "fastmcp_server.py"), str(port), stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    heard, registry = Heard(process.stdout), OperationRegistry()
    listening = asyncio.create_task(heard.listen())
    try:
        await _until_it_listens(port)
        place = f"http://127.0.0.1:{port}/mcp"
        async with from_mcp(
            place, connection=Connection(protocol="2026-07-28", answers={"elicitation/create": answer})
        ) as operations:
            registry.register_all(operations)
            yield registry, heard
    finally:
        process.terminate()
        await process.wait()
        await listening


async def _until_it_listens(port: int) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            return


async def test_tasks_of_fastmcp_are_driven_to_their_result_question_failure_and_end() -> None:
    async with opened() as (registry, heard):
        assert (await registry.execute("slow", {"seconds": 8 * INTERVAL})).text() == "done"
        asked = heard.times("tasks/get")
        waits = [after - before for before, after in pairwise(asked)]
        assert statistics.median(waits) == pytest.approx(INTERVAL, rel=0.2)  # as often as the server says
        assert (await registry.execute("sign", {})).text() == "signed by Ann"
        failed = await registry.execute("failing", {})
        assert (failed.is_error, "No such year" in failed.text()) == (True, True)
        with pytest.raises(CallError) as late:
            await registry.execute("slow", {"seconds": 3600}, Context(timeout=1))
        assert late.value.code == "TIMEOUT"
        await until(lambda: heard.times("tasks/cancel"))
