"""A server on the standard streams whose client does not read: signals end it, and what was written arrives whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

APP = """
from enfold import OperationRegistry
ops = OperationRegistry("big")

@ops.query
def threaded(n: int) -> str:
    return "x" * n

@ops.query
async def awaited(n: int) -> str:
    return "x" * n
"""
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


def line(id: int, method: str, params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode() + b"\n"


def call(id: int, tool: str, size: int) -> bytes:
    return line(id, "tools/call", {"name": f"big_{tool}", "arguments": {"n": size}})


@contextmanager
def served(folder: Path, target: str) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "app.py").write_text(APP)
    (folder / "enfold.toml").write_text('[sources.big]\nfunctions = "app.py:ops"\n')
    words = [sys.executable, "-m", "enfold", "mcp", target]
    with subprocess.Popen(words, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(line(0, "initialize", HELLO))
        server.stdin.flush()
        server.stdout.readline()
        try:
            yield server
        finally:
            server.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("tool", ["threaded", "awaited"])
@pytest.mark.parametrize("target", ["app.py", "enfold.toml"])
def test_a_signal_ends_a_server_whose_output_is_not_read(
    target: str, tool: str, number: signal.Signals, tmp_path: Path
) -> None:
    with served(tmp_path, target) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(call(1, tool, 4_000_000))
        server.stdin.flush()
        os.read(server.stdout.fileno(), 1)  # the answer has begun, and is far longer than the pipe
        server.send_signal(number)
        server.wait(30)


@pytest.mark.parametrize("target", ["app.py", "enfold.toml"])
def test_a_slow_client_gets_all_responses_after_its_input_has_ended(target: str, tmp_path: Path) -> None:
    with served(tmp_path, target) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        for number in range(1, 9):
            server.stdin.write(call(number, "awaited", 1_000_000))
        server.stdin.close()
        answers = [json.loads(each) for each in server.stdout]
        assert sorted(answer["id"] for answer in answers) == list(range(1, 9))
        assert server.wait(30) == 0
