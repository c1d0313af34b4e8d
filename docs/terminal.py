"""Draws a terminal session as SVG: real commands, run at a real pseudo-terminal, with what they printed and its colours."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "docs/pictures/shell.svg"
SESSION = (
    "enfold list app.py",
    "enfold call app.py shop.price item=tea quantity=3",
    "enfold call app.py shop.price item=tea quantity=many",
    "enfold call app.py shop.prise item=tea",
)

COLUMNS, LETTER, LINE, EDGE = 92, 7.83, 19, 16
PAPER, INK, PROMPT = "#1e272c", "#eceff1", "#80cbc4"
COLOURS = {
    "1": INK,
    "2": "#90a4ae",
    "31": "#ef9a9a",
    "32": "#a5d6a7",
    "33": "#ffe082",
    "34": "#90caf9",
    "36": "#80deea",
}
NO_BREAK = "\N{NO-BREAK SPACE}"  # other blanks are drawn as one
CODE = re.compile(r"\x1b\[([0-9;]*)m")


def picture() -> str:
    """The session, as it looks."""
    lines: list[str] = []
    for command in SESSION:
        lines += [f"\x1b[36m$\x1b[0m {command}", *_run(command).splitlines(), ""]
    height = 2 * EDGE + LINE * (len(lines) - 1)
    width = round(2 * EDGE + COLUMNS * LETTER)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'font-family="ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace" font-size="13">'
    )
    rows = [_line(text, EDGE + LINE * number + 12) for number, text in enumerate(lines[:-1])]
    return "\n".join([head, f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>', *rows, "</svg>\n"])


def _run(command: str) -> str:
    """What a person sees who types the command in the folder of the demo."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {"PATH": path, "TERM": "xterm-256color", "LANG": "C.UTF-8"}
    process = subprocess.Popen(  # noqa: S603  # the commands above
        command.split(), stdin=theirs, stdout=theirs, stderr=theirs, env=environ, cwd=ROOT / "examples/shop"
    )
    os.close(theirs)
    shown = b""
    while piece := _read(ours):
        shown += piece
    process.wait()
    os.close(ours)
    return _as_left(shown.decode())


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the command has ended
        return b""


def _as_left(text: str) -> str:
    """What stays on the screen: a line that was drawn over is gone."""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join(re.sub(r"\x1b\[[0-9]*[A-HJK]|\x1b\[\?25[lh]", "", line.rpartition("\r")[2]) for line in lines)


def _line(text: str, y: int) -> str:
    parts, colour = [], INK
    for number, piece in enumerate(CODE.split(text)):
        if number % 2:
            codes = [code for code in piece.split(";") if code in COLOURS]
            colour = COLOURS[codes[-1]] if codes else INK
        elif piece:
            parts.append(f'<tspan fill="{colour}">{escape(piece).replace(" ", NO_BREAK)}</tspan>')
    return f'<text x="{EDGE}" y="{y}">{"".join(parts)}</text>'
