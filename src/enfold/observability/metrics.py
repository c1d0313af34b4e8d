"""Counts calls by operation, source and code, with their durations. `prometheus` writes the numbers.

Untrusted names cannot grow the metrics: only existing operations have a row, at most 500 of them, within a limit on their
text; all others count as `other`. They cannot displace built-in and declared codes, either.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from operator import add, and_
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from enfold.errors import CODES
from enfold.observability.records import OK, REFUSALS, CallRecord

if TYPE_CHECKING:
    from enfold.runtime.registry import Registry

BOUNDS: Final = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0)  # seconds
MAX_OPERATIONS: Final = 500
MAX_DECLARED: Final = 60  # codes declared by operations
MAX_FOREIGN: Final = 20  # undeclared codes
MAX_SOURCES: Final = 100
MAX_TEXT: Final = 900_000  # bytes of all rows as text
MAX_FOREIGN_TEXT: Final = 300_000  # bytes of rows with undeclared codes as text
LINES: Final = len(BOUNDS) + 4  # lines of one row as text
MAX_KEYS: Final = 20_000  # pairs of an operation and a code with a cached row
OTHER: Final = "other"
_SUM: Final = len(BOUNDS) + 1
_LINE: Final = 110  # bytes of a line without the label values

T = TypeVar("T")
Row = list[float]  # the number of calls per duration bucket, then the sum of seconds


class CountsSnapshot(msgspec.Struct, frozen=True):
    """The metrics of one process, as sent to the process that writes them all."""

    rows: list[tuple[str, str, str, Row]]  # operation, source, code
    refusals: list[tuple[str, str, int]]  # surface, code
    gauges: list[tuple[str, str, float]]  # name, label
    sources: list[tuple[str, str, bool]]  # name, kind, whether it is up
    declared: list[str] = []  # codes declared by operations
    changes: list[tuple[str, str, int]] = []  # changed definitions: source, kind


class BoundedRows:
    """Rows by operation, source and code, limited by the size of their text; the rest counts as `other`."""

    def __init__(self) -> None:
        self._operations: set[str] = set()
        self._sources: set[str] = set()
        self._foreign: set[str] = set()
        self._bytes_left = {True: MAX_TEXT, False: MAX_FOREIGN_TEXT}  # by whether the code is ours
        self.declared: set[str] = set()
        self.rows: dict[tuple[str, str, str], Row] = {}

    def declare(self, code: str) -> None:
        """Reserve a row for a code, which undeclared codes cannot take."""
        _word_or_other(code, self.declared, MAX_DECLARED)

    def find(self, operation: str, source: str, code: str) -> Row:
        """Return the row of these labels; without room for it, a row with as few `other` labels as possible."""
        operation = _word_or_other(operation, self._operations, MAX_OPERATIONS)
        source = _word_or_other(source, self._sources, MAX_SOURCES)
        code = code if self._is_ours(code) else _word_or_other(code, self._foreign, MAX_FOREIGN)
        return (
            self._labelled((operation, source, code))
            or self._labelled((OTHER, source, code))
            or self.rows.setdefault((OTHER, OTHER, code), _new_row())
        )

    def _labelled(self, labels: tuple[str, str, str]) -> Row | None:
        """Return the row with these labels; None without room for another one."""
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
    """An observer that counts calls; `snapshot` returns the counts so far."""

    def __init__(self, registry: Registry) -> None:
        """Reserve rows for the codes that operations of the registry declare."""
        self._registry = registry
        self._found: dict[tuple[str, str], Row] = {}  # by operation and code
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
        """Return the row of a new pair of operation and code."""
        registry, operation, origin = self._registry, record.operation, record.origin
        if operation in registry and registry.get_spec(operation).declared_row(record.code) is not None:
            self._rows.declare(record.code)
        row = self._rows.find(
            operation, _label(registry.services.sources.name_of(origin.kind, origin.name)), record.code
        )
        if len(self._found) < MAX_KEYS:
            self._found[operation, record.code] = row
        return row

    def snapshot(self) -> CountsSnapshot:
        observers, sources = self._registry.services.observers, list(self._registry.services.sources)[:MAX_SOURCES]
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
    """Return the bytes of a label as text."""
    return len(label.encode("utf-8", "replace")) + sum(map(label.count, '\\"\n'))


def _label(source: str) -> str:
    return source[:100]


def _word_or_other(word: str, known: set[str], most: int) -> str:
    """Return the label, or `other` beyond the limit."""
    if word not in known:
        if len(known) >= most:
            return OTHER
        known.add(word)
    return word


def combined(snapshots: Iterable[CountsSnapshot]) -> CountsSnapshot:
    """Merge the metrics of several processes within the same limits; a source is up if it is up in all of them."""
    given = list(snapshots)
    bounded = BoundedRows()
    for code in (code for each in given for code in each.declared):
        bounded.declare(code)
    for operation, source, code, row in (row for each in given for row in each.rows):
        known = bounded.find(operation, source, code)
        known[:] = map(add, known, row)
    return CountsSnapshot(
        [(*labels, row) for labels, row in bounded.rows.items()],
        _merged((row for each in given for row in each.refusals), add),
        _merged((row for each in given for row in each.gauges), add),
        _merged((row for each in given for row in each.sources), and_),
        sorted(bounded.declared),
        _merged((row for each in given for row in each.changes), max),  # all processes count the same changes
    )


def _merged(rows: Iterable[tuple[str, str, T]], merge: Callable[[T, T], T]) -> list[tuple[str, str, T]]:
    """Return one row for each pair of labels."""
    found: dict[tuple[str, str], T] = {}
    for first, second, value in rows:
        known = found.get((first, second))
        found[first, second] = value if known is None else merge(known, value)
    return [(*labels, value) for labels, value in found.items()]
