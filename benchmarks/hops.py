"""How long one warm call is: our own functions entered, and the files they stand in. An honest measure of simplicity.

`python -m benchmarks hops` prints a row for each kind of call. What runs is the real app, without a socket: requests and
answers are ASGI messages.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeAlias

import msgspec

import enfold
from benchmarks.report import write
from enfold import Identity, OperationRegistry
from enfold.auth.tokens import Tokens
from enfold.calls import PendingRequestMap
from enfold.calls.memory import MemoryTransport
from enfold.surfaces.calls import serve_calls
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp

Call: TypeAlias = Callable[[], Awaitable[Any]]
Headers: TypeAlias = list[tuple[bytes, bytes]]

OWN: Final = str(Path(enfold.__file__).parent)
TOKEN: Final = "one-token-for-the-race"  # noqa: S105  # of this program alone
WARM: Final = 300

# What the issue that shortened the path asked for: functions, files.
GOALS: Final = {
    "HTTP, plain": (12, 8),
    "HTTP with token, scope and request id": (30, 10),
    "HTTP, def": (45, 12),
    "MCP": (26, 12),
    "MCP below HTTP": (34, 14),
    "MCP in a session": (45, 14),
    "memory, waiting": (80, 14),
}


class Count:
    """Counts the functions of ours that are entered in any thread, while it is on."""

    def __init__(self) -> None:
        self.is_on = False
        self.entered: list[tuple[str, str]] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if self.is_on and event == "call":
            code = frame.f_code
            if code.co_filename.startswith((OWN, "<enfold")):
                self.entered.append((code.co_filename, code.co_name))


def registry() -> OperationRegistry:
    ops = OperationRegistry("race")

    @ops.query
    async def add(x: int, y: int) -> dict[str, int]:
        return {"sum": x + y}

    @ops.query(access={"required_scopes": ["race:add"]})
    async def scoped(x: int, y: int) -> dict[str, int]:
        return {"sum": x + y}

    @ops.query
    def blocking(x: int, y: int) -> dict[str, int]:
        return {"sum": x + y}

    @ops.query
    async def waiting(x: int, y: int) -> dict[str, int]:
        await asyncio.sleep(0)
        return {"sum": x + y}

    return ops


# --- calls --------------------------------------------------------------------------------------------------------


def posted(app: Any, path: str, body: Any, headers: Headers) -> Call:
    """A POST as a server hands it to an app; the answer is checked once, then thrown away."""
    text = msgspec.json.encode(body)
    own = [
        (b"host", b"127.0.0.1:8000"),
        (b"content-type", b"application/json"),
        (b"content-length", str(len(text)).encode()),
    ]
    lines = [*own, *headers]
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": lines,
        "server": ("127.0.0.1", 8000),
        "scheme": "http",
        "root_path": "",
    }

    async def call() -> bytes:
        sent: list[dict[str, Any]] = []
        messages = [{"type": "http.request", "body": text, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if not messages:
                await asyncio.get_running_loop().create_future()  # the client stays
            return messages.pop()

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await app(dict(scope), receive, send)
        if sent[0]["status"] != 200:
            raise RuntimeError(f"{sent}")
        call.headers = dict(sent[0]["headers"])  # type: ignore[attr-defined]  # for whoever opens a session
        return b"".join(message.get("body", b"") for message in sent[1:])

    return call


ARGUMENTS: Final = {"x": 1, "y": 2}
STATELESS: Final = "2026-07-28"
STATEFUL: Final = "2025-11-25"
_META: Final = {
    "io.modelcontextprotocol/protocolVersion": STATELESS,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "race", "version": "1"},
}
_TAKES: Final = (b"accept", b"application/json, text/event-stream")


def stateless_call(app: Any, path: str) -> Call:
    params = {"name": "race_add", "arguments": ARGUMENTS, "_meta": _META}
    headers = [
        _TAKES,
        (b"mcp-protocol-version", STATELESS.encode()),
        (b"mcp-method", b"tools/call"),
        (b"mcp-name", b"race_add"),
    ]
    return posted(app, path, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}, headers)


async def session_call(app: Any) -> Call:
    hello = {
        "protocolVersion": STATEFUL,
        "capabilities": {},
        "clientInfo": {"name": "race", "version": "1"},
    }
    begin = posted(app, "/mcp", {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}, [_TAKES])
    await begin()
    session = begin.headers[b"mcp-session-id"]  # type: ignore[attr-defined]  # as above
    params = {"name": "race_add", "arguments": ARGUMENTS}
    headers = [_TAKES, (b"mcp-protocol-version", STATEFUL.encode()), (b"mcp-session-id", session)]
    return posted(app, "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}, headers)


@asynccontextmanager
async def calls() -> Any:
    """One call of each kind, by its name."""
    ops = registry()
    tokens = Tokens({TOKEN: Identity("ann", frozenset({"race:add"}))})
    http = to_http(ops, mounts={"/mcp": to_mcp(ops)})
    guarded = [
        (b"authorization", f"Bearer {TOKEN}".encode()),
        (b"x-request-id", b"request-1"),
        (b"accept", b"*/*"),
        (b"user-agent", b"race"),
    ]
    transport = MemoryTransport()
    async with serve_calls(ops, transport):
        caller = PendingRequestMap(transport)
        yield {
            "HTTP, plain": posted(http, "/functions/race.add", ARGUMENTS, []),
            "HTTP with token, scope and request id": posted(
                to_http(ops, tokens=tokens), "/functions/race.scoped", ARGUMENTS, guarded
            ),
            "HTTP, def": posted(http, "/functions/race.blocking", ARGUMENTS, []),
            "MCP": stateless_call(to_mcp(ops), "/mcp"),
            "MCP below HTTP": stateless_call(http, "/mcp"),
            "MCP in a session": await session_call(to_mcp(ops)),
            "memory, waiting": lambda: caller.call("race.waiting", ARGUMENTS),
        }


# --- counting -----------------------------------------------------------------------------------------------------


async def counted(call: Call, count: Count) -> list[tuple[str, str]]:
    for _ in range(WARM):
        await call()
    count.entered = []
    count.is_on = True
    await call()
    count.is_on = False
    return count.entered


async def measure() -> dict[str, list[tuple[str, str]]]:
    """What each kind of call enters."""
    count = Count()
    threading.setprofile(count)
    sys.setprofile(count)
    try:
        async with calls() as named:
            return {name: await counted(call, count) for name, call in named.items()}
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def _row(name: str, entered: list[tuple[str, str]]) -> dict[str, Any]:
    functions, files = GOALS[name]
    found = len({file for file, _ in entered})
    return {"call": name, "functions": len(entered), "files": found, "most": f"{functions} / {files}"}


def main() -> int:
    found = asyncio.run(measure())
    print("\n## One warm call: own functions entered, own files\n")
    print("| call | functions | files | at most |")
    print("| --- | ---: | ---: | ---: |")
    for name, entered in found.items():
        functions, files = GOALS[name]
        print(f"| {name} | {len(entered)} | {len({file for file, _ in entered})} | {functions} / {files} |")
    write("hops", {"calls": [_row(name, entered) for name, entered in found.items()]})
    if "--names" in sys.argv:
        for name, entered in found.items():
            print(f"\n{name}:")
            for file, function in entered:
                print(f"  {file.removeprefix(OWN)} {function}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
