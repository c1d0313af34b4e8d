"""A real `enfold serve` for tests: a process, what it said, and where it is."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tests.waiting import Said


class Served:
    """A running server: what it said, and where it is."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.log = Said(process.stderr)
        self.said = self.log.until("Press Ctrl-C")
        self.base = re.findall(r"(https?://\S+)/functions/", self.said)[0]

    def get(self, path: str, body: bytes | None = None, **options: Any) -> Any:
        request = Request(self.base + path, body, {"Content-Type": "application/json"})  # noqa: S310  # our own server
        with urlopen(request, timeout=30, **options) as reply:  # noqa: S310  # our own server
            return json.load(reply)

    def status(self, path: str, **headers: str) -> tuple[int, str]:
        """The status and the text of a GET, whatever they are; redirects are not followed."""
        host = self.base.removeprefix("http://")
        with closing(HTTPConnection(host, timeout=30)) as connection:
            connection.request("GET", path, headers=headers)
            reply = connection.getresponse()
            return reply.status, reply.headers.get("location") or reply.read().decode()

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


@contextmanager
def serving(*words: str, cwd: Path, env: Mapping[str, str] | None = None, logs_calls: bool = False) -> Iterator[Served]:
    """Serve on a free port until the block is left; `env` adds to the environment, and may choose the port.

    Lines of calls are only for tests that read them: a pipe that nobody reads takes some hundreds.
    """
    # A job in the background ignores what Ctrl-C sends, and so would all that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    address = () if "PORT" in (env or {}) else ("--port", "0")
    log = () if logs_calls else ("--no-access-log",)
    command = [sys.executable, "-m", "enfold", "serve", *words, *address, *log]
    variables = {**os.environ, **(env or {})}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=cwd, env=variables) as process:
        try:
            yield Served(process)
        finally:
            process.kill()
