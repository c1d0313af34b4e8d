"""Clients of other projects list and call the operations of the example: over both transports, with and without a handshake."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias

import fastmcp
import pytest
from fastmcp.client.transports import StdioTransport

import mcp
from mcp import StdioServerParameters, types

ROOT = Path(__file__).parents[3]
EXAMPLE = str(ROOT / "examples/mcp_server.py")

Transport: TypeAlias = Literal["stdio", "http"]
Mode: TypeAlias = Literal["legacy", "auto", "2026-07-28"]
Inspector: TypeAlias = Callable[..., Any]

TRANSPORTS = pytest.mark.parametrize("transport", ["stdio", "http"])
# The revision a client is configured with, and the one it then uses; `auto` negotiates.
MODES = pytest.mark.parametrize(
    ("mode", "spoken"), [("legacy", "2025-11-25"), ("2026-07-28", "2026-07-28"), ("auto", "2026-07-28")]
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address at which `enfold serve` gives the example over HTTP."""
    words = [sys.executable, "-m", "enfold", "serve", EXAMPLE, "--port", "0"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        found = next(match for line in server.stderr if (match := re.search(r"http://\S+/mcp", line)))
        try:
            yield found[0]
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)


# --- the SDK ------------------------------------------------------------------------------------------------------


async def accept(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"sure": False})


@TRANSPORTS
@MODES
async def test_the_client_of_the_sdk_lists_calls_reads_and_is_asked(
    url: str, transport: Transport, mode: Mode, spoken: str
) -> None:
    target: Any = StdioServerParameters(command=sys.executable, args=[EXAMPLE]) if transport == "stdio" else url
    async with mcp.Client(target, mode=mode, elicitation_callback=accept) as client:
        assert client.protocol_version == spoken
        assert [tool.name for tool in (await client.list_tools()).tools] == ["shop_stock", "shop_clear"]
        stock = await client.call_tool("shop_stock", {"fruit": "apple"})
        asked = await client.call_tool("shop_clear", {})
        (contents,) = (await client.read_resource("shop://fruit/apple")).contents
        prompt = await client.get_prompt("shop_recipe", {"name": "apple"})
    assert (stock.structured_content, asked.structured_content) == ({"result": 3}, {"result": "Nothing happened"})
    assert isinstance(contents, types.TextResourceContents)
    assert json.loads(contents.text) == {"name": "apple", "stock": 3}
    assert prompt.messages[0].content == types.TextContent(text="Write a recipe for apple cake.")


@MODES
async def test_the_client_of_the_sdk_gets_a_refusal_as_a_result(url: str, mode: Mode, spoken: str) -> None:
    async with mcp.Client(url, mode=mode) as client:
        result = await client.call_tool("shop_stock", {"fruit": 7})
    (block,) = result.content
    assert (result.is_error, isinstance(block, types.TextContent) and "fruit" in block.text) == (True, True)


# --- FastMCP ------------------------------------------------------------------------------------------------------


async def refuse(message: str, response_type: Any, params: Any, context: Any) -> Any:
    return fastmcp.client.elicitation.ElicitResult(action="decline")


@TRANSPORTS
@MODES
async def test_the_client_of_fastmcp_lists_calls_and_is_asked(
    url: str, transport: Transport, mode: Mode, spoken: str
) -> None:
    target: Any = StdioTransport(sys.executable, [EXAMPLE], keep_alive=False) if transport == "stdio" else url
    async with fastmcp.Client(target, mode=mode, elicitation_handler=refuse) as client:
        assert [tool.name for tool in await client.list_tools()] == ["shop_stock", "shop_clear"]
        stock = await client.call_tool("shop_stock", {"fruit": "apple"})
        asked = await client.call_tool("shop_clear", {})
        (contents,) = await client.read_resource("shop://fruit/apple")
    assert (stock.structured_content, asked.structured_content) == ({"result": 3}, {"result": "Nothing happened"})
    assert isinstance(contents, types.TextResourceContents)
    assert json.loads(contents.text) == {"name": "apple", "stock": 3}


# --- the inspector ------------------------------------------------------------------------------------------------


@pytest.fixture
def inspector(program: Callable[[str], str], tmp_path: Path) -> Inspector:
    """Run the inspector on a method; its words on stderr, and what it read."""
    node, inspect = Path(program("node")), program("mcp-inspector")
    # It keeps its records below HOME.
    environment = {**os.environ, "PATH": f"{node.parent}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path)}

    def run(*words: str) -> tuple[int, Any, str]:
        command = [inspect, "--cli", *words, "-q", "--format", "json"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        result = None
        with suppress(ValueError):
            result = json.loads(done.stdout)["result"]
        return done.returncode, result, done.stderr

    return run


def inspected(transport: Transport, url: str) -> list[str]:
    return [sys.executable, EXAMPLE] if transport == "stdio" else [url, "--transport", "http"]


@TRANSPORTS
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_inspector_finds_no_schema_that_some_client_would_refuse(
    inspector: Inspector, url: str, transport: Transport, era: str
) -> None:
    words = ["--protocol-era", era, "--method", "tools/list", "--strict"]
    code, result, told = inspector(*inspected(transport, url), *words)
    assert (code, told) == (0, "")
    assert [tool["name"] for tool in result["tools"]] == ["shop_stock", "shop_clear"]


@TRANSPORTS
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_inspector_calls(inspector: Inspector, url: str, transport: Transport, era: str) -> None:
    words = ["--protocol-era", era, "--method", "tools/call", "--tool-name", "shop_stock"]
    code, result, told = inspector(*inspected(transport, url), *words, "--tool-args-json", '{"fruit": "apple"}')
    assert (code, told, result["structuredContent"]) == (0, "", {"result": 3})


def test_the_inspector_reports_real_faults(inspector: Inspector, tmp_path: Path) -> None:
    """Its silence above means something."""
    program = tmp_path / "odd.py"
    program.write_text(
        "from enfold import OperationRegistry\n"
        "from enfold.operations import Operation, OperationSpec\n"
        "from enfold.surfaces.mcp import serve_stdio\n"
        "async def odd(input, context): return 1\n"
        "schema = {'type': 'object', 'properties': {'x': True}}\n"
        "ops = OperationRegistry()\n"
        "ops.register(Operation(OperationSpec(name='odd', input_schema=schema), odd))\n"
        "serve_stdio(ops)\n"
    )
    code, _, told = inspector(sys.executable, str(program), "--method", "tools/list", "--strict")
    assert (code, "odd" in told) == (6, True)
