"""A process of the fault tests: it runs or starts tasks, and logs each step before it can be killed.

`python -m tests.tasks.fault_process work STORE LOG [SECONDS]`, with a clock that is ahead by so many seconds, or
`... order STORE LOG FIRST COUNT OPERATION`, which orders as far as its input allows: a line is the number before which
it has to wait for another line. `... call PORT COUNT` has callers of an HTTP server killed while it accepts their tasks.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from enfold import CallError, Context, OperationRegistry
from enfold.calls.nats import NATSTransport
from enfold.operations.questions import ask, elicit, elicitation
from enfold.tasks import Task, TaskLimits, Tasks
from enfold.tasks.model import Outcome
from enfold.tasks.nats import NATSTasks
from enfold.tasks.sqlite import SQLiteTasks
from enfold.tasks.store import Claim, Ending, FencedError, TaskStore

FORM = {"type": "object", "properties": {"n": {"type": "integer"}}}


class Log:
    """Lines that are in the file when `write` returns, from many processes at once."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    def write(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


def operations(log: Log) -> OperationRegistry:
    ops = OperationRegistry("shop")

    async def work(n: int, context: Context, ms: int = 25) -> int:
        assert context.task is not None
        log.write("start", context.task.id, os.getpid())
        await asyncio.sleep(ms / 1000)
        log.write("effect", context.task.id, n)
        await asyncio.sleep(ms / 1000)
        return n * 2

    ops.register(work, name="again", durable=True, on_crash="retry")
    ops.register(work, name="once", durable=True, on_crash="fail")

    @ops.mutation(durable=True, on_crash="retry")
    async def keyed(n: int, context: Context) -> int:
        """An effect in another system, which takes each key once."""
        assert context.task is not None
        log.write("start", context.task.id, os.getpid())
        await asyncio.sleep(0.02)
        log.write("effect", context.task.id, n)
        log.write("keyed", context.task.id, n)
        await asyncio.sleep(0.02)
        return n * 2

    @ops.mutation(durable=True, on_crash="retry")
    async def deadly(context: Context) -> None:
        assert context.task is not None
        log.write("start", context.task.id, os.getpid())
        os.kill(os.getpid(), 9)

    @ops.mutation(durable=True, on_crash="retry", idempotent=True)
    async def asking(n: int, context: Context) -> int:
        """Ask for two things at once, and then for one more."""
        both = await ask(context, {name: elicitation(f"{name} of {n}?", FORM) for name in ("First", "Second")})
        await asyncio.sleep(0.005)
        third = await elicit(context, f"Third of {n}?", FORM)
        assert context.task is not None
        log.write("effect", context.task.id, n)
        return sum(int(each["content"]["n"]) for each in both.values()) + int(third.content["n"])

    @ops.mutation(durable=True, on_crash="retry")
    async def blocking(seconds: float, context: Context) -> str:
        assert context.task is not None
        log.write("start", context.task.id, os.getpid())
        time.sleep(3)  # noqa: ASYNC251  # the loop is to be blocked
        await asyncio.sleep(seconds)
        return "done"

    @ops.query(durable=True)
    async def large(size: int) -> str:
        return "x" * size

    return ops


@asynccontextmanager
async def opened_store(address: str) -> AsyncIterator[TaskStore]:
    """The store at a path or at `nats://host:port?ack_wait=seconds`; its connection is closed at the end."""
    if not address.startswith("nats://"):
        yield SQLiteTasks(address)
        return
    urls, _, query = address.partition("?")
    options = dict(pair.split("=") for pair in query.split("&"))
    transport = NATSTransport(urls.split(","), name=f"p{os.getpid()}")
    try:
        yield NATSTasks(transport, ack_wait=float(options["ack_wait"]), replicas=int(options.get("replicas", 1)))
    finally:
        await transport.close()


async def main(role: str, address: str, path: str, *rest: str) -> None:
    log = Log(path)
    if role == "work" and rest:
        real, ahead = time.time_ns, int(rest[0]) * 1_000_000_000
        time.time_ns = lambda: real() + ahead
    async with opened_store(address) as store:
        tasks = Tasks(operations(log), store, at_once=0 if role == "order" else 8, limits=TaskLimits(limit=1_000_000))
        await _play(role, tasks, log, *rest)


async def _play(role: str, tasks: Tasks, log: Log, *rest: str) -> None:
    if role != "order":  # `both` runs what it orders, as a server does
        _log_records(tasks, log)
        tasks.begin()
    if role == "work":
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.Event().wait()
    first, count, operation = int(rest[0]), int(rest[1]), rest[2]
    allowed = first + count if rest[3:] else first
    for n in range(first, first + count):
        while n >= allowed:
            allowed = int(await asyncio.to_thread(sys.stdin.readline))
        await asyncio.sleep(0.005)
        task_id = await _order(tasks, operation, n)
        log.write("accepted", task_id, n)
        if rest[3:]:
            os.kill(os.getpid(), 9)
    sys.stdout.write("done\n")


async def _order(tasks: Tasks, operation: str, n: int) -> str:
    """Order one, however long the store is unreachable."""
    while True:
        try:
            return str((await tasks.start(operation, {"n": n}, idempotency_key=f"k{n}")).id)
        except CallError as error:
            if error.code != "UNAVAILABLE":
                raise
            await asyncio.sleep(0.1)


def _log_records(tasks: Tasks, log: Log) -> None:
    record = tasks.store.record

    async def logged(claim: Claim, ending: Ending) -> Task:
        try:
            task = await record(claim, ending)
        except FencedError:
            log.write("fenced", claim.id, os.getpid())
            raise
        if isinstance(ending, Outcome):
            log.write("recorded", claim.id, os.getpid())
        return task

    hold = tasks.store.hold

    async def held(claim: Claim, *rest: Any) -> bool:
        try:
            return await hold(claim, *rest)
        except FencedError:
            log.write("fenced", claim.id, os.getpid())
            raise

    store: Any = tasks.store
    store.record, store.hold = logged, held


def order_and_die(address: str, path: str, count: str) -> None:
    """Order as many tasks, each in a process of its own that is killed as soon as the task is accepted."""
    for n in range(int(count)):
        child = os.fork()
        if not child:
            asyncio.run(main("order", address, path, str(n), "1", "shop.again", "die"))
        os.waitpid(child, 0)


def call_and_die(port: str, count: str) -> None:
    """Call as often, each in a process of its own that is killed somewhere between its request and the answer."""
    dice = random.Random(18)  # noqa: S311  # to be thrown again
    for n in range(int(count)):
        pause = dice.random() * 0.006
        child = os.fork()
        if not child:
            _call(int(port), n)
            time.sleep(pause)
            os.kill(os.getpid(), 9)
        os.waitpid(child, 0)


def _call(port: int, n: int) -> None:
    """Send a whole request; every second connection is reset when its process dies, the others are ended."""
    body = json.dumps({"year": n})
    head = [
        "POST /functions/shop.report HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        "Content-Type: application/json",
        "Prefer: respond-async",
        f"Idempotency-Key: k{n}",
        f"Content-Length: {len(body)}",
    ]
    connection = socket.create_connection(("127.0.0.1", port))
    if n % 2:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.sendall("\r\n".join([*head, "", body]).encode())


if __name__ == "__main__":
    if sys.argv[1] == "die":
        order_and_die(*sys.argv[2:])
    elif sys.argv[1] == "call":
        call_and_die(*sys.argv[2:])
    else:
        asyncio.run(main(*sys.argv[1:]))
