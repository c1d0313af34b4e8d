"""Helpers of the fault table: processes of workers, hubs and noise, its scale, and the memory of processes."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from tests.calls.networks import free_port
from tests.waiting import Said

from enfold.calls.protocol.transport import Message, Signal, Transport

ROOT: Final = Path(__file__).resolve().parents[2]
SCALE: Final = float(os.environ.get("ENFOLD_FAULTS", "0.05"))
IS_FULL: Final = SCALE >= 1
SLACK: Final = 1.0 if IS_FULL else math.inf  # only `make faults` judges how long something took
PATIENT_CALL: Final = 1.0 if IS_FULL else 6.0  # how much longer calls may take where other work shares the machine
CALLS: Final = int(7200 * SCALE)
RATE: Final = 600.0 if IS_FULL else 200.0


def say(row: str, text: object) -> None:
    """Print what a row measured."""
    sys.stdout.write(f"\nrow {row}: {text}\n")


class Workers:
    """The worker processes of one test."""

    def __init__(self, address: str, log: Path) -> None:
        self.address = address
        self.log = log
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, *options: str) -> subprocess.Popen[str]:
        process = _started("tests.calls.fault_worker", self.address, str(self.log), *options)
        self.processes.append(process)
        assert Said(process.stdout).line() == "ready\n"
        return process

    def close(self) -> None:
        for process in self.processes:
            _end(process)


class HubProcess:
    """A hub in a process of its own."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"ws://127.0.0.1:{self.port}"
        self._process = _started("tests.calls.fault_hub", str(self.port))
        _wait_for(self.port)

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def close(self) -> None:
        _end(self._process)


def start_noise(*arguments: str) -> subprocess.Popen[str]:
    """A client that sends malformed frames, in its own process."""
    return _started("tests.calls.noise", *arguments)


def _started(module: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _wait_for(port: int) -> None:
    for _ in range(400):
        with socket.socket() as sock:
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"nothing listens on port {port}")


# --- what is watched ----------------------------------------------------------------------------------------------


class Line:
    """When a transport said that its connection was lost, and when that it was back."""

    def __init__(self) -> None:
        self.lost: list[float] = []
        self.restored: list[float] = []

    async def watch(self, transport: Transport) -> None:
        await transport.connect()
        await transport.subscribe(f"{transport.inbox()}.line", self._hear)

    def _hear(self, message: Message) -> None:
        if message.signal is Signal.LOST:
            self.lost.append(time.monotonic())
        elif message.signal is Signal.RESTORED:
            self.restored.append(time.monotonic())


def forget_peak_memory() -> None:
    """Let `peak_memory` begin again from what is in use now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_memory() -> float:
    """The most memory this process has held, in megabytes."""
    return _megabytes("VmHWM")


def memory() -> float:
    """The memory this process holds, in megabytes."""
    return _megabytes("VmRSS")


def _megabytes(name: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024
