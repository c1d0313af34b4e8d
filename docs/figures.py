"""Plots and tables of `docs/figures.json`, which `python -m benchmarks --publish` writes: bars from zero, misses included."""

from __future__ import annotations

import json
import textwrap
from html import escape
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).parent / "figures.json"
PICTURES = Path(__file__).parent / "pictures/figures"

HEAD = "| goal | ratio | limit | verdict |\n|---|---|---|---|"
WIDTH, ROW, LINE, EDGE = 480, 32, 17, 12
OURS, THEIRS = "#009688", "#7f929b"  # seen on white and in the dark alike; words change with the paper
INK = "<style>text{fill:#263238}@media(prefers-color-scheme:dark){text{fill:#e3e8ea}}</style>"

NAMES = {
    "http": "HTTP",
    "mcp_http": "MCP over HTTP",
    "mcp_stdio": "MCP on the standard streams",
    "in_process": "A call inside a process",
    "start_up": "From nothing",
    "schema_engines": "Repair",
    "gateway": "A gateway",
    "mcp_client": "Our MCP client",
    "web": "Our HTTP client",
    "openapi": "OpenAPI documents",
    "calls": "Calls to other machines",
    "tasks": "Tasks",
    "provenance": "Records of provenance",
    "workers": "Two processes on one port",
}

# The plot that stands first: of each benchmark its first comparison, in plain words, between us and what people take otherwise.
SHORT = {
    "http": ("One call over HTTP", ("enfold", "FastAPI")),
    "mcp_http": ("One call over MCP", ("enfold", "mcp SDK", "FastMCP")),
    "gateway": ("One call of an MCP server behind a gateway", ("enfold, as a gateway", "FastMCP, as a proxy")),
    "openapi": (
        "GitHub's OpenAPI document as a list of tools",
        ("enfold, tools/list answered", "FastMCP, list written"),
    ),
    "start_up": (
        "The import that a program begins with",
        ("from enfold import OperationRegistry", "from mcp.server import MCPServer", "from fastmcp import FastMCP"),
    ),
}


def measured() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8"))
    return found


def block(name: str) -> str:
    """What a page shows of a benchmark: its verdicts, and behind them, to be opened, its plot."""
    if name == "missed":
        return _missed(measured())
    if name == "short":
        return f"![{_words(_short())}](pictures/figures/short.svg)"
    if name not in measured():
        return f"Not measured here yet: `python -m benchmarks --publish {name}`."
    run = measured()[name]
    if "calls" in run:
        return f"{_hops(run['calls'])}\n\n{_where(run)}"
    goals = [(comparison, goal) for comparison in run["comparisons"] for goal in comparison["goals"]]
    table = "\n".join([HEAD, *(_goal(comparison, goal) for comparison, goal in goals)])
    plot = f"![{_words(run)}](pictures/figures/{name}.svg)"
    folded = _folded("The goals and the times", "\n\n".join([table, plot, _where(run)]))
    return f"**{NAMES[name]}: {_verdict(goals)}**\n\n{folded}"


def _verdict(goals: list[tuple[Any, Any]]) -> str:
    met = sum(goal["verdict"] == "met" for _, goal in goals)
    if len(goals) == 1:
        return "its goal is met." if met else "its goal is missed."
    return f"all {met} goals are met." if met == len(goals) else f"{met} of {len(goals)} goals are met."


def _folded(title: str, text: str) -> str:
    """Something to open: as GitHub has it, and as the site has it."""
    return f'<details markdown="1">\n<summary>{title}</summary>\n\n{text}\n\n</details>'


def pictures() -> dict[Path, str]:
    """Every plot, by the file it is kept in."""
    plots = {name: run for name, run in measured().items() if "comparisons" in run}
    return {PICTURES / f"{name}.svg": _svg(run["comparisons"]) for name, run in {**plots, "short": _short()}.items()}


def _short() -> dict[str, Any]:
    comparisons = []
    for name, (title, shown) in SHORT.items():
        comparison = measured()[name]["comparisons"][0]
        medians = {each: comparison["medians_us"][each] for each in shown}
        comparisons.append({"title": title, "measure": comparison["measure"], "medians_us": medians})
    return {"comparisons": comparisons}


# --- words --------------------------------------------------------------------------------------------------------


def _words(run: dict[str, Any]) -> str:
    """The same figures as alternative text of the plot."""
    return "; ".join(
        f"{_plain(comparison['title'])}: {_bars_in_words(comparison)}" for comparison in run["comparisons"]
    )


def _bars_in_words(comparison: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_time(each)}" for name, each in comparison["medians_us"].items())


def _where(run: dict[str, Any]) -> str:
    loads = [load for comparison in run.get("comparisons", ()) for load in comparison["load"]]
    load = f", load {min(loads):.0f} to {max(loads):.0f}" if loads else ""
    return f"*{run['measured'][:10]}, Python {run['python']}{load}.*"


def _missed(runs: dict[str, Any]) -> str:
    """The goals that were missed."""
    goals = [
        (comparison, goal)
        for run in runs.values()
        for comparison in run.get("comparisons", ())
        for goal in comparison["goals"]
    ]
    rows = [_goal(comparison, goal) for comparison, goal in goals if goal["verdict"] == "missed"]
    if not rows:
        return f"Nothing: all {len(goals)} goals are met."
    return "\n".join([f"Of {len(goals)} goals {len(goals) - len(rows)} are met. Missed:", "", HEAD, *rows])


def _goal(comparison: dict[str, Any], goal: dict[str, Any]) -> str:
    ratio = "" if goal["ratio"] is None else f"{goal['ratio']:.3g}"
    if goal["verdict"] == "missed" and ratio == f"{goal['limit']:.3g}":
        ratio = f"{goal['ratio']:.4g}"  # missed by less than three digits show
    verdict = "**missed**" if goal["verdict"] == "missed" else goal["verdict"]
    return f"| {comparison['title']}: {goal['over']} / {goal['under']} | {ratio} | {goal['bound']} {goal['limit']:g} | {verdict} |"


def _hops(calls: list[dict[str, Any]]) -> str:
    rows = [f"| {each['call']} | {each['before']} | {each['functions']} / {each['files']} |" for each in calls]
    return "\n".join(["| one warm call | before: functions / files | now |", "|---|---|---|", *rows])


def _plain(title: str) -> str:
    return title.replace("`", "")


def _time(microseconds: float) -> str:
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= size:
            return f"{microseconds / size:.3g} {unit}"
    return f"{microseconds:.3g} us"


# --- bars ---------------------------------------------------------------------------------------------------------


def _svg(comparisons: list[dict[str, Any]]) -> str:
    parts, y = [], EDGE
    for comparison in comparisons:
        title = textwrap.wrap(_plain(comparison["title"]), 58)
        parts += [_text(EDGE, y + LINE * number, line, weight="bold") for number, line in enumerate(title, 1)]
        y += LINE * len(title)
        parts.append(_text(EDGE, y + LINE, f"{_kind(comparison)}, shorter is better", size=11))
        y += LINE + 6
        longest = max(comparison["medians_us"].values())
        for name, microseconds in comparison["medians_us"].items():
            parts.append(_bar(y, name, microseconds, longest))
            y += ROW
        y += EDGE
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" font-family="sans-serif" font-size="13">'
    return "\n".join([head, INK, *parts, "</svg>\n"])


def _kind(comparison: dict[str, Any]) -> str:
    return "CPU time" if comparison["measure"] == "cpu" else "time on the clock"


def _bar(y: int, name: str, microseconds: float, longest: float) -> str:
    length = max(2.0, (WIDTH - 2 * EDGE) * microseconds / longest)
    colour = OURS if _is_ours(name) else THEIRS
    bar = f'<rect x="{EDGE}" y="{y + 16}" width="{length:.1f}" height="8" rx="2" fill="{colour}"/>'
    return bar + _text(EDGE, y + 12, name) + _text(WIDTH - EDGE, y + 12, _time(microseconds), anchor="end")


def _is_ours(name: str) -> bool:
    beginnings = (
        "execute",
        "repair",
        "cast",
        "gateway",
        "written by",
        "our client",
        "RecordStore",
        "one process",
        "--workers",
    )
    return "enfold" in name.lower() or name == "call" or name.startswith(beginnings)


def _text(x: int, y: int, words: str, *, anchor: str = "start", weight: str = "normal", size: int = 13) -> str:
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}" font-size="{size}">{escape(words)}</text>'
    )
