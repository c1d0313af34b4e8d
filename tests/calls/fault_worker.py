"""A worker in a process of its own, which writes down each call it runs: `python -m tests.calls.fault_worker ADDRESS LOG`."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from enfold import Context, OperationRegistry
from enfold.calls.handler import OnceStore
from enfold.calls.nats import NATSTransport
from enfold.calls.nats_store import NATSStore
from enfold.calls.settings import CallSettings, Limits
from enfold.calls.transport import Transport
from enfold.calls.websocket import WebSocketTransport
from enfold.surfaces.calls import serve_calls


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address", help="nats://… (several with commas) or ws://…")
    parser.add_argument("log", type=Path)
    parser.add_argument("--name", default="worker")
    parser.add_argument("--clock", type=float, default=0.0, help="seconds by which this worker's clock is wrong")
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--store", type=int, default=0, help="replicas of a bucket for first results")
    parser.add_argument("--ping", type=float, default=5.0)
    options = parser.parse_args()
    if options.clock:
        right = time.time
        time.time = lambda: right() + options.clock
    asyncio.run(run(options))


async def run(options: argparse.Namespace) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    log = os.open(options.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    transport = connect(options.address, options.name, options.ping)
    store: OnceStore | None = None
    if options.store and isinstance(transport, NATSTransport):
        store = NATSStore(transport, replicas=options.store)
    limits = Limits(running=options.running)
    async with serve_calls(operations(log), transport, limits=limits, settings=CallSettings(), store=store):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await stopping.wait()
    await transport.close()


def connect(address: str, name: str, ping: float) -> Transport:
    if address.startswith("ws"):
        return WebSocketTransport(address)
    return NATSTransport(address.split(","), name=name, ping_interval=ping)


def operations(log: int) -> OperationRegistry:
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

    @ops.subscription
    async def count(to: int, pause: float = 0.0) -> AsyncIterator[int]:
        for number in range(to):
            if pause:
                await asyncio.sleep(pause)
            yield number

    return ops


async def _noted(log: int, kind: str, id: str, ms: int, context: Context) -> None:
    _note(log, "start", kind, id, context)
    await asyncio.sleep(ms / 1000)
    _note(log, "end", kind, id, context)


def _note(log: int, *words: Any) -> None:
    *rest, context = words
    # The monotonic clock of one machine is the same in all of its processes.
    line = "\t".join([*map(str, rest), context.request_id, str(os.getpid()), f"{time.monotonic():.6f}"])
    os.write(log, f"{line}\n".encode())


if __name__ == "__main__":
    main()
