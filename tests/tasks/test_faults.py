"""Workers and those who order are killed again and again: nothing that was accepted is lost, nothing is recorded twice.

`ENFOLD_FAULTS=1` (`make faults`) runs the whole table; otherwise a small sample of it.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.calls.processes import IS_FULL, ROOT, SCALE, say
from tests.tasks.fault_process import Log, open_store, operations, read_log

from enfold.tasks import Status, Tasks

COUNT = 2000 if IS_FULL else int(2000 * SCALE / 2)
WORKER_KILLS = 20 if IS_FULL else 1
ACCEPTER_KILLS = 8 if IS_FULL else 1


class Processes:
    """The processes of one story, and the file in which they write down what they do."""

    def __init__(self, address: str, log: Path) -> None:
        self.address = address
        self.log = log
        self.workers: list[subprocess.Popen[str]] = []
        self._all: list[subprocess.Popen[str]] = []

    def start(self, role: str, *rest: object) -> subprocess.Popen[str]:
        words = [role, self.address, str(self.log), *map(str, rest)]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.tasks.fault_process", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        self._all.append(process)
        return process

    def work(self) -> subprocess.Popen[str]:
        worker = self.start("work")
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        self.workers.append(worker)
        return worker

    def replace(self, worker: subprocess.Popen[str]) -> None:
        """Kill a worker; another comes."""
        self.workers.remove(worker)
        worker.kill()
        worker.wait()
        self.work()

    def close(self) -> None:
        for process in self._all:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(str(tmp_path / "tasks.db"), tmp_path / "log")
    made.log.touch()
    yield made
    made.close()


def order_under_kills(processes: Processes, operation: str, dice: random.Random) -> None:
    """Order all tasks; those who order and those who work are killed on the way, and others go on."""
    first, accepter_kills, worker_kills = 0, ACCEPTER_KILLS, WORKER_KILLS
    while first < COUNT:
        accepter = processes.start("order", first, COUNT - first, operation)
        target = COUNT if not accepter_kills else first + (COUNT - first) // (accepter_kills + 1) + 1
        while accepter.poll() is None and accepted(processes) < target:
            time.sleep(0.02)
            if worker_kills and accepted(processes) > COUNT * (WORKER_KILLS - worker_kills) / (WORKER_KILLS + 2):
                processes.replace(dice.choice(processes.workers))
                worker_kills -= 1
        if accepter_kills and accepter.poll() is None:
            accepter.kill()
            accepter_kills -= 1
        accepter.wait()
        first = max((int(n) for _, n in read_log(processes.log).get("accepted", [])), default=-1) + 1
    for _ in range(worker_kills):
        processes.replace(dice.choice(processes.workers))


def accepted(processes: Processes) -> int:
    return len({task_id for task_id, _ in read_log(processes.log).get("accepted", [])})


async def outcomes(processes: Processes) -> Counter[Status]:
    """How every accepted task has ended."""
    tasks = Tasks(operations(Log("/dev/null")), open_store(processes.address), at_once=0)
    counted: Counter[Status] = Counter()
    async with asyncio.timeout(120):
        for task_id in dict(read_log(processes.log)["accepted"]):
            handle = await tasks.get(task_id)
            async for task in handle.watch():
                if task.is_ended:
                    counted[task.status] += 1
    await tasks.close()
    return counted


@pytest.mark.parametrize(("operation", "row"), [("shop.again", "11"), ("shop.once", "12")])
async def test_sqlite_loses_nothing_when_workers_and_accepters_are_killed(
    processes: Processes, operation: str, row: str
) -> None:
    for _ in range(3 if IS_FULL else 1):
        processes.work()
    order_under_kills(processes, operation, random.Random(row))  # noqa: S311  # dice, to be thrown again
    ended = await outcomes(processes)
    log = read_log(processes.log)
    starts, records = (Counter(task_id for task_id, _ in log[word]) for word in ("start", "recorded"))
    effects = Counter(task_id for task_id, _ in log["effect"])
    say(
        row,
        f"{dict(ended)}, effect twice {sum(n > 1 for n in effects.values())}, started twice {sum(n > 1 for n in starts.values())}",
    )
    assert sum(ended.values()) == COUNT
    assert max(records.values()) == 1
    with sqlite3.connect(processes.address) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    if operation == "shop.once":
        assert max(starts.values()) == 1
        assert ended[Status.COMPLETED] + ended[Status.FAILED] == COUNT
    else:
        assert ended[Status.COMPLETED] == COUNT
