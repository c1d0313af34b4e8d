"""Run a command, and start it again whenever a Python file below the current folder changes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from enfold.commands.shared.signals import HANGUP
from enfold.files import FileVersion, file_version

INTERVAL: Final = 0.5
PATIENCE: Final = 10.0  # seconds that calls have to finish before a start anew; at the end they have their own time


def run_reloading(command: list[str]) -> int:
    """Keep the command running until a signal ends it; one that fails waits for the next change."""
    return _Supervisor(command).run()


class _Supervisor:
    """Starts the command again, and passes signals on to it."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._is_ending = False
        self._is_told = False  # whether the child knows of the end
        self._child: subprocess.Popen[bytes] | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)

    def run(self) -> int:
        seen = _versions()
        self._start()
        while not self._is_ending:
            time.sleep(INTERVAL)
            now = _versions()
            if now != seen:
                seen = now
                self._start_again()
        if self._child is not None:
            if not self._is_told:
                self._child.terminate()
            self._child.wait()
        return 0

    def _start_again(self) -> None:
        if self._child is not None:
            _stop(self._child)
        if not self._is_ending:
            print("Something changed: starting again.", file=sys.stderr)
            self._start()

    def _start(self) -> None:
        for number in HANGUP:  # ignored until the child can handle it
            signal.signal(number, signal.SIG_IGN)
        # In a group of its own: a Ctrl-C is for us, who pass it on once.
        self._child = subprocess.Popen(self._command, process_group=0)  # noqa: S603  # our own command line
        self._is_told = False
        for number in HANGUP:
            signal.signal(number, self._pass_on)

    def _end(self, *_: object) -> None:
        self._is_ending = self._is_told = True
        self._pass_on(signal.SIGTERM)

    def _pass_on(self, number: int, *_: object) -> None:
        if self._child is not None:
            self._child.send_signal(number)


def _stop(child: subprocess.Popen[bytes]) -> None:
    """End a child: by SIGTERM, by a second one, which does not wait for calls, and then by SIGKILL."""
    for end in (child.terminate, child.terminate, child.kill):
        end()
        try:
            child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            continue
        return


def _versions() -> dict[str, FileVersion]:
    """The version of each file; hidden folders and environments are left out."""
    return {
        str(path): file_version(path)
        for path in Path().rglob("*.py")
        if not any(part.startswith((".", "__")) or part == "node_modules" for part in path.parts)
    }
