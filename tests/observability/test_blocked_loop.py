"""An operation that blocks the event loop is warned of once in the log, by its name, on every server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.served import serving
from tests.waiting import Said

APP = """
import asyncio
import time
from collections.abc import AsyncIterator
from enfold import Context, OperationRegistry

ops = OperationRegistry("shop")

@ops.query
async def blocking() -> str:
    time.sleep(2.5)
    return "done"

@ops.query(timeout=30)
async def waiting() -> str:
    await asyncio.sleep(2.5)
    return "done"

@ops.query
def threaded() -> str:
    time.sleep(2.5)
    return "done"

@ops.query(inline=True)
def inline() -> str:
    time.sleep(2.5)
    return "done"

@ops.query
async def outer(context: Context) -> str:
    return (await context.env.shop.blocking({})).data

@ops.subscription
async def stream() -> AsyncIterator[int]:
    time.sleep(2.5)
    yield 1
"""
WARNING = "has blocked the event loop for more than a second"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def warnings(said: str) -> list[str]:
    return [line.partition(" WARNING ")[2] for line in said.splitlines() if WARNING in line]


@pytest.mark.parametrize("name", ["blocking", "inline"])
def test_blocking_code_is_one_warning_that_names_the_operation(folder: Path, name: str) -> None:
    with serving("app.py", cwd=folder) as served:
        for _ in range(2):
            assert served.get(f"/functions/shop.{name}") == {"result": "done"}
        served.process.terminate()
        said = warnings(served.log.rest())
    assert len(said) == 1
    assert said[0].startswith(f"shop.{name} {WARNING} (")
    assert "app.py, line " in said[0]


def test_a_stream_and_a_nested_call_are_named_by_what_blocks(folder: Path) -> None:
    with serving("app.py", cwd=folder) as served:
        assert served.get("/functions/shop.outer") == {"result": "done"}
        assert served.status("/functions/shop.stream", Accept="application/x-ndjson")[0] == 200
        served.process.terminate()
        said = warnings(served.log.rest())
    assert [line.partition(" ")[0] for line in said] == ["shop.blocking", "shop.stream"]


def test_handlers_that_wait_or_run_in_a_thread_cause_no_warning(folder: Path) -> None:
    with serving("app.py", cwd=folder) as served:
        for name in ("waiting", "threaded"):
            assert served.get(f"/functions/shop.{name}") == {"result": "done"}
        served.process.terminate()
        assert warnings(served.log.rest()) == []


def test_a_server_on_the_standard_streams_warns_too(folder: Path) -> None:
    command = [sys.executable, "-m", "enfold", "mcp", "app.py"]
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "shop.blocking", "arguments": {}}}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(call).encode() + b"\n")
        process.stdin.flush()
        assert f"shop.blocking {WARNING}" in Said(process.stderr).until(WARNING)
        process.stdin.close()
