"""Runs the MCP conformance suite against a gateway: the fixtures on the SDK behind it, `enfold serve mcp.json` before it.

`python -m tests.conformance.gateway` consumes them on the standard streams and over HTTP, and our own with their tasks;
a word says only one of these, and `--sample` runs only a few of the scenarios about tasks.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from tests.conformance.suite import ROOT, SAMPLE, TASKS, free_port, judge, wait_for

WAYS: Final = ("stdio", "http", "tasks")
FIXTURES: Final = ("-m", "tests.conformance.sdk_server")
WITH_TASKS: Final = ("-m", "tests.conformance.server")  # the SDK has none
# A tool that only runs as a task is refused to clients without tasks; the gateway waits for it in their place.
SERVED_BETTER: Final = "tasks-required-task-error"


def main() -> int:
    return max(judge_way(way) for way in [word for word in sys.argv[1:] if word != "--sample"] or WAYS)


def judge_way(way: str) -> int:
    """What the suite says of a gateway that reaches the fixtures in one way."""
    sys.stdout.write(f"The fixtures over {way}, served again:\n")
    sys.stdout.flush()
    with ExitStack() as open_programs, tempfile.TemporaryDirectory() as home:
        # The fixtures ask in both eras, and a process has one: clients with a session get one of their own.
        entry = {"command": sys.executable, "args": list(FIXTURES), "cwd": str(ROOT), "per": "session"}
        if way != "stdio":
            fixtures = WITH_TASKS if way == "tasks" else FIXTURES
            entry = {"url": f"http://127.0.0.1:{open_programs.enter_context(running(*fixtures))}/mcp"}
        config = Path(home) / "mcp.json"
        config.write_text(json.dumps({"mcpServers": {"fixtures": {**entry, "namespace": ""}}}))
        port = open_programs.enter_context(running("-m", "enfold", "serve", str(config), "--no-access-log"))
        wait_for_fixtures(port)
        url = f"http://localhost:{port}/mcp"
        if way == "tasks":
            scenarios = TASKS[:SAMPLE] if "--sample" in sys.argv else TASKS
            return judge(url, [scenario for scenario in scenarios if scenario != SERVED_BETTER], ())
        return judge(url)


@contextmanager
def running(*words: str) -> Iterator[int]:
    """A Python program that listens at a port, for as long as the block is open."""
    port = free_port()
    quiet = subprocess.DEVNULL
    program = subprocess.Popen([sys.executable, *words, "--port", str(port)], cwd=ROOT, stdout=quiet, stderr=quiet)
    try:
        wait_for(port)
        yield port
    finally:
        program.terminate()
        program.wait(10)


def wait_for_fixtures(port: int) -> None:
    """A gateway that listens may still wait for its sources, and would be judged without them."""
    for _ in range(60):
        with urlopen(f"http://127.0.0.1:{port}/openapi.json", timeout=30) as reply:
            document: dict[str, Any] = json.load(reply)
        if any("test_simple_text" in path for path in document["paths"]):
            return
        time.sleep(0.5)
    raise TimeoutError("the gateway has not reached the fixtures")


if __name__ == "__main__":
    sys.exit(main())
