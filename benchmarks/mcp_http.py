"""`tools/call` over HTTP on the stateless revision: servers in processes of their own, and their CPU time for a call."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks import work
from benchmarks.environments import PEERS, ROOT
from benchmarks.harness import Comparison, Contender, Goal, Sample
from benchmarks.mcp_servers import ENFOLD, ENFOLD_1000, FASTMCP, FLOOR, REVISION, SDK
from benchmarks.program import compare_all

CONNECTIONS: Final = 32
# CPU time of another process comes in ticks of 10 ms: a batch must be long beside them.
BATCH_US: Final = 600_000.0
NAMES: Final = (FLOOR, ENFOLD, ENFOLD_1000, SDK, FASTMCP)

ADD_GOALS: Final = (
    Goal(ENFOLD, FLOOR, "at most", 2),
    Goal(SDK, ENFOLD, "at least", 5),
    Goal(FASTMCP, ENFOLD, "at least", 25),
    Goal(ENFOLD_1000, ENFOLD, "at most", 1.1),
)


def main(rounds: int) -> int:
    with ExitStack() as stack:
        servers = {name: stack.enter_context(serving("mcp_servers", name)) for name in NAMES}
        comparisons = [
            _comparison("add", work.ADD_INPUT, work.ADD_ANSWER, servers, ADD_GOALS),
            _comparison("mid", work.MID_INPUT, work.MID_ANSWER, servers, ()),
        ]
        return compare_all("mcp_http", comparisons, rounds)


class Server:
    """A running server."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.port = port
        self._pid = process.pid

    def cpu_us(self) -> float:
        """The CPU time it has used so far."""
        fields = Path(f"/proc/{self._pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") * 1_000_000


@contextmanager
def serving(module: str, *words: str, more: tuple[str, ...] = ()) -> Iterator[Server]:
    """A program of the benchmarks that serves at a port, which stands between its words and what is more to say."""
    port = _free_port()
    command = [str(PEERS.python), "-m", f"benchmarks.{module}", *words, str(port), *more]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port)
        yield Server(process, port)
    finally:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int) -> None:
    for _ in range(300):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError(f"no server at port {port}")


def _comparison(
    tool: str, arguments: dict[str, Any], answer: Any, servers: dict[str, Server], goals: tuple[Goal, ...]
) -> Comparison:
    contenders = tuple(contender(name, server, tool, arguments, answer) for name, server in servers.items())
    return Comparison(f"MCP over HTTP, `{tool}`", contenders, (FLOOR, ENFOLD), goals, "cpu", BATCH_US)


def contender(name: str, server: Server, tool: str, arguments: dict[str, Any], expected: Any) -> Contender:
    request = _request(server.port, tool, arguments)

    async def answer() -> Any:
        [body] = await _exchange(server.port, request, 1, 1)
        found = json.loads(body)["result"]["structuredContent"]
        # The peers' tools give an object, and are not wrapped; ours are, like every other value.
        return found.get("result", found)

    async def batch(count: int) -> Sample:
        cpu, wall = server.cpu_us(), time.perf_counter_ns()
        await _exchange(server.port, request, count, CONNECTIONS)
        return Sample((server.cpu_us() - cpu) / count, (time.perf_counter_ns() - wall) / count / 1_000)

    return Contender(name, batch, answer, expected)


def _request(port: int, tool: str, arguments: dict[str, Any]) -> bytes:
    meta = {
        "io.modelcontextprotocol/protocolVersion": REVISION,
        "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: {REVISION}\r\n"
        f"Mcp-Method: tools/call\r\nMcp-Name: {tool}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return (head + body).encode()


# --- a client that costs little -----------------------------------------------------------------------------------


async def _exchange(port: int, request: bytes, count: int, connections: int) -> list[bytes]:
    """Send a request so many times over some connections; the bodies of the answers, of which none may fail."""
    left = [count]
    bodies = await asyncio.gather(*(_send(port, request, left) for _ in range(min(connections, count))))
    return [body for each in bodies for body in each]


async def _send(port: int, request: bytes, left: list[int]) -> list[bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    bodies = []
    while left[0] > 0:
        left[0] -= 1
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise ConnectionError(head.decode())
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        bodies.append(await reader.readexactly(length))
    writer.close()
    return bodies


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
