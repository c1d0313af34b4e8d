"""The fault table of idempotency keys: edges, workers and servers are killed and frozen while keyed mutations run.

`make faults` runs it in full, `make test` at a small scale. Counted are keys whose outcome is lost (a result that was
given is not given again), doubled (started twice), stuck (no end within a minute), and wrong (another's result, or an
answer that contradicts an earlier one). All must be 0.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

import msgspec
import pytest
from tests.calls.networks import Server
from tests.calls.processes import IS_FULL, say
from tests.idempotency.processes import Answer, Processes, call, processes

KEYS = 600 if IS_FULL else 24
CALLERS = 12 if IS_FULL else 6
PATIENCE = 90.0  # seconds after which a key is stuck
FINAL = ("", "OUTCOME_UNKNOWN")


class Key(msgspec.Struct):
    """One key as its callers have seen it."""

    id: str
    answers: list[tuple[int, str, str]] = []  # status, code and data of each
    ended: bool = False

    def take(self, answer: Answer) -> None:
        self.answers.append((answer.status, answer.code, str(answer.data)))

    @property
    def is_wrong(self) -> bool:
        """Whether a result is another's, an error is none that may be, or OUTCOME_UNKNOWN follows a result."""
        seen_result = False
        for status, code, data in self.answers:
            if status == 200 and data != self.id:
                return True
            if code not in ("", "TIMEOUT", "UNAVAILABLE", "OUTCOME_UNKNOWN", "RESOURCE_EXHAUSTED"):
                return True
            if seen_result and code == "OUTCOME_UNKNOWN":
                return True
            seen_result = seen_result or status == 200
        return False


class Run:
    """Callers that each take a key, call with short deadlines and again until it has ended, and then once more."""

    def __init__(self, started: Processes, bases: Callable[[], list[str]]) -> None:
        self.keys = [Key(f"k{number}") for number in range(KEYS)]
        self._started = started
        self._bases = bases
        self._unused = iter(self.keys)
        self._lock = threading.Lock()
        self._random = random.Random(7)  # noqa: S311  # the same each time
        self.is_over = threading.Event()

    def go(self, disturb: Callable[[], None]) -> None:
        """Run all callers to their end, while something disturbs them again and again."""
        callers = [threading.Thread(target=self._call_all) for _ in range(CALLERS)]
        for caller in callers:
            caller.start()
        while any(caller.is_alive() for caller in callers):
            disturb()
            self.is_over.wait(0.1)
        for caller in callers:
            caller.join()

    def _call_all(self) -> None:
        while True:
            with self._lock:
                key = next(self._unused, None)
            if key is None:
                return
            self._end(key)

    def _end(self, key: Key) -> None:
        ends_at = time.monotonic() + PATIENCE
        while time.monotonic() < ends_at:
            answer = self._once(key)
            if answer is not None and answer.code in FINAL:
                key.ended = True
                break
        if key.ended:
            self._once(key)

    def _once(self, key: Key) -> Answer | None:
        within, base = self._random.choice((60, 300, 2000)), self._random.choice(self._bases())
        try:
            answer = call(base, "pay", key.id, within_ms=within, timeout=20, id=key.id, seconds=key_seconds(key.id))
        except (OSError, ValueError):  # the process is dead
            time.sleep(0.05)
            return None
        key.take(answer)
        if answer.code in ("TIMEOUT", "UNAVAILABLE"):
            time.sleep(0.05)
        return answer

    def judge(self, row: str) -> tuple[int, int, int, int]:
        """How many were lost, doubled, stuck and wrong."""
        effects = self._started.counted()
        lost = sum(any(status == 200 for status, *_ in key.answers) and not effects[key.id] for key in self.keys)
        doubled = sum(effects[key.id] > 1 for key in self.keys)
        stuck = sum(not key.ended for key in self.keys)
        wrong = sum(key.is_wrong for key in self.keys)
        unknown = sum(any(code == "OUTCOME_UNKNOWN" for _, code, _ in key.answers) for key in self.keys)
        calls = sum(len(key.answers) for key in self.keys)
        say(
            row,
            f"{len(self.keys)} keys, {calls} answers, {unknown} with an unknown outcome; "
            f"{lost} lost, {doubled} doubled, {stuck} stuck, {wrong} wrong",
        )
        return lost, doubled, stuck, wrong


def key_seconds(id: str) -> float:
    """How long the effect of a key takes: the same for each of its calls."""
    return (0.0, 0.1, 0.5, 2.0)[int(id[1:]) % 4]


class Seldom:
    """Does something every few seconds."""

    def __init__(self, seconds: float, do: Callable[[], None]) -> None:
        self._seconds = seconds
        self._do = do
        self._due = time.monotonic() + 1.0

    def __call__(self) -> None:
        if time.monotonic() >= self._due:
            self._do()
            self._due = time.monotonic() + self._seconds


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Processes]:
    with processes(tmp_path) as found:
        yield found


class Fleet:
    """Two workers on a NATS server, which are replaced when they die, and two edges."""

    def __init__(self, started: Processes, url: str) -> None:
        self._started = started
        self._url = url
        self._pauses = cycle((1.0, 7.0))  # shorter and longer than a lease
        self.workers = [self._work() for _ in range(2)]
        self.edges = [started.serve("--nats", url) for _ in range(2)]

    def _work(self) -> subprocess.Popen[str]:
        return self._started.work("--nats", self._url)[0]

    def bases(self) -> list[str]:
        return [edge.base for edge in self.edges]

    def kill_a_worker(self) -> None:
        self.workers.pop(0).kill()
        self.workers.append(self._work())

    def freeze_a_worker(self) -> None:
        worker = self.workers[0]
        worker.send_signal(signal.SIGSTOP)
        time.sleep(next(self._pauses))
        worker.send_signal(signal.SIGCONT)
        self.workers.reverse()


def test_workers_are_killed(started: Processes, nats: Server) -> None:
    fleet = Fleet(started, nats.url)
    run = Run(started, fleet.bases)
    run.go(Seldom(3.0, fleet.kill_a_worker))
    assert run.judge("keys, workers killed") == (0, 0, 0, 0)


def test_workers_are_frozen(started: Processes, nats: Server) -> None:
    fleet = Fleet(started, nats.url)
    run = Run(started, fleet.bases)
    run.go(Seldom(9.0 if IS_FULL else 4.0, fleet.freeze_a_worker))
    assert run.judge("keys, workers frozen") == (0, 0, 0, 0)


def test_the_nats_server_is_killed(started: Processes, nats: Server) -> None:
    fleet = Fleet(started, nats.url)
    run = Run(started, fleet.bases)

    def restart() -> None:
        nats.kill()
        time.sleep(0.5)
        nats.restart()

    run.go(Seldom(5.0, restart))
    assert run.judge("keys, the NATS server killed") == (0, 0, 0, 0)


def test_nothing_is_disturbed(started: Processes, nats: Server) -> None:
    """Short deadlines and two edges alone."""
    fleet = Fleet(started, nats.url)
    run = Run(started, fleet.bases)
    run.go(lambda: None)
    assert run.judge("keys, nothing disturbed") == (0, 0, 0, 0)
    assert not any(code == "OUTCOME_UNKNOWN" for key in run.keys for _, code, _ in key.answers)


def test_servers_of_one_machine_are_killed(started: Processes) -> None:
    servers = [started.serve("app.py") for _ in range(2)]
    run = Run(started, lambda: [server.base for server in servers])

    def kill() -> None:
        victim = servers[0]
        victim.process.kill()
        victim.process.wait()
        servers[:] = [servers[1], started.serve("app.py")]

    run.go(Seldom(3.0, kill))
    assert run.judge("keys, servers killed") == (0, 0, 0, 0)


def test_one_of_several_processes_of_a_server_is_killed(started: Processes) -> None:
    server = started.serve("app.py", "--workers", "2")
    run = Run(started, lambda: [server.base])
    parent = server.process.pid

    def kill() -> None:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        if children:
            os.kill(int(children[0]), signal.SIGKILL)

    run.go(Seldom(3.0, kill))
    assert run.judge("keys, processes of a server killed") == (0, 0, 0, 0)
