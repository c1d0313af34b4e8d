"""A server of two workers under mixed load, while its children are killed, its workers die and its file changes.

The load is calls of functions, of a process that speaks MCP and of a service with an OpenAPI document, streams, and sessions of
MCP clients. `python -m tests.running.faults_under_load --seconds 600` prints what was seen: answers by their codes, errors
without a code, memory at the beginning and at the end, and the processes that were left after SIGTERM.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec
from tests.running.changes_under_load import LITTLE, _port

SHOP: Final = """\
import asyncio

def price(name: str) -> int:
    return len(name)

async def slow(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "done"

def fails() -> int:
    raise ValueError("of its own accord")

def large(size: int) -> str:
    return "x" * size

async def ticks(count: int):
    for number in range(count):
        yield number
        await asyncio.sleep(0.01)
"""
GROWTH: Final = 1.3  # how much more memory the last third may take than the first
INTRODUCTION: Final = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "load", "version": "1"},
}
# What is asked, and how often beside the others.
CALLS: Final[list[tuple[int, str, Any]]] = [
    (20, "shop.price", {"name": "tea"}),
    (20, "little.add", {"x": 1, "y": 2}),
    (10, "far.price", {"name": "tea"}),
    (4, "shop.ticks", {"count": 20}),
    (4, "shop.slow", {"seconds": 0.2}),
    (2, "shop.fails", {}),
    (2, "shop.large", {"size": 200_000}),
    (3, "shop.price", {"nam": 7}),
    (3, "no.such.thing", {}),
    (1, "shop.price", {"name": "x" * 9_000_000}),
]


class Seen(msgspec.Struct):
    """What came of it."""

    answers: Counter[str] = msgspec.field(default_factory=Counter)
    uncoded: list[str] = msgspec.field(default_factory=list)
    cut: int = 0  # connections that broke: those of a worker that was killed
    faults: Counter[str] = msgspec.field(default_factory=Counter)
    memory: list[float] = msgspec.field(default_factory=list)  # MB of all workers together, as time goes by
    started: set[int] = msgspec.field(default_factory=set)  # every process that there was
    left: list[int] = msgspec.field(default_factory=list)  # processes that outlived the server
    exit_code: int | None = None

    @property
    def thirds(self) -> tuple[float, float]:
        """The most memory in the first third of the time, and in the last."""
        third = max(1, len(self.memory) // 3)
        return max(self.memory[:third], default=0.0), max(self.memory[-third:], default=0.0)

    @property
    def is_right(self) -> bool:
        """Whether every error had a code, memory stayed as it was, and nothing was left behind."""
        early, late = self.thirds
        return not self.uncoded and not self.left and self.exit_code == 0 and late <= early * GROWTH

    def __str__(self) -> str:
        early, late = self.thirds
        return (
            f"{sum(self.answers.values())} answers {dict(self.answers)}; {len(self.uncoded)} errors without a code "
            f"{self.uncoded[:3]}; {self.cut} connections cut; faults {dict(self.faults)}; memory at most {early:.0f} MB in "
            f"the first third, {late:.0f} MB in the last; exit {self.exit_code}, {len(self.left)} processes left"
        )


def run(seconds: float, clients: int = 4, seed: int = 1) -> Seen:
    """Run it for so long; the same faults in the same order for each seed."""
    seen = Seen()
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "shop.py").write_text(SHOP)
        with _served(folder, "shop.py") as (_, far):
            (folder / "far").write_text(f"http://127.0.0.1:{far}/openapi.json")
            _configure(folder, 0)
            _run_server(folder, seconds, clients, seed, seen)
    return seen


@contextmanager
def _served(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server, and its port."""
    command = [sys.executable, "-m", "enfold", "serve", *words, "--port", "0", "--no-access-log"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder) as server:
        assert server.stderr is not None
        try:
            port = _port(server.stderr)
            threading.Thread(target=lambda: list(server.stderr or ()), daemon=True).start()
            yield server, port
        finally:
            server.kill()


def _run_server(folder: Path, seconds: float, clients: int, seed: int, seen: Seen) -> None:
    with _served(folder, "enfold.toml", "--workers", "2") as (server, port):
        _trouble(server.pid, port, folder, seconds, clients, random.Random(seed), seen)  # noqa: S311
        seen.started.update(_family(server.pid))
        server.terminate()
        seen.exit_code = server.wait(60)
        seen.left = _still_running(seen.started)


def _trouble(
    server: int, port: int, folder: Path, seconds: float, clients: int, chance: random.Random, seen: Seen
) -> None:
    over = threading.Event()
    callers = [
        threading.Thread(target=_call, args=(port, random.Random(number), over, seen))  # noqa: S311
        for number in range(clients)
    ]
    callers.append(threading.Thread(target=_hold_sessions, args=(port, over, seen)))
    for thread in callers:
        thread.start()
    ends_at, change = time.monotonic() + seconds, 0
    faults = ["child", "hangup", "change", "worker"]
    while time.monotonic() < ends_at:
        time.sleep(min(2.0, seconds / 10))
        seen.memory.append(sum(_memory(each) for each in _children(server)))
        seen.started.update(_family(server))
        fault = chance.choice(faults)
        seen.faults[fault] += 1
        change += 1
        _do(fault, server, folder, change, chance)
    over.set()
    for thread in callers:
        thread.join()


def _do(fault: str, server: int, folder: Path, change: int, chance: random.Random) -> None:
    workers = _children(server)
    with suppress(ProcessLookupError, IndexError):
        if fault == "child":
            os.kill(chance.choice(_children(chance.choice(workers))), signal.SIGKILL)
        elif fault == "hangup":
            os.kill(server, signal.SIGHUP)
        elif fault == "worker":
            os.kill(chance.choice(workers), signal.SIGKILL)
        else:
            _configure(folder, change)


def _configure(folder: Path, change: int) -> None:
    """Write the file anew; a source changes with every writing, and one comes and goes."""
    little = json.dumps([sys.executable, str(LITTLE), "--stays"])
    text = f'[sources.shop]\nfunctions = "shop.py"\nnamespace = "shop"\n[sources.little]\ncommand = {little}\n'
    text += f'[sources.other]\nfunctions = "shop.py"\nnamespace = "other"\ntimeout = {change + 1}\n'
    text += f'[sources.far]\nopenapi = "{(folder / "far").read_text()}"\n'
    text += f"[sources.guest]\ncommand = {little}\n" if change % 2 else ""
    new = folder / "enfold.new"
    new.write_text(text)
    new.replace(folder / "enfold.toml")


def _call(port: int, chance: random.Random, over: threading.Event, seen: Seen) -> None:
    weights, operations, given = zip(*CALLS, strict=True)
    while not over.is_set():
        with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
            for _ in range(20):
                number = chance.choices(range(len(CALLS)), weights)[0]
                if chance.random() < 0.02:  # a client that leaves before its answer
                    connection.request("POST", f"/functions/{operations[number]}", "{}", {"Content-Length": "9"})
                    break
                if not _ask(connection, operations[number], given[number], seen):
                    break


def _ask(connection: HTTPConnection, operation: str, given: Any, seen: Seen) -> bool:
    """Whether the connection can be used again."""
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", f"/functions/{operation}", json.dumps(given), headers)
        reply = connection.getresponse()
        reply.read()
    except (OSError, HTTPException):
        seen.cut += 1
        return False
    code = reply.headers.get("Enfold-Code")
    seen.answers[code or str(reply.status)] += 1
    if reply.status >= 400 and code is None:
        seen.uncoded.append(f"{operation} {reply.status}")
    return not reply.will_close


def _hold_sessions(port: int, over: threading.Event, seen: Seen) -> None:
    """An MCP client with a session, and with another one when that has died with its worker."""
    while not over.is_set():
        with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as client, suppress(OSError, HTTPException):
            session = _tell(client, "initialize", INTRODUCTION, seen)[1]
            status = 200
            while status == 200 and session is not None and not over.is_set():
                named = {"name": "shop_price", "arguments": {"name": "tea"}}
                status, _ = _tell(client, "tools/call", named, seen, session)


def _tell(
    client: HTTPConnection, method: str, params: Any, seen: Seen, session: str | None = None
) -> tuple[int, str | None]:
    """The status of a message's answer, and the session that it begins."""
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    client.request("POST", "/mcp", body, headers | ({} if session is None else {"Mcp-Session-Id": session}))
    reply = client.getresponse()
    reply.read()
    code = reply.headers.get("Enfold-Code")
    seen.answers[f"MCP {code or reply.status}"] += 1
    if reply.status >= 400 and code is None:
        seen.uncoded.append(f"{method} {reply.status}")
    return reply.status, reply.headers.get("Mcp-Session-Id")


# --- processes ----------------------------------------------------------------------------------------------------


def _children(process: int) -> list[int]:
    with suppress(OSError):
        tasks = Path(f"/proc/{process}/task").iterdir()
        return [int(each) for task in tasks for each in (task / "children").read_text().split()]
    return []


def _family(process: int) -> list[int]:
    return [process, *(each for child in _children(process) for each in _family(child))]


def _memory(process: int) -> float:
    """The resident memory of a process in MB."""
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    return 0.0


def _still_running(processes: set[int]) -> list[int]:
    """Those that have not ended a moment after their server."""
    ends_at = time.monotonic() + 5
    while (left := [each for each in processes if _is_running(each)]) and time.monotonic() < ends_at:
        time.sleep(0.05)
    return left


def _is_running(process: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=4)
    options = parser.parse_args()
    found = run(options.seconds, options.clients)
    print(found)  # noqa: T201  # what the script is for
    sys.exit(0 if found.is_right else 1)
