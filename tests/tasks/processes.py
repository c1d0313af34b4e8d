"""Servers of tasks: `enfold serve` as a process, and the requests the tests send to it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from tests.waiting import wait_for

MCP = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {
        "elicitation": {},
        "extensions": {"io.modelcontextprotocol/tasks": {}},
    },
}


class TaskProcess:
    """`enfold serve` in its own process."""

    def __init__(self, folder: Path, *words: str) -> None:
        command = [sys.executable, "-m", "enfold", "serve", "--port", "0", *words]
        self.log = folder / f"log-{os.urandom(4).hex()}"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, cwd=folder, stderr=log)
        self.port = int(wait_for(self._address)[1])
        self.headers: dict[str, str] = {}

    def _address(self) -> re.Match[str] | None:
        assert self.process.poll() is None, self.log.read_text()
        return re.search(r"http://127\.0\.0\.1:(\d+)/functions", self.log.read_text())

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        spelled = {name.replace("_", "-"): text for name, text in headers.items()}
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            sent = {"Content-Type": "application/json", **self.headers, **spelled}
            connection.request(method, path, None if body is None else json.dumps(body), sent)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def start(self, name: str, body: Any, **headers: str) -> Any:
        """Start a task of the operation `shop.name`."""
        status, task = self.ask("POST", f"/functions/shop.{name}", body, prefer="respond-async", **headers)
        assert status == 202, task
        return task

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def order(self, operation: str, body: Any, **headers: str) -> str:
        """Start a task as soon as a worker serves the operation, and return its id."""

        def ordered() -> Any:
            status, task = self.ask("POST", f"/functions/{operation}", body, prefer="respond-async", **headers)
            assert status in (202, 404), task
            return task if status == 202 else None

        task_id: str = wait_for(ordered)["taskId"]
        return task_id

    def called(self, operation: str, body: Any, **headers: str) -> tuple[int, Any]:
        """Call as soon as a worker serves the operation."""

        def answer() -> tuple[int, Any] | None:
            found = self.ask("POST", f"/functions/{operation}", body, **headers)
            return None if found[0] == 404 else found

        found: tuple[int, Any] = wait_for(answer)
        return found

    def progress(self, task_id: str) -> Any:
        """The state of a task as soon as it reports progress."""
        return wait_for(lambda: state if "statusMessage" in (state := self.state(task_id)) else None)

    def mcp(self, method: str, params: dict[str, Any], **headers: str) -> Any:
        wire = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": MCP}}
        own = {"mcp_method": method, "mcp_protocol_version": "2026-07-28"}
        return self.ask("POST", "/mcp", wire, **own, **headers)[1]["result"]

    def state(self, task_id: str) -> Any:
        return self.ask("GET", f"/tasks/{task_id}")[1]

    def result(self, task_id: str) -> tuple[int, Any]:
        return self.ask("GET", f"/tasks/{task_id}/result?wait=40")
