"""Records kept in SQLite, found by run id, parent, child, operation, caller and time; shared by processes.

A record is there in full once `put` has returned, and not at all before, even if the process is killed. Writing it is
one insert; what makes it findable in other ways is brought up to date for many records at once, before it is needed.
An event loop calls `keep`, which writes in a thread of the store's own: a file that another process has locked keeps
nobody waiting but the call whose record it is.
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
# Records that wait for the writing thread; callers who do not wait for theirs must not fill the memory.
MAX_WAITING: Final = 1000
LAST_MOMENT: Final = 253_402_300_800_000  # the year 10000, which no date can name
MAX_CALLER: Final = 200  # as much of a caller's id as a record tells

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
    """The record stored under a run id is damaged, or is another one than the one to be stored."""


class StoredRun(msgspec.Struct, frozen=True):
    """A run as it is stored: what stands beside its record, and the record, or why there is none to be trusted."""

    run_id: str
    operation: str
    identity: str
    time: int | None  # Unix milliseconds
    record: dict[str, Any] | None
    fault: str = ""

    @property
    def sound_record(self) -> dict[str, Any]:
        """The record; StoredRecordError where it was changed since it was stored."""
        if self.record is None:
            raise StoredRecordError(self.fault)
        return self.record


class WantedRuns(TypedDict, total=False):
    """Which runs are looked for; the times are Unix milliseconds."""

    operation: str | None
    matching: str | None  # part of an operation's name, in small or capital letters
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
    """A file of records, shared by processes; at most `per_identity` records of each caller, none older than `max_age`."""

    def __init__(
        self,
        path: Path | str,
        *,
        per_identity: int = DEFAULT_PER_IDENTITY,
        max_age: float | None = None,
        max_bytes: int = DEFAULT_MAX_BYTES,
        create: bool = True,
    ) -> None:
        """`max_age` is in seconds; without `create` the file must be there."""
        self._per_identity = per_identity
        self._max_age = max_age
        self._max_bytes = max_bytes
        self._index_every = max(1, min(INDEX_EVERY, per_identity))
        self._puts = 0
        self._waiting = 0
        # With WAL this survives the death of the process; only a power cut may take the last records, never tear one.
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
        """Write what waits to be written, and close the file."""
        self._writer.shutdown()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # writing

    def put(self, record: Mapping[str, Any], *, identity: str = "", moment: int | None = None) -> None:
        """Keep a record; it is safe when this returns. The same again changes nothing, another under its id is refused.

        `moment` is the time of the run in Unix milliseconds; without it the record's own time counts, or now.
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
        """Keep a record as `put` does, in the store's own thread; the event loop goes on meanwhile."""
        import asyncio

        if self._waiting >= MAX_WAITING:
            raise StoredRecordError(f"{MAX_WAITING} records wait to be written already")
        until = time.monotonic() + BUSY_SECONDS
        writing = asyncio.wrap_future(self._writer.submit(self._put_before, until, record, identity))
        self._waiting += 1
        writing.add_done_callback(self._count_down)
        await asyncio.shield(writing)

    def _put_before(self, until: float, record: Mapping[str, Any], identity: str) -> None:
        # Behind a locked file records queue up: those that have waited long enough must not wait once more each.
        if time.monotonic() > until:
            raise StoredRecordError(f"The store of records was busy for {BUSY_SECONDS:g} seconds")
        self.put(record, identity=identity)

    def _count_down(self, writing: asyncio.Future[None]) -> None:
        self._waiting -= 1
        if not writing.cancelled():
            writing.exception()  # Looked at here, because a caller who has gone does not.

    def purge(self, before: int) -> int:
        """Forget the records older than a moment (Unix milliseconds); the answer is how many."""
        with self._used() as connection:
            self._index(connection)
            with Transaction(connection) as cursor:
                return _delete(cursor, "time < ?", (before,))

    def _index(self, connection: sqlite3.Connection) -> None:
        """Index the records that were put since the last time, and delete those that are over the limit or too old."""
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
        """The record of a run, or None; StoredRecordError where its bytes were changed since."""
        rows = self._read("SELECT run_id, digest, body FROM records WHERE run_id = ?", (run_id,))
        return _decode(*rows[0]) if rows else None

    def identity_of(self, run_id: str) -> str | None:
        """For whom a run was recorded; None where there is no such run."""
        rows = self._read("SELECT identity FROM records WHERE run_id = ?", (run_id,))
        return rows[0][0] if rows else None

    def row_faults(self, run_id: str) -> list[str]:
        """Where the columns of a run differ from its record: operation, time, caller.

        A record that another process sent us is kept under the caller for whom it was fetched, the one of its parent.
        """
        record = self.get(run_id)
        rows = self._read(_BESIDE, (run_id,), indexed=True)
        if record is None or not rows:
            return []
        read = read_record(record)
        parents = [read_record(found) for found in map(self.get, read.parents) if found is not None]
        callers = {caller_of(each) or "" for each in (read, *parents)}
        return [
            f"the store has run {run_id} with the {word} {said!r}, its record says otherwise"
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
        """Records of an operation, of a caller, of a span of time, newest first."""
        return [run.sound_record for run in self.find_runs(limit=limit, **wanted)]

    def find_runs(self, *, limit: int = 100, **asked_for: Unpack[WantedRuns]) -> list[StoredRun]:
        """What `find` looks for, with the runs whose records were changed in the store: `fault` says so."""
        wanted = {condition: asked_for.get(name) for name, condition in _CONDITIONS.items()}
        asked = {condition: value for condition, value in wanted.items() if value is not None}
        where = f"WHERE {' AND '.join(asked)}" if asked else ""
        # The conditions are the texts above; every value is bound.
        numbers = f"SELECT number, time AS moment FROM settled {where} ORDER BY time DESC, number DESC LIMIT ?"  # noqa: S608
        query = f"SELECT {_RUN} FROM ({numbers}) JOIN records USING (number) ORDER BY moment DESC, number DESC"  # noqa: S608
        return [_stored_run(row) for row in self._read(query, (*asked.values(), limit), indexed=True)]

    def lineage(self, run_id: str) -> list[dict[str, Any]]:
        """The record of a run with all its ancestors and descendants that are here."""
        return [run.sound_record for run in self.related_runs(run_id)]

    def related_runs(self, run_id: str) -> list[StoredRun]:
        """What `lineage` gives, with the runs whose records were changed in the store: the index still knows their parents."""
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
        """The file, for one thread at a time; what goes wrong with it is raised as a StoredRecordError."""
        try:
            with self._file as connection:
                yield connection
        except (sqlite3.Error, OSError) as error:
            raise StoredRecordError(f"The store of records cannot be used: {error}") from error


def _open(file: SharedFile) -> None:
    try:
        with file:
            pass
    except sqlite3.OperationalError as error:
        raise StoredRecordError(f"The store of records cannot be opened: {error}") from error
    except sqlite3.DatabaseError as error:
        raise StoredRecordError(f"This is no store of records: {error}") from error


def _prepare(connection: sqlite3.Connection) -> None:
    run_script(_TABLES, connection)
    connection.execute("PRAGMA wal_autocheckpoint = 4000")  # Each checkpoint waits for the disk: make fewer.


def _refuse_another(connection: sqlite3.Connection, run_id: str, record: Mapping[str, Any]) -> None:
    found = connection.execute("SELECT run_id, digest, body FROM records WHERE run_id = ?", (run_id,)).fetchone()
    if found is not None and not same_json(_decode(*found), record):
        raise StoredRecordError(f"The run {run_id} is recorded already, with other content")


class _Linked(msgspec.Struct):
    """As much of a record as says where it comes from."""

    parents: list[str]


_read_linked: Final = msgspec.json.Decoder(_Linked).decode


def _links(rows: Iterable[tuple[int, str, bytes]]) -> Iterator[tuple[str, int]]:
    for number, _, body in rows:
        try:
            parents = _read_linked(body).parents
        except (msgspec.DecodeError, UnicodeError, TypeError, RecursionError):
            continue  # Somebody changed it; reading it will tell, the others go on.
        for parent in parents:
            yield parent, number


def _delete(cursor: sqlite3.Cursor, where: str, values: tuple[Any, ...]) -> int:
    # `where` is one of the few texts in this module; every value is bound.
    gone = f"SELECT number FROM settled WHERE {where}"  # noqa: S608
    cursor.execute(f"DELETE FROM links WHERE child IN ({gone})", values)  # noqa: S608
    cursor.execute(f"DELETE FROM records WHERE number IN ({gone})", values)  # noqa: S608
    return cursor.execute(f"DELETE FROM settled WHERE {where}", values).rowcount  # noqa: S608


def _pairs(row: tuple[Any, ...]) -> Iterator[tuple[str, str, int]]:
    """Operation, caller and time of a row: first those beside the record, then those in the index of searches."""
    yield row[:3]
    yield row[3:]


def _moment(record: Record) -> int | None:
    """The time a record tells, in Unix milliseconds."""
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
    """The record stored under a run id; StoredRecordError where the bytes were changed, or are no record of that run."""
    if not isinstance(body, bytes) or hashlib.sha256(body).digest() != digest:
        raise StoredRecordError(f"The record of run {run_id} was changed after it was stored")
    try:
        record: dict[str, Any] = read_json(body)
        found = read_record(record).run_id
    except FormatError as error:
        raise StoredRecordError(f"What is stored as run {run_id} is no record: {error}") from error
    if found != run_id:
        raise StoredRecordError(f"The record of run {found} is stored as run {run_id}")
    return record
