"""A POST over HTTP at 32 connections: each contender under one uvicorn worker, and the CPU time it takes for a request.

The load comes from wrk where it is installed, else from a client of our own, which shares the machine less modestly.
`python -m benchmarks.http ROUNDS` runs the race; `python -m benchmarks.http serve NAME PORT` is one of its servers.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final

import msgspec

from benchmarks import work
from benchmarks.environments import ROOT
from benchmarks.harness import Contender, Goal, Race, Sample
from benchmarks.program import race_all

CONNECTIONS: Final = 32
BATCH_US: Final = 400_000.0

FLOOR: Final = "bare ASGI, msgspec"
ENFOLD: Final = "enfold"
STARLETTE: Final = "Starlette, no validation"
FASTAPI: Final = "FastAPI"


class Task(msgspec.Struct, frozen=True):
    """An operation in every form a contender needs."""

    handler: Callable[..., Any]
    arguments: dict[str, Any]
    answer: dict[str, Any]
    input_struct: type[msgspec.Struct]
    output_struct: type[msgspec.Struct]


TASKS: Final = {
    "add": Task(work.add, work.ADD_INPUT, work.ADD_ANSWER, work.AddInputStruct, work.SumStruct),
    "mid": Task(work.mid, work.MID_INPUT, work.MID_ANSWER, work.MidInputStruct, work.InvoicesStruct),
}


def main(rounds: int) -> int:
    with ExitStack() as stack:
        servers = {name: stack.enter_context(_server(name)) for name in APPS}
        return race_all("http", [_race("add", 1.5, servers), _race("mid", 1.3, servers)], rounds)


def _race(operation: str, times_floor: float, servers: dict[str, Server | None]) -> Race:
    contenders = tuple(_contender(name, server, operation) for name, server in servers.items() if server is not None)
    goals = (
        Goal(ENFOLD, FLOOR, "at most", times_floor),
        *((Goal(FASTAPI, ENFOLD, "at least", 3),) if operation == "add" else ()),
    )
    return Race(f"HTTP POST, `{operation}`", contenders, (FLOOR, ENFOLD), goals, "cpu", BATCH_US)


def _contender(name: str, server: Server, operation: str) -> Contender:
    task = TASKS[operation]
    path = f"/functions/{operation}" if name == ENFOLD else f"/{operation}"
    request = _request(server.port, path, task.arguments)

    async def answer() -> Any:
        found = json.loads(await _once(server.port, request))
        return found["result"] if name in (ENFOLD, FLOOR) else found

    async def batch(count: int) -> Sample:
        size = len(await _once(server.port, request, whole=True))
        cpu, wall = server.cpu_us(), time.perf_counter_ns()
        if _WRK is None:
            await _many(server.port, request, size, count)
        else:
            count = await asyncio.to_thread(_load, server.port, path, task.arguments)
        return Sample((server.cpu_us() - cpu) / count, (time.perf_counter_ns() - wall) / count / 1_000)

    return Contender(name, batch, answer, task.answer)


def _request(port: int, path: str, arguments: dict[str, Any]) -> bytes:
    body = json.dumps(arguments)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return (head + body).encode()


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


def _floor() -> Any:
    """The least that keeps the promise: read, check the input, run, check the result, write."""
    calls = {f"/{name}": _floor_call(task) for name, task in TASKS.items()}

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await _lifespan(receive, send)
            return
        message = await receive()
        body = message["body"]
        while message["more_body"]:
            message = await receive()
            body += message["body"]
        answer = await calls[scope["path"]](body)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    return app


def _floor_call(task: Task) -> Callable[[bytes], Any]:
    handler, output_struct = task.handler, task.output_struct
    read, encode = msgspec.json.Decoder(task.input_struct).decode, msgspec.json.Encoder().encode
    convert, as_dict = msgspec.convert, msgspec.structs.asdict

    async def call(body: bytes) -> bytes:
        result = await handler(**as_dict(read(body)))
        return encode({"result": convert(result, output_struct)})

    return call


async def _lifespan(receive: Any, send: Any) -> None:
    for _ in range(2):
        await send({"type": f"{(await receive())['type']}.complete"})


def _enfold() -> Any:
    from enfold import OperationRegistry
    from enfold.surfaces.http import to_http

    ops = OperationRegistry()
    for task in TASKS.values():
        ops.query(task.handler)
    return to_http(ops)


def _starlette() -> Any:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    def endpoint(handler: Callable[..., Any]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> JSONResponse:
            return JSONResponse(await handler(**await request.json()))

        return answer

    return Starlette(
        routes=[Route(f"/{name}", endpoint(task.handler), methods=["POST"]) for name, task in TASKS.items()]
    )


def _fastapi() -> Any:
    # By name: the type checker works in the project's own environment, where FastAPI is not.
    app = import_module("fastapi").FastAPI()
    for name, task in TASKS.items():
        app.post(f"/{name}")(_fastapi_endpoint(task))
    return app


def _fastapi_endpoint(task: Task) -> Callable[..., Any]:
    from pydantic import create_model

    signature = inspect.signature(task.handler, eval_str=True)
    fields: dict[str, Any] = {
        name: (each.annotation, ... if each.default is each.empty else each.default)
        for name, each in signature.parameters.items()
    }
    handler = task.handler

    async def endpoint(body: Any) -> Any:
        return await handler(**body.__dict__)

    endpoint.__annotations__ = {"body": create_model("Body", **fields), "return": signature.return_annotation}
    return endpoint


APPS: Final[dict[str, Callable[[], Any]]] = {
    FLOOR: _floor,
    ENFOLD: _enfold,
    STARLETTE: _starlette,
    FASTAPI: _fastapi,
}


# --- wrk ----------------------------------------------------------------------------------------------------------

_WRK: Final = shutil.which("wrk")
_SCRIPT: Final = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = [==[{body}]==]
done = function(summary)
  local errors = summary.errors
  io.write(string.format("TOLD %d %d", summary.requests, errors.status + errors.connect + errors.read + errors.timeout))
end
"""


def _load(port: int, path: str, arguments: dict[str, Any]) -> int:
    """Ask for a second, and say how often; wrk knows no other measure of a load than time."""
    with NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(_SCRIPT.replace("{body}", json.dumps(arguments)))
        script.flush()
        command = [str(_WRK), "-t1", f"-c{CONNECTIONS}", "-d1s", "-s", script.name, f"http://127.0.0.1:{port}{path}"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    requests, errors = map(int, done.stdout.rpartition("TOLD ")[2].split())
    if errors:
        raise ConnectionError(done.stdout)
    return requests


# --- a client that costs little -----------------------------------------------------------------------------------


async def _once(port: int, request: bytes, *, whole: bool = False) -> bytes:
    """The body of one answer, or all of it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise ConnectionError(head.decode())
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    body = await reader.readexactly(length)
    writer.close()
    return head + body if whole else body


async def _many(port: int, request: bytes, size: int, count: int) -> None:
    """Send a request so many times over all connections; every answer must be as long as the first was."""
    left = [count]
    await asyncio.gather(*(_Asking.until_done(port, request, size, left) for _ in range(min(CONNECTIONS, count))))


class _Asking(asyncio.Protocol):
    """One connection: as soon as an answer is complete, the next request is sent."""

    def __init__(self, request: bytes, size: int, left: list[int]) -> None:
        self._request = request
        self._size = size
        self._left = left
        self._missing = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def until_done(cls, port: int, request: bytes, size: int, left: list[int]) -> None:
        loop = asyncio.get_running_loop()
        transport, asking = await loop.create_connection(lambda: cls(request, size, left), "127.0.0.1", port)
        try:
            await asking.done
        finally:
            transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._next()

    def data_received(self, data: bytes) -> None:
        if self._missing == self._size and not data.startswith(b"HTTP/1.1 200"):
            self.done.set_exception(ConnectionError(data[:200].decode("latin-1")))
        self._missing -= len(data)
        if self._missing == 0:
            self._next()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the server closed the connection"))

    def _next(self) -> None:
        if self._left[0] <= 0:
            self.done.set_result(None)
            return
        self._left[0] -= 1
        self._missing = self._size
        self._transport.write(self._request)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(sys.argv[2], int(sys.argv[3]))
    else:
        sys.exit(main(int(sys.argv[1])))
