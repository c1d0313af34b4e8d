"""Draws the two kinds of Mermaid picture that our pages have as SVG, so that the site needs no script from elsewhere."""

from __future__ import annotations

import re
import textwrap
from html import escape

WIDTH = 660  # of a stack
ROW, COLUMN, HEAD, EDGE = 30, 104, 150, 60  # of a sequence


def draw(mermaid: str) -> str:
    """One line of HTML: a stack of packages, or arrows between files. The page beside it says the same in words."""
    return _sequence(mermaid) if mermaid.startswith("sequenceDiagram") else _stack(mermaid)


def _stack(mermaid: str) -> str:
    parts, y = [], 1
    for room in re.findall(r'^  \w+\["(.+)"\]$', mermaid, re.MULTILINE):
        lines = textwrap.wrap(room, 80)
        height = 14 + 18 * len(lines)
        parts += [_arrow(30, y - 13, 30, y)] if parts else []
        parts += [
            f'<rect x="1" y="{y}" width="{WIDTH - 2}" height="{height}" rx="6" fill="none" stroke="currentColor"/>'
        ]
        parts += [_text(12, y + 20 + 18 * number, line, anchor="start") for number, line in enumerate(lines)]
        y += height + 13
    return _svg(WIDTH, y, parts, "The packages in layers; imports point down")


def _sequence(mermaid: str) -> str:
    places = dict(re.findall(r"^  participant (\w+) as (.+)$", mermaid, re.MULTILINE))
    steps = re.findall(r"^  (\w+)->>(\w+): (.+)$", mermaid, re.MULTILINE)
    at = {name: EDGE + COLUMN * number for number, name in enumerate(places)}
    height = HEAD + ROW * (len(steps) + 1)
    lines = [
        f'<line x1="{at[name]}" y1="{HEAD}" x2="{at[name]}" y2="{height}" stroke="currentColor" opacity=".2"/>'
        f'<text x="{at[name]}" y="{HEAD - 8}" transform="rotate(-32 {at[name]} {HEAD - 8})">{escape(place)}</text>'
        for name, place in places.items()
    ]
    lines += [
        _step(at[caller], at[called], HEAD + ROW * row, what) for row, (caller, called, what) in enumerate(steps, 1)
    ]
    return _svg(
        EDGE + COLUMN * len(places) + 160, height, lines, f"One call, step by step, through {len(places)} files"
    )


def _step(caller: int, called: int, y: int, what: str) -> str:
    if caller == called:
        return _text(caller + 8, y, f"↻ {what}", anchor="start")
    return _arrow(caller, y, called, y) + _text((caller + called) / 2, y - 5, what)


def _arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="currentColor" marker-end="url(#tip)"/>'


def _text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def _svg(width: float, height: float, parts: list[str], title: str) -> str:
    tip = '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M0 0 8 4 0 8z" fill="currentColor"/></marker></defs>'
    return (
        f'<div style="overflow-x:auto" tabindex="0" role="group" aria-label="{title}"><svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" style="max-width:none;height:{height:g}px" '
        f'font-size="13" fill="currentColor" role="img" aria-label="{title}">{tip}{"".join(parts)}</svg></div>'
    )
