"""MCP on the standard streams: one call after another from a client that costs nothing, and the time to the first answer."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from benchmarks import work
from benchmarks.environments import HOME, PEERS, ROOT
from benchmarks.harness import Comparison, Contender, Goal, Sample
from benchmarks.mcp_servers import ENFOLD, FASTMCP, FLOOR, HANDSHAKE, SDK
from benchmarks.program import compare_all

NAMES: Final = (FLOOR, ENFOLD, SDK, FASTMCP)
BATCH_US: Final = 100_000.0
START_BATCH_US: Final = 300_000.0

CALL_GOALS: Final = (Goal(SDK, ENFOLD, "at least", 10),)
START_GOALS: Final = (Goal(SDK, ENFOLD, "at least", 6),)


def main(rounds: int) -> int:
    with ExitStack() as stack:
        programs = {name: stack.enter_context(_running(name)) for name in NAMES}
        comparisons = [
            _comparison("add", work.ADD_INPUT, work.ADD_ANSWER, programs, CALL_GOALS),
            _comparison("mid", work.MID_INPUT, work.MID_ANSWER, programs, ()),
            _start_comparison(),
        ]
        return compare_all("mcp_stdio", comparisons, rounds)


class Program:
    """A server and the pipes to it; one call at a time."""

    def __init__(self, name: str) -> None:
        command = [str(PEERS.python), "-m", "benchmarks.mcp_servers", name, "stdio"]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_with_bytecode(),
        )

    def exchange(self, line: bytes) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()
        return self._process.stdout.readline()

    def initialize(self) -> dict[str, Any]:
        client = {"name": "bench", "version": "1"}
        params = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": client}
        answer: dict[str, Any] = json.loads(self.exchange(_line("initialize", params)))
        return answer

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def _line(method: str, params: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode() + b"\n"


def _with_bytecode() -> dict[str, str]:
    """The environment in which every module is compiled once, as an installed package is, and not in the checkout."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, "PYTHONPYCACHEPREFIX": str(HOME / "bytecode")}


@contextmanager
def _running(name: str) -> Iterator[Program]:
    program = Program(name)
    try:
        program.initialize()
        yield program
    finally:
        program.end()


# --- calls --------------------------------------------------------------------------------------------------------


def _comparison(
    tool: str, arguments: dict[str, Any], answer: Any, programs: dict[str, Program], goals: tuple[Goal, ...]
) -> Comparison:
    line = _line("tools/call", {"name": tool, "arguments": arguments})
    contenders = tuple(_caller(name, program, line, answer) for name, program in programs.items())
    return Comparison(f"MCP on the standard streams, `{tool}`", contenders, (FLOOR, ENFOLD), goals, "wall", BATCH_US)


def _caller(name: str, program: Program, line: bytes, expected: Any) -> Contender:
    async def answer() -> Any:
        found = json.loads(program.exchange(line))["result"]["structuredContent"]
        # The peers' tools give an object, and are not wrapped; ours are, like every other value.
        return found.get("result", found)

    async def batch(count: int) -> Sample:
        times = []
        for _ in range(count):
            began = time.perf_counter_ns()
            program.exchange(line)
            times.append((time.perf_counter_ns() - began) / 1_000)
        # The median: what a caller waits, without the moments in which others had the processor.
        return Sample(0.0, statistics.median(times))

    return Contender(name, batch, answer, expected)


# --- starting -----------------------------------------------------------------------------------------------------


def _start_comparison() -> Comparison:
    contenders = tuple(_starter(name) for name in NAMES)
    title = "MCP on the standard streams, from nothing to the answer to `initialize`"
    return Comparison(title, contenders, (FLOOR, ENFOLD), START_GOALS, "wall", START_BATCH_US)


def _starter(name: str) -> Contender:
    async def answer() -> Any:
        program = Program(name)
        try:
            return program.initialize()["result"]["protocolVersion"]
        finally:
            program.end()

    async def batch(count: int) -> Sample:
        return Sample(0.0, statistics.mean(_start_us(name) for _ in range(count)))

    return Contender(name, batch, answer, HANDSHAKE)


def _start_us(name: str) -> float:
    began = time.perf_counter_ns()
    program = Program(name)
    try:
        program.initialize()
        return (time.perf_counter_ns() - began) / 1_000
    finally:
        program.end()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
