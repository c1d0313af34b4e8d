"""Calls counted by operation, source and code, with the time they took. Numbers alone; how they are written stands elsewhere.

What strangers choose cannot make the counts grow: only operations that there are have a row, at most 500 of them, within a
bound on their text; all others are counted as `other`. Nor can it take the place of our own codes and of those that
operations declare.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from enfold.errors import CODES
from enfold.observability.records import OK, REFUSALS, CallRecord

if TYPE_CHECKING:
    from enfold.runtime.registry import Registry

BOUNDS: Final = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0)  # seconds
MAX_OPERATIONS: Final = 500
MAX_DECLARED: Final = 60  # codes that operations declare
MAX_FOREIGN: Final = 20  # codes that nobody declares: handlers and servers choose them as they like
MAX_SOURCES: Final = 100
MAX_TEXT: Final = 900_000  # bytes that the rows of operations may take when they are written
MAX_FOREIGN_TEXT: Final = 300_000  # the same, of rows with codes that nobody declares
LINES: Final = len(BOUNDS) + 4  # of one row, when it is written
MAX_KEYS: Final = 20_000  # pairs of an operation and a code whose row is remembered
OTHER: Final = "other"
_SUM: Final = len(BOUNDS) + 1
_LINE: Final = 110  # bytes of a line besides the labels' values

Row = list[float]  # calls by how long they took, one number for each bound and one beyond, then the sum of seconds


class CountsSnapshot(msgspec.Struct, frozen=True):
    """The counts of one process at one moment, as they travel to the process that writes them all."""

    rows: list[tuple[str, str, str, Row]]  # operation, source, code
    refusals: list[tuple[str, str, int]]  # surface, code
    gauges: list[tuple[str, str, float]]  # name, word
    sources: list[tuple[str, str, bool]]  # name, kind, whether it is up
    declared: list[str] = []  # codes that operations declare
    changes: list[tuple[str, str, int]] = []  # of definitions: source, kind


class BoundedRows:
    """Rows by operation, source and code: as many as their text may be long, and beyond that those of `other`."""

    def __init__(self) -> None:
        self._operations: set[str] = set()
        self._sources: set[str] = set()
        self._foreign: set[str] = set()
        self._bytes_left = {True: MAX_TEXT, False: MAX_FOREIGN_TEXT}  # by whether the code is ours
        self.declared: set[str] = set()
        self.rows: dict[tuple[str, str, str], Row] = {}

    def declare(self, code: str) -> None:
        """Count a code as ours: strangers' codes cannot take its row."""
        _word_or_other(code, self.declared, MAX_DECLARED)

    def find(self, operation: str, source: str, code: str) -> Row:
        """The row of these three; where there is no room for it, the row of `other` with as many of them as possible."""
        operation = _word_or_other(operation, self._operations, MAX_OPERATIONS)
        source = _word_or_other(source, self._sources, MAX_SOURCES)
        code = code if self._is_ours(code) else _word_or_other(code, self._foreign, MAX_FOREIGN)
        return (
            self._labelled((operation, source, code))
            or self._labelled((OTHER, source, code))
            or self.rows.setdefault((OTHER, OTHER, code), _new_row())
        )

    def _labelled(self, labels: tuple[str, str, str]) -> Row | None:
        """The row with these labels; None where there is no room for another one."""
        row = self.rows.get(labels)
        if row is None:
            cost, is_ours = LINES * (_LINE + sum(map(_length, labels))), self._is_ours(labels[2])
            if cost <= self._bytes_left[is_ours]:
                self._bytes_left[is_ours] -= cost
                row = self.rows[labels] = _new_row()
        return row

    def _is_ours(self, code: str) -> bool:
        return code in CODES or code == OK or code in self.declared


class CallCounts:
    """An observer that counts; `snapshot` gives what has been counted so far."""

    def __init__(self, registry: Registry) -> None:
        """The codes that operations of the registry declare have rows, whatever strangers do."""
        self._registry = registry
        self._found: dict[tuple[str, str], Row] = {}  # by operation and code, as they come
        self._rows = BoundedRows()
        self._refusals: dict[tuple[str, str], int] = {}

    def count(self, record: CallRecord) -> None:
        row = self._found.get((record.operation, record.code))
        if row is None:
            row = self._row(record)
        row[bisect_left(BOUNDS, record.duration)] += 1
        row[_SUM] += record.duration
        if record.code in REFUSALS:
            key = (record.surface, record.code)
            self._refusals[key] = self._refusals.get(key, 0) + 1

    def _row(self, record: CallRecord) -> Row:
        """The row of an operation and a code that come together for the first time."""
        registry, operation, origin = self._registry, record.operation, record.origin
        if operation in registry and registry.get_spec(operation).declared_row(record.code) is not None:
            self._rows.declare(record.code)
        row = self._rows.find(operation, _label(registry.sources.name_of(origin.kind, origin.name)), record.code)
        if len(self._found) < MAX_KEYS:
            self._found[operation, record.code] = row
        return row

    def snapshot(self) -> CountsSnapshot:
        observers, sources = self._registry.observers, list(self._registry.sources)[:MAX_SOURCES]
        own: dict[str, Mapping[str, float]] = {
            "calls_in_flight": {"": observers.running},
            "streams_open": {"": observers.streams},
        }
        gauges = own | {name: gauge() for name, gauge in self._registry.services.gauges.items()}
        return CountsSnapshot(
            [(*labels, list(row)) for labels, row in self._rows.rows.items()],
            [(*key, number) for key, number in self._refusals.items()],
            [(name, word, float(number)) for name, found in gauges.items() for word, number in found.items()],
            [(_label(each.name), each.kind, each.state == "up") for each in sources],
            sorted(self._rows.declared),
            [(_label(each.name), each.kind, each.changes) for each in sources],
        )


def _new_row() -> Row:
    return [0.0] * (_SUM + 1)


def _length(label: str) -> int:
    """How many bytes a label takes when it is written."""
    return len(label.encode("utf-8", "replace")) + sum(map(label.count, '\\"\n'))


def _label(source: str) -> str:
    return source[:100]


def _word_or_other(word: str, known: set[str], most: int) -> str:
    """The word itself, or `other` where there are too many of its kind already."""
    if word not in known:
        if len(known) >= most:
            return OTHER
        known.add(word)
    return word


def combined(snapshots: Iterable[CountsSnapshot]) -> CountsSnapshot:
    """The counts of several processes as one, within the same bounds; a source is up where it is up in all of them."""
    bounded = BoundedRows()
    refusals: dict[tuple[str, str], int] = {}
    gauges: dict[tuple[str, str], float] = {}
    sources: dict[tuple[str, str], bool] = {}
    changes: dict[tuple[str, str], int] = {}
    given = list(snapshots)
    for code in (code for each in given for code in each.declared):
        bounded.declare(code)
    for each in given:
        for operation, source, code, row in each.rows:
            known = bounded.find(operation, source, code)
            known[:] = [a + b for a, b in zip(known, row, strict=True)]
        for surface, code, number in each.refusals:
            refusals[surface, code] = refusals.get((surface, code), 0) + number
        for name, word, value in each.gauges:
            gauges[name, word] = gauges.get((name, word), 0.0) + value
        for name, kind, is_up in each.sources:
            sources[name, kind] = sources.get((name, kind), True) and is_up
        for name, kind, changed in each.changes:  # which all of them see
            changes[name, kind] = max(changes.get((name, kind), 0), changed)
    return CountsSnapshot(
        [(*labels, row) for labels, row in bounded.rows.items()],
        [(*key, number) for key, number in refusals.items()],
        [(*key, value) for key, value in gauges.items()],
        [(*key, is_up) for key, is_up in sources.items()],
        sorted(bounded.declared),
        [(*key, number) for key, number in changes.items()],
    )
