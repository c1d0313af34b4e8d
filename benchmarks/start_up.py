"""From nothing to an imported registry, and to the answer of a CGI program: new interpreters in turn, timed on the wall.

What ours loads for the import is looked at, too.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks import work
from benchmarks.environments import BARE, HOME, PEERS
from benchmarks.harness import Batch, Comparison, Contender, Goal, Sample
from benchmarks.program import compare_all

NOTHING: Final = "pass"
MSGSPEC: Final = "import msgspec"
ENFOLD: Final = "from enfold import OperationRegistry"
PYDANTIC: Final = "from pydantic import TypeAdapter"
SDK: Final = "from mcp.server import MCPServer"
FASTMCP: Final = "from fastmcp import FastMCP"

# A batch long enough for several starts of the light ones: starting a process is a noisy thing.
BATCH_US: Final = 300_000.0

# What a program that only imports the registry must not pay for.
UNWANTED: Final = (
    "asyncio",
    "cryptography",
    "httpx2",
    "mcp",
    "nats",
    "opentelemetry",
    "pydantic",
    "ruamel",
    "uvicorn",
    "websockets",
)


# The same program as an operation, by hand, and in a framework that knows no CGI.
ENFOLD_CGI: Final = "enfold cgi"
BY_HAND: Final = "a script with msgspec"
FASTAPI: Final = "FastAPI, its app called once"
PROGRAMS: Final = {
    ENFOLD_CGI: """
from enfold import OperationRegistry

ops = OperationRegistry()

@ops.query
def add(x: int, y: int) -> dict[str, int]:
    return {"sum": x + y}
""",
    BY_HAND: """
import sys

import msgspec

class Input(msgspec.Struct):
    x: int
    y: int

given = msgspec.json.decode(sys.stdin.buffer.read(), type=Input)
text = msgspec.json.encode({"result": {"sum": given.x + given.y}})
sys.stdout.buffer.write(b"Status: 200 OK\\r\\nContent-Type: application/json\\r\\n\\r\\n" + text)
""",
    FASTAPI: """
import asyncio
import sys

from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()

class Input(BaseModel):
    x: int
    y: int

@app.post("/add")
async def add(given: Input) -> dict[str, dict[str, int]]:
    return {"result": {"sum": given.x + given.y}}

async def receive():
    return {"type": "http.request", "body": sys.stdin.buffer.read(), "more_body": False}

async def send(message):
    if message["type"] == "http.response.body":
        sys.stdout.buffer.write(b"Status: 200 OK\\r\\nContent-Type: application/json\\r\\n\\r\\n" + message["body"])

scope = {"type": "http", "method": "POST", "path": "/add", "query_string": b"", "root_path": ""}
asyncio.run(app({**scope, "headers": [(b"content-type", b"application/json")]}, receive, send))
""",
}
REQUEST: Final = {
    "GATEWAY_INTERFACE": "CGI/1.1",
    "SERVER_PROTOCOL": "HTTP/1.1",
    "REQUEST_METHOD": "POST",
    "PATH_INFO": "/add",
    "CONTENT_TYPE": "application/json",
}


def main(rounds: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        return compare_all("start_up", [_import_comparison(), _cgi_comparison(Path(folder))], rounds)


def _import_comparison() -> Comparison:
    light = (_start(BARE.python, program) for program in (NOTHING, MSGSPEC, ENFOLD))
    heavy = (_start(PEERS.python, program) for program in (PYDANTIC, SDK, FASTMCP))
    goals = (Goal(ENFOLD, MSGSPEC, "at most", 1.6),)
    return Comparison("start-up", (*light, *heavy), (MSGSPEC, ENFOLD), goals, "wall", BATCH_US)


def _start(python: Path, program: str) -> Contender:
    async def answer() -> Any:
        # Measured with the optional packages installed: otherwise nothing could load them.
        return _unwanted_of(program) if program == ENFOLD else []

    return Contender(program, _batch(lambda: _run(python, "-c", program)), answer, [])


def _batch(start: Callable[[], bytes]) -> Batch:
    async def batch(count: int) -> Sample:
        cpu, wall = _children_cpu_us(), time.perf_counter_ns()
        for _ in range(count):
            start()
        return Sample((_children_cpu_us() - cpu) / count, (time.perf_counter_ns() - wall) / count / 1_000)

    return batch


def _cgi_comparison(folder: Path) -> Comparison:
    """A web server starts the program for each request, and gives it the body."""
    files = {name: folder / f"{number}.py" for number, name in enumerate(PROGRAMS)}
    for name, file in files.items():
        file.write_text(PROGRAMS[name], encoding="utf-8")
    contenders = (
        _posted(BY_HAND, BARE.python, str(files[BY_HAND])),
        _posted(ENFOLD_CGI, BARE.python, "-m", "enfold", "cgi", str(files[ENFOLD_CGI])),
        _posted(FASTAPI, PEERS.python, str(files[FASTAPI])),
    )
    goals = (Goal(ENFOLD_CGI, BY_HAND, "at most", 2), Goal(FASTAPI, ENFOLD_CGI, "at least", 4))
    return Comparison("one request of a CGI program", contenders, (BY_HAND, ENFOLD_CGI), goals, "wall", BATCH_US)


def _posted(name: str, python: Path, *arguments: str) -> Contender:
    def start() -> bytes:
        return _run(python, *arguments, body=json.dumps(work.ADD_INPUT).encode())

    async def answer() -> Any:
        return json.loads(start().partition(b"\r\n\r\n")[2])["result"]

    return Contender(name, _batch(start), answer, work.ADD_ANSWER)


def _unwanted_of(program: str) -> list[str]:
    question = f"{program}\nimport json, sys\nprint(json.dumps([name for name in {UNWANTED} if name in sys.modules]))"
    loaded: list[str] = json.loads(_run(PEERS.python, "-c", question))
    return loaded


def _run(python: Path, *arguments: str, body: bytes = b"") -> bytes:
    environment = {**_with_bytecode(), **(REQUEST if body else {})}
    command = [str(python), *arguments]
    return subprocess.run(command, check=True, input=body, stdout=subprocess.PIPE, env=environment).stdout


def _with_bytecode() -> dict[str, str]:
    """The environment in which every module is compiled once, as an installed package is, and not in the checkout."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, "PYTHONPYCACHEPREFIX": str(HOME / "bytecode")}


def _children_cpu_us() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) * 1_000_000


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
