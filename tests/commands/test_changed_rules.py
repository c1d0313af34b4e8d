"""Rules of a source that change in the configuration hold from the next call on, while the old connection still serves."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from enfold.auth.token_file import add_token

LITTLE = Path(__file__).parents[1] / "sources" / "mcp" / "little_server.py"


class RealServer:
    """`enfold serve` on a configuration that a test rewrites; its successor source is too slow to ever answer."""

    def __init__(self, folder: Path) -> None:
        self.config = folder / "enfold.toml"
        self.token = add_token(folder / "tokens.json", "ann", scopes=["read"])
        self.write("")
        words = [str(self.config), "--tokens", str(folder / "tokens.json"), "--port", "0"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "enfold", "serve", *words], stderr=subprocess.PIPE, text=True
        )
        self._lines: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.base = self.wait_for("calls").split()[1].removesuffix("/functions/{id}")
        self.session: dict[str, str] = {}
        _, headers = self.mcp("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": INFO})
        self.session = {"Mcp-Session-Id": headers["Mcp-Session-Id"], "MCP-Protocol-Version": "2025-06-18"}

    def stop(self) -> None:
        """End it as an operator would, so that its child processes end too."""
        self.process.terminate()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self._reader.join(30)
            assert self.process.stderr is not None
            self.process.stderr.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.put(line)

    def wait_for(self, text: str) -> str:
        said = ""
        while text not in said:
            said = self._lines.get(timeout=60)
        return said

    def write(self, rules: str, *options: str) -> None:
        command = json.dumps([sys.executable, str(LITTLE), *options])
        new = self.config.with_suffix(".new")
        new.write_text(f"[sources.little]\ncommand = {command}\nconnect_timeout = 500\n{rules}\n")
        new.replace(self.config)

    def tighten(self, rules: str) -> None:
        self.write(rules, "--slow", "600")
        self.wait_for("was reloaded")

    def send(self, path: str, body: Any, **headers: str) -> tuple[int, Any, Any]:
        sent = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json", **headers}
        sent["Accept"] = "application/json, text/event-stream"
        try:
            with urlopen(Request(f"{self.base}{path}", json.dumps(body).encode(), sent), timeout=30) as reply:  # noqa: S310  # our own server
                return reply.status, reply.read().decode(), reply.headers
        except HTTPError as error:
            return error.code, error.read().decode(), error.headers

    def mcp(self, method: str, params: Any) -> tuple[Any, Any]:
        sent = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        _, text, headers = self.send("/mcp", sent, **self.session)
        line = next((each[5:] for each in text.splitlines() if each.startswith("data:")), text)
        return json.loads(line), headers

    def add(self, **more: Any) -> tuple[int, bool]:
        """The status of a call over HTTP, and whether it worked in the MCP session."""
        arguments = {"x": 1, "y": 2, **more}
        status, _, _ = self.send("/functions/little.add", arguments)
        answer, _ = self.mcp("tools/call", {"name": "little_add", "arguments": arguments})
        return status, "result" in answer and not answer["result"].get("isError")

    def tools(self) -> set[str]:
        answer, _ = self.mcp("tools/list", {})
        return {tool["name"] for tool in answer["result"]["tools"]}


INFO = {"name": "test", "version": "1"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RealServer]:
    made = RealServer(tmp_path)
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.parametrize(
    "rules",
    [
        'access = {required_scopes = ["admin"]}',
        'exclude = ["add"]',
        'include = ["told"]',
        "fix = {x = 7}",
        'rename = {add = "plus"}',
        'kinds = ["prompt"]',
    ],
)
def test_a_tightened_rule_holds_while_the_old_connection_serves(server: RealServer, rules: str) -> None:
    assert server.add() == (200, True)
    assert "little_add" in server.tools()
    server.tighten(rules)
    assert server.add() == (404, False)
    assert "little_add" not in server.tools()


def test_calls_that_the_new_rules_allow_continue(server: RealServer) -> None:
    server.tighten('exclude = ["told"]\naccess = {required_scopes = ["read"]}')
    assert server.add() == (200, True)
    assert "little_told" not in server.tools()
    server.tighten('access = {required_scopes = ["admin"]}')  # before the first successor was up
    assert server.add() == (404, False)
    server.tighten('access = {required_scopes = ["read"]}')
    assert server.add() == (200, True)
