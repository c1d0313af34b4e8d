"""One call inside a process: Enfold's `execute` beside a plain call, the msgspec floor, the MCP SDK and FastMCP."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any, Final

import msgspec
from mcp.server import MCPServer

from benchmarks import work
from benchmarks.harness import Contender, Goal, Race, of_coroutine, of_function
from benchmarks.program import race_all
from enfold import OperationRegistry

PLAIN: Final = "plain call"
FLOOR: Final = "msgspec floor"
EXECUTE: Final = "execute"
EXECUTE_INLINE: Final = "execute, inline"
EXECUTE_IN_THREAD: Final = "execute, in a thread"
SDK: Final = "MCPServer.call_tool"
FASTMCP: Final = "FastMCP.call_tool"


class Task(msgspec.Struct, frozen=True):
    """An operation in every form a contender needs."""

    name: str
    handler: Callable[..., Awaitable[Any]]
    sync_handler: Callable[..., Any]
    arguments: dict[str, Any]
    answer: dict[str, Any]
    input_struct: type[msgspec.Struct]
    output_struct: type[msgspec.Struct]


ADD: Final = Task("add", work.add, work.add_sync, work.ADD_INPUT, work.ADD_ANSWER, work.AddInputStruct, work.SumStruct)
MID: Final = Task(
    "mid", work.mid, work.mid_sync, work.MID_INPUT, work.MID_ANSWER, work.MidInputStruct, work.InvoicesStruct
)


# The MCP servers' own ways of calling are judged on the small operation, where the way is all there is.
ADD_GOALS: Final = (
    Goal(EXECUTE, FLOOR, "at most", 4),
    Goal(SDK, EXECUTE, "at least", 4),
    Goal(FASTMCP, EXECUTE, "at least", 30),
)
MID_GOALS: Final = (Goal(EXECUTE, FLOOR, "at most", 1.6),)


def main(rounds: int) -> int:
    _silence_peers()
    races = [_async_race(ADD, ADD_GOALS), _async_race(MID, MID_GOALS), _sync_race(ADD), _sync_race(MID)]
    return race_all("in_process", races, rounds)


def _silence_peers() -> None:
    # Their lines for each call would be timed with it; ours are the same, and are silenced alike.
    logging.disable(logging.WARNING)
    os.environ["FASTMCP_LOG_LEVEL"] = "ERROR"


def _async_race(task: Task, goals: tuple[Goal, ...]) -> Race:
    handler = task.handler
    contenders = (
        _plain(task),
        _floor(task),
        _execute(EXECUTE, task, handler),
        _sdk(task, handler),
        _fastmcp(task, handler),
    )
    return Race(f"in process, `{task.name}`, async def", contenders, (FLOOR, EXECUTE), goals)


def _sync_race(task: Task) -> Race:
    handler = task.sync_handler
    contenders = (
        _plain_sync(task),
        _floor(task),
        _execute(EXECUTE_INLINE, task, handler, inline=True),
        _execute(EXECUTE_IN_THREAD, task, handler),
        _sdk(task, handler),
        _fastmcp(task, handler),
    )
    return Race(f"in process, `{task.name}`, def", contenders, (FLOOR, EXECUTE_IN_THREAD))


# --- without anybody's help ---------------------------------------------------------------------------------------


def _plain(task: Task) -> Contender:
    handler, arguments = task.handler, task.arguments

    async def call() -> Any:
        return await handler(**arguments)

    return of_coroutine(PLAIN, call, task.answer)


def _plain_sync(task: Task) -> Contender:
    handler, arguments = task.sync_handler, task.arguments
    return of_function(PLAIN, lambda: handler(**arguments), task.answer)


def _floor(task: Task) -> Contender:
    """The least that keeps the promise: check the input, run, check and normalize the result, wrap it."""
    handler, arguments = task.handler, task.arguments
    input_struct, output_struct = task.input_struct, task.output_struct
    convert, as_dict, to_builtins = msgspec.convert, msgspec.structs.asdict, msgspec.to_builtins
    meta = {"source": "local", "operationId": task.name}

    async def execute(arguments: dict[str, Any]) -> dict[str, Any]:
        result = await handler(**as_dict(convert(arguments, input_struct)))
        return {"data": to_builtins(convert(result, output_struct)), "meta": meta}

    async def call() -> Any:
        return await execute(arguments)

    return of_coroutine(FLOOR, call, task.answer, lambda envelope: envelope["data"])


# --- Enfold and its peers -----------------------------------------------------------------------------------------


def _execute(name: str, task: Task, handler: Callable[..., Any], **options: Any) -> Contender:
    ops = OperationRegistry("bench")
    ops.query(name=task.name, **options)(handler)
    operation_id, arguments = f"bench.{task.name}", task.arguments

    async def call() -> Any:
        return await ops.execute(operation_id, arguments)

    return of_coroutine(name, call, task.answer, lambda envelope: envelope.data)


def _sdk(task: Task, handler: Callable[..., Any]) -> Contender:
    server = MCPServer("bench", log_level="WARNING")
    server.tool(name=task.name)(handler)
    return _of_server(SDK, server, task)


def _fastmcp(task: Task, handler: Callable[..., Any]) -> Contender:
    # By name: the type checker works in the project's own environment, where FastMCP is not.
    server = import_module("fastmcp").FastMCP("bench")
    server.tool(handler, name=task.name)
    return _of_server(FASTMCP, server, task)


def _of_server(contender: str, server: Any, task: Task) -> Contender:
    name, arguments = task.name, task.arguments

    async def call() -> Any:
        return await server.call_tool(name, arguments)

    return of_coroutine(contender, call, task.answer, lambda result: result.structured_content)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
