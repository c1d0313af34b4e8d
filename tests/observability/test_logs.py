"""The log of a server: lines for people or JSON, one for each call, which callers cannot forge."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import subprocess
import sys
from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path

import pytest
from tests.waiting import Said

from enfold.commands.shared.log import JSONLines, PlainLines
from enfold.observability import CallRecord
from enfold.observability.records import call_fields, call_line
from enfold.operations import Origin

HIDDEN = "\x1b\x85\x9b\u2028\u2029\u202e\r"
FORGED = "x\n2026-01-01 00:00:00.000 ERROR   forged \x1b[31m\r\u2028"
APP = f"""
from enfold import OperationRegistry
ops = OperationRegistry("shop")

@ops.query
async def add(x: int, y: int) -> int:
    return x + y

@ops.query
async def fail() -> int:
    raise ValueError({FORGED!r} + {HIDDEN!r})

@ops.query
async def warn() -> int:
    import warnings
    warnings.warn({FORGED!r} + {HIDDEN!r})
    return 1
"""
ENTRY = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} ")


def record(**changes: object) -> CallRecord:
    facts = {"request_id": "r-1", "caller": None, **changes}
    return CallRecord(1_700_000_000.5, "http", "shop.add", Origin("mcp", "files"), "OK", 0.0012, **facts)  # type: ignore[arg-type]


def status_of(port: int, path: str) -> int:
    with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", path)
        return connection.getresponse().status


def test_the_log_line_of_a_call_has_every_fact_once_and_escapes_untrusted_text() -> None:
    assert call_line(record()) == "http shop.add OK 1.2 ms request_id=r-1 source=files"
    hostile = record(caller=f'ann code=OK "{FORGED}' + "z" * 9_999, warnings=2, first_warning="strip")
    line = call_line(hostile)
    assert line.isprintable()
    assert len(line) < 400
    assert line.count(" code=") == 0 or 'caller="ann code=OK' in line  # inside the quoted word
    assert call_fields(hostile)["duration_ms"] == 1.2
    assert "zzzz" not in str(call_fields(hostile))[-20:]


@pytest.mark.parametrize(
    "text", [FORGED, "half \ud800 a character", "%s %d", "\u2028\u2029\x85\x9b31m\u202e\U000e0001\x7f\x00"]
)
def test_a_log_entry_is_one_entry_whatever_its_text(text: str) -> None:
    raised = (ValueError, ValueError(text), None)
    entry = logging.LogRecord("enfold", logging.ERROR, "", 0, "%s failed", (text,), raised)
    plain = PlainLines(is_dated=True).format(entry)
    assert sum(1 for line in re.split(r"[\n\r\u2028]", plain) if ENTRY.match(line)) == 1
    assert "\x1b" not in plain
    written = JSONLines().format(entry)
    assert written.isprintable()
    assert json.loads(written)["message"].startswith(text.split("\ud800", maxsplit=1)[0])


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_server_writes_a_line_for_each_call_and_the_stack_of_a_failure(tmp_path: Path, form: str) -> None:
    (tmp_path / "app.py").write_text(APP)
    command = [sys.executable, "-m", "enfold", "serve", "app.py", "--port", "0", "--access-log", "--log-format", form]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stderr is not None
            lines = iter(server.stderr.readline, "")
            said = [next(lines)]
            while "Ctrl-C" not in said[-1]:
                said.append(next(lines))
            port = next(int(found[1]) for line in said if (found := re.search(r"http://127.0.0.1:(\d+)", line)))
            asked = ["shop.add?x=1&y=2", "shop.fail", "shop.warn", "shop.nowhere"]
            assert [status_of(port, f"/functions/{each}") for each in asked] == [200, 500, 200, 404]
            logged: list[str] = []
            while not any("OPERATION_NOT_FOUND" in line for line in logged):
                logged.append(next(lines))
        finally:
            server.terminate()
            server.communicate()
    assert not any(each in "".join(said + logged) for each in HIDDEN)
    if form == "json":
        entries = [json.loads(line) for line in logged]
        assert [each.get("code") for each in entries] == [
            "OK",
            None,
            "EXECUTION_ERROR",
            None,
            "OK",
            "OPERATION_NOT_FOUND",
        ]
        assert (entries[3]["logger"], entries[3]["level"]) == ("py.warnings", "warning")
        assert "serves 3 operations" in json.loads(said[0])["message"]
        assert json.loads(said[-1])["message"] == "Press Ctrl-C to stop."
        assert entries[1]["request_id"] == entries[2]["request_id"]
        assert entries[1]["stack"].startswith("Traceback")
        assert all({"time", "level", "logger"} <= each.keys() for each in entries)
    else:
        entries_of_text = [line for line in logged if ENTRY.match(line)]
        assert len(entries_of_text) == 6
        assert " http shop.add OK " in entries_of_text[0]
        assert all(line.startswith("  | ") for line in logged if not ENTRY.match(line))


# --- what is written, and where -----------------------------------------------------------------------------------

LEVELS = """
import logging
from enfold import OperationRegistry
from enfold.observability.log import Log
ops = OperationRegistry("shop")

@ops.query
async def talk() -> int:
    for level in ("debug", "info", "warning", "error"):
        getattr(Log("enfold.app"), level)(f"ours-{level}")
        getattr(logging.getLogger("library"), level)(f"theirs-{level}")
    return 1
"""


@pytest.mark.parametrize(
    ("words", "written"),
    [
        (
            ["--log-level", "debug"],
            ["ours-debug", "ours-info", "ours-warning", "theirs-warning", "ours-error", "shop.talk"],
        ),
        ([], ["ours-info", "ours-warning", "theirs-warning", "ours-error", "shop.talk"]),
        (["--log-level", "warning"], ["ours-warning", "theirs-warning", "ours-error"]),
        (["--log-level", "error"], ["ours-error"]),
        (["--log-level", "error", "--access-log"], ["ours-error", "shop.talk"]),
        (["--no-access-log"], ["ours-info", "ours-warning", "theirs-warning", "ours-error"]),
    ],
    ids=["debug", "info", "warning", "error", "error and calls", "no calls"],
)
def test_levels_and_lines_of_calls_are_chosen(tmp_path: Path, words: list[str], written: list[str]) -> None:
    (tmp_path / "app.py").write_text(LEVELS)
    command = [sys.executable, "-m", "enfold", "serve", "app.py", "--port", "0", *words]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as server:
        told = Said(server.stderr)
        port = int(re.findall(r"http://127.0.0.1:(\d+)/functions", told.until("Ctrl-C"))[0])
        assert status_of(port, "/functions/shop.talk") == 200
        server.terminate()
        log = told.rest()
    assert [each for each in re.findall(r"ours-\w+|theirs-\w+|shop\.talk", log) if each != "theirs-error"] == written
    assert "theirs-error" in log


@pytest.mark.parametrize("words", [[], ["--no-access-log"]], ids=["by default", "unless it is not wanted"])
def test_on_a_terminal_every_call_is_a_line_as_it_ends(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "app.py").write_text(APP)
    terminal, side = pty.openpty()
    command = [sys.executable, "-m", "enfold", "serve", "app.py", "--port", "0", *words]
    with subprocess.Popen(command, cwd=tmp_path, stderr=side) as server:
        os.close(side)
        said = b""
        while b"Ctrl-C" not in said:
            said += os.read(terminal, 4096)
        port = int(re.findall(rb"http://127.0.0.1:(\d+)/functions", said)[0])
        assert [status_of(port, f"/functions/shop.{name}") for name in ("add?x=1&y=2", "fail")] == [200, 500]
        server.terminate()
        with suppress(OSError):  # how a terminal reports that its other side is closed
            while part := os.read(terminal, 4096):
                said += part
    os.close(terminal)
    shown = said.decode().partition("Ctrl-C to stop.")[2]
    calls = [line for line in shown.splitlines() if " http shop." in line]
    assert [line.split()[2:5] for line in calls] == ([] if words else CALLS)
    assert all(ENTRY.match(line) for line in calls)
    assert not any(each in shown.replace("\r\n", "\n") for each in HIDDEN)


CALLS = [["http", "shop.add", "OK"], ["http", "shop.fail", "EXECUTION_ERROR"]]


AT_LENGTH = f"""
@ops.query
async def fail_at_length() -> int:
    raise ValueError("x" * 1_000_000 + {FORGED!r})
"""


@pytest.mark.parametrize("operation", ["fail", "fail_at_length"])
@pytest.mark.parametrize("command", ["mcp", "cgi"])
def test_programs_that_others_start_write_entries_as_a_server_does(
    tmp_path: Path, command: str, operation: str
) -> None:
    (tmp_path / "app.py").write_text(APP + AT_LENGTH)
    params = {"name": f"shop.{operation}", "arguments": {}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    done = subprocess.run(
        [sys.executable, "-m", "enfold", command, "app.py"],
        input="{}" if command == "cgi" else f"{json.dumps(message)}\n",
        env={**os.environ, "PATH_INFO": f"/{operation}", "CONTENT_TYPE": "application/json"},
        capture_output=True,
        cwd=tmp_path,
        text=True,
        check=True,
        timeout=60,
    )
    first, *below = done.stderr.rstrip("\n").split("\n")
    assert ENTRY.match(first)
    assert f"shop.{operation} failed" in first
    assert all(line.startswith("  | ") for line in below)
    assert len(done.stderr) < 25_000
    assert not set(done.stderr) & set(HIDDEN)


def test_a_program_with_its_own_log_keeps_it(tmp_path: Path) -> None:
    own = "import logging\nlogging.basicConfig(format='own %(message)s', level='ERROR')\n"
    (tmp_path / "app.py").write_text(own + APP)
    done = subprocess.run(
        [sys.executable, "-m", "enfold", "cgi", "app.py"],
        input="{}",
        env={**os.environ, "PATH_INFO": "/fail", "CONTENT_TYPE": "application/json"},
        capture_output=True,
        cwd=tmp_path,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr.startswith("own shop.fail failed")
