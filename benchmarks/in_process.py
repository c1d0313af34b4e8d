"""One call inside a process: Enfold's `execute` beside a plain call, the msgspec floor, the MCP SDK and FastMCP.

And typed results beside the engines that know their types.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any, Final

import msgspec
import pydantic
from mcp.server import MCPServer

from benchmarks import work
from benchmarks.harness import Comparison, Contender, Goal, of_coroutine, of_function
from benchmarks.program import compare_all
from enfold import OperationRegistry
from enfold.operations import Policy
from enfold.operations.call import Call, Next
from enfold.operations.outcomes import Outcome
from enfold.runtime.pipeline import build_writing_pipeline
from enfold.schema.structs import encode

PLAIN: Final = "plain call"
FLOOR: Final = "msgspec floor"
EXECUTE: Final = "execute"
WITH_MIDDLEWARE: Final = "execute, through a middleware"
EXECUTE_INLINE: Final = "execute, inline"
EXECUTE_IN_THREAD: Final = "execute, in a thread"
SDK: Final = "MCPServer.call_tool"
FASTMCP: Final = "FastMCP.call_tool"
ENGINE: Final = "its engine alone"
WRITTEN: Final = "written by enfold"
WRITTEN_BY_ENGINE: Final = "written and read again by its engine"


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
    comparisons = [
        _async_comparison(ADD, ADD_GOALS),
        _async_comparison(MID, MID_GOALS),
        _sync_comparison(ADD),
        _sync_comparison(MID),
    ]
    comparisons.append(_middleware_comparison())
    typed = [*map(_typed_comparison, ROWS), *map(_writing_comparison, ROWS)]
    return compare_all("in_process", comparisons + typed, rounds)


def _silence_peers() -> None:
    # Their lines for each call would be timed with it; ours are the same, and are silenced alike.
    logging.disable(logging.WARNING)
    os.environ["FASTMCP_LOG_LEVEL"] = "ERROR"


def _async_comparison(task: Task, goals: tuple[Goal, ...]) -> Comparison:
    handler = task.handler
    contenders = (
        _plain(task),
        _floor(task),
        _execute(EXECUTE, task, handler),
        _sdk(task, handler),
        _fastmcp(task, handler),
    )
    return Comparison(f"in process, `{task.name}`, async def", contenders, (FLOOR, EXECUTE), goals)


def _sync_comparison(task: Task) -> Comparison:
    handler = task.sync_handler
    contenders = (
        _plain_sync(task),
        _floor(task),
        _execute(EXECUTE_INLINE, task, handler, inline=True),
        _execute(EXECUTE_IN_THREAD, task, handler),
        _sdk(task, handler),
        _fastmcp(task, handler),
    )
    return Comparison(f"in process, `{task.name}`, def", contenders, (FLOOR, EXECUTE_IN_THREAD))


def _middleware_comparison() -> Comparison:
    """What a user middleware costs: the difference of the two contenders; the aim is less than 1.5 us."""

    async def pass_through(call: Call, next: Next) -> Outcome:
        return await next(call)

    contenders = (
        _execute(EXECUTE, ADD, ADD.handler),
        _execute(WITH_MIDDLEWARE, ADD, ADD.handler, middleware=[pass_through]),
    )
    return Comparison("in process, `add`, a user middleware", contenders, (EXECUTE,))


# --- typed results ------------------------------------------------------------------------------------------------


class RowModel(pydantic.BaseModel):
    id: int
    name: str
    price: float
    tags: list[str]


class Rows(msgspec.Struct, frozen=True):
    """A class of rows, what its own engine does with a list of them, and how much longer we may take."""

    name: str
    row: Any
    to_plain: Callable[[Any], Any]
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]
    limit: float


def _of_msgspec(name: str, row: Any) -> Rows:
    read = msgspec.json.Decoder(list[row]).decode
    return Rows(name, row, msgspec.to_builtins, msgspec.json.Encoder().encode, read, 3)


def _of_pydantic(name: str, row: Any) -> Rows:
    adapter = pydantic.TypeAdapter(list[row])
    to_plain = functools.partial(adapter.dump_python, mode="json")
    return Rows(name, row, to_plain, adapter.dump_json, adapter.validate_json, 2.5)


ROWS: Final = (
    _of_msgspec("dataclasses", work.Row),
    _of_msgspec("Structs", work.RowStruct),
    _of_pydantic("pydantic models", RowModel),
)


def _typed_comparison(rows: Rows) -> Comparison:
    """1,000 rows as plain data, checked: `execute` beside what the engine takes to make them plain, unchecked."""
    result, plain = work.rows(rows.row, 1_000), work.rows(dict, 1_000)
    ops, to_plain = _giving(rows, result), rows.to_plain

    async def call() -> Any:
        return await ops.execute("bench.give", {})

    contenders = (
        of_function(ENGINE, lambda: to_plain(result), plain),
        of_coroutine(EXECUTE, call, plain, lambda envelope: envelope.data),
    )
    return Comparison(
        f"in process, 1,000 {rows.name}", contenders, (ENGINE,), (Goal(EXECUTE, ENGINE, "at most", rows.limit),)
    )


def _writing_comparison(rows: Rows) -> Comparison:
    """50 rows as checked JSON text: the result step for a caller who writes, beside the engine's writing and reading."""
    result, plain = work.rows(rows.row, 50), work.rows(dict, 50)
    operation = _giving(rows, result).get("bench.give")
    finish = build_writing_pipeline(operation.spec, Policy(), operation.signature)
    write, read = rows.write, rows.read

    def write_and_read() -> bytes:
        text = write(result)
        read(text)
        return text

    contenders = (
        of_function(WRITTEN_BY_ENGINE, write_and_read, plain, msgspec.json.decode),
        of_function(WRITTEN, lambda: encode(finish(result).data), plain, msgspec.json.decode),
    )
    goals = (Goal(WRITTEN, WRITTEN_BY_ENGINE, "at most", 1.5),)
    return Comparison(f"in process, 50 {rows.name} written", contenders, (WRITTEN_BY_ENGINE,), goals)


def _giving(rows: Rows, result: list[Any]) -> OperationRegistry:
    async def give() -> Any:
        return result

    give.__annotations__["return"] = list[rows.row]  # type: ignore[name-defined]  # known only here
    ops = OperationRegistry("bench")
    ops.query(give)
    return ops


# --- without a framework ---------------------------------------------------------------------------------------


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
