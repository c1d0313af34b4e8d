"""What users at a shell and operators see: questions, tracebacks on request, each failure once, and log levels."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.served import serving
from tests.waiting import PATIENCE, wait_for

LITTLE = Path(__file__).parents[1] / "sources/mcp/little_server.py"
APP = """
import asyncio
from enfold import Context, OperationRegistry
from enfold.mcp import elicit

ops = OperationRegistry("shop")
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}

@ops.query
async def greet(context: Context) -> str:
    await asyncio.sleep(1.5)  # so that the line that says how long it takes is there
    answer = await elicit(context, "Who is there?", FORM)
    await asyncio.sleep(1)
    return f"Hello {answer.content['name']}"

@ops.query
def fail() -> None:
    raise ValueError("no such disk")

@ops.query
def add(x: int, y: int) -> int:
    return x + y
"""


class Terminal:
    """A command at a real terminal, and what it shows."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._screen, side = pty.openpty()
        command = [sys.executable, "-m", "enfold", *words]
        self.process = subprocess.Popen(command, cwd=folder, stdin=side, stdout=side, stderr=side)
        os.close(side)
        self.shown = ""

    def until(self, text: str) -> None:
        while text not in self.shown:
            assert self._read(PATIENCE), f"nothing more is shown after {self.shown!r}"

    def is_quiet(self, seconds: float) -> bool:
        """Whether nothing is shown for a time in which the line that changes would be drawn many times."""
        return not self._read(seconds)

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def end(self) -> int:
        with suppress(OSError):  # how a terminal reports that its other side is closed
            while self._read(PATIENCE):
                pass
        os.close(self._screen)
        return self.process.wait(PATIENCE)

    def _read(self, seconds: float) -> bool:
        if not select.select([self._screen], [], [], seconds)[0]:
            return False
        part = os.read(self._screen, 65_536)
        self.shown += part.decode()
        return bool(part)


def write_app(folder: Path) -> None:
    (folder / "app.py").write_text(APP)


def test_a_question_at_the_terminal_is_not_erased_by_the_line_that_shows_the_time(tmp_path: Path) -> None:
    write_app(tmp_path)
    terminal = Terminal(tmp_path, "call", "app.py", "shop.greet")
    terminal.until("shop.greet  ")  # the line is there
    terminal.until("name (string): ")
    assert terminal.is_quiet(1.5)
    assert "\r" not in terminal.shown.replace("\r\n", "\n").rpartition("Who is there?")[2]
    terminal.type("Bo\n")
    assert terminal.end() == 0
    assert "Hello Bo" in terminal.shown


def enfold(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "enfold", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


def test_verbose_shows_the_stack_of_a_handler_that_failed(tmp_path: Path) -> None:
    write_app(tmp_path)
    short, long = enfold(tmp_path, "call", "app.py", "fail"), enfold(tmp_path, "call", "app.py", "fail", "--verbose")
    assert short.stderr == "EXECUTION_ERROR: no such disk\n"
    assert long.returncode == short.returncode == 1
    assert long.stderr.endswith("EXECUTION_ERROR: no such disk\n")
    assert 'app.py", line 18, in fail' in long.stderr
    assert "ValueError: no such disk" in long.stderr


def test_verbose_shows_the_stack_of_a_handler_that_a_configuration_names(tmp_path: Path) -> None:
    write_app(tmp_path)
    (tmp_path / "enfold.toml").write_text('[sources.shop]\nfunctions = "app.py:ops"\n')
    told = enfold(tmp_path, "call", "enfold.toml", "shop.fail", "--verbose").stderr
    assert "in fail" in told
    assert told.count("ValueError: no such disk") == 1


def test_the_error_of_an_mcp_tool_is_printed_once(tmp_path: Path) -> None:
    told = enfold(tmp_path, "call", "failed", "--", sys.executable, str(LITTLE))
    assert told.returncode == 1
    assert told.stdout == ""
    assert told.stderr.startswith("EXECUTION_ERROR: ")
    assert len(told.stderr.splitlines()) == 1


# --- the log of a server ------------------------------------------------------------------------------------------


def test_each_call_is_a_line_by_default_where_stderr_is_not_a_terminal(tmp_path: Path) -> None:
    write_app(tmp_path)
    with serving("app.py", cwd=tmp_path, logs_calls=True) as served:
        assert served.get("/functions/shop.add?x=1&y=2") == {"result": 3}
        line = served.log.until("shop.add").splitlines()[-1]
        assert " http shop.add OK " in line


def test_lines_of_calls_are_at_the_level_info(tmp_path: Path) -> None:
    write_app(tmp_path)
    with serving("app.py", "--log-format", "json", cwd=tmp_path, logs_calls=True) as served:
        served.get("/functions/shop.add?x=1&y=2")
        assert json.loads(served.log.until("shop.add").splitlines()[-1])["level"] == "info"
    with serving("app.py", "--log-level", "warning", cwd=tmp_path, logs_calls=True) as served:
        served.get("/functions/shop.add?x=1&y=2")
        served.process.terminate()
        assert "shop.add" not in served.log.rest()


def test_a_configuration_that_was_read_again_is_at_the_level_info(tmp_path: Path) -> None:
    write_app(tmp_path)
    file = tmp_path / "enfold.toml"
    text = '[sources.shop]\nfunctions = "app.py:ops"\n'
    file.write_text(text)
    with serving("enfold.toml", cwd=tmp_path) as served:
        file.write_text(f"{text}include = ['add']\n")
        assert " INFO " in served.log.until("was reloaded").splitlines()[-1]
        wait_for(lambda: len(served.get("/openapi.json")["paths"]) == 1)
