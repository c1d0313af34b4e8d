"""The log of a server: lines for people or JSON, one for each call, which nobody's words can forge."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from enfold.commands.log_setup import JSONLines, PlainLines
from enfold.observing import CallRecord
from enfold.observing.lines import call_fields, call_line
from enfold.operation import Origin

FORGED = "x\n2026-01-01 00:00:00.000 ERROR   forged \x1b[31m\r\u2028"
APP = f"""
from enfold import OperationRegistry
ops = OperationRegistry("shop")

@ops.query
async def add(x: int, y: int) -> int:
    return x + y

@ops.query
async def fail() -> int:
    raise ValueError({FORGED!r})
"""
ENTRY = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} ")


def record(**changes: object) -> CallRecord:
    facts = {"request_id": "r-1", "caller": None, **changes}
    return CallRecord(1_700_000_000.5, "http", "shop.add", Origin("mcp", "files"), "OK", 0.0012, **facts)  # type: ignore[arg-type]


def status_of(port: int, path: str) -> int:
    with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", path)
        return connection.getresponse().status


def test_the_line_of_a_call_has_every_fact_once_and_strangers_words_stay_words() -> None:
    assert call_line(record()) == "http shop.add OK 1.2 ms request_id=r-1 source=files"
    hostile = record(caller=f'ann code=OK "{FORGED}' + "z" * 9_999, warnings=2, first_warning="strip")
    line = call_line(hostile)
    assert line.isprintable()
    assert len(line) < 400
    assert line.count(" code=") == 0 or 'caller="ann code=OK' in line  # inside the quoted word
    assert call_fields(hostile)["duration_ms"] == 1.2
    assert "zzzz" not in str(call_fields(hostile))[-20:]


@pytest.mark.parametrize("text", [FORGED, "half \ud800 a character", "%s %d"])
def test_whatever_an_entry_says_it_is_one_entry(text: str) -> None:
    raised = (ValueError, ValueError(text), None)
    entry = logging.LogRecord("enfold", logging.ERROR, "", 0, "%s failed", (text,), raised)
    plain = PlainLines().format(entry)
    assert sum(1 for line in re.split(r"[\n\r\u2028]", plain) if ENTRY.match(line)) == 1
    assert "\x1b" not in plain
    written = JSONLines().format(entry)
    assert "\n" not in written
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
            asked = ["shop.add?x=1&y=2", "shop.fail", "shop.nowhere"]
            assert [status_of(port, f"/functions/{each}") for each in asked] == [200, 500, 404]
            logged: list[str] = []
            while not any("OPERATION_NOT_FOUND" in line for line in logged):
                logged.append(next(lines))
        finally:
            server.terminate()
            server.communicate()
    if form == "json":
        entries = [json.loads(line) for line in logged]
        assert [each.get("code") for each in entries] == ["OK", None, "EXECUTION_ERROR", "OPERATION_NOT_FOUND"]
        assert entries[1]["request_id"] == entries[2]["request_id"]
        assert entries[1]["stack"].startswith("Traceback")
        assert all({"time", "level", "logger"} <= each.keys() for each in entries)
    else:
        entries_of_text = [line for line in logged if ENTRY.match(line)]
        assert len(entries_of_text) == 4
        assert " http shop.add OK " in entries_of_text[0]
        assert all(line.startswith("  | ") for line in logged if not ENTRY.match(line))
