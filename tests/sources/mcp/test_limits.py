"""What a hostile server may cost: each limit is really run into, and the source goes on."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from enfold import Context, OperationRegistry
from enfold.app.reconciler import open_config
from enfold.sources.mcp import Connection, MCPLimits, MCPOperations, from_mcp
from enfold.sources.mcp.settings import Command

SERVER = Path(__file__).parent / "hostile_server.py"


def hostile(attack: str, **options: Any) -> MCPOperations:
    connection = Connection(protocol="2025-11-25", **options)
    return from_mcp([sys.executable, str(SERVER), attack], namespace="bad", connection=connection)


@asynccontextmanager
async def attacked(attack: str, **options: Any) -> AsyncIterator[OperationRegistry]:
    registry = OperationRegistry()
    async with hostile(attack, **options) as operations:
        registry.register_all(operations)
        operations.keep_current(registry)
        yield registry


@pytest.mark.parametrize(
    ("attack", "limits", "count", "name"),
    [
        pytest.param("pages", MCPLimits(pages=20), 20, "pages of 20", id="pages without an end"),
        pytest.param("items", MCPLimits(), 10_000, "list_items of 10000", id="items without an end"),
        pytest.param("bytes", MCPLimits(), 16, "list_bytes of 16777216", id="bytes without an end"),
        pytest.param("one page", MCPLimits(), 0, "list_bytes of 16777216", id="one page of 20 MB"),
        pytest.param("cursor", MCPLimits(), 3, "list_bytes of 16777216", id="cursors of 5 MB"),
    ],
)
async def test_an_endless_list_is_read_up_to_the_limits(attack: str, limits: MCPLimits, count: int, name: str) -> None:
    async with hostile(attack, limits=limits) as operations:
        assert len(operations) == count
        (problem,) = operations.report.skipped
    assert problem.where == "tools/list"
    assert problem.why == f"PAYLOAD_TOO_LARGE: it exceeds the limit {name}, and the rest is skipped"


async def test_a_server_that_asks_five_thousand_things_at_once_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    most = 0

    async def wait(params: Any, context: Context) -> dict[str, Any]:
        nonlocal most
        del params, context
        most += 1
        await asyncio.get_running_loop().create_future()
        return {}

    with caplog.at_level(logging.WARNING, "enfold.mcp"):
        async with attacked("requests", answers={"elicitation/create": wait}) as registry:
            await registry.execute("bad.run", {})
    assert most == 100
    assert "has too many requests open at once" in caplog.text


async def test_a_server_that_does_not_read_its_answers_does_not_fill_our_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "enfold.mcp"):
        async with attacked("does not read", limits=MCPLimits(unread_bytes=1_000_000)) as registry:
            await registry.execute("bad.run", {})
    assert "does not read its input" in caplog.text


async def test_log_messages_and_progress_of_one_call_have_an_end() -> None:
    heard: list[Any] = []
    async with attacked("log") as registry:
        await registry.execute("bad.run", {}, Context(notify=heard.append))
    assert len(heard) < 10
    assert heard[-1].message == "RESOURCE_EXHAUSTED: further messages of this call are dropped (notice_bytes)"


async def test_a_line_that_is_too_long_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "enfold.mcp"):
        async with attacked("long line", limits=MCPLimits(message_bytes=1_000_000)) as registry:
            await registry.execute("bad.run", {})
    assert "wrote a line over the limit of 1000000 bytes (message_bytes), which is dropped" in caplog.text


async def test_a_server_whose_list_always_changes_is_not_listed_all_the_time() -> None:
    async with attacked("changes") as registry:
        for _ in range(5):
            envelope = await registry.execute("bad.run", {})
    assert envelope.data["listed"] < 10


# --- processes ------------------------------------------------------------------------------------------------------


@pytest.fixture
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment as an operator has it, with a secret in it."""
    for name, value in {
        "DB_PASSWORD": "hunter2",
        "LC_ALL": "C.UTF-8",
        "TMPDIR": "/tmp",  # only a value
        "https_proxy": "http://proxy.example:3128",
        "NODE_EXTRA_CA_CERTS": "/certificates.pem",
        "ENFOLD_TOKEN": "ours",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("surroundings")
@pytest.mark.parametrize("inherit", [False, True])
async def test_a_process_gets_what_it_needs_and_what_it_is_given(inherit: bool) -> None:
    command = Command((sys.executable, str(SERVER), "none"), {"API_KEY": "given"}, inherit_env=inherit)
    registry = OperationRegistry()
    async with from_mcp(command, namespace="bad") as operations:
        registry.register_all(operations)
        env = (await registry.execute("bad.run", {})).data["env"]
    assert {"PATH", "HOME", "LC_ALL", "TMPDIR", "https_proxy", "NODE_EXTRA_CA_CERTS", "API_KEY"} <= env.keys()
    assert ("DB_PASSWORD" in env, "ENFOLD_TOKEN" in env) == (inherit, False)


@pytest.mark.usefixtures("surroundings")
async def test_a_configuration_says_what_a_process_inherits_and_what_it_may_cost(tmp_path: Path) -> None:
    file = tmp_path / "enfold.toml"
    words = [sys.executable, str(SERVER), "pages"]
    file.write_text(f"[sources.bad]\ncommand = {words}\ninherit_env = true\nlimits = {{pages = 3}}\n")
    async with open_config(file, {}) as registry:
        assert [operation.spec.name for operation in registry] == ["run0", "run1", "run2"]
        assert (await registry.execute("bad.run0", {})).data["env"]["DB_PASSWORD"] == "hunter2"


async def test_an_unknown_limit_is_reported_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "enfold.toml"
    file.write_text('[sources.bad]\ncommand = "python"\nlimits = {papes = 3}\n')
    with pytest.raises(Exception, match='line 3: "papes" is not known here: did you mean "pages"'):
        async with open_config(file, {}):
            pass
