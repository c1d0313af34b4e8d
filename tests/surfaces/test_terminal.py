"""What users see at a terminal while a call runs; nothing of it is written to a pipe."""

import io
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

from enfold import OperationRegistry
from enfold.operations import LogMessage, Progress
from enfold.surfaces.command_line import to_command_line
from enfold.surfaces.command_line.terminal import ProgressLine


class Screen(io.StringIO):
    """A terminal of one column of lines: a return goes to the start of the line, where writing goes over what is there."""

    def __init__(self) -> None:
        super().__init__()
        self.has_drawn = threading.Event()

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        if "opening" in self.getvalue():
            self.has_drawn.set()

    def lines(self) -> list[str]:
        shown = []
        for line in self.getvalue().split("\n"):
            text = ""
            for part in line.split("\r"):
                text = part + text[len(part) :]
            shown.append(text.rstrip())
        return shown


def test_progress_is_drawn_over_and_log_lines_stay_above_it() -> None:
    screen = Screen()
    line = ProgressLine(screen)
    line.hear(Progress(1, 4, "a long first step"))
    line.hear(LogMessage("found \x1b[2Jsomething", "warning"))
    line.hear(Progress(2, 4, "next"))
    assert screen.lines() == ["warning: found \\x1b[2Jsomething", "[############............]  50% next"]
    line.clear()
    assert screen.lines() == ["warning: found \\x1b[2Jsomething", ""]


def test_without_progress_the_elapsed_time_is_shown_and_other_lines_go_above_it() -> None:
    screen = Screen()
    line = ProgressLine(screen)
    with line.waiting("opening enfold.toml"):
        assert screen.has_drawn.wait(30)
        print("dead is down", file=line.above())
    assert screen.lines() == ["dead is down", ""]


def test_a_pipe_gets_no_progress() -> None:
    pipe = io.StringIO()
    line = ProgressLine(pipe)
    with line.waiting("opening"):
        line.hear(Progress(1, 2))
        line.hear(LogMessage("something"))
    assert pipe.getvalue() == ""


def test_a_short_result_stays_on_its_line_and_a_long_one_is_indented() -> None:
    ops, shown = OperationRegistry("shop"), Screen()

    @ops.query
    def text(length: int) -> str:
        return "x" * length

    for length in (60, 70):
        to_command_line(ops, ["shop.text", f"length={length}"], stdout=shown, stderr=io.StringIO())
    assert shown.lines() == ['{"result":"' + "x" * 60 + '"}', "{", '  "result": "' + "x" * 70 + '"', "}", ""]


def test_an_mcp_server_started_at_a_terminal_explains_its_input() -> None:
    keys, terminal = pty.openpty()
    words = [sys.executable, "-m", "enfold", "mcp", str(Path(__file__).parents[2] / "examples/quickstart.py")]
    with subprocess.Popen(words, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        os.write(keys, b"\x04")  # Ctrl-D
        told = server.communicate(timeout=60)
    os.close(keys)
    os.close(terminal)
    assert told == (
        "",
        "This command speaks MCP on stdin and stdout, and is meant to be started by an MCP client. Use enfold serve for a browser. Press Ctrl-D to stop.\n",
    )


def test_the_meta_is_shown_to_who_wants_it(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("def add(x: int) -> int:\n    return x\n")
    words = [sys.executable, "-m", "enfold", "call", "app.py", "add", "x=1", "--verbose"]
    told = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert told.stdout == '{"result":1}\n'
    assert told.stderr.startswith('meta: {"source":"local","operationId":"')
