"""The plots of docs/scaling.md: `python -m benchmarks.scale.plots` draws them from `.bench/results/scale.json` and the simulation."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from benchmarks.environments import HOME, ROOT
from benchmarks.scale.__main__ import Cost, Findings
from benchmarks.scale.discovery import FleetSize, rollout, steady

PICTURES: Final = ROOT / "docs/pictures"
PARTS: Final = {"edge": "#009688", "broker": "#7f929b", "worker": "#ef9a3c"}
INK: Final = (
    "<style>text{fill:#263238;font:13px sans-serif}@media(prefers-color-scheme:dark){text{fill:#e3e8ea}}</style>"
)
WIDTH: Final = 560
LEFT: Final = 150


def costs(found: list[Cost]) -> str:
    """A stacked bar for each kind of call of 100 bytes with one worker, on a scale of its own length each."""
    rows, legend = [], []
    for number, (name, colour) in enumerate(PARTS.items()):
        legend.append(_box(LEFT + number * 100, 8, 12, colour) + _text(LEFT + 18 + number * 100, 19, name))
    for number, cost in enumerate(each for each in found if each.size == 100 and each.workers == 1):
        x, y = float(LEFT), 34 + number * 34
        rows.append(_text(LEFT - 10, y + 16, cost.kind, "end"))
        for part, colour in PARTS.items():
            width = getattr(cost, part) / cost.total * (WIDTH - LEFT - 100)
            rows.append(_box(x, y, width, colour, 22))
            x += width
        rows.append(_text(x + 8, y + 16, f"{cost.total:,.0f} us"))
    return _svg(34 + len(rows) // 5 * 34, [*legend, *rows], "CPU of one call by part: where it goes")


def discovery() -> str:
    """Messages per second by the number of peers, both on a logarithmic scale."""
    sizes, height = (100, 300, 1_000, 3_000, 10_000), 260
    parts = []
    for power in range(2, 6):
        y = _y(10**power, height)
        parts += [_line([(LEFT, y), (WIDTH - 20, y)], "#7f929b", 0.4), _text(LEFT - 10, y + 4, f"{10**power:,}", "end")]
    for peers in (100, 1_000, 10_000):
        parts.append(_text(_x(peers), height + 22, f"{peers:,}", "middle"))
    for number, (name, colour, measure) in enumerate((("rollout", "#d0543c", rollout), ("steady", "#009688", steady))):
        points = [(_x(peers), _y(max(10.0, measure(FleetSize(peers)).messages), height)) for peers in sizes]
        parts += [_line(points, colour, 2.5), _text(LEFT + 20, 22 + number * 20, name, colour=colour)]
    return _svg(height + 34, parts, "Discovery messages per second, by number of peers")


def _x(peers: int) -> float:
    return LEFT + 20 + (math.log10(peers) - 2) / 2 * (WIDTH - LEFT - 70)


def _y(messages: float, height: int) -> float:
    return height - (math.log10(messages) - 1) / 4 * (height - 20)


def _box(x: float, y: float, width: float, colour: str, height: float = 12) -> str:
    return f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" fill="{colour}"/>'


def _line(points: list[tuple[float, float]], colour: str, width: float) -> str:
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def _text(x: float, y: float, words: str, anchor: str = "start", colour: str = "") -> str:
    style = f' style="fill:{colour}"' if colour else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{words}</text>'


def _svg(height: int, parts: list[str], title: str) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
    return "\n".join([head, f"<title>{title}</title>", INK, *parts, "</svg>", ""])


def main() -> None:
    (PICTURES / "scaling-discovery.svg").write_text(discovery())
    found = msgspec.json.decode((HOME / "results/scale.json").read_bytes(), type=Findings)
    (PICTURES / "scaling-costs.svg").write_text(costs(found.costs))


if __name__ == "__main__":
    main()
