"""Records in SQLite, shared by processes, found by run id, parent, child, operation, caller and time.

`put` is atomic, even if the process is killed. Writing a record is one insert; the search index is updated in batches
before it is needed. An event loop calls `keep`, which writes in the store's own thread: a file locked by another process
delays only the call of that record.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypedDict, Unpack

import msgspec
from msgspec import UNSET

from enfold.errors import FormatError
from enfold.provenance.artifacts import caller_of
from enfold.provenance.integrity import read_json, same_json
from enfold.provenance.lineage import CycleError, reach
from enfold.provenance.records import Record, read_record
from enfold.storage import SharedFile, Transaction, run_script

if TYPE_CHECKING:
    import asyncio

DEFAULT_PER_IDENTITY: Final = 10_000
DEFAULT_MAX_BYTES: Final = 256 * 1024
MAX_LINEAGE: Final = 10_000
INDEX_EVERY: Final = 256
BUSY_SECONDS: Final = 5.0
# Records queued for the writing thread; limits memory when callers do not wait.
MAX_WAITING: Final = 1000
LAST_MOMENT: Final = 253_402_300_800_000  # the year 10000
MAX_CALLER: Final = 200  # characters of a caller's id in a record

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS records (
    number INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE,
    operation TEXT NOT NULL,
    identity TEXT NOT NULL,
    time INTEGER NOT NULL,
    digest BLOB NOT NULL,
    body BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS settled (
    number INTEGER PRIMARY KEY,
    operation TEXT NOT NULL,
    identity TEXT NOT NULL,
    time INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS settled_by_operation ON settled (operation, time);
CREATE INDEX IF NOT EXISTS settled_by_identity ON settled (identity, number);
CREATE INDEX IF NOT EXISTS settled_by_time ON settled (time);
CREATE TABLE IF NOT EXISTS links (
    parent TEXT NOT NULL,
    child INTEGER NOT NULL,
    PRIMARY KEY (parent, child)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS links_by_child ON links (child);
"""

_INSERT: Final = """
INSERT INTO records (run_id, operation, identity, time, digest, body) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (run_id) DO NOTHING
"""
_UNINDEXED: Final = "FROM records WHERE number > (SELECT COALESCE(MAX(number), 0) FROM settled)"
_RUN: Final = "run_id, operation, identity, time, digest, body"
_BESIDE: Final = """
SELECT records.operation, records.identity, records.time, settled.operation, settled.identity, settled.time
FROM records JOIN settled USING (number) WHERE run_id = ?
"""
_OLDEST_ALLOWED: Final = "SELECT number FROM settled WHERE identity = ? ORDER BY number DESC LIMIT 1 OFFSET ?"


class StoredRecordError(ValueError):
    """The stored record is damaged, or differs from the one to be stored."""


class StoredRun(msgspec.Struct, frozen=True):
    """A stored run: its columns, and its record or why that cannot be trusted."""

    run_id: str
    operation: str
    identity: str
    time: int | None  # Unix milliseconds
    record: dict[str, Any] | None
    fault: str = ""

    @property
    def sound_record(self) -> dict[str, Any]:
        """The record; raises StoredRecordError if it was changed after it was stored."""
        if self.record is None:
            raise StoredRecordError(self.fault)
        return self.record


class WantedRuns(TypedDict, total=False):
    """Search criteria; times are in Unix milliseconds."""

    operation: str | None
    matching: str | None  # part of an operation's name, ignoring case
    identity: str | None
    since: int | None
    until: int | None


_CONDITIONS: Final = {
    "operation": "operation = ?",
    "matching": "instr(lower(operation), lower(?))",
    "identity": "identity = ?",
    "since": "time >= ?",
    "until": "time < ?",
}


class RecordStore:
    """A file of records, shared by processes, with at most `per_identity` records per caller and none older than `max_age`."""

    def __init__(
        self,
        path: Path | str,
        *,
        per_identity: int = DEFAULT_PER_IDENTITY,
        max_age: float | None = None,
        max_bytes: int = DEFAULT_MAX_BYTES,
        create: bool = True,
    ) -> None:
        """`max_age` is in seconds; without `create` the file must exist."""
        self._per_identity = per_identity
        self._max_age = max_age
        self._max_bytes = max_bytes
        self._index_every = max(1, min(INDEX_EVERY, per_identity))
        self._puts = 0
        self._waiting = 0
        # With WAL this survives a crash of the process; only a power cut may lose the last records, never corrupt one.
        self._file = SharedFile(Path(path), _prepare, synchronous="normal", patience=BUSY_SECONDS, create=create)
        self._writer = ThreadPoolExecutor(1, "enfold-records")  # its thread is started by the first `keep`
        _open(self._file)
        try:
            if max_age is not None:
                self.purge(time.time_ns() // 1_000_000 - int(max_age * 1000))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Write queued records and close the file."""
        self._writer.shutdown()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # writing

    def put(self, record: Mapping[str, Any], *, identity: str = "", moment: int | None = None) -> None:
        """Store a record durably. The same record again is ignored, another with its id is rejected.

        `moment` is the time of the run in Unix milliseconds; by default the record's own time, or now.
        """
        body = msgspec.json.encode(record)
        if len(body) > self._max_bytes:
            raise StoredRecordError(f"The record has {len(body)} bytes, more than the {self._max_bytes} allowed")
        read = read_record(record)
        if read.run_id in read.parents:
            raise CycleError([read.run_id, read.run_id])
        when = _moment(read) or time.time_ns() // 1_000_000 if moment is None else moment
        row = (read.run_id, read.tool.name, identity, when, hashlib.sha256(body).digest(), body)
        with self._used() as connection:
            if connection.execute(_INSERT, row).rowcount == 0:
                _refuse_another(connection, read.run_id, record)
            self._puts += 1
            if self._puts % self._index_every == 0:
                self._index(connection)

    async def keep(self, record: Mapping[str, Any], *, identity: str = "") -> None:
        """Store a record like `put`, in the store's own thread, without blocking the event loop."""
        import asyncio

        if self._waiting >= MAX_WAITING:
            raise StoredRecordError(f"{MAX_WAITING} records are already queued")
        until = time.monotonic() + BUSY_SECONDS
        writing = asyncio.wrap_future(self._writer.submit(self._put_before, until, record, identity))
        self._waiting += 1
        writing.add_done_callback(self._count_down)
        await asyncio.shield(writing)

    def _put_before(self, until: float, record: Mapping[str, Any], identity: str) -> None:
        # Records queued behind a locked file must not each wait for the full time again.
        if time.monotonic() > until:
            raise StoredRecordError(f"The record store was busy for {BUSY_SECONDS:g} seconds")
        self.put(record, identity=identity)

    def _count_down(self, writing: asyncio.Future[None]) -> None:
        self._waiting -= 1
        if not writing.cancelled():
            writing.exception()  # Retrieved here, in case the caller has gone.

    def purge(self, before: int) -> int:
        """Delete records older than a time in Unix milliseconds; return how many."""
        with self._used() as connection:
            self._index(connection)
            with Transaction(connection) as cursor:
                return _delete(cursor, "time < ?", (before,))

    def _index(self, connection: sqlite3.Connection) -> None:
        """Index new records, and delete those beyond the limit or too old."""
        if connection.execute(f"SELECT 1 {_UNINDEXED} LIMIT 1").fetchone() is None:
            return
        with Transaction(connection) as cursor:
            fresh = cursor.execute(f"SELECT number, identity, body {_UNINDEXED}").fetchall()
            cursor.execute(f"INSERT INTO settled SELECT number, operation, identity, time {_UNINDEXED}")
            cursor.executemany("INSERT OR IGNORE INTO links (parent, child) VALUES (?, ?)", _links(fresh))
            for identity in {identity for _, identity, _ in fresh}:
                self._keep_newest(cursor, identity)
            if self._max_age is not None:
                _delete(cursor, "time < ?", (time.time_ns() // 1_000_000 - int(self._max_age * 1000),))

    def _keep_newest(self, cursor: sqlite3.Cursor, identity: str) -> None:
        last = cursor.execute(_OLDEST_ALLOWED, (identity, self._per_identity)).fetchone()
        if last is not None:
            _delete(cursor, "identity = ? AND number <= ?", (identity, last[0]))

    # reading

    def get(self, run_id: str) -> dict[str, Any] | None:
        """Return the record of a run, or None; raise StoredRecordError if its bytes were changed."""
        rows = self._read("SELECT run_id, digest, body FROM records WHERE run_id = ?", (run_id,))
        return _decode(*rows[0]) if rows else None

    def identity_of(self, run_id: str) -> str | None:
        """Return the identity of a run's caller; None if there is no such run."""
        rows = self._read("SELECT identity FROM records WHERE run_id = ?", (run_id,))
        return rows[0][0] if rows else None

    def row_faults(self, run_id: str) -> list[str]:
        """Return the differences between the columns of a run and its record: operation, time, caller.

        A record received from another process is stored under the caller of its parent.
        """
        record = self.get(run_id)
        rows = self._read(_BESIDE, (run_id,), indexed=True)
        if record is None or not rows:
            return []
        read = read_record(record)
        parents = [read_record(found) for found in map(self.get, read.parents) if found is not None]
        callers = {caller_of(each) or "" for each in (read, *parents)}
        return [
            f"the store has run {run_id} with the {word} {said!r}, but its record differs"
            for operation, identity, moment in _pairs(rows[0])
            for word, said, fits in (
                ("operation", operation, operation == read.tool.name),
                ("time", moment, _moment(read) in (None, moment)),
                ("caller", identity, caller_of(read) is None or str(identity)[:MAX_CALLER] in callers),
            )
            if not fits
        ]

    def parents(self, run_id: str) -> list[str]:
        record = self.get(run_id)
        return [] if record is None else list(record["parents"])

    def children(self, run_id: str) -> list[str]:
        query = "SELECT run_id FROM links JOIN records ON number = child WHERE parent = ? ORDER BY number"
        return [child for (child,) in self._read(query, (run_id,), indexed=True)]

    def find(self, *, limit: int = 100, **wanted: Unpack[WantedRuns]) -> list[dict[str, Any]]:
        """Return records by operation, caller and time, newest first."""
        return [run.sound_record for run in self.find_runs(limit=limit, **wanted)]

    def find_runs(self, *, limit: int = 100, **asked_for: Unpack[WantedRuns]) -> list[StoredRun]:
        """Like `find`, including runs whose records were changed in the store, marked by `fault`."""
        wanted = {condition: asked_for.get(name) for name, condition in _CONDITIONS.items()}
        asked = {condition: value for condition, value in wanted.items() if value is not None}
        where = f"WHERE {' AND '.join(asked)}" if asked else ""
        # The conditions are constants; every value is bound.
        numbers = f"SELECT number, time AS moment FROM settled {where} ORDER BY time DESC, number DESC LIMIT ?"  # noqa: S608
        query = f"SELECT {_RUN} FROM ({numbers}) JOIN records USING (number) ORDER BY moment DESC, number DESC"  # noqa: S608
        return [_stored_run(row) for row in self._read(query, (*asked.values(), limit), indexed=True)]

    def lineage(self, run_id: str) -> list[dict[str, Any]]:
        """Return the record of a run with its stored ancestors and descendants."""
        return [run.sound_record for run in self.related_runs(run_id)]

    def related_runs(self, run_id: str) -> list[StoredRun]:
        """Like `lineage`, including runs whose records were changed, since the index has their parents."""
        ancestors = reach(run_id, self._known_parents, MAX_LINEAGE)
        descendants = reach(run_id, self.children, MAX_LINEAGE)
        found = dict.fromkeys([run_id, *ancestors, *descendants])
        query = f"SELECT {_RUN} FROM records WHERE run_id = ?"  # noqa: S608  # names of columns
        return [_stored_run(row) for each in found for row in self._read(query, (each,))]

    def _known_parents(self, run_id: str) -> list[str]:
        try:
            return self.parents(run_id)
        except StoredRecordError:
            query = "SELECT parent FROM links JOIN records ON number = child WHERE run_id = ? ORDER BY parent"
            return [parent for (parent,) in self._read(query, (run_id,), indexed=True)]

    def __len__(self) -> int:
        count: int = self._read("SELECT COUNT(*) FROM records", ())[0][0]
        return count

    def _read(self, query: str, values: tuple[Any, ...], *, indexed: bool = False) -> list[Any]:
        with self._used() as connection:
            if indexed:
                self._index(connection)
            return connection.execute(query, values).fetchall()

    @contextmanager
    def _used(self) -> Iterator[sqlite3.Connection]:
        """Hold the file for one thread at a time; errors are raised as StoredRecordError."""
        try:
            with self._file as connection:
                yield connection
        except (sqlite3.Error, OSError) as error:
            raise StoredRecordError(f"The record store is unavailable: {error}") from error


def _open(file: SharedFile) -> None:
    try:
        with file:
            pass
    except sqlite3.OperationalError as error:
        raise StoredRecordError(f"The record store cannot be opened: {error}") from error
    except sqlite3.DatabaseError as error:
        raise StoredRecordError(f"Not a record store: {error}") from error


def _prepare(connection: sqlite3.Connection) -> None:
    run_script(_TABLES, connection)
    connection.execute("PRAGMA wal_autocheckpoint = 4000")  # Fewer checkpoints, each of which waits for the disk.


def _refuse_another(connection: sqlite3.Connection, run_id: str, record: Mapping[str, Any]) -> None:
    found = connection.execute("SELECT run_id, digest, body FROM records WHERE run_id = ?", (run_id,)).fetchone()
    if found is not None and not same_json(_decode(*found), record):
        raise StoredRecordError(f"The run {run_id} is already recorded with different content")


class _Linked(msgspec.Struct):
    """The fields of a record that describe its origin."""

    parents: list[str]


_read_linked: Final = msgspec.json.Decoder(_Linked).decode


def _links(rows: Iterable[tuple[int, str, bytes]]) -> Iterator[tuple[str, int]]:
    for number, _, body in rows:
        try:
            parents = _read_linked(body).parents
        except (msgspec.DecodeError, UnicodeError, TypeError, RecursionError):
            continue  # changed in the store; reading it will report that
        for parent in parents:
            yield parent, number


def _delete(cursor: sqlite3.Cursor, where: str, values: tuple[Any, ...]) -> int:
    # `where` is a constant of this module; every value is bound.
    gone = f"SELECT number FROM settled WHERE {where}"  # noqa: S608
    cursor.execute(f"DELETE FROM links WHERE child IN ({gone})", values)  # noqa: S608
    cursor.execute(f"DELETE FROM records WHERE number IN ({gone})", values)  # noqa: S608
    return cursor.execute(f"DELETE FROM settled WHERE {where}", values).rowcount  # noqa: S608


def _pairs(row: tuple[Any, ...]) -> Iterator[tuple[str, str, int]]:
    """Return operation, caller and time of a row: of the record's columns, then of the index."""
    yield row[:3]
    yield row[3:]


def _moment(record: Record) -> int | None:
    """Return the time of a record in Unix milliseconds."""
    if record.time is UNSET:
        return None
    try:
        return round(datetime.fromisoformat(record.time).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def _stored_run(row: tuple[Any, ...]) -> StoredRun:
    run_id, operation, identity, moment, digest, body = row
    record, fault = None, ""
    try:
        record = _decode(run_id, digest, body)
    except StoredRecordError as error:
        fault = str(error)
    when = moment if type(moment) is int and 0 <= moment < LAST_MOMENT else None
    return StoredRun(str(run_id), str(operation), str(identity), when, record, fault)


def _decode(run_id: str, digest: Any, body: Any) -> dict[str, Any]:
    """Read the record stored under a run id; raise StoredRecordError if it was changed or belongs to another run."""
    if not isinstance(body, bytes) or hashlib.sha256(body).digest() != digest:
        raise StoredRecordError(f"The record of run {run_id} was changed after it was stored")
    try:
        record: dict[str, Any] = read_json(body)
        found = read_record(record).run_id
    except FormatError as error:
        raise StoredRecordError(f"The entry of run {run_id} is not a record: {error}") from error
    if found != run_id:
        raise StoredRecordError(f"The record of run {found} is stored as run {run_id}")
    return record
