"""First results in a SQLite file: for the processes of one machine, and for those that start after them.

Whoever runs a first call holds a lock that the kernel lets go when its process dies: no clock says that it is over.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from weakref import finalize

import msgspec

from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError
from enfold.idempotency.first_results import (
    BYTES_PER_IDENTITY,
    KEEP,
    PER_IDENTITY,
    not_ended_yet,
    refuse_other_input,
    too_many_keys,
)
from enfold.idempotency.outcomes import Outcome, outcome_of, result_of
from enfold.idempotency.process_lock import ProcessLock, dead_holders, forget_dead
from enfold.operation.repeats import EntryKey, Run
from enfold.shared_sqlite import SharedFile, Transaction, run_script

T = TypeVar("T")

BUSY_SECONDS: Final = 5.0
PAUSE: Final = 0.05  # seconds between two looks at a first call that another process runs
NEVER: Final = 1e18  # when the entry of a call that runs is too old

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS first_results (
    key TEXT PRIMARY KEY, owner TEXT NOT NULL, digest TEXT NOT NULL, holder TEXT NOT NULL,
    until REAL NOT NULL, outcome BLOB);
CREATE INDEX IF NOT EXISTS first_results_of ON first_results (owner);
CREATE INDEX IF NOT EXISTS first_results_until ON first_results (until);
"""
_RUNNING: Final = "SELECT holder FROM first_results WHERE outcome IS NULL"
# The oldest results of one identity that, with all newer ones, have too many bytes.
_TOO_MUCH: Final = """
DELETE FROM first_results WHERE key IN (
    SELECT key FROM (
        SELECT key, SUM(LENGTH(outcome)) OVER (ORDER BY until DESC, key) AS together
        FROM first_results WHERE owner = ? AND outcome IS NOT NULL
    ) WHERE together > ?)
"""
_KEEP: Final = """
INSERT INTO first_results VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET outcome = excluded.outcome, until = excluded.until WHERE holder = excluded.holder
"""
_read: Final = msgspec.json.Decoder(Outcome).decode


def _prepare(holders: Path, connection: sqlite3.Connection) -> None:
    run_script(_SCHEMA, connection)
    forget_dead(holders, {row[0].partition(".")[0] for row in connection.execute(_RUNNING)})


class SQLiteOnceStore:
    """One file; who inserts an entry first runs the call, the others wait for its outcome."""

    def __init__(
        self,
        path: Path | str,
        *,
        keep: float = KEEP,
        per_identity: int = PER_IDENTITY,
        bytes_per_identity: int = BYTES_PER_IDENTITY,
    ) -> None:
        """The file is made with the first key; its folder must be there.

        More keys of one identity than `per_identity` are refused; where its results have more bytes, its oldest go.
        """
        self.path = Path(path)
        self._keep = keep
        self._per_identity = per_identity
        self._bytes_per_identity = bytes_per_identity
        self._holders = Path(f"{self.path}-workers")
        self._process = ProcessLock(self._holders)  # another one for each process that opens the file
        self._missing: dict[str, float] = {}
        self._file = SharedFile(self.path, partial(_prepare, self._holders), synchronous="full", patience=BUSY_SECONDS)
        finalize(self, self._file.close)  # the registry that uses it has no end of its own at which to close it
        self._running: set[asyncio.Task[Any]] = set()

    async def once(self, key: EntryKey, digest: str, ttl: float, run: Run) -> ResponseEnvelope[Any]:
        """The result of `run`, or of the first call with this key."""
        holder, ends_at = os.urandom(16).hex(), time.monotonic() + ttl
        while True:
            found = await self._do(self._take, key, digest, holder)
            if found is True:
                running = self._keep_running(self._first(key, digest, holder, run))
                return result_of(await asyncio.shield(running))  # who leaves finds the result when they come again
            if isinstance(found, bytes):
                return result_of(_read(found))
            if time.monotonic() + PAUSE >= ends_at:
                raise not_ended_yet()
            await asyncio.sleep(PAUSE)

    def _keep_running(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        running = asyncio.get_running_loop().create_task(work)
        self._running.add(running)
        running.add_done_callback(self._forget)
        return running

    def _forget(self, running: asyncio.Task[Any]) -> None:
        self._running.discard(running)
        if not running.cancelled():
            running.exception()  # seen, though perhaps by nobody

    async def _first(self, key: EntryKey, digest: str, holder: str, run: Run) -> Outcome:
        try:
            outcome = await outcome_of(run)
            text = msgspec.json.encode(outcome)
        except BaseException:
            await asyncio.shield(self._do(self._forget_entry, key, holder))
            raise
        try:
            await self._do(self._finish, key, digest, holder, text)
        except CallError:
            self._keep_running(self._finish_later(key, digest, holder, text))
        return outcome

    async def _finish_later(self, key: EntryKey, digest: str, holder: str, text: bytes) -> None:
        """Keep an outcome as soon as the file can be used again: until then repeats wait for it."""
        while True:
            await asyncio.sleep(PAUSE * 10)
            with suppress(CallError):
                await self._do(self._finish, key, digest, holder, text)
                return

    async def _do(self, step: Any, *facts: Any) -> Any:
        """Take a step in a thread, one at a time; a file that cannot be used is told in one sentence."""

        def locked() -> Any:
            with self._file as connection:
                self._process.hold()
                return step(connection, *facts)

        try:
            return await asyncio.to_thread(locked)
        except (sqlite3.Error, OSError) as error:
            message = "The store of first results cannot be used now: try again"
            raise CallError("UNAVAILABLE", message, {"reason": "store"}) from error

    # in a thread

    def _take(self, file: sqlite3.Connection, key: EntryKey, digest: str, holder: str) -> bool | bytes:
        """True where the call is ours to run, its outcome where it has ended, False while another runs it."""
        with Transaction(file):
            return self._taken(file, key, digest, holder)

    def _taken(self, file: sqlite3.Connection, key: EntryKey, digest: str, holder: str) -> bool | bytes:
        name, owner = key.digest(), msgspec.json.encode(key.owner).decode()
        file.execute("DELETE FROM first_results WHERE until < ? AND outcome IS NOT NULL", (time.time(),))
        row = file.execute("SELECT digest, outcome, holder FROM first_results WHERE key = ?", (name,)).fetchone()
        if row is not None:
            refuse_other_input(row[0], digest)
            if row[1] is not None:
                return bytes(row[1])
            if not self._has_died(row[2]):
                return False
            file.execute("DELETE FROM first_results WHERE key = ?", (name,))
        used = file.execute("SELECT count(*) FROM first_results WHERE owner = ?", (owner,)).fetchone()[0]
        if used >= self._per_identity:
            raise too_many_keys(self._per_identity, int(self._keep))
        entry = (name, owner, digest, f"{self._process.name}.{holder}", NEVER)
        file.execute("INSERT INTO first_results VALUES (?, ?, ?, ?, ?, NULL)", entry)
        return True

    def _has_died(self, holder: str) -> bool:
        process = holder.partition(".")[0]
        return process != self._process.name and bool(dead_holders(self._holders, [process], self._missing))

    def _forget_entry(self, file: sqlite3.Connection, key: EntryKey, holder: str) -> None:
        """Forget that the call was begun; an entry that another has taken over stays."""
        ours = (key.digest(), f"{self._process.name}.{holder}")
        file.execute("DELETE FROM first_results WHERE key = ? AND holder = ?", ours)

    def _finish(self, file: sqlite3.Connection, key: EntryKey, digest: str, holder: str, text: bytes) -> None:
        """Keep an outcome, in a file that was made anew meanwhile, too; an entry that another has taken over stays."""
        owner, until = msgspec.json.encode(key.owner).decode(), time.time() + self._keep
        file.execute(_KEEP, (key.digest(), owner, digest, f"{self._process.name}.{holder}", until, text))
        file.execute(_TOO_MUCH, (owner, self._bytes_per_identity))
