"""How far one warm call walks: the functions of Enfold it enters, and the files that hold them.

`python -m benchmarks.hops` prints a row for each of five walks, beside the figures from before the calls were shortened;
`--names` lists the functions. What runs is the real app without a socket (requests are ASGI messages), a real MCP server
on stdio, a real nats-server and a real SQLite file. A coroutine that is resumed counts as another entry, in all threads;
each figure is the median of several calls. They are figures, not limits: no test asserts them.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

import enfold
from benchmarks.calls import nats_server
from benchmarks.environments import ROOT
from benchmarks.report import write
from enfold import OperationRegistry
from enfold.calls.nats import NATSTransport
from enfold.sources.calls import from_calls
from enfold.sources.mcp import from_mcp
from enfold.surfaces.calls import serve_calls
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp
from enfold.tasks import Tasks
from enfold.tasks.sqlite import SQLiteTasks

Call: TypeAlias = Callable[[], Awaitable[Any]]
Headers: TypeAlias = list[tuple[bytes, bytes]]

OWN: Final = str(Path(enfold.__file__).parent)
SERVER: Final = ROOT / "tests/sources/mcp/little_server.py"  # speaks MCP without Enfold
WARM: Final = 100
MEASURED: Final = 9
IDLE: Final = 0.05  # seconds between two measured calls, in which background work ends

HTTP: Final = "HTTP call of a `def`"
MCP: Final = "MCP `tools/call` of a `def` in a session"
GATEWAY: Final = "gateway: HTTP, registry, MCP server on stdio"
NATS: Final = "NATS: HTTP, NATS, worker, `def`"
TASK: Final = "durable task: HTTP, SQLite, runner, result"

# Functions and files of the same calls before middleware replaced the methods around a call.
BEFORE: Final = {HTTP: (33, 11), MCP: (58, 18), GATEWAY: (137, 29), NATS: (122, 26), TASK: (470, 34)}


class Entry(NamedTuple):
    """One function that was entered."""

    file: str
    function: str


class Profiler:
    """Records the functions of Enfold that are entered in any thread, while it is on."""

    def __init__(self) -> None:
        self.is_on = False
        self.entered: list[Entry] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if self.is_on and event == "call":
            code = frame.f_code
            if code.co_filename.startswith((OWN, "<enfold")):
                self.entered.append(Entry(code.co_filename.removeprefix(OWN), code.co_qualname))


def registry() -> OperationRegistry:
    ops = OperationRegistry("bench")

    @ops.query
    def add(x: int, y: int) -> dict[str, int]:
        return {"sum": x + y}

    @ops.query
    async def add_on_loop(x: int, y: int) -> dict[str, int]:
        return {"sum": x + y}

    @ops.mutation(durable=True)
    async def pay(x: int, y: int) -> dict[str, int]:
        return {"sum": x + y}

    return ops


# --- requests -----------------------------------------------------------------------------------------------------


class Post:
    """A POST as a server hands it to an app; `headers` are those of the last response."""

    def __init__(self, app: Any, path: str, body: Any, headers: Headers, status: int = 200) -> None:
        self._app = app
        self._body = msgspec.json.encode(body)
        self._status = status
        own = [(b"host", b"127.0.0.1:8000"), (b"content-type", b"application/json")]
        self._scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "query_string": b"",
            "headers": [*own, (b"content-length", str(len(self._body)).encode()), *headers],
            "server": ("127.0.0.1", 8000),
            "scheme": "http",
            "root_path": "",
        }
        self.headers: dict[bytes, bytes] = {}

    async def __call__(self) -> bytes:
        """The body of the response."""
        sent: list[dict[str, Any]] = []
        messages = [{"type": "http.request", "body": self._body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if not messages:
                await asyncio.get_running_loop().create_future()  # the client stays connected
            return messages.pop()

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self._app(dict(self._scope), receive, send)
        if sent[0]["status"] != self._status:
            raise RuntimeError(f"{sent}")
        self.headers = dict(sent[0]["headers"])
        return b"".join(message.get("body", b"") for message in sent[1:])


ARGUMENTS: Final = {"x": 1, "y": 2}
STATELESS: Final = "2026-07-28"
STATEFUL: Final = "2025-11-25"
_CLIENT: Final = {"name": "bench", "version": "1"}
_META: Final = {
    "io.modelcontextprotocol/protocolVersion": STATELESS,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": _CLIENT,
}
_ACCEPT: Final = (b"accept", b"application/json, text/event-stream")


def http_call(app: Any, operation: str) -> Call:
    return Post(app, f"/functions/{operation}", ARGUMENTS, [])


def stateless_call(app: Any, tool: str) -> Call:
    """A `tools/call` of the stateless revision."""
    params = {"name": tool, "arguments": ARGUMENTS, "_meta": _META}
    headers = [
        _ACCEPT,
        (b"mcp-protocol-version", STATELESS.encode()),
        (b"mcp-method", b"tools/call"),
        (b"mcp-name", tool.encode()),
    ]
    return Post(app, "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}, headers)


async def session_call(app: Any, tool: str) -> Call:
    """A `tools/call` in a session of the last revision that has them."""
    params = {"protocolVersion": STATEFUL, "capabilities": {}, "clientInfo": _CLIENT}
    begin = Post(app, "/mcp", {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}, [_ACCEPT])
    await begin()
    session = (b"mcp-session-id", begin.headers[b"mcp-session-id"])
    call = {"name": tool, "arguments": ARGUMENTS}
    headers = [_ACCEPT, (b"mcp-protocol-version", STATEFUL.encode()), session]
    return Post(app, "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}, headers)


# --- walks --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def gateway() -> AsyncGenerator[Call]:
    async with from_mcp([sys.executable, str(SERVER)], namespace="up") as operations:
        ops = OperationRegistry()
        ops.register_all(operations)
        yield http_call(to_http(ops), "up.add")


@asynccontextmanager
async def over_nats(url: str) -> AsyncGenerator[Call]:
    worker, caller = NATSTransport(url, name="worker"), NATSTransport(url, name="caller")
    async with serve_calls(registry(), worker), from_calls(caller) as operations:
        ops = OperationRegistry()
        ops.register_all(operations)
        yield http_call(to_http(ops), "bench.add")


@asynccontextmanager
async def durable_task(folder: Path) -> AsyncGenerator[Call]:
    ops = registry()
    async with Tasks(ops, SQLiteTasks(folder / "tasks.db")) as tasks:
        app = to_http(ops, tasks=tasks)
        order = Post(app, "/functions/bench.pay", ARGUMENTS, [(b"prefer", b"respond-async")], status=202)

        async def call() -> Any:
            handle = await tasks.get(msgspec.json.decode(await order())["taskId"])
            return await handle.result()

        yield call


@asynccontextmanager
async def walks(nats_url: str | None, folder: Path) -> AsyncGenerator[dict[str, Call]]:
    """One call of each walk, by its name."""
    ops = registry()
    async with AsyncExitStack() as stack:
        found = {
            HTTP: http_call(to_http(ops), "bench.add"),
            MCP: await session_call(to_mcp(ops), "bench_add"),
            GATEWAY: await stack.enter_async_context(gateway()),
            TASK: await stack.enter_async_context(durable_task(folder)),
        }
        if nats_url is not None:
            found[NATS] = await stack.enter_async_context(over_nats(nats_url))
        yield {name: found[name] for name in BEFORE if name in found}


# --- counting -----------------------------------------------------------------------------------------------------


async def entries(call: Call, profiler: Profiler) -> list[Entry]:
    """What one warm call enters; of several calls the one in the middle."""
    for _ in range(WARM):
        await call()
    found: list[list[Entry]] = []
    for _ in range(MEASURED):
        await asyncio.sleep(IDLE)
        profiler.entered = []
        profiler.is_on = True
        await call()
        profiler.is_on = False
        found.append(profiler.entered)
    return sorted(found, key=len)[MEASURED // 2]


async def measure(nats_url: str | None, folder: Path) -> dict[str, list[Entry]]:
    profiler = Profiler()
    threading.setprofile(profiler)
    sys.setprofile(profiler)
    try:
        async with walks(nats_url, folder) as named:
            return {name: await entries(call, profiler) for name, call in named.items()}
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def main() -> int:
    with nats_server() as url, TemporaryDirectory() as folder:
        found = asyncio.run(measure(url, Path(folder)))
    rows = [_row(name, entered) for name, entered in found.items()]
    print("\n## One warm call: functions entered / files\n")
    print("| call | before | now |")
    print("| --- | ---: | ---: |")
    for row in rows:
        print(f"| {row['call']} | {row['before']} | {row['functions']} / {row['files']} |")
    write("hops", {"calls": rows})
    if "--names" in sys.argv:
        for name, entered in found.items():
            print(f"\n{name}:")
            for file, function in entered:
                print(f"  {file} {function}")
    return 0


def _row(name: str, entered: list[Entry]) -> dict[str, Any]:
    functions, files = BEFORE[name]
    return {
        "call": name,
        "before": f"{functions} / {files}",
        "functions": len(entered),
        "files": len({entry.file for entry in entered}),
    }


if __name__ == "__main__":
    sys.exit(main())
