"""A server on the standard streams is one process for all callers, whatever their clients can be asked."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import fastmcp
import httpx2
import pytest
from tests.gateway.conftest import ERAS, serve
from tests.waiting import PATIENCE, until

from enfold import CallError
from enfold.app.file import read_config
from enfold.app.reconciler import open_config
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp
from mcp import Client, types

SERVER = str(Path(__file__).parent / "counter_server.py")
KINDS = pytest.mark.parametrize("kind", ["fastmcp", "sdk", "plain"])


@asynccontextmanager
async def counter(folder: Path, kind: str, **entry: Any) -> AsyncIterator[str]:
    """The address of a gateway before a counter."""
    config = folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"c": {"command": sys.executable, "args": [SERVER, kind], **entry}}}))
    async with open_config(config, {}) as registry:
        app = to_http(registry, mounts={"/mcp": to_mcp(registry)})
        async with serve(app, app.stop) as url:
            yield url


async def accept(context: Any, params: Any) -> types.ElicitResult:
    del context, params
    return types.ElicitResult(action="accept", content={"sure": True})


async def decline(context: Any, params: Any) -> types.ElicitResult:
    del context, params
    return types.ElicitResult(action="decline")


async def text(client: Client, tool: str) -> str:
    result = await client.call_tool(tool, {})
    assert isinstance(result.content[0], types.TextContent)
    return result.content[0].text


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def number(words: str) -> int:
    return int("".join(each for each in words if each.isdigit()))


@KINDS
async def test_all_clients_read_the_same_state(kind: str, tmp_path: Path) -> None:
    async with counter(tmp_path, kind) as url, AsyncExitStack() as clients:
        modes: list[Any] = ERAS
        plain = [await clients.enter_async_context(Client(f"{url}/mcp", mode=mode)) for mode in modes]
        asked = [
            await clients.enter_async_context(Client(f"{url}/mcp", mode=mode, elicitation_callback=accept))
            for mode in modes
        ]
        for client in (*plain, *asked):
            await client.call_tool("c_add", {})
        assert [number(await text(client, "c_read")) for client in (*plain, *asked)] == [4] * 4
        async with fastmcp.Client(f"{url}/mcp", elicitation_handler=_fill_in) as third, httpx2.AsyncClient() as http:
            assert number(str((await third.call_tool("c_add", {})).content)) % 10 == 5
            assert "5" in (await http.post(f"{url}/functions/c.read", json={})).text


async def _fill_in(message: str, response_type: Any, params: Any, context: Any) -> Any:
    del message, params, context
    return response_type(sure=True)


@KINDS
@pytest.mark.parametrize("mode", ERAS)
async def test_each_client_answers_its_own_question_on_the_one_connection(kind: str, mode: Any, tmp_path: Path) -> None:
    async with (
        counter(tmp_path, kind) as url,
        Client(f"{url}/mcp", mode=mode, elicitation_callback=accept) as ann,
        Client(f"{url}/mcp", mode=mode, elicitation_callback=decline) as bob,
        Client(f"{url}/mcp", mode=mode) as cat,
        httpx2.AsyncClient(timeout=60) as http,
    ):
        asked = asyncio.gather(*(text(client, "c_confirm") for client in (ann, bob, ann, bob)))
        unasked = asyncio.create_task(cat.call_tool("c_confirm", {}))
        over_http = await http.post(f"{url}/functions/c.confirm", json={})
        assert list(await asked) == ["accept", "decline", "accept", "decline"]
        assert "accept" not in str(await unasked)
        assert "accept" not in over_http.text
        assert number(await text(ann, "c_add")) == number(await text(cat, "c_read")) == 1


@KINDS
@pytest.mark.parametrize("mode", ERAS)
async def test_a_tool_that_appears_for_one_client_appears_for_all(kind: str, mode: Any, tmp_path: Path) -> None:
    async with (
        counter(tmp_path, kind) as url,
        Client(f"{url}/mcp", mode=mode, elicitation_callback=accept) as ann,
        Client(f"{url}/mcp", mode=mode) as bob,
    ):
        await ann.call_tool("c_grow", {})
        async with asyncio.timeout(PATIENCE):
            for client in (ann, bob):
                while "c_new" not in [tool.name for tool in (await client.list_tools()).tools]:  # noqa: ASYNC110  # a poll
                    await asyncio.sleep(0.05)


async def test_a_source_may_have_a_process_for_each_session(tmp_path: Path) -> None:
    async with (
        counter(tmp_path, "fastmcp", per="session") as url,
        Client(f"{url}/mcp", mode="legacy", elicitation_callback=accept) as ann,
        Client(f"{url}/mcp", mode="legacy", elicitation_callback=decline) as bob,
        Client(f"{url}/mcp", mode="2026-07-28") as cat,
    ):
        await asyncio.gather(*(ann.call_tool("c_add", {}) for _ in range(3)))
        assert [number(await text(client, "c_read")) for client in (ann, bob, cat)] == [3, 0, 0]
        assert list(await asyncio.gather(text(ann, "c_confirm"), text(bob, "c_confirm"))) == ["accept", "decline"]


async def test_the_process_of_a_session_ends_with_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = tmp_path / "server.py"
    script.write_text(
        f"import os, runpy, sys\nopen({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
        f"sys.argv = [{SERVER!r}, 'plain']\nrunpy.run_path({SERVER!r}, run_name='__main__')\n"
    )
    async with counter(tmp_path, "plain", args=[str(script)], per="session") as url:
        async with Client(f"{url}/mcp", mode="legacy") as ann:
            await ann.call_tool("c_add", {})
            shared, own = (int(line) for line in pids.read_text().split())
            assert is_alive(own)
        await until(lambda: not is_alive(own))
        assert is_alive(shared)


def test_another_word_for_per_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "enfold.toml"
    config.write_text('[sources.c]\ncommand = "x"\nper = "client"\n')
    with pytest.raises(CallError, match="per"):
        read_config(config, {})
