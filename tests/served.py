"""`enfold serve` as a process, the applications that tests serve with it, and MCP sessions with its workers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.waiting import Said, wait_for


class Served:
    """A running server: its log and its address."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.log = Said(process.stderr)
        self.said = self.log.until("Press Ctrl-C")
        self.base = re.findall(r"(https?://\S+)/functions/", self.said)[0]

    def get(self, path: str, body: bytes | None = None, **options: Any) -> Any:
        request = Request(self.base + path, body, {"Content-Type": "application/json"})  # noqa: S310  # our own server
        with urlopen(request, timeout=30, **options) as reply:  # noqa: S310  # our own server
            return json.load(reply)

    def status(self, path: str, **headers: str) -> tuple[int, str]:
        """The status and the text of a GET, whatever they are; redirects are not followed."""
        host = self.base.removeprefix("http://")
        with closing(HTTPConnection(host, timeout=30)) as connection:
            connection.request("GET", path, headers=headers)
            reply = connection.getresponse()
            return reply.status, reply.headers.get("location") or reply.read().decode()

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


@contextmanager
def serving(*words: str, cwd: Path, env: Mapping[str, str] | None = None, logs_calls: bool = False) -> Iterator[Served]:
    """Serve on a free port until the block is left; `env` adds to the environment, and may choose the port.

    Lines of calls are only for tests that read them: an unread pipe holds only some hundreds.
    """
    # A job in the background ignores what Ctrl-C sends, and so would all that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    address = () if "PORT" in (env or {}) else ("--port", "0")
    log = () if logs_calls else ("--no-access-log",)
    command = [sys.executable, "-m", "enfold", "serve", *words, *address, *log]
    variables = {**os.environ, **(env or {})}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=cwd, env=variables) as process:
        try:
            yield Served(process)
        finally:
            process.kill()


LITTLE = Path(__file__).parent / "sources" / "mcp" / "little_server.py"


APP = """\
from http.client import HTTPException
from pathlib import Path
import asyncio
from enfold import OperationRegistry

ops = OperationRegistry("shop", title="Corner shop", version="2.5")

@ops.on_stop
def stop() -> None:
    Path("stopped").touch()

@ops.query
async def slow() -> str:
    Path("begun").touch()
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    return "finished"

if __name__ == "__main__":
    ops.run()
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


WORKED = """\
import asyncio
import os
from http.client import HTTPException
from pathlib import Path
from enfold import OperationRegistry

ops = OperationRegistry("shop")

@ops.query
async def who() -> int:
    return os.getpid()

@ops.mutation
async def order() -> int:
    with open("orders", "a") as file:
        file.write("x")
    return os.getpid()

@ops.query
async def hang() -> int:
    Path(f"hanging-{os.getpid()}").touch()
    await asyncio.sleep(600)
    return 0
"""


MCP_HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


class Session:
    """An MCP client of 2025-11-25, each of whose requests has a connection of its own."""

    def __init__(self, base: str) -> None:
        self._url = f"{base}/mcp"
        self.headers = dict(MCP_HEADERS)
        client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        with self._send("initialize", client) as reply:
            self.headers["Mcp-Session-Id"] = reply.headers["Mcp-Session-Id"]
        self.call()

    def _send(self, method: str, params: Any) -> Any:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        return urlopen(Request(self._url, body, self.headers), timeout=30)  # noqa: S310  # our own server

    def ask(self, method: str, body: bytes | None = None, **headers: str) -> int:
        """The status of any request in the session."""
        sent = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            with urlopen(Request(self._url, body, sent, method=method), timeout=30) as reply:  # noqa: S310
                return int(reply.status)
        except HTTPError as error:
            return error.code

    def order(self, key: str) -> int:
        """The process that ran the first call with this key."""
        meta = {"enfold/idempotencyKey": key}
        with self._send("tools/call", {"name": "shop_order", "arguments": {}, "_meta": meta}) as reply:
            return int(json.load(reply)["result"]["structuredContent"]["result"])

    def call(self) -> int:
        """The process that answers; it is always the one that has the session."""
        with self._send("tools/call", {"name": "shop_who", "arguments": {}}) as reply:
            found: int = json.load(reply)["result"]["structuredContent"]["result"]
            return found


def workers_of(served: Served) -> set[int]:
    parent = served.process.pid
    return {int(each) for each in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()}


def two_sessions(served: Served) -> dict[int, Session]:
    """A session in each of the two processes."""
    found: dict[int, Session] = {}

    def look() -> bool:
        session = Session(served.base)
        found.setdefault(session.call(), session)
        return len(found) == 2

    wait_for(look)
    return found
