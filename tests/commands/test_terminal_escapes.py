"""No command sends control characters of an upstream to a terminal: escapes, C1 controls, links, bidirectional marks."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CONTROLS = "\x1b]0;title\x07\x1b[2J\x9b31m\x7f\x08\r\u202e\u2066\u200b\u2028"
APP = f"""
from enfold import CallError, Context, OperationRegistry

ops = OperationRegistry("shop")

@ops.query
def give() -> str:
    return {CONTROLS!r}

@ops.query
def fail() -> str:
    raise CallError("EXECUTION_ERROR", {CONTROLS!r})

@ops.mutation(durable=True)
def work(context: Context) -> str:
    context.progress(1, 2, {CONTROLS!r})
    return {CONTROLS!r}
"""


def document(required: bool) -> dict[str, Any]:
    """An OpenAPI document with controls wherever there is text."""
    schema = {"enum": [CONTROLS], "description": CONTROLS, "default": CONTROLS}
    parameter = {"name": f"p{CONTROLS}", "in": "query", "schema": schema, "required": required}
    body = {"content": {CONTROLS: {"schema": {"$ref": f"#/components/schemas/{CONTROLS}"}}}}
    operation = {
        "operationId": f"op{CONTROLS}",
        "summary": f"find things {CONTROLS}",
        "description": f"find\n{CONTROLS}",
        "tags": [CONTROLS],
        "parameters": [parameter],
        "responses": {"200": {"description": CONTROLS, **body}},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": CONTROLS, "version": CONTROLS, "description": CONTROLS},
        "servers": [{"url": "http://127.0.0.1:9"}],
        "paths": {f"/x{CONTROLS}": {"get": operation}, "/y": {"get": {**operation, "operationId": "second"}}},
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "old.json").write_text(json.dumps(document(required=False)))
    (tmp_path / "api.json").write_text(json.dumps(document(required=True)))
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


COMMANDS = {
    "search": ("search", "api.json", "find", "things"),
    "search as JSON": ("search", "api.json", "find", "--json"),
    "help of a call": ("call", "api.json", "second", "--help"),
    "wrong argument": ("call", "api.json", "second", "x=1"),
    "list": ("list", "api.json"),
    "list as JSON": ("list", "api.json", "--json"),
    "list of costs": ("list", "api.json", "--costs"),
    "inspect": ("inspect", "api.json"),
    "inspect one": ("inspect", "api.json", "second"),
    "diff": ("diff", "old.json", "api.json"),
    "diff as JSON": ("diff", "old.json", "api.json", "--json"),
    "doctor": ("doctor", "api.json"),
    "openapi": ("openapi", "api.json"),
    "result": ("call", "app.py", "give"),
    "failure": ("call", "app.py", "fail"),
    "failure in a format": ("call", "app.py", "fail", "--format", "mcp_envelope_v0_1"),
    "task": ("call", "app.py", "work", "--idempotency-key", "one"),
    "target": ("list", f"x{CONTROLS}.py"),
    "command": (f"x{CONTROLS}",),
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS.keys())
def test_no_command_passes_controls_of_an_upstream_to_a_terminal(folder: Path, words: tuple[str, ...]) -> None:
    shown = at_a_terminal(folder, *words)
    assert controls_in(shown) == set(), shown


def test_tasks_are_shown_without_controls(folder: Path) -> None:
    at_a_terminal(folder, "call", "app.py", "work", "--idempotency-key", "one", "--tasks", "tasks.db")
    listed = at_a_terminal(folder, "tasks", "list", "--tasks", "tasks.db")
    assert "completed" in listed
    number = next(line for line in listed.splitlines() if "completed" in line).split()[0]
    for verb in ("get", "wait"):
        assert controls_in(at_a_terminal(folder, "tasks", verb, number, "--tasks", "tasks.db")) == set()
    assert controls_in(listed) == set()


def test_a_program_gets_the_result_as_it_is(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "enfold", "call", "app.py", "give"], cwd=folder, capture_output=True, check=True
    )
    assert json.loads(done.stdout) == {"result": CONTROLS}


def controls_in(shown: str) -> set[str]:
    """The controls in what a terminal was sent, but for line ends and what we draw ourselves: colours and one line."""
    ours = re.sub(r"\x1b\[\d*m|\r(?! *\x1b\])", "", shown.replace("\r\n", "\n"))
    return {each for each in ours if not each.isprintable() and each not in "\n\t"}


def at_a_terminal(folder: Path, *words: str) -> str:
    """What a command writes to a terminal."""
    mine, theirs = pty.openpty()
    command = [sys.executable, "-m", "enfold", *words]
    with subprocess.Popen(command, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        try:
            while select.select([mine], [], [], 60)[0]:
                shown += os.read(mine, 65536)
        except OSError:  # it has ended
            pass
        finally:
            process.kill()
            os.close(mine)
    return shown.decode(errors="surrogateescape")
