"""What a person sees at a terminal while a call runs, on the screen that they have; nothing of it goes into a pipe."""

import io
import subprocess
import sys
import threading
from pathlib import Path

from enfold.operation import LogMessage, Progress
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
    assert screen.lines() == ["warning: found  [2Jsomething", "[############............]  50% next"]
    line.clear()
    assert screen.lines() == ["warning: found  [2Jsomething", ""]


def test_while_nobody_says_how_far_it_is_time_goes_by_and_others_write_above() -> None:
    screen = Screen()
    line = ProgressLine(screen)
    with line.waiting("opening enfold.toml"):
        assert screen.has_drawn.wait(30)
        print("dead is down", file=line.above())
    assert screen.lines() == ["dead is down", ""]


def test_a_pipe_sees_nothing_of_it() -> None:
    pipe = io.StringIO()
    line = ProgressLine(pipe)
    with line.waiting("opening"):
        line.hear(Progress(1, 2))
        line.hear(LogMessage("something"))
    assert pipe.getvalue() == ""


def test_the_meta_is_shown_to_who_wants_it(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("def add(x: int) -> int:\n    return x\n")
    words = [sys.executable, "-m", "enfold", "call", "app.py", "add", "x=1", "--verbose"]
    told = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert told.stdout == '{"result":1}\n'
    assert told.stderr.startswith('meta: {"source":"local","operationId":"')
