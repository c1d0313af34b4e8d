"""Definitions of a server are the same directly and through the gateway, except for names."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.conftest import not_run
from tests.gateway.conftest import serve
from tests.gateway.raw_server import ANSWERS

from enfold import Identity
from enfold.app.reconciler import open_config
from enfold.auth.tokens import Tokens
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp
from mcp import Client

ROOT = Path(__file__).parents[2]
NODE = ROOT / ".parts/node_modules"
EVERYTHING = NODE / "@modelcontextprotocol/server-everything/dist/index.js"
LISTS = {
    "tools/list": ("tools", "name"),
    "prompts/list": ("prompts", "name"),
    "resources/list": ("resources", "uri"),
    "resources/templates/list": ("resourceTemplates", "uriTemplate"),
}
SERVERS = {
    "raw": [sys.executable, str(ROOT / "tests/gateway/raw_server.py")],
    "fastmcp": [sys.executable, str(ROOT / "tests/gateway/rich_fastmcp.py")],
    "sdk fixtures": [sys.executable, "-m", "tests.conformance.sdk_server"],
    "sdk": [sys.executable, "-m", "tests.sources.mcp.sdk_server"],
    "enfold": [sys.executable, "-m", "enfold", "mcp", str(ROOT / "examples/mcp_server.py")],
    "everything": ["node", str(EVERYTHING)],
}
HAS_EVERYTHING = EVERYTHING.exists()
CAPABILITIES: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES, "clientInfo": {"name": "test", "version": "1"}}


async def directly(command: list[str]) -> dict[str, Any]:
    """The lists of a server on the standard streams, and its instructions, as they stand on the wire."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=pipe,
        stdout=pipe,
        stderr=asyncio.subprocess.DEVNULL,
        cwd=ROOT,
        limit=2**24,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    async def ask(method: str, params: Any) -> Any:
        stdin.write(json.dumps({"jsonrpc": "2.0", "id": method, "method": method, "params": params}).encode() + b"\n")
        async for line in stdout:
            message = json.loads(line)
            if message.get("id") == method and "method" not in message:
                return message.get("result")
        return None

    async with asyncio.timeout(60):
        hello = await ask("initialize", HELLO)
        stdin.write(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
        found = {"instructions": hello.get("instructions")}
        for method, (field, key) in LISTS.items():
            result = await ask(method, {}) or {}
            found[field] = {each[key]: each for each in result.get(field, [])}
    os.killpg(process.pid, signal.SIGKILL)  # `node` may be a program that starts another
    await process.wait()
    return found


@asynccontextmanager
async def gateway(folder: Path, sources: dict[str, Any], tokens: Tokens | None = None) -> AsyncIterator[str]:
    config = folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": sources}))
    async with open_config(config, {}) as registry:
        app = to_http(registry, tokens=tokens, mounts={"/mcp": to_mcp(registry, tokens=tokens)})
        async with serve(app, app.stop) as url:
            yield url


class Wire:
    """A client of a gateway that reads what stands on the wire."""

    def __init__(self, client: httpx2.AsyncClient, url: str) -> None:
        self._client = client
        self._url = url
        self.headers = {"accept": "application/json, text/event-stream"}

    async def ask(self, method: str, params: Any) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        reply = await self._client.post(f"{self._url}/mcp", json=body, headers=self.headers)
        if "mcp-session-id" in reply.headers:
            self.headers["mcp-session-id"] = reply.headers["mcp-session-id"]
        is_stream = reply.headers["content-type"].startswith("text/event-stream")
        data = [line[5:] for line in reply.text.splitlines() if line.startswith("data:")] if is_stream else [reply.text]
        return json.loads(data[-1]).get("result") or {}


@pytest.mark.parametrize("server", SERVERS)
async def test_definitions_are_equal_but_for_names(server: str, tmp_path: Path, program: Callable[[str], str]) -> None:
    command = SERVERS[server]
    if server == "everything":
        if not HAS_EVERYTHING:
            not_run("@modelcontextprotocol/server-everything")
        command = [program("node"), *command[1:]]
    direct = await directly(command)
    entry = {"command": command[0], "args": command[1:], "cwd": str(ROOT)}
    async with gateway(tmp_path, {"s": entry}) as url, httpx2.AsyncClient(timeout=60) as client:
        wire = Wire(client, url)
        hello = await wire.ask("initialize", HELLO)
        through: dict[str, Any] = {"instructions": hello.get("instructions")}
        for method, (field, key) in LISTS.items():
            through[field] = {each[key]: each for each in (await wire.ask(method, {})).get(field, [])}
    wanted = direct["instructions"]
    assert through["instructions"] == (None if wanted is None else f"## s\n\n{wanted}")
    for field, (listed, key) in ((field, (direct[field], key)) for field, key in LISTS.values()):
        renamed = {_name(own) if key == "name" else own: each for own, each in listed.items()}
        if key == "name":
            renamed = {name: {**each, "name": name} for name, each in renamed.items()}
        assert differences(renamed, through[field]) == []
    assert direct["tools"]


def differences(direct: dict[str, Any], through: dict[str, Any]) -> list[str]:
    """What differs between two lists, in short."""
    found = [f"{name} is only in one of them" for name in direct.keys() ^ through.keys()]
    for name in direct.keys() & through.keys():
        before, after = direct[name], through[name]
        changed = [key for key in before.keys() | after.keys() if before.get(key, "absent") != after.get(key, "absent")]
        found += [f"{name}.{key}: {before.get(key)!r:.200} became {after.get(key)!r:.200}" for key in changed]
    return found


def _name(own: str) -> str:
    return "s_" + "".join(each if each.isalnum() or each in "_-" else "_" for each in own)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("prompts/get", {"name": "s_review", "arguments": {"code": "x"}}),
        ("prompts/get", {"name": "s_bare"}),
        ("resources/read", {"uri": "raw://full"}),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "s_review"}, "argument": {"name": "style", "value": "s"}},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_prompts_resources_and_completions_pass_through_unchanged(
    method: str, params: dict[str, Any], tmp_path: Path
) -> None:
    entry = {"command": SERVERS["raw"][0], "args": SERVERS["raw"][1:]}
    async with gateway(tmp_path, {"s": entry}) as url, httpx2.AsyncClient(timeout=60) as client:
        wire = Wire(client, url)
        await wire.ask("initialize", HELLO)
        assert await wire.ask(method, params) == ANSWERS[method]


async def test_instructions_of_several_servers_are_joined_by_source(tmp_path: Path) -> None:
    command, args = SERVERS["raw"][0], SERVERS["raw"][1:]
    entry = {"command": command, "args": args}
    sources = {
        "one": entry,
        "two": {**entry, "instructions": "My own words."},
        "three": {**entry, "instructions": False},
        "hidden": {**entry, "access": {"required_scopes": ["admin"]}},
    }
    tokens = Tokens({"secret-token-of-ann": Identity("ann")})
    async with gateway(tmp_path, sources, tokens) as url, httpx2.AsyncClient(timeout=60) as client:
        wire = Wire(client, url)
        wire.headers["authorization"] = "Bearer secret-token-of-ann"
        told = (await wire.ask("initialize", HELLO))["instructions"]
    assert told == "## one\n\nUse raw tools with care.\n\n## two\n\nMy own words."


async def test_long_instructions_are_cut_to_the_limit(tmp_path: Path) -> None:
    entry = {"command": SERVERS["raw"][0], "args": SERVERS["raw"][1:], "instructions": "x" * 9000}
    async with gateway(tmp_path, {"one": entry, "two": entry}) as url, httpx2.AsyncClient(timeout=60) as client:
        told = (await Wire(client, url).ask("initialize", HELLO))["instructions"]
    assert (len(told) <= 8002, told.count("…"), "## two" in told) == (True, 2, True)


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
async def test_a_log_message_outside_of_a_call_reaches_the_clients_that_set_a_level(tmp_path: Path) -> None:
    heard: dict[str, list[Any]] = {"warning": [], "error": [], "unset": []}
    is_heard = asyncio.Event()

    def listener(name: str) -> Any:
        async def hear(params: Any) -> None:
            heard[name].append(params.data)
            if params.data == {"about": "outside"}:
                is_heard.set()

        return hear

    entry = {"command": SERVERS["raw"][0], "args": SERVERS["raw"][1:]}
    async with (
        gateway(tmp_path, {"s": entry}) as url,
        Client(f"{url}/mcp", mode="legacy", logging_callback=listener("warning")) as warned,
        Client(f"{url}/mcp", mode="legacy", logging_callback=listener("error")) as quiet,
        Client(f"{url}/mcp", mode="legacy", logging_callback=listener("unset")),
    ):
        await warned.set_logging_level("warning")
        await quiet.set_logging_level("error")
        async with asyncio.timeout(30), httpx2.AsyncClient() as client:
            while not is_heard.is_set():  # until the client has opened its stream
                await client.post(f"{url}/functions/s.shout", json={})
                with suppress(TimeoutError):
                    await asyncio.wait_for(is_heard.wait(), 2)
    assert {str(data) for data in heard["warning"]} == {str({"about": "outside"})}
    assert (heard["error"], heard["unset"]) == ([], [])
