"""Lineage: the acyclic graph of records, its verification, and its rendering as SVG or Mermaid."""

from __future__ import annotations

import graphlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from html import escape
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from unicodedata import east_asian_width

import msgspec
from msgspec import UNSET

from enfold.errors import FormatError
from enfold.provenance.artifacts import ROLE_LABEL
from enfold.provenance.integrity import PublicKeys, same_json
from enfold.provenance.methods import Claims, claim_faults
from enfold.provenance.records import Record, read_record
from enfold.provenance.verification import PARENTS_NOT_CHECKED, Verdict, verify, verify_envelope

if TYPE_CHECKING:
    from enfold.provenance.record_store import RecordStore


# Labels of an input produced by another run: its role, the run, and the digest of its record.
NESTED_ROLES: Final = frozenset({"nested_output", "nested_run"})
RUN_LABEL: Final = "run"
RECORD_LABEL: Final = "record_digest"


Find: TypeAlias = Callable[[str], Mapping[str, Any] | None]
Fetch: TypeAlias = Callable[[str], Record | None]


class CycleError(ValueError):
    """The records have a cycle: a run is its own ancestor."""

    def __init__(self, run_ids: Iterable[str]) -> None:
        self.run_ids = tuple(run_ids)
        super().__init__(f"The lineage has a cycle: {' -> '.join(self.run_ids)}")


class Graph(msgspec.Struct, frozen=True):
    """Records by run id, parents before children, and the missing parents."""

    records: dict[str, Record]
    missing: tuple[str, ...]

    def children(self, run_id: str) -> tuple[str, ...]:
        return tuple(child for child, record in self.records.items() if run_id in record.parents)

    def ancestors(self, run_id: str) -> tuple[str, ...]:
        """Return the runs this one depends on, nearest first."""
        return tuple(reach(run_id, lambda each: self.records[each].parents if each in self.records else ()))

    @property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """Return each parent with each of its children."""
        return tuple((parent, record.run_id) for record in self.records.values() for parent in record.parents)


def reach(start: str, step: Callable[[str], Iterable[str]], most: float = inf) -> Iterator[str]:
    """Return the runs reachable from a run, nearest first, at most `most`."""
    seen, waiting = {start}, [start]
    while waiting and len(seen) < most:
        for found in step(waiting.pop(0)):
            if found not in seen:
                seen.add(found)
                waiting.append(found)
                yield found


def build_graph(records: Iterable[Record | Mapping[str, Any]]) -> Graph:
    """Build the graph of these records; raise CycleError if a run is its own ancestor."""
    read = [each if isinstance(each, Record) else read_record(each) for each in records]
    known = {record.run_id: record for record in read}
    ordered = _parents_first(known)
    missing = {parent: None for record in ordered for parent in record.parents if parent not in known}
    return Graph({record.run_id: record for record in ordered}, tuple(missing))


def _parents_first(known: Mapping[str, Record]) -> list[Record]:
    """Sort the records, parents before children; raise CycleError with a cycle."""
    parents = {run_id: [each for each in record.parents if each in known] for run_id, record in known.items()}
    try:
        return [known[run_id] for run_id in graphlib.TopologicalSorter(parents).static_order()]
    except graphlib.CycleError as error:
        raise CycleError(reversed(error.args[1])) from None


# --- verifying ----------------------------------------------------------------------------------------------------


def verify_value(value: Any, keys: PublicKeys | None = None, store: RecordStore | None = None) -> tuple[Verdict, ...]:
    """Verify a record, an `mcp.envelope.v0.1` or a list of records; with a store also its lineage there."""
    if isinstance(value, list):
        return verify_lineage(value, keys, find=None if store is None else store.get)
    is_envelope = isinstance(value, Mapping) and "provenance" in value
    verdict = verify_envelope(value, keys) if is_envelope else verify(value, keys)
    if store is None or not verdict.run_id:
        return (verdict,)
    stored = verify_run(verdict.run_id, store, keys)
    return (
        _without_parents_note(verdict),
        *_copy_faults(value["provenance"] if is_envelope else value, store),
        *stored,
    )


def _copy_faults(wire: Any, store: RecordStore) -> Iterator[Verdict]:
    run_id = wire["run_id"]
    try:
        differs = not same_json(wire, store.get(run_id))
    except ValueError as error:
        yield Verdict(run_id, (str(error),))
    else:
        yield from (Verdict(run_id, ("the store has another record of this run, or none",)),) if differs else ()


def verify_run(run_id: str, store: RecordStore, keys: PublicKeys | None = None) -> tuple[Verdict, ...]:
    """Verify the record of a run in a store with its whole lineage and the store's columns."""
    try:
        records = store.lineage(run_id)
        verdicts = verify_lineage(records, keys, find=store.get)
        faults = [fault for record in records for fault in store.row_faults(record["run_id"])]
    except ValueError as error:  # a record or the store is corrupted
        return (Verdict(run_id, (str(error),)),)
    if not records:
        return (Verdict(run_id, ("the store has no record of this run",)),)
    return verdicts if not faults else (*verdicts, Verdict("store", tuple(faults)))


def verify_lineage(
    records: Iterable[Mapping[str, Any]],
    keys: PublicKeys | None = None,
    *,
    whole: bool = True,
    find: Find | None = None,
) -> tuple[Verdict, ...]:
    """Verify each record and the links between them.

    With `whole` a parent or called run that is missing is a fault; `find` may fetch it from elsewhere.
    """
    wires = list(records)
    verdicts = tuple(_without_parents_note(verify(wire, keys)) for wire in wires)
    if not all(verdict.ok for verdict in verdicts):
        return verdicts
    try:
        graph = build_graph(_refuse_duplicates(wires))
    except (CycleError, FormatError) as error:
        return (*verdicts, Verdict("lineage", (str(error),)))
    linked = tuple(graph.records.values())
    faults = [fault for record in linked for fault in claim_faults(Claims(record, linked=linked))]
    fetch = _fetcher(graph, find)
    faults += [fault for record in linked for fault in _binding_faults(record, fetch)]
    lost = [*_missing_runs(graph, fetch)]
    notes = (*_unclaimed_children(graph), *(() if whole else lost))
    return (*verdicts, Verdict("lineage", (*faults, *(lost if whole else ())), notes))


def _without_parents_note(verdict: Verdict) -> Verdict:
    return msgspec.structs.replace(verdict, notes=tuple(note for note in verdict.notes if note != PARENTS_NOT_CHECKED))


def _refuse_duplicates(wires: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    known: dict[str, Mapping[str, Any]] = {}
    for wire in wires:
        if not same_json(known.setdefault(wire["run_id"], wire), wire):
            raise FormatError(f"there are two records of run {wire['run_id']}, and they differ")
    return wires


def _fetcher(graph: Graph, find: Find | None) -> Fetch:
    """Return a function that looks up the record of a run in the graph, or fetches it once."""

    @cache
    def fetch(run_id: str) -> Record | None:
        found = None if run_id in graph.records or find is None else find(run_id)
        return graph.records.get(run_id) if found is None else read_record(found)

    return fetch


def _missing_runs(graph: Graph, fetch: Fetch) -> Iterator[str]:
    for parent in graph.missing:
        if fetch(parent) is None:
            yield f"the parent {parent} is missing"
    for record in graph.records.values():
        for run_id in dict.fromkeys(run_id for run_id, _ in _called_runs(record)):
            if fetch(run_id) is None:
                yield f"the run {run_id}, called by run {record.run_id}, is missing"


def _binding_faults(record: Record, fetch: Fetch) -> Iterator[str]:
    """Yield runs whose record was replaced after their caller had recorded its digest."""
    for run_id, expected in _called_runs(record):
        nested = fetch(run_id)
        if nested is not None and expected is not None and _digest_value(nested) != expected:
            yield f"the record of run {run_id} differs from the one that run {record.run_id} used"


def _called_runs(record: Record) -> Iterator[tuple[str, str | None]]:
    """Return the runs called by a run, each with the digest of its record at that time."""
    for artifact in record.inputs:
        labels = {} if artifact.labels is UNSET else artifact.labels
        if RUN_LABEL in labels and labels.get(ROLE_LABEL) in NESTED_ROLES:
            yield labels[RUN_LABEL], labels.get(RECORD_LABEL)


def _unclaimed_children(graph: Graph) -> Iterator[str]:
    """Yield runs that their parent does not list among those it called: they ended later, or are forged."""
    for parent, child in graph.edges:
        caller = graph.records.get(parent)
        called = {} if caller is None else dict(_called_runs(caller))
        if called and child not in called:
            yield f"run {child} names run {parent} as its parent, which does not list it"


def _digest_value(record: Record) -> str | None:
    integrity = record.integrity
    return None if integrity is UNSET or integrity.record_digest is UNSET else integrity.record_digest.value


BOX_WIDTH: Final = 264
BOX_HEIGHT: Final = 56
GAP_X: Final = 36
GAP_Y: Final = 56
MARGIN: Final = 24

PADDING: Final = 12
# Characters of these fonts are at most 0.61 em wide, wide ones (CJK, emoji) twice that.
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
    """Render the graph as a Mermaid flowchart; a missing parent has a dashed box."""
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
    """Escape text for a Mermaid label, with `#code;` entities."""
    plain = (character if character.isalnum() or character in " ._-/:" else f"#{ord(character)};" for character in text)
    return "".join(plain)


def _short(run_id: str) -> str:
    return run_id if len(run_id) <= 13 else f"{run_id[:12]}…"


# --- SVG ----------------------------------------------------------------------------------------------------------


def to_svg(graph: Graph) -> str:
    """Render the graph as SVG, oldest runs at the top."""
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
    """Return the position of each box: a row below the lowest of its parents, in the order of the records."""
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
    """Truncate text to the width of its box."""
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
    """Escape text and remove control characters that XML does not allow."""
    return escape("".join(character if character.isprintable() else "�" for character in text))
