"""Calling the tool of an MCP server: Enfold's `execute` beside the MCP SDK's own client, against the same SDK server."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from benchmarks import harness, report, work
from benchmarks.environments import ROOT
from benchmarks.harness import Comparison, Contender, Goal, WrongAnswerError, of_coroutine
from enfold import OperationRegistry
from enfold.sources.mcp import from_mcp
from mcp import Client, StdioServerParameters

SDK: Final = "SDK client"
EXECUTE: Final = "execute"
SERVER: Final = (sys.executable, "-m", "benchmarks.mcp_servers", "mcp SDK")

TASKS: Final[dict[str, tuple[dict[str, Any], Any]]] = {
    "add": (work.ADD_INPUT, work.ADD_ANSWER),
    "mid": (work.MID_INPUT, work.MID_ANSWER),
}
# The server's work is the same for both: what counts is the CPU time of the client's process.
GOALS: Final = {
    "add": (Goal(EXECUTE, SDK, "at most", 0.6),),
    "mid": (Goal(SDK, EXECUTE, "at least", 5),),
}


def main(rounds: int) -> int:
    logging.disable(logging.WARNING)
    os.chdir(ROOT)
    try:
        asyncio.run(_compare_all(rounds))
    except WrongAnswerError as error:
        print(f"mcp_client: {error}", file=sys.stderr)
        return 1
    return 0


async def _compare_all(rounds: int) -> None:
    outcomes = []
    async with AsyncExitStack() as stack:
        command = [*SERVER, "stdio"]
        ops = await stack.enter_async_context(_registry(command))
        parameters = StdioServerParameters(command=command[0], args=command[1:], cwd=ROOT)
        client = await stack.enter_async_context(Client(parameters))
        outcomes += [await _compare("stdio", name, ops, client, rounds) for name in TASKS]
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(_served())
        ops = await stack.enter_async_context(_registry(url))
        client = await stack.enter_async_context(Client(url))
        outcomes += [await _compare("HTTP", name, ops, client, rounds) for name in TASKS]
    report.save("mcp_client", outcomes)


async def _compare(transport: str, name: str, ops: OperationRegistry, client: Any, rounds: int) -> harness.Outcome:
    contenders = (_execute(name, ops), _sdk(name, client))
    comparison = Comparison(f"a call of an MCP server over {transport}, `{name}`", contenders, (SDK,), GOALS[name])
    outcome = await harness.run(comparison, rounds)
    report.show(outcome)
    return outcome


def _execute(name: str, ops: OperationRegistry) -> Contender:
    arguments, answer = TASKS[name]

    async def call() -> Any:
        return await ops.execute(name, arguments)

    return of_coroutine(EXECUTE, call, answer, lambda envelope: envelope.data)


def _sdk(name: str, client: Any) -> Contender:
    arguments, answer = TASKS[name]

    async def call() -> Any:
        return await client.call_tool(name, arguments)

    return of_coroutine(SDK, call, answer, lambda result: result.structured_content)


@asynccontextmanager
async def _registry(target: Any) -> AsyncIterator[OperationRegistry]:
    async with from_mcp(target) as operations:
        ops = OperationRegistry()
        ops.register_all(operations)
        yield ops


@asynccontextmanager
async def _served() -> AsyncIterator[str]:
    """The address of an SDK server that runs in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([*SERVER, str(port)], cwd=ROOT)  # noqa: ASYNC220  # nothing else runs meanwhile
    try:
        while not await _is_listening(port):  # noqa: ASYNC110  # it gives no signal
            await asyncio.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


async def _is_listening(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
