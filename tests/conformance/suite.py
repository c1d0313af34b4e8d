"""Runs the MCP conformance suite against `server.py`, with and without a handshake, and with the tasks extension.

`python tests/conformance/suite.py` needs node and the package `@modelcontextprotocol/conformance` below `.parts`. It
counts the status of every check, and ends with 0 when none failed, was skipped, or passed only because there was nothing
to test. With `--sample` it runs a few of the scenarios about tasks.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
SUITE: Final = ROOT / ".parts" / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
REVISIONS: Final = ("2025-11-25", "2026-07-28")
# The scenarios of the tasks extension, each run by itself: no revision has them. The last is always skipped by the suite.
TASKS: Final = (
    "tasks-capability-negotiation",
    "tasks-mrtr-input",
    "tasks-mrtr-composition",
    "tasks-lifecycle",
    "tasks-wire-fields",
    "tasks-request-state-removal",
    "tasks-request-headers",
    "tasks-dispatch-and-envelope",
    "tasks-required-task-error",
    "tasks-status-notifications",
)
SAMPLE: Final = 3  # of these, where `--sample` is said
GOOD: Final = ("SUCCESS", "INFO")


def main() -> int:
    scenarios = TASKS[:SAMPLE] if "--sample" in sys.argv else TASKS
    with _server() as url:
        return judge(url, scenarios)


def judge(url: str, scenarios: Sequence[str] = (), revisions: Sequence[str] = REVISIONS) -> int:
    """What the suite says of a server, of revisions and of further scenarios: 0 where all is good, 2 where it cannot run."""
    node = _node()
    if node is None or not SUITE.exists():
        sys.stderr.write("not run: the suite needs node and its own package below .parts\n")
        return 2
    with tempfile.TemporaryDirectory() as home:
        bad = [line for leg in revisions for line in _run(node, url, leg, Path(home) / leg)]
        bad += _run_tasks(node, url, scenarios, Path(home) / "tasks") if scenarios else []
    _say("\n".join(bad) or "No check failed, was skipped, or had nothing to test.")
    return 1 if bad else 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _node() -> str | None:
    own = Path(sys.executable).parent / "node"
    return str(own) if own.exists() else shutil.which("node")


@contextmanager
def _server() -> Iterator[str]:
    port = free_port()
    program = [sys.executable, str(Path(__file__).with_name("server.py")), "--port", str(port)]
    server = subprocess.Popen(program)
    try:
        wait_for(port)
        yield f"http://localhost:{port}/mcp"
    finally:
        server.terminate()
        server.wait(10)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int) -> None:
    for _ in range(300):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError("the server with the fixtures did not start")


def _run(node: str, url: str, revision: str, home: Path) -> list[str]:
    """Every scenario that applies to a revision; a line for each check that is not good."""
    _command(node, url, ["--suite", "all", "--spec-version", revision], home)
    return _read(revision, home)


def _run_tasks(node: str, url: str, scenarios: Sequence[str], home: Path) -> list[str]:
    """The scenarios of the tasks extension; the suite itself skips one, because its check is not written yet."""
    for scenario in scenarios:
        _command(node, url, ["--scenario", scenario], home)
    return [line for line in _read("tasks", home) if "tasks-status-notifications SKIPPED" not in line]


def _command(node: str, url: str, what: list[str], home: Path) -> None:
    command = [node, str(SUITE), "server", "--url", url, *what, "-o", str(home)]
    environment = {**os.environ, "PATH": f"{Path(node).parent}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, env=environment, timeout=600)


def _read(revision: str, home: Path) -> list[str]:
    scenarios = {path.parent.name: json.loads(path.read_text()) for path in sorted(home.glob("*/checks.json"))}
    checks = [(scenario, check) for scenario, found in scenarios.items() for check in found]
    count = Counter(check["status"] for _, check in checks)
    _say(f"{revision}: {len(scenarios)} scenarios, {', '.join(f'{n} {status}' for status, n in count.items())}")
    if not checks:
        return [f"{revision}: the suite gave no checks"]
    return [_line(revision, scenario, check) for scenario, check in checks if not _is_good(check)]


def _is_good(check: dict[str, Any]) -> bool:
    details = check.get("details")
    is_empty = isinstance(details, dict) and bool(details.get("untestable"))
    return check["status"] in GOOD and not is_empty


def _line(revision: str, scenario: str, check: dict[str, Any]) -> str:
    return f"{revision} {scenario} {check['id']} {check['status']}: {check.get('errorMessage') or ''}"


if __name__ == "__main__":
    sys.exit(main())
