"""Records kept in SQLite, found by run id, parent, child, operation, caller and time; shared by processes.

A record is there in full once `put` has returned, and not at all before, even if the process is killed. Writing it is
one insert; what makes it findable in other ways is brought up to date for many records at once, before it is needed.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from enfold.provenance.lineage import CycleError
from enfold.provenance.records import read_record

__all__ = ["RecordStore", "StoredRecordError"]

DEFAULT_PER_IDENTITY: Final = 10_000
DEFAULT_MAX_BYTES: Final = 256 * 1024
MAX_LINEAGE: Final = 10_000
SETTLE_EVERY: Final = 256

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
_UNSETTLED: Final = "FROM records WHERE number > (SELECT COALESCE(MAX(number), 0) FROM settled)"
_OLDEST_ALLOWED: Final = "SELECT number FROM settled WHERE identity = ? ORDER BY number DESC LIMIT 1 OFFSET ?"


class StoredRecordError(ValueError):
    """What is stored under a run id is not, or would not be, what was put there."""


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
        self._settle_every = max(1, min(SETTLE_EVERY, per_identity))
        self._puts = 0
        self._lock = threading.Lock()
        self._connection = _open(Path(path), create)
        if max_age is not None:
            self.purge(time.time_ns() // 1_000_000 - int(max_age * 1000))

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # writing

    def put(self, record: Mapping[str, Any], *, identity: str = "", moment: int | None = None) -> None:
        """Keep a record; it is safe when this returns. The same again changes nothing, another under its id is refused.

        `moment` is the time of the run in Unix milliseconds.
        """
        body = msgspec.json.encode(record)
        if len(body) > self._max_bytes:
            raise StoredRecordError(f"The record has {len(body)} bytes, more than the {self._max_bytes} allowed")
        read = read_record(record)
        if read.run_id in read.parents:
            raise CycleError([read.run_id, read.run_id])
        when = time.time_ns() // 1_000_000 if moment is None else moment
        row = (read.run_id, read.tool.name, identity, when, hashlib.sha256(body).digest(), body)
        with self._lock:
            if self._connection.execute(_INSERT, row).rowcount == 0:
                self._refuse_another(read.run_id, body)
            self._puts += 1
            if self._puts % self._settle_every == 0:
                self._settle()

    def _refuse_another(self, run_id: str, body: bytes) -> None:
        found = self._connection.execute("SELECT body FROM records WHERE run_id = ?", (run_id,)).fetchone()
        if found is not None and msgspec.json.decode(found[0]) != msgspec.json.decode(body):
            raise StoredRecordError(f"The run {run_id} is recorded already, with other content")

    def purge(self, before: int) -> int:
        """Forget the records older than a moment (Unix milliseconds); the answer is how many."""
        with self._lock:
            self._settle()
            with _Transaction(self._connection) as cursor:
                return _delete(cursor, "time < ?", (before,))

    def _settle(self) -> None:
        """Make what was put since findable, and let go of what is too much or too old."""
        if self._connection.execute(f"SELECT 1 {_UNSETTLED} LIMIT 1").fetchone() is None:
            return
        with _Transaction(self._connection) as cursor:
            fresh = cursor.execute(f"SELECT number, operation, identity, time, body {_UNSETTLED}").fetchall()
            cursor.executemany("INSERT INTO settled VALUES (?, ?, ?, ?)", [row[:4] for row in fresh])
            cursor.executemany("INSERT OR IGNORE INTO links (parent, child) VALUES (?, ?)", _links(fresh))
            for identity in {row[2] for row in fresh}:
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

    def parents(self, run_id: str) -> list[str]:
        record = self.get(run_id)
        return [] if record is None else list(record["parents"])

    def children(self, run_id: str) -> list[str]:
        query = "SELECT run_id FROM links JOIN records ON number = child WHERE parent = ? ORDER BY number"
        return [child for (child,) in self._read(query, (run_id,), settled=True)]

    def find(
        self,
        *,
        operation: str | None = None,
        identity: str | None = None,
        since: int | None = None,
        until: int | None = None,
        limit: int = 100,
    ) -> list[dict[str, Any]]:
        """Records of an operation, of a caller, of a span of time (Unix milliseconds), newest first."""
        wanted = {"operation = ?": operation, "identity = ?": identity, "time >= ?": since, "time < ?": until}
        asked = {condition: value for condition, value in wanted.items() if value is not None}
        where = f"WHERE {' AND '.join(asked)}" if asked else ""
        # The conditions are the four texts above; every value is bound.
        numbers = f"SELECT number, time AS moment FROM settled {where} ORDER BY time DESC, number DESC LIMIT ?"  # noqa: S608
        query = f"SELECT run_id, digest, body FROM ({numbers}) JOIN records USING (number) ORDER BY moment DESC, number DESC"  # noqa: S608
        return [_decode(*row) for row in self._read(query, (*asked.values(), limit), settled=True)]

    def lineage(self, run_id: str) -> list[dict[str, Any]]:
        """The record of a run with all its ancestors and descendants that are here."""
        found = dict.fromkeys([run_id, *_walk(run_id, self.parents), *_walk(run_id, self.children)])
        records = (self.get(each) for each in found)
        return [record for record in records if record is not None]

    def __len__(self) -> int:
        count: int = self._read("SELECT COUNT(*) FROM records", ())[0][0]
        return count

    def _read(self, query: str, values: tuple[Any, ...], *, settled: bool = False) -> list[Any]:
        with self._lock:
            if settled:
                self._settle()
            return self._connection.execute(query, values).fetchall()


def _open(path: Path, create: bool) -> sqlite3.Connection:
    if not create and not path.exists():
        raise FileNotFoundError(f"There is no store at {path}")
    if str(path) != ":memory:":
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # Records are for their owner's eyes.
    connection = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
    _set_up(connection)
    return connection


def _set_up(connection: sqlite3.Connection) -> None:
    """Make the tables; two processes may do so at once, so a busy file is tried again."""
    for attempt in range(20):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            # With WAL this survives the death of the process; only a power cut may take the last records, never tear one.
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA wal_autocheckpoint = 4000")  # Each checkpoint waits for the disk: make fewer.
            connection.executescript(_TABLES)
        except sqlite3.OperationalError:
            if attempt == 19:
                connection.close()
                raise
            time.sleep(0.05)
        except sqlite3.DatabaseError as error:
            connection.close()
            raise StoredRecordError(f"This is no store of records: {error}") from error
        else:
            return


class _Transaction:
    """All of the writes, or none."""

    __slots__ = ("_connection",)

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> sqlite3.Cursor:
        return self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, *_: object) -> None:
        self._connection.execute("COMMIT" if kind is None else "ROLLBACK")


def _links(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[str, int]]:
    for row in rows:
        for parent in msgspec.json.decode(row[4])["parents"]:
            yield parent, row[0]


def _delete(cursor: sqlite3.Cursor, where: str, values: tuple[Any, ...]) -> int:
    # `where` is one of the few texts in this module; every value is bound.
    gone = cursor.execute(f"DELETE FROM settled WHERE {where} RETURNING number", values).fetchall()  # noqa: S608
    cursor.executemany("DELETE FROM links WHERE child = ?", gone)
    cursor.executemany("DELETE FROM records WHERE number = ?", gone)
    return len(gone)


def _walk(start: str, step: Callable[[str], list[str]]) -> Iterator[str]:
    seen, waiting = {start}, [start]
    while waiting and len(seen) < MAX_LINEAGE:
        for found in step(waiting.pop(0)):
            if found not in seen:
                seen.add(found)
                waiting.append(found)
                yield found


def _decode(run_id: str, digest: bytes, body: bytes) -> dict[str, Any]:
    if hashlib.sha256(body).digest() != digest:
        raise StoredRecordError(f"The record of run {run_id} was changed after it was stored")
    record: dict[str, Any] = msgspec.json.decode(body)
    return record
