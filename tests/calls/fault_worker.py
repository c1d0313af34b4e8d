"""A worker in a process of its own, which writes down each call it runs: `python -m tests.calls.fault_worker ADDRESS LOG`."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.calls.faulty import Faults, FaultyTransport
from tests.calls.processes import Line, forget_peak_memory, memory, peak_memory

from enfold import Context, OperationRegistry
from enfold.calls.nats import NATSTransport
from enfold.calls.protocol.settings import CallSettings, WorkerLimits
from enfold.calls.protocol.transport import Transport
from enfold.calls.websocket import WebSocketTransport
from enfold.calls.worker.nats_idempotency_store import NATSIdempotencyStore
from enfold.operations.idempotency import IdempotencyStore
from enfold.surfaces.calls import Serving, serve_calls

PROGRESS = ".progress"  # beside the log: how many items have been produced


def main() -> None:
    options = read_options(sys.argv[1:])
    if options.clock:
        right = time.time
        time.time = lambda: right() + options.clock
    asyncio.run(run(options))


def read_options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("address", help="nats://… (several with commas) or ws://…")
    parser.add_argument("log", type=Path)
    parser.add_argument("--name", default="worker")
    parser.add_argument("--clock", type=float, default=0.0, help="seconds by which this worker's clock is wrong")
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--waiting", type=int, default=256)
    parser.add_argument("--store", type=int, default=0, help="replicas of the bucket of the idempotency store")
    parser.add_argument("--twice", action="store_true", help="send every message twice")
    return parser.parse_args(arguments)


async def run(options: argparse.Namespace) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    transport = connect(options.address, options.name)
    line = Line()
    await line.watch(transport)
    async with serving(options, transport):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await stopping.wait()
    await transport.close()
    for lost, restored in zip(line.lost, line.restored, strict=False):
        sys.stdout.write(f"away for {restored - lost:.3f}\n")


def connect(address: str, name: str) -> Transport:
    if address.startswith("ws"):
        return WebSocketTransport(address)
    return NATSTransport(address.split(","), name=name)


@asynccontextmanager
async def serving(options: argparse.Namespace, transport: Transport) -> AsyncIterator[Serving]:
    """Serve the operations of the fault table until the end of the block."""
    log = os.open(options.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    progress = os.open(options.log.with_suffix(PROGRESS), os.O_WRONLY | os.O_CREAT)
    store: IdempotencyStore | None = None
    if options.store and isinstance(transport, NATSTransport):
        store = NATSIdempotencyStore(transport, replicas=options.store)
    ops = operations(log, progress)
    wire: Transport = FaultyTransport(transport, Faults(duplicate=1.0), 1) if options.twice else transport
    limits = WorkerLimits(options.running, options.waiting)
    async with serve_calls(ops, wire, limits=limits, settings=CallSettings(), store=store) as serving:
        ops.register(_state_of(serving), name="state", namespace="work", type="query")
        await serving.handler.offer("work.state")
        yield serving
    os.close(log)
    os.close(progress)


def operations(log: int, progress: int) -> OperationRegistry:
    ops = OperationRegistry("work")

    @ops.query
    async def read(id: str, ms: int, context: Context) -> str:
        """An idempotent operation: it may run twice, and says so in the log."""
        await _noted(log, "read", id, ms, context)
        return id

    @ops.mutation
    async def write(id: str, ms: int, context: Context) -> str:
        """An operation that must not run twice."""
        await _noted(log, "write", id, ms, context)
        return id

    @ops.query
    async def hang(id: str, context: Context) -> None:
        """A call that only giving up ends."""
        await _noted(log, "hang", id, 3_600_000, context)

    @ops.query
    async def add(x: int, y: int) -> int:
        return x + y

    @ops.query
    async def echo(value: str) -> str:
        return value

    @ops.query
    async def large(size: int) -> str:
        return "x" * size

    @ops.subscription
    async def count(to: int, pause: float = 0.0) -> AsyncIterator[int]:
        for number in range(to):
            if pause:
                await asyncio.sleep(pause)
            yield number

    @ops.subscription
    async def produce(to: int) -> AsyncIterator[int]:
        """As fast as it can; how far it is stands in a file, because its process is not the consumer's."""
        for number in range(to):
            os.pwrite(progress, (number + 1).to_bytes(8, "little"), 0)
            yield number

    @ops.subscription
    async def follow(id: str, context: Context) -> AsyncIterator[int]:
        """A stream that only giving up ends."""
        _note(log, "start", "follow", id, context)
        try:
            while True:
                await asyncio.sleep(0.001)
                yield 1
        finally:
            _note(log, "end", "follow", id, context)

    return ops


def _state_of(serving: Serving) -> Any:
    async def state(forget_peak: bool = False) -> dict[str, float]:
        """What the worker's process holds, and what it has counted."""
        if forget_peak:
            forget_peak_memory()
        counts = serving.handler.counts
        return {
            "tasks": len(asyncio.all_tasks()),
            "running": serving.handler.running,
            "memory": memory(),
            "peak": peak_memory(),
            "received": counts.received,
            "dropped": counts.malformed + counts.refused + counts.duplicates,
        }

    return state


async def _noted(log: int, kind: str, id: str, ms: int, context: Context) -> None:
    _note(log, "start", kind, id, context)
    try:
        await asyncio.sleep(ms / 1000)
    finally:
        _note(log, "end", kind, id, context)


def _note(log: int, *words: Any) -> None:
    *rest, context = words
    # The monotonic clock of one machine is the same in all of its processes.
    line = "\t".join([*map(str, rest), context.request_id, str(os.getpid()), f"{time.monotonic():.6f}"])
    os.write(log, f"{line}\n".encode())


if __name__ == "__main__":
    main()
