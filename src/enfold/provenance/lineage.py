"""Lineage: records linked by their parents into a graph without cycles, and what is wrong with such a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET

from enfold.provenance.methods import Claims, claim_faults
from enfold.provenance.records import Record, read_record
from enfold.provenance.signing import PublicKeys
from enfold.provenance.verification import Verdict, verify

__all__ = ["RECORD_LABEL", "RUN_LABEL", "CycleError", "Graph", "build_graph", "verify_lineage"]

# Labels of an input that another run made: that run, and the digest of its record.
RUN_LABEL: Final = "run"
RECORD_LABEL: Final = "record_digest"


class CycleError(ValueError):
    """Records that are their own ancestors: no run can have happened before itself."""

    def __init__(self, run_ids: Iterable[str]) -> None:
        self.run_ids = tuple(run_ids)
        super().__init__(f"The lineage runs in a circle: {' -> '.join(self.run_ids)}")


class Graph(msgspec.Struct, frozen=True):
    """Records by run id, parents before children, and the parents that are named but not here."""

    records: dict[str, Record]
    missing: tuple[str, ...]

    def children(self, run_id: str) -> tuple[str, ...]:
        return tuple(child for child, record in self.records.items() if run_id in record.parents)

    def ancestors(self, run_id: str) -> tuple[str, ...]:
        """The runs this one depends on, nearest first."""
        return tuple(_reach(run_id, lambda each: self.records[each].parents if each in self.records else ()))

    @property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """Each parent with each of its children."""
        return tuple((parent, record.run_id) for record in self.records.values() for parent in record.parents)


def _reach(start: str, step: Callable[[str], Iterable[str]]) -> Iterator[str]:
    seen, waiting = {start}, [start]
    while waiting:
        for found in step(waiting.pop(0)):
            if found not in seen:
                seen.add(found)
                waiting.append(found)
                yield found


def build_graph(records: Iterable[Record | Mapping[str, Any]]) -> Graph:
    """The graph of these records; CycleError where a run would be its own ancestor."""
    known = {record.run_id: record for record in map(_as_record, records)}
    ordered = _parents_first(known)
    missing = {parent: None for record in ordered for parent in record.parents if parent not in known}
    return Graph({record.run_id: record for record in ordered}, tuple(missing))


def _as_record(record: Record | Mapping[str, Any]) -> Record:
    return record if isinstance(record, Record) else read_record(record)


def _parents_first(known: Mapping[str, Record]) -> list[Record]:
    """Take away, again and again, the records whose parents are all taken; what is left over is a circle."""
    waiting = {run_id: {parent for parent in record.parents if parent in known} for run_id, record in known.items()}
    children: dict[str, list[str]] = {}
    for run_id, parents in waiting.items():
        for parent in parents:
            children.setdefault(parent, []).append(run_id)
    ready = [run_id for run_id, parents in waiting.items() if not parents]
    for run_id in ready:  # grows while it is read
        for child in children.get(run_id, ()):
            waiting[child].discard(run_id)
            if not waiting[child]:
                ready.append(child)
    if len(ready) < len(known):
        raise CycleError(_circle({run_id: parents for run_id, parents in waiting.items() if parents}))
    return [known[run_id] for run_id in ready]


def _circle(waiting: Mapping[str, set[str]]) -> list[str]:
    """One circle among records that all still wait for another: walk up until a run comes again."""
    path = [min(waiting)]
    while (parent := min(waiting[path[-1]] & waiting.keys())) not in path:
        path.append(parent)
    return [*path[path.index(parent) :], parent]


def verify_lineage(
    records: Iterable[Mapping[str, Any]], keys: PublicKeys | None = None, *, whole: bool = True
) -> tuple[Verdict, ...]:
    """Verify each record and how they hang together; with `whole` a parent that is not among them is a fault."""
    wires = list(records)
    verdicts = [verify(wire, keys) for wire in wires]
    if not all(verdict.ok for verdict in verdicts):
        return tuple(verdicts)
    try:
        graph = build_graph(wires)
    except CycleError as error:
        return (*verdicts, Verdict("lineage", (str(error),)))
    linked = tuple(graph.records.values())
    faults = [fault for record in linked for fault in claim_faults(Claims(record, linked=linked))]
    faults += [fault for record in linked for fault in _binding_faults(record, graph)]
    lost = [f"the parent {parent} is not there" for parent in graph.missing]
    return (*verdicts, Verdict("lineage", (*faults, *(lost if whole else ())), () if whole else tuple(lost)))


def _binding_faults(record: Record, graph: Graph) -> Iterator[str]:
    """A run that was recorded anew after its caller had taken its result: the caller still names the former record."""
    for artifact in record.inputs:
        labels = {} if artifact.labels is UNSET else artifact.labels
        run_id, expected = labels.get(RUN_LABEL, ""), labels.get(RECORD_LABEL)
        nested = graph.records.get(run_id)
        if nested is not None and expected is not None and _digest_value(nested) != expected:
            yield f"the record of run {run_id} is not the one that run {record.run_id} saw"


def _digest_value(record: Record) -> str | None:
    integrity = record.integrity
    return None if integrity is UNSET or integrity.record_digest is UNSET else integrity.record_digest.value
