"""POSTs over HTTP at 32 connections: each contender under one uvicorn worker, and the CPU time it takes for a request.

`python -m benchmarks.http ROUNDS` runs the comparisons; `python -m benchmarks.http serve NAME PORT` is one of their servers.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.environments import ROOT
from benchmarks.harness import Comparison, Contender, Goal, Sample
from benchmarks.http_apps import ENFOLD, FASTAPI, FLOOR, GUARDED, HEADERS, LITESTAR, OPEN, STARLETTE, TASKS
from benchmarks.http_load import Post, ask, ask_often
from benchmarks.program import compare_all

BATCH_US: Final = 400_000.0
GUARD: Final = " with token, scope and id"

# Every server of the comparisons, by its name.
APPS: Final[dict[str, Callable[[], Any]]] = OPEN | {f"{name}{GUARD}": app for name, app in GUARDED.items()}


class Row(msgspec.Struct, frozen=True):
    """One line of the table: what is called, on which servers, and how they should stand to each other."""

    title: str
    task: str
    servers: tuple[str, ...]
    goals: tuple[Goal, ...]


FRAMEWORKS: Final = (FLOOR, ENFOLD, FASTAPI, LITESTAR)

ROWS: Final = (
    Row(
        "`add`",
        "add",
        (*FRAMEWORKS, STARLETTE),
        (Goal(ENFOLD, FLOOR, "at most", 1.3), Goal(FASTAPI, ENFOLD, "at least", 3)),
    ),
    Row(
        "`add` with a bearer token, a required scope and a request id",
        "add",
        (ENFOLD, *(f"{name}{GUARD}" for name in FRAMEWORKS)),
        (
            Goal(f"{ENFOLD}{GUARD}", ENFOLD, "at most", 1.3),
            Goal(f"{FASTAPI}{GUARD}", f"{ENFOLD}{GUARD}", "at least", 3.3),
        ),
    ),
    Row("`add` as a `def`", "add_sync", FRAMEWORKS, (Goal(FASTAPI, ENFOLD, "at least", 2.8),)),
    Row(
        "50 dataclasses",
        "rows",
        FRAMEWORKS,
        (Goal(FASTAPI, ENFOLD, "at least", 1.7), Goal(ENFOLD, LITESTAR, "at most", 1)),
    ),
    Row("50 pydantic models", "models", FRAMEWORKS, (Goal(FASTAPI, ENFOLD, "at least", 1.7),)),
    Row("`mid`", "mid", (*FRAMEWORKS, STARLETTE), (Goal(ENFOLD, FLOOR, "at most", 1.28),)),
)


def main(rounds: int) -> int:
    with ExitStack() as stack:
        servers = {name: stack.enter_context(_server(name)) for name in APPS}
        return compare_all("http", [_comparison(row, servers) for row in ROWS], rounds)


def _comparison(row: Row, servers: dict[str, Server | None]) -> Comparison:
    there = [(name, server) for name in row.servers if (server := servers[name]) is not None]
    contenders = tuple(_contender(name, server, row.task) for name, server in there)
    baselines = tuple(name for name in (FLOOR, ENFOLD, f"{ENFOLD}{GUARD}") if name in dict(there))
    return Comparison(f"HTTP POST, {row.title}", contenders, baselines, row.goals, "cpu", BATCH_US)


def _contender(name: str, server: Server, operation: str) -> Contender:
    task, kind = TASKS[operation], name.removesuffix(GUARD)
    path = f"/functions/{operation}" if kind == ENFOLD else f"/{operation}"
    post = Post(server.port, path, json.dumps(task.arguments).encode(), HEADERS if kind != name else {})

    async def answer() -> Any:
        found = json.loads(await ask(post))
        return found["result"] if kind in (ENFOLD, FLOOR) else found

    async def batch(count: int) -> Sample:
        cpu, wall = server.cpu_us(), time.perf_counter_ns()
        await ask_often(post, count)
        return Sample((server.cpu_us() - cpu) / count, (time.perf_counter_ns() - wall) / count / 1_000)

    return Contender(name, batch, answer, task.answer)


# --- servers ------------------------------------------------------------------------------------------------------


class Server:
    """A running server."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.port = port
        self._tasks = Path(f"/proc/{process.pid}/task")

    def cpu_us(self) -> float:
        """The CPU time that all its threads have used so far."""
        used = 0
        for task in self._tasks.iterdir():
            with suppress(OSError):  # a thread that has just ended
                used += int((task / "schedstat").read_text(encoding="ascii").split()[0])
        return used / 1_000


@contextmanager
def _server(name: str) -> Iterator[Server | None]:
    """A server in a process of its own; None where the contender is not installed."""
    port = _free_port()
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.http", "serve", name, str(port)], cwd=ROOT)
    try:
        yield Server(process, port) if _answers(process, port) else None
    finally:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    for _ in range(300):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return True
        if process.poll() is not None:
            return False
        time.sleep(0.1)
    return False


def _serve(name: str, port: int) -> None:
    import uvicorn

    uvicorn.run(APPS[name](), port=port, access_log=False, log_level="warning")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(sys.argv[2], int(sys.argv[3]))
    else:
        sys.exit(main(int(sys.argv[1])))
