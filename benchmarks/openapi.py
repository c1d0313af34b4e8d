"""Large OpenAPI documents until their tools are there, beside FastMCP.

`python -m benchmarks.openapi ROUNDS` runs the comparisons; `... list NAME DOCUMENT` reads one document. Each reading has a
process of its own, so that its memory can be told.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Container
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks import report
from benchmarks.environments import HOME, PEERS, ROOT
from benchmarks.harness import Comparison, Contender, Goal, Outcome, Sample, WrongAnswerError
from enfold import OperationRegistry
from enfold.sources.openapi import from_openapi

GITHUB: Final = "@octokit/openapi@23.0.2"
STRIPE_LIKE_OPERATIONS: Final = 400
STRIPE_LIKE_SCHEMAS: Final = 480
ENFOLD: Final = "enfold, schemas made"
ENFOLD_WRITTEN: Final = "enfold, tools/list answered"
FASTMCP: Final = "FastMCP, tools listed"
FASTMCP_WRITTEN: Final = "FastMCP, list written"

READING_GOALS: Final = (Goal(FASTMCP, ENFOLD, "at least", 6), Goal(FASTMCP_WRITTEN, ENFOLD_WRITTEN, "at least", 6))
MEMORY_GOALS: Final = (Goal(ENFOLD, FASTMCP, "at most", 0.5), Goal(ENFOLD_WRITTEN, FASTMCP_WRITTEN, "at most", 0.5))


class Reading(msgspec.Struct, frozen=True):
    """What one process needed until the tools were there."""

    tools: int
    cpu: float
    wall: float
    peak_mb: float

    @property
    def sample(self) -> Sample:
        return Sample(self.cpu * 1_000_000, self.wall * 1_000_000)


class Task(msgspec.Struct, frozen=True):
    """A document to read: a reading takes seconds, or a minute, so that a few in turn have to say enough."""

    title: str
    operations: int
    readings: int
    names: tuple[str, ...]


GITHUB_TASK: Final = Task("GitHub's document", 1_223, 3, (ENFOLD, ENFOLD_WRITTEN, FASTMCP, FASTMCP_WRITTEN))
# FastMCP repeats the 480 schemas in each of the 400 tools, which takes it minutes to write.
STRIPE_LIKE_TASK: Final = Task("400 operations that reach 480 schemas", 400, 2, (ENFOLD, ENFOLD_WRITTEN, FASTMCP))


def main(_rounds: int) -> int:
    outcomes = [
        _read_in_turns(GITHUB_TASK, _github()),
        _read_in_turns(STRIPE_LIKE_TASK, _stripe_like()),
    ]
    report.save("openapi", outcomes)
    return 0


# --- until the tools are there ------------------------------------------------------------------------------------


def _read_in_turns(task: Task, document: Path) -> Outcome:
    load = os.getloadavg()[0]
    readings: dict[str, list[Reading]] = {name: [] for name in task.names}
    for _ in range(task.readings):
        for name, found in readings.items():
            found.append(_read(name, document, task.operations))
    samples = {name: [each.sample for each in found] for name, found in readings.items()}
    contenders = tuple(_as_contender(name) for name in task.names)
    comparison = Comparison(task.title, contenders, (ENFOLD,), _among(READING_GOALS, task.names))
    outcome = Outcome(comparison, samples, (load, os.getloadavg()[0]))
    report.show(outcome)
    _show_memory(readings)
    return outcome


def _among(goals: tuple[Goal, ...], names: Container[str]) -> tuple[Goal, ...]:
    return tuple(goal for goal in goals if goal.over in names and goal.under in names)


def _read(name: str, document: Path, operations: int) -> Reading:
    command = [str(PEERS.python), "-m", "benchmarks.openapi", "list", name, str(document)]
    told = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    reading = msgspec.json.decode(told, type=Reading)
    if reading.tools != operations:
        raise WrongAnswerError(name, reading.tools, operations)
    return reading


def _as_contender(name: str) -> Contender:
    """A name in a table: its process has been checked and measured already."""

    async def nothing(*_: Any) -> Any:
        raise NotImplementedError

    return Contender(name, nothing, nothing, None)


def _show_memory(readings: dict[str, list[Reading]]) -> None:
    peaks = {name: statistics.median(each.peak_mb for each in found) for name, found in readings.items()}
    print("\nPeak memory: " + ", ".join(f"{name} {peak:.0f} MB" for name, peak in peaks.items()))
    for goal in _among(MEMORY_GOALS, peaks):
        ratio = peaks[goal.over] / peaks[goal.under]
        word = "met" if ratio <= goal.limit else "missed"
        print(f"{goal.over} / {goal.under}: {ratio:.2f}, {goal.bound} {goal.limit:g}: {word}", flush=True)


async def _enfold(document: Path) -> int:
    registry = _registry(document)
    for spec in registry.list():
        _ = spec.input_schema, spec.output_schema
    return len(registry)


async def _enfold_written(document: Path) -> int:
    # By name: the surface is asked for where it is raced only.
    app = import_module("enfold.surfaces.mcp").to_mcp(_registry(document))
    count = 0
    cursor: str | None = None
    while count == 0 or cursor is not None:
        params: dict[str, Any] = {} if cursor is None else {"cursor": cursor}
        result = msgspec.json.decode(await ask_mcp(app, "tools/list", params), type=_Listed).result
        count, cursor = count + len(result.tools), result.nextCursor
    return count


class _Page(msgspec.Struct):
    tools: list[msgspec.Raw]
    nextCursor: str | None = None  # noqa: N815  # as it is on the wire


class _Listed(msgspec.Struct):
    result: _Page


def _registry(document: Path) -> OperationRegistry:
    registry = OperationRegistry()
    registry.register_all(from_openapi(document, base_url="http://127.0.0.1:1"))
    return registry


async def ask_mcp(app: Any, method: str, params: dict[str, Any]) -> bytes:
    """The answer of an ASGI app to a request of the stateless revision."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}).encode()
    headers = {
        "host": "127.0.0.1",
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": method,
        "content-length": str(len(body)),
        **({"mcp-name": params["name"]} if "name" in params else {}),
    }
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/mcp",
        "raw_path": b"/mcp",
        "root_path": "",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    parts: list[bytes] = []
    asked: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if asked:
            return asked.pop()
        return await asyncio.Future()  # the client stays

    async def send(message: dict[str, Any]) -> None:
        parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return b"".join(parts)


def _fastmcp_server(document: Path) -> Any:
    os.environ["FASTMCP_LOG_LEVEL"] = "ERROR"
    # It follows references by calling itself, and drops an operation at which Python's usual bound is reached.
    sys.setrecursionlimit(20_000)
    # By name: the type checker works in the project's own environment, where FastMCP is not.
    made = import_module("fastmcp").FastMCP.from_openapi
    client = import_module("httpx2").AsyncClient(base_url="http://127.0.0.1:1")
    return made(openapi_spec=json.loads(document.read_bytes()), client=client)


async def _fastmcp(document: Path) -> int:
    server = _fastmcp_server(document)
    return len(await server.list_tools())


async def _fastmcp_written(document: Path) -> int:
    server = _fastmcp_server(document)
    return sum(bool(tool.to_mcp_tool().model_dump_json(by_alias=True)) for tool in await server.list_tools())


READERS: Final[dict[str, Callable[[Path], Awaitable[int]]]] = {
    ENFOLD: _enfold,
    ENFOLD_WRITTEN: _enfold_written,
    FASTMCP: _fastmcp,
    FASTMCP_WRITTEN: _fastmcp_written,
}


def _list(name: str, document: Path) -> None:
    """Read a document with one contender and report the cost, without starting Python and imports."""
    if name in (FASTMCP, FASTMCP_WRITTEN):
        import_module("fastmcp")
    if name == ENFOLD_WRITTEN:
        _ = import_module("enfold.surfaces.mcp").to_mcp

    async def reading() -> Reading:
        cpu, wall = time.process_time(), time.perf_counter()
        tools = await READERS[name](document)
        return Reading(tools, time.process_time() - cpu, time.perf_counter() - wall, _peak_mb())

    print(msgspec.json.encode(asyncio.run(reading())).decode())


def _peak_mb() -> float:
    """The most memory this process has had; unlike the figure of `resource`, without that of the parent process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1_024


# --- documents ----------------------------------------------------------------------------------------------------


def _github() -> Path:
    """GitHub's document as npm has it, fetched once."""
    folder = HOME / "npm"
    found = folder / "node_modules/@octokit/openapi/generated/api.github.com.json"
    if not found.exists():
        npm = str(ROOT / ".venv/bin/npm")
        subprocess.run([npm, "install", "--silent", "--no-audit", "--prefix", str(folder), GITHUB], check=True)
    return found


def _stripe_like() -> Path:
    """A document like Stripe's: every operation answers with an object from which all schemas are reached, in circles."""
    paths = {f"/v1/things_{number}": _operations(number) for number in range(STRIPE_LIKE_OPERATIONS // 2)}
    schemas = {f"thing_{number}": _schema(number) for number in range(STRIPE_LIKE_SCHEMAS)}
    document = {
        "openapi": "3.0.0",
        "info": {"title": "Things", "version": "1"},
        "paths": paths,
        "components": {"schemas": schemas},
    }
    place = HOME / "stripe-like.json"
    place.parent.mkdir(exist_ok=True)
    place.write_text(json.dumps(document))
    return place


def _operations(number: int) -> dict[str, Any]:
    thing = {"$ref": f"#/components/schemas/thing_{number % STRIPE_LIKE_SCHEMAS}"}
    responses = {"200": {"description": "A thing.", "content": {"application/json": {"schema": thing}}}}
    form = {"type": "object", "properties": {"name": {"type": "string"}, "amount": {"type": "integer"}}}
    limit = {"name": "limit", "in": "query", "schema": {"type": "integer"}, "description": "How many."}
    return {
        "get": {"operationId": f"GetThings{number}", "parameters": [limit], "responses": responses},
        "post": {
            "operationId": f"PostThings{number}",
            "requestBody": {"content": {"application/x-www-form-urlencoded": {"schema": form}}},
            "responses": responses,
        },
    }


def _schema(number: int) -> dict[str, Any]:
    # Two deeper and one back: everything is reached from everywhere, in few steps.
    others = ((number * 2 + 1) % STRIPE_LIKE_SCHEMAS, (number * 2 + 2) % STRIPE_LIKE_SCHEMAS, max(number - 1, 0) // 2)
    links = {
        f"link_{place}": {
            "anyOf": [{"type": "string", "maxLength": 5000}, {"$ref": f"#/components/schemas/thing_{other}"}],
            "nullable": True,
            "description": "The other thing, or its id.",
        }
        for place, other in enumerate(others)
    }
    plain = {
        "id": {"type": "string", "maxLength": 5000, "description": "Unique identifier for the object."},
        "object": {"type": "string", "enum": [f"thing_{number}"]},
        "created": {"type": "integer", "format": "unix-time"},
        "amount": {"type": "integer", "description": "In the smallest unit of the currency."},
        "livemode": {"type": "boolean"},
        "metadata": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 500}},
    }
    return {"type": "object", "required": ["id", "object", "created"], "properties": {**plain, **links}}


if __name__ == "__main__":
    if sys.argv[1] == "list":
        _list(sys.argv[2], Path(sys.argv[3]))
    else:
        sys.exit(main(int(sys.argv[1])))
