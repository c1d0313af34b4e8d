"""A process of the fault stories: it runs tasks, or orders them, and writes down what it does before it can be killed.

`python -m tests.tasks.fault_process work STORE LOG` or `... order STORE LOG FIRST COUNT OPERATION`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

from enfold import CallError, Context, OperationRegistry
from enfold.calls.nats import NATSTransport
from enfold.mcp.asking import elicit
from enfold.tasks import Task, Tasks
from enfold.tasks.nats import NATSTasks
from enfold.tasks.sqlite import SQLiteTasks
from enfold.tasks.store import Claim, Ending, FencedError, TaskStore
from enfold.tasks.task import Outcome

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
        first = await elicit(context, f"First of {n}?", FORM)
        await asyncio.sleep(0.005)
        second = await elicit(context, f"Second of {n}?", FORM)
        assert context.task is not None
        log.write("effect", context.task.id, n)
        return int(first.content["n"]) + int(second.content["n"])

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


def open_store(address: str) -> TaskStore:
    if not address.startswith("nats://"):
        return SQLiteTasks(address)
    urls, _, query = address.partition("?")
    options = dict(pair.split("=") for pair in query.split("&"))
    transport = NATSTransport(urls.split(","), name=f"p{os.getpid()}")
    return NATSTasks(transport, ack_wait=float(options["ack_wait"]), replicas=int(options.get("replicas", 1)))


async def main(role: str, address: str, path: str, *rest: str) -> None:
    log = Log(path)
    tasks = Tasks(operations(log), open_store(address), at_once=8 if role == "work" else 0, limit=1_000_000)
    if role == "work":
        _log_records(tasks, log)
        tasks.begin()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.Event().wait()
    first, count, operation = int(rest[0]), int(rest[1]), rest[2]
    for n in range(first, first + count):
        await asyncio.sleep(0.01)  # so that there is time to kill somebody
        task_id = await _order(tasks, operation, n)
        log.write("accepted", task_id, n)
        if rest[3:]:
            os.kill(os.getpid(), 9)
    sys.stdout.write("done\n")


async def _order(tasks: Tasks, operation: str, n: int) -> str:
    """Order one, however long the store is away."""
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


def read_log(path: Path) -> dict[str, list[tuple[str, str]]]:
    """What was written, by its first word."""
    found: dict[str, list[tuple[str, str]]] = {}
    for line in path.read_text(encoding="ascii").splitlines():
        word, task_id, rest = line.split(" ", 2)
        found.setdefault(word, []).append((task_id, rest))
    return found


def order_and_die(address: str, path: str, count: str) -> None:
    """Order as many tasks, each in a process of its own that is killed as soon as the task is accepted."""
    for n in range(int(count)):
        child = os.fork()
        if not child:
            asyncio.run(main("order", address, path, str(n), "1", "shop.again", "die"))
        os.waitpid(child, 0)


if __name__ == "__main__":
    if sys.argv[1] == "die":
        order_and_die(*sys.argv[2:])
    else:
        asyncio.run(main(*sys.argv[1:]))
