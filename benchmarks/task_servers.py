"""The MCP servers whose tools are tasks: the same tiny tool on Enfold and on FastMCP, which keeps its tasks in memory.

`python -m benchmarks.task_servers NAME PORT FOLDER` serves one over HTTP, with its file in the folder.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

from benchmarks import work

ENFOLD: Final = "enfold, SQLite"
ENFOLD_NORMAL: Final = "enfold, SQLite, fsync normal"
ENFOLD_MEMORY: Final = "enfold, memory"
FASTMCP: Final = "FastMCP, memory"
FASTMCP_REDIS: Final = "FastMCP, Redis"
REDIS: Final = "BENCH_REDIS"  # the variable with the address of a Redis server


def _enfold(store: Any) -> Any:
    from enfold import OperationRegistry
    from enfold.surfaces.mcp import to_mcp
    from enfold.tasks import Tasks

    ops = OperationRegistry()
    ops.query(durable=True)(work.add)
    return to_mcp(ops, tasks=Tasks(ops, store))


def _on_sqlite(folder: str, fsync: Literal["full", "normal"] = "full") -> Any:
    """By default every task is on the disk before its caller hears of it."""
    from enfold.tasks.sqlite import SQLiteTasks

    return _enfold(SQLiteTasks(Path(folder) / f"{fsync}.db", fsync=fsync))


def _in_memory(_: str) -> Any:
    from enfold.tasks.memory import MemoryTasks

    return _enfold(MemoryTasks())


def _fastmcp(_: str) -> Any:
    # By name: the type checker works in the project's own environment, where FastMCP is not.
    from importlib import import_module

    server = import_module("fastmcp").FastMCP("bench")
    server.add_extension(import_module("fastmcp_tasks").TasksExtension())
    server.tool(work.add, name="add", task=True)
    return server.http_app(path="/mcp", json_response=True)


def _fastmcp_on_redis(_: str) -> Any:
    os.environ["FASTMCP_DOCKET_URL"] = os.environ[REDIS]
    return _fastmcp("")


APPS: Final[dict[str, Callable[[str], Any]]] = {
    ENFOLD: _on_sqlite,
    ENFOLD_NORMAL: lambda folder: _on_sqlite(folder, "normal"),
    ENFOLD_MEMORY: _in_memory,
    FASTMCP: _fastmcp,
    FASTMCP_REDIS: _fastmcp_on_redis,
}


def main(name: str, port: str, folder: str) -> None:
    logging.disable(logging.WARNING)
    os.environ["FASTMCP_LOG_LEVEL"] = "ERROR"
    import uvicorn

    uvicorn.run(APPS[name](folder), host="127.0.0.1", port=int(port), log_level="error", access_log=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
