"""First results in a SQLite file: for the processes of one machine, and for those that start after them.

Whoever runs a first call holds a lock that the kernel lets go when its process dies: no clock says that it is over.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final
from weakref import finalize

import msgspec

from enfold.errors import CallError
from enfold.idempotency.first_results import (
    BYTES_PER_IDENTITY,
    KEEP,
    PAUSE,
    PER_IDENTITY,
    FirstResults,
    refuse_other_input,
    too_many_keys,
)
from enfold.idempotency.outcomes import Outcome
from enfold.idempotency.process_lock import ProcessLock, dead_holders, forget_dead
from enfold.operation.repeats import EntryKey
from enfold.shared_sqlite import SharedFile, Transaction, run_script

BUSY_SECONDS: Final = 5.0
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


class _FirstCallHere(msgspec.Struct, frozen=True):
    """A first call that runs in this process."""

    digest: str  # of its input
    holder: str  # the process, and the call


class SQLiteOnceStore(FirstResults[_FirstCallHere]):
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
        super().__init__()
        self.path = Path(path)
        self._seconds = keep
        self._per_identity = per_identity
        self._bytes_per_identity = bytes_per_identity
        self._holders = Path(f"{self.path}-workers")
        self._process = ProcessLock(self._holders)  # another one for each process that opens the file
        self._missing: dict[str, float] = {}
        self._file = SharedFile(self.path, partial(_prepare, self._holders), synchronous="full", patience=BUSY_SECONDS)
        finalize(self, self._file.close)  # the registry that uses it has no end of its own at which to close it

    async def _begin(self, key: EntryKey, digest: str, ends_at: float) -> Outcome | _FirstCallHere | None:
        del ends_at
        begun = _FirstCallHere(digest, f"{self._process.name}.{os.urandom(16).hex()}")
        found = await self._do(self._take, key, begun)
        if isinstance(found, bytes):
            return _read(found)
        return begun if found else None

    async def _keep(self, key: EntryKey, begun: _FirstCallHere, outcome: Outcome) -> None:
        text = msgspec.json.encode(outcome)
        try:
            await self._do(self._finish, key, begun, text)
        except CallError:
            self._in_background(self._finish_later(key, begun, text))

    async def _give_up(self, key: EntryKey, begun: _FirstCallHere, error: BaseException) -> None:
        del error
        await self._do(self._forget_entry, key, begun)

    async def _finish_later(self, key: EntryKey, begun: _FirstCallHere, text: bytes) -> None:
        """Keep an outcome as soon as the file can be used again: until then repeats wait for it."""
        while True:
            await asyncio.sleep(PAUSE * 10)
            with suppress(CallError):
                await self._do(self._finish, key, begun, text)
                return

    async def _do(self, step: Any, *facts: Any) -> Any:
        """Run a step in a thread, one at a time; UNAVAILABLE where the file cannot be used."""

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

    def _take(self, file: sqlite3.Connection, key: EntryKey, begun: _FirstCallHere) -> bool | bytes:
        """True where the call is ours to run, its outcome where it has ended, False while another runs it."""
        name, owner = key.digest(), msgspec.json.encode(key.owner).decode()
        with Transaction(file):
            file.execute("DELETE FROM first_results WHERE until < ? AND outcome IS NOT NULL", (time.time(),))
            row = file.execute("SELECT digest, outcome, holder FROM first_results WHERE key = ?", (name,)).fetchone()
            if row is not None:
                refuse_other_input(row[0], begun.digest)
                if row[1] is not None:
                    return bytes(row[1])
                if not self._has_died(row[2]):
                    return False
                file.execute("DELETE FROM first_results WHERE key = ?", (name,))
            used = file.execute("SELECT count(*) FROM first_results WHERE owner = ?", (owner,)).fetchone()[0]
            if used >= self._per_identity:
                raise too_many_keys(self._per_identity, int(self._seconds))
            entry = (name, owner, begun.digest, begun.holder, NEVER)
            file.execute("INSERT INTO first_results VALUES (?, ?, ?, ?, ?, NULL)", entry)
            return True

    def _has_died(self, holder: str) -> bool:
        process = holder.partition(".")[0]
        return process != self._process.name and bool(dead_holders(self._holders, [process], self._missing))

    def _forget_entry(self, file: sqlite3.Connection, key: EntryKey, begun: _FirstCallHere) -> None:
        """Forget that the call was begun; an entry that another has taken over stays."""
        file.execute("DELETE FROM first_results WHERE key = ? AND holder = ?", (key.digest(), begun.holder))

    def _finish(self, file: sqlite3.Connection, key: EntryKey, begun: _FirstCallHere, text: bytes) -> None:
        """Keep an outcome, in a file that was made anew meanwhile, too; an entry that another has taken over stays."""
        owner, until = msgspec.json.encode(key.owner).decode(), time.time() + self._seconds
        file.execute(_KEEP, (key.digest(), owner, begun.digest, begun.holder, until, text))
        file.execute(_TOO_MUCH, (owner, self._bytes_per_identity))
