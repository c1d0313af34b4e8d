"""A lineage graph as a picture: SVG for a browser, Mermaid for a page of Markdown. Text in, text out."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Final
from unicodedata import east_asian_width

from enfold.provenance.lineage import Graph

BOX_WIDTH: Final = 264
BOX_HEIGHT: Final = 56
GAP_X: Final = 36
GAP_Y: Final = 56
MARGIN: Final = 24

PADDING: Final = 12
# In these fonts every character is at most 0.61 of their size wide, a wide one (CJK, emoji) twice that.
CHARACTER: Final = 0.61
NAME_SIZE: Final = 12.0
ID_SIZE: Final = 10.5  # so that a UUID fits

_STYLE: Final = (
    f"text{{font:{NAME_SIZE}px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#1c2430}}"
    f".small{{font-size:{ID_SIZE}px;fill:#5b6675}}"
    "rect{fill:#f6f8fb;stroke:#8b98a9}.missing rect{stroke-dasharray:5 4;fill:#fff}"
    "path{fill:none;stroke:#5b6675}"
)
_ARROW_TIP: Final = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M0 0 8 4 0 8z" style="fill:#5b6675;stroke:none"/></marker></defs>'
)


def to_mermaid(graph: Graph) -> str:
    """The graph as a Mermaid flowchart; a parent that is not there has a dashed box."""
    names = {run_id: f"r{number}" for number, run_id in enumerate((*graph.records, *graph.missing))}
    lines = ["flowchart TD"]
    lines += [f'    {names[run_id]}["{_mermaid_label(graph, run_id)}"]' for run_id in graph.records]
    lines += [
        f'    {names[run_id]}["{_mermaid_text(_short(run_id))}<br/>not here"]:::missing' for run_id in graph.missing
    ]
    lines += [f"    {names[parent]} --> {names[child]}" for parent, child in graph.edges]
    if graph.missing:
        lines.append("    classDef missing stroke-dasharray: 5 4")
    return "\n".join(lines) + "\n"


def _mermaid_label(graph: Graph, run_id: str) -> str:
    tool = graph.records[run_id].tool
    return f"{_mermaid_text(tool.name)} {_mermaid_text(tool.version)}<br/>{_mermaid_text(_short(run_id))}"


def _mermaid_text(text: str) -> str:
    """A text in which nothing can end the label or begin markup: Mermaid reads `#code;` as a character."""
    plain = (character if character.isalnum() or character in " ._-/:" else f"#{ord(character)};" for character in text)
    return "".join(plain)


def _short(run_id: str) -> str:
    return run_id if len(run_id) <= 13 else f"{run_id[:12]}…"


# --- SVG ----------------------------------------------------------------------------------------------------------


def to_svg(graph: Graph) -> str:
    """The graph as an SVG picture, oldest runs at the top."""
    places = _places(graph)
    width = max((x for x, _ in places.values()), default=0) + BOX_WIDTH + MARGIN
    height = max((y for _, y in places.values()), default=0) + BOX_HEIGHT + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<title>Lineage of {len(graph.records)} runs</title><style>{_STYLE}</style>",
        _ARROW_TIP,
        *(_svg_edge(places[parent], places[child]) for parent, child in graph.edges),
        *(_svg_box(graph, run_id, place) for run_id, place in places.items()),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _places(graph: Graph) -> dict[str, tuple[int, int]]:
    """A place for each box: a row below the lowest of its parents, in the order of the records."""
    filled: dict[int, int] = {}
    places = {}
    for run_id, row in _rows(graph):
        column = filled.get(row, 0)
        filled[row] = column + 1
        places[run_id] = (MARGIN + column * (BOX_WIDTH + GAP_X), MARGIN + row * (BOX_HEIGHT + GAP_Y))
    return places


def _rows(graph: Graph) -> Iterator[tuple[str, int]]:
    rows = dict.fromkeys(graph.missing, 0)
    yield from rows.items()
    for run_id, record in graph.records.items():  # parents come first
        rows[run_id] = max((rows[parent] + 1 for parent in record.parents), default=0)
        yield run_id, rows[run_id]


def _svg_edge(parent: tuple[int, int], child: tuple[int, int]) -> str:
    x1, y1 = parent[0] + BOX_WIDTH // 2, parent[1] + BOX_HEIGHT
    x2, y2 = child[0] + BOX_WIDTH // 2, child[1]
    middle = (y1 + y2) // 2
    return f'<path d="M{x1} {y1}C{x1} {middle} {x2} {middle} {x2} {y2}" marker-end="url(#tip)"/>'


def _svg_box(graph: Graph, run_id: str, place: tuple[int, int]) -> str:
    x, y = place
    record = graph.records.get(run_id)
    name = "not here" if record is None else f"{record.tool.name} {record.tool.version}"
    kind = ' class="missing"' if record is None else ""
    return (
        f"<g{kind}><title>{_svg_text(run_id)}</title>"
        f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="8"/>'
        f'<text x="{x + PADDING}" y="{y + 24}">{_svg_text(_cut(name, NAME_SIZE))}</text>'
        f'<text class="small" x="{x + PADDING}" y="{y + 43}">{_svg_text(_cut(run_id, ID_SIZE))}</text></g>'
    )


def _cut(text: str, size: float) -> str:
    """As much of a text as its box is wide."""
    room = int((BOX_WIDTH - 2 * PADDING) / (CHARACTER * size))
    kept = text[: room + 1]
    if _columns(kept) <= room:
        return text
    while _columns(kept) >= room:
        kept = kept[:-1]
    return f"{kept}…"


def _columns(text: str) -> int:
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in text)


def _svg_text(text: str) -> str:
    """Escaped, and without the control characters that XML does not allow even escaped."""
    return escape("".join(character if character.isprintable() else "�" for character in text))
