"""The steps of one warm call, recorded from a real one: which function of which file calls which, and what each does."""

from __future__ import annotations

import ast
import asyncio
import sys
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
OWN = ROOT / "src" / "enfold"
GENERATED = "<enfold"  # the files of code that we generate are named so
WARM = 50

sys.path.insert(0, str(ROOT))


class Step(NamedTuple):
    """One function that was entered: its file, its name, its docstring, and the file of who called it."""

    place: str
    function: str
    sentence: str
    caller: str


class Recorder:
    """Keeps the steps while it is on; for `sys.setprofile`."""

    def __init__(self) -> None:
        self.is_on = False
        self.steps: list[Step] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if self.is_on and event == "call" and is_own(code) and not code.co_name.startswith("<"):
            self.steps.append(Step(place_of(code), code.co_qualname, sentence_of(code), caller_of(frame)))


def is_own(code: CodeType) -> bool:
    return code.co_filename.startswith((str(OWN), GENERATED))


def place_of(code: CodeType) -> str:
    """The module, without `enfold.` before it."""
    if code.co_filename.startswith(GENERATED):
        return "generated"
    return ".".join(Path(code.co_filename).relative_to(OWN).with_suffix("").parts)


def caller_of(frame: FrameType) -> str:
    above = frame.f_back
    while above is not None and not is_own(above.f_code):
        above = above.f_back
    return "server" if above is None else place_of(above.f_code)


def sentence_of(code: CodeType) -> str:
    """The first line of a function's docstring."""
    return "" if code.co_filename.startswith(GENERATED) else sentences(code.co_filename).get(code.co_firstlineno, "")


@cache
def sentences(file: str) -> dict[int, str]:
    """The first lines of all docstrings in a file, by the line where their function begins."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {
        min([node.lineno, *(each.lineno for each in node.decorator_list)]): (ast.get_docstring(node) or "").split("\n")[
            0
        ]
        for node in functions
    }


@cache
def record() -> dict[str, list[Step]]:
    """The steps of one call over HTTP and one over MCP."""
    from benchmarks.hops import http_call, registry, stateless_call

    from enfold.surfaces.http import to_http
    from enfold.surfaces.mcp import to_mcp

    ops = registry()

    async def run() -> dict[str, list[Step]]:
        return {
            "http": await recorded(http_call(to_http(ops), "bench.add_on_loop")),
            "mcp": await recorded(stateless_call(to_mcp(ops), "bench_add_on_loop")),
        }

    return asyncio.run(run())


async def recorded(call: Any) -> list[Step]:
    recorder = Recorder()
    for _ in range(WARM):
        await call()
    sys.setprofile(recorder)
    try:
        recorder.is_on = True
        await call()
        recorder.is_on = False
    finally:
        sys.setprofile(None)
    return recorder.steps


# --- as text ------------------------------------------------------------------------------------------------------


def picture(kind: str) -> str:
    """A sequence of arrows between files, as Mermaid draws it."""
    steps = record()[kind]
    places = list(dict.fromkeys(["server", *(step.place for step in steps)]))
    names = {place: f"P{number}" for number, place in enumerate(places)}
    lines = [f"  participant {names[place]} as {place}" for place in places]
    lines += [f"  {names[step.caller]}->>{names[step.place]}: {step.function.split('.')[-1]}" for step in steps]
    return "\n".join(["sequenceDiagram", *lines])


def table(kind: str) -> str:
    """A row for each step."""
    rows = [
        f"| {number} | {_name(step.place)} | {_name(step.function.replace('.<locals>', ''))} | {step.sentence} |"
        for number, step in enumerate(record()[kind], 1)
    ]
    return "\n".join(["| step | file | function | what it does |", "|---|---|---|---|", *rows])


def _name(dotted: str) -> str:
    """A name that may break behind a dot or before a line below, where a column is narrow."""
    return f"<code>{dotted.replace('.', '.<wbr>').replace('_', '<wbr>&#95;')}</code>"
