"""A durable `tools/call` over HTTP beside FastMCP: how soon a task is accepted, and how many tiny ones are done in a second."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks import work
from benchmarks.harness import Comparison, Contender, Goal, Sample
from benchmarks.mcp_http import Server, serving
from benchmarks.mcp_servers import REVISION
from benchmarks.program import compare_all
from benchmarks.scale.fleet import free_port, wait_until
from benchmarks.task_servers import ENFOLD, ENFOLD_MEMORY, ENFOLD_NORMAL, FASTMCP, FASTMCP_REDIS, REDIS

NAMES: Final = (ENFOLD, ENFOLD_NORMAL, ENFOLD_MEMORY, FASTMCP)
CALL: Final = {"name": "add", "arguments": work.ADD_INPUT}
TASKS: Final = "io.modelcontextprotocol/tasks"
AT_ONCE: Final = 8  # callers of the round trips
LOOK_EVERY: Final = 0.005  # seconds between two looks of one caller
BATCH_US: Final = 600_000.0

_TRIPS: Final[dict[str, list[float]]] = {}  # microseconds of a task, by contender

GOALS: Final = (Goal(FASTMCP, ENFOLD, "at least", 5), Goal(FASTMCP, ENFOLD_MEMORY, "at least", 5))

Trial = Callable[[Server, int], Awaitable[Sample]]


def main(rounds: int) -> int:
    with ExitStack() as stack:
        more = (stack.enter_context(TemporaryDirectory()),)
        names = (*NAMES, FASTMCP_REDIS) if stack.enter_context(redis_server(more[0])) else NAMES
        servers = {name: stack.enter_context(serving("task_servers", name, more=more)) for name in names}
        comparisons = [
            _comparison("A task is accepted, p50 (MCP over HTTP)", servers, _accept),
            _comparison(
                f"A tiny task from call to result, {AT_ONCE} callers (MCP over HTTP)", servers, _round_trips, _TRIPS
            ),
        ]
        code = compare_all("tasks", comparisons, rounds)
    print("\nTiny tasks in a second: " + ", ".join(f"{name} {_rate(each):,.0f}" for name, each in _TRIPS.items()))
    return code


@contextmanager
def redis_server(folder: str) -> Iterator[bool]:
    """A Redis server that writes each command to the disk before it answers; False where none is installed."""
    program = shutil.which("redis-server")
    if program is None:
        print("FastMCP on Redis is skipped: redis-server is not installed", file=sys.stderr)
        yield False
        return
    port = free_port()
    options = [
        "--bind",
        "127.0.0.1",
        "--port",
        str(port),
        "--dir",
        folder,
        "--appendonly",
        "yes",
        "--appendfsync",
        "always",
    ]
    with subprocess.Popen([program, *options], stdout=subprocess.DEVNULL) as server:
        os.environ[REDIS] = f"redis://127.0.0.1:{port}/0"
        try:
            wait_until(lambda: _is_listening(port), "Redis to listen")
            yield True
        finally:
            server.kill()


def _is_listening(port: int) -> bool:
    with socket.socket() as found:
        return found.connect_ex(("127.0.0.1", port)) == 0


def _rate(took: list[float]) -> float:
    return 1_000_000 / statistics.median(took)


def _comparison(
    title: str, servers: dict[str, Server], batch: Trial, kept: dict[str, list[float]] | None = None
) -> Comparison:
    contenders = tuple(
        _contender(name, server, batch, {} if kept is None else kept) for name, server in servers.items()
    )
    return Comparison(title, contenders, (ENFOLD,), GOALS, "wall", BATCH_US)


def _contender(name: str, server: Server, batch: Trial, kept: dict[str, list[float]]) -> Contender:
    async def answer() -> Any:
        connection = await _Connection.open(server.port)
        try:
            return await connection.done(await connection.accepted())
        finally:
            connection.close()

    async def run(count: int) -> Sample:
        sample = await batch(server, count)
        kept.setdefault(name, []).append(sample.wall)
        return sample

    return Contender(name, run, answer, work.ADD_ANSWER)


async def _accept(server: Server, count: int) -> Sample:
    """One order after another; each waits for the end of the task before, so that nothing piles up."""
    connection, cpu, took = await _Connection.open(server.port), server.cpu_us(), []
    request = _request(server.port, "tools/call", CALL, "add")
    # A bare socket that blocks: what is timed is the server, and not a client's event loop.
    with socket.create_connection(("127.0.0.1", server.port)) as bare:
        bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(count):
            began = time.perf_counter_ns()
            bare.sendall(request)
            answer = _received(bare)
            took.append((time.perf_counter_ns() - began) / 1_000)
            await connection.done(_task_id(json.loads(answer)["result"]))
    connection.close()
    return Sample((server.cpu_us() - cpu) / count, statistics.median(took))


def _received(bare: socket.socket) -> bytes:
    """The body of one answer."""
    text = b""
    while b"\r\n\r\n" not in text:
        text += bare.recv(65_536)
    head, _, body = text.partition(b"\r\n\r\n")
    while len(body) < _length(head):
        body += bare.recv(65_536)
    return body


async def _round_trips(server: Server, count: int) -> Sample:
    cpu, began, left = server.cpu_us(), time.perf_counter_ns(), [count]

    async def caller() -> None:
        connection = await _Connection.open(server.port)
        while left[0] > 0:
            left[0] -= 1
            await connection.done(await connection.accepted())
        connection.close()

    await asyncio.gather(*(caller() for _ in range(min(AT_ONCE, count))))
    return Sample((server.cpu_us() - cpu) / count, (time.perf_counter_ns() - began) / count / 1_000)


class _Connection:
    """A client of one connection that costs little."""

    def __init__(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._port = port
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> _Connection:
        return cls(port, *await asyncio.open_connection("127.0.0.1", port, limit=1 << 20))

    def close(self) -> None:
        self._writer.close()

    async def accepted(self) -> str:
        """The id of a task that was just ordered."""
        return _task_id(await self._ask("tools/call", CALL, "add"))

    async def done(self, task_id: str) -> Any:
        """The result of a task, asked for until it is there."""
        while True:
            task = await self._ask("tasks/get", {"taskId": task_id}, task_id)
            if task["status"] == "completed":
                found = task["result"]["structuredContent"]
                return found.get("result", found)
            await asyncio.sleep(LOOK_EVERY)

    async def _ask(self, method: str, params: dict[str, Any], name: str) -> dict[str, Any]:
        self._writer.write(_request(self._port, method, params, name))
        length = _length(await self._reader.readuntil(b"\r\n\r\n"))
        answer: dict[str, Any] = json.loads(await self._reader.readexactly(length))["result"]
        return answer


def _request(port: int, method: str, params: dict[str, Any], name: str) -> bytes:
    meta = {
        "io.modelcontextprotocol/protocolVersion": REVISION,
        "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {TASKS: {}}},
    }
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}})
    return (
        f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: {REVISION}\r\n"
        f"Mcp-Method: {method}\r\nMcp-Name: {name}\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


def _length(head: bytes) -> int:
    if not head.startswith(b"HTTP/1.1 200"):
        raise ConnectionError(head.decode())
    return int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])


def _task_id(result: dict[str, Any]) -> str:
    if result["resultType"] != "task":
        raise ValueError(f"no task, but {result}")
    return str(result["taskId"])


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
