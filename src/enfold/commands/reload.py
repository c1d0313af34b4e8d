"""Run a command, and start it again whenever a Python file below the current folder changes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

__all__ = ["run_reloading"]

INTERVAL: Final = 0.5
PATIENCE: Final = 10.0


def run_reloading(command: list[str], words: list[str]) -> int:
    """Keep the command running until it is interrupted; one that fails waits for the next change."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # Else the child would be left behind.
    seen = _stamps()
    child = _start(command, words)
    try:
        while True:
            time.sleep(INTERVAL)
            now = _stamps()
            if now != seen:
                seen = now
                _stop(child)
                print("Something changed: starting again.", file=sys.stderr)
                child = _start(command, words)
    except KeyboardInterrupt:
        _stop(child)
        return 0


def _start(command: list[str], words: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*command, *words])  # noqa: S603  # our own command line


def _stop(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _stamps() -> dict[str, int]:
    """When each file was last changed; hidden folders and environments are left out."""
    stamps: dict[str, int] = {}
    for path in Path().rglob("*.py"):
        if not any(part.startswith((".", "__")) or part == "node_modules" for part in path.parts):
            try:
                stamps[str(path)] = path.stat().st_mtime_ns
            except OSError:
                continue  # It was there a moment ago.
    return stamps
