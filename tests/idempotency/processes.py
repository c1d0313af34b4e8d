"""Real processes of one program: servers, edges, workers and callers, and the effects of their calls."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import msgspec
from tests.served import Served, serving
from tests.waiting import Said, wait_for

APP = Path(__file__).with_name("shop_app.py")


class Answer(msgspec.Struct, frozen=True):
    """How a call over HTTP ended."""

    status: int
    data: Any = None
    code: str = ""
    details: dict[str, Any] = {}
    retryable: bool = False

    @property
    def is_in_progress(self) -> bool:
        found = (self.status, self.code, self.details.get("reason"), self.retryable)
        return found == (504, "TIMEOUT", "in_progress", True)


class Processes:
    """All that a test has started; what still runs at its end is killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.effects = folder / "effects"
        self.env = {"EFFECTS": str(self.effects)}
        self._stack = ExitStack()
        self._workers: list[subprocess.Popen[str]] = []
        shutil.copy(APP, folder / "app.py")

    def serve(self, *words: str, cwd: Path | None = None) -> Served:
        """`enfold serve`, on a free port."""
        return self._stack.enter_context(serving(*words, cwd=cwd or self.folder, env=self.env))

    def work(self, *words: str) -> tuple[subprocess.Popen[str], Said]:
        """`enfold work app.py`, and what it says from its first line on."""
        # Later output is not read: a line for each call would fill the pipe.
        command = [sys.executable, "-m", "enfold", "work", "app.py", "--no-access-log", *words]
        variables = {**os.environ, **self.env}
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=self.folder, env=variables)
        self._workers.append(process)
        said = Said(process.stderr)
        said.until("Press Ctrl-C")
        return process, said

    def run(self, *words: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Another command of `enfold`, to its end."""
        command = [sys.executable, "-m", "enfold", *words]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={**os.environ, **self.env},
            timeout=timeout,
            check=False,
        )

    def had(self, id: str) -> int:
        """How many times an effect was had."""
        return self.counted()[id]

    def counted(self) -> Counter[str]:
        return Counter(self.effects.read_text().split() if self.effects.exists() else ())

    def until_had(self, id: str, times: int = 1) -> None:
        wait_for(lambda: self.had(id) >= times)

    def close(self) -> None:
        for process in self._workers:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.communicate()
        self._stack.close()


@contextmanager
def processes(folder: Path) -> Iterator[Processes]:
    started = Processes(folder)
    try:
        yield started
    finally:
        started.close()


def call(base: str, name: str, key: str, *, within_ms: int | None = None, timeout: float = 60, **given: Any) -> Answer:
    """A call over HTTP, with a key and maybe a deadline."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": key, "Enfold-Format": "envelope"}
    if within_ms is not None:
        headers["Enfold-Timeout-Ms"] = str(within_ms)
    with closing(HTTPConnection(base.removeprefix("http://"), timeout=timeout)) as connection:
        connection.request("POST", f"/functions/shop.{name}", json.dumps(given), headers)
        reply = connection.getresponse()
        wire = json.loads(reply.read())
    error = wire.get("error")
    if error is None:
        return Answer(reply.status, wire["data"])
    return Answer(reply.status, None, error["code"], error["details"], error["retryable"])


def settled(base: str, name: str, key: str, within: float = 60, **given: Any) -> Answer:
    """Repeat a call until it is no longer in progress and a process answers."""
    return wait_for(  # type: ignore[no-any-return]
        lambda: (
            (found := call(base, name, key, within_ms=2000, **given)).code not in ("TIMEOUT", "UNAVAILABLE") and found
        ),
        within,
    )
