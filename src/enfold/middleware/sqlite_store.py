"""The idempotency store in a SQLite file: for the processes of one machine, also after a restart.

A process that runs calls holds a lock, which the kernel releases when it dies; a suspended process keeps it.
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
from enfold.middleware.idempotency_store import (
    BYTES_PER_IDENTITY,
    DIED,
    KEEP,
    LONGEST_PAUSE,
    PER_IDENTITY,
    BaseIdempotencyStore,
    Outcome,
    refuse_other_input,
    settled,
    too_many_keys,
)
from enfold.operations.idempotency import EntryKey, KeyedCall
from enfold.storage import ProcessLock, SharedFile, Transaction, dead_holders, forget_dead, run_script

BUSY_SECONDS: Final = 5.0
NEVER: Final = 1e18  # when the entry of a call that runs is too old

# `holder` is the process and the call; `outcome` is NULL while it runs, and where its process died.
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS idempotent_results (
    key TEXT PRIMARY KEY, owner TEXT NOT NULL, digest TEXT NOT NULL, holder TEXT NOT NULL,
    until REAL NOT NULL, outcome BLOB);
CREATE INDEX IF NOT EXISTS idempotent_results_of ON idempotent_results (owner);
CREATE INDEX IF NOT EXISTS idempotent_results_until ON idempotent_results (until);
"""
_RUNNING: Final = "SELECT holder FROM idempotent_results WHERE outcome IS NULL"
# The oldest results of one identity that, with all newer ones, have too many bytes.
_TOO_MUCH: Final = """
DELETE FROM idempotent_results WHERE key IN (
    SELECT key FROM (
        SELECT key, SUM(LENGTH(outcome)) OVER (ORDER BY until DESC, key) AS together
        FROM idempotent_results WHERE owner = ? AND outcome IS NOT NULL
    ) WHERE together > ?)
"""
_KEEP: Final = """
INSERT INTO idempotent_results VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET outcome = excluded.outcome, until = excluded.until WHERE holder = excluded.holder
"""
# What a process that died has left is forgotten in the end.
_EXPIRE: Final = "UPDATE idempotent_results SET until = ? WHERE until = ? AND holder LIKE ?"
_read: Final = msgspec.json.Decoder(Outcome).decode


def _prepare(holders: Path, keep: float, file: sqlite3.Connection) -> None:
    run_script(_SCHEMA, file)
    running = [row[0].partition(".")[0] for row in file.execute(_RUNNING)]
    for process in dead_holders(holders, running, {}):
        file.execute(_EXPIRE, (time.time() + keep, NEVER, f"{process}.%"))
    forget_dead(holders, running)


class _RowClaim(msgspec.Struct, frozen=True):
    """A first call that runs in this process."""

    digest: str  # of its input
    holder: str  # the process, and the call


class SQLiteIdempotencyStore(BaseIdempotencyStore[_RowClaim]):
    """One file; who inserts an entry first runs the call, the others wait for its outcome."""

    def __init__(
        self,
        path: Path | str,
        *,
        keep: float = KEEP,
        per_identity: int = PER_IDENTITY,
        bytes_per_identity: int = BYTES_PER_IDENTITY,
    ) -> None:
        """The file and its folder are created with the first key.

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
        self._file = SharedFile(
            self.path, partial(_prepare, self._holders, keep), synchronous="full", patience=BUSY_SECONDS
        )
        finalize(self, self._file.close)  # the registry that uses it has no end of its own at which to close it

    async def _claim(self, call: KeyedCall) -> Outcome | _RowClaim | None:
        claim = _RowClaim(call.digest, f"{self._process.name}.{os.urandom(16).hex()}")
        found: Outcome | bool = await self._do(self._take, call, claim)
        if isinstance(found, Outcome):
            return found
        return claim if found else None

    async def _keep(self, key: EntryKey, claim: _RowClaim, outcome: Outcome) -> None:
        """Keep an outcome, as soon as the file can be used."""
        text, tries_until = msgspec.json.encode(outcome), time.monotonic() + self._seconds
        while time.monotonic() < tries_until:
            with suppress(CallError):
                await self._do(self._finish, key, claim, text)
                return
            await asyncio.sleep(LONGEST_PAUSE)

    async def _release(self, key: EntryKey, claim: _RowClaim) -> None:
        await self._do(self._forget_entry, key, claim)

    async def _do(self, step: Any, *facts: Any) -> Any:
        """Run a step in a thread, one at a time; UNAVAILABLE where the file cannot be used."""

        def locked() -> Any:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._file as connection:
                self._process.hold()
                return step(connection, *facts)

        try:
            return await asyncio.to_thread(locked)
        except (sqlite3.Error, OSError) as error:
            message = "The idempotency store is unavailable: retry later"
            raise CallError("UNAVAILABLE", message, {"reason": "store"}) from error

    # in a thread

    def _take(self, file: sqlite3.Connection, call: KeyedCall, claim: _RowClaim) -> Outcome | bool:
        """True where the call is ours to run, its outcome where it has ended, False while another runs it."""
        name, owner = call.key.digest(), msgspec.json.encode(call.key.owner).decode()
        with Transaction(file):
            file.execute("DELETE FROM idempotent_results WHERE until < ?", (time.time(),))
            row = file.execute(
                "SELECT digest, outcome, holder FROM idempotent_results WHERE key = ?", (name,)
            ).fetchone()
            if row is not None:
                refuse_other_input(row[0], call.digest)
                outcome = self._outcome(row[1], row[2])
                if outcome is None:
                    return False
                if (found := settled(outcome, reruns=call.reruns)) is not None:
                    return found
                file.execute("DELETE FROM idempotent_results WHERE key = ?", (name,))
            used = file.execute("SELECT count(*) FROM idempotent_results WHERE owner = ?", (owner,)).fetchone()[0]
            if used >= self._per_identity:
                raise too_many_keys(self._per_identity, int(self._seconds))
            entry = (name, owner, claim.digest, claim.holder, NEVER)
            file.execute("INSERT INTO idempotent_results VALUES (?, ?, ?, ?, ?, NULL)", entry)
            return True

    def _outcome(self, text: bytes | None, holder: str) -> Outcome | None:
        """Return the outcome of an entry; None while its process is alive and may still finish."""
        if text is not None:
            return _read(text)
        return DIED if self._has_died(holder.partition(".")[0]) else None

    def _has_died(self, process: str) -> bool:
        return process != self._process.name and bool(dead_holders(self._holders, [process], self._missing))

    def _forget_entry(self, file: sqlite3.Connection, key: EntryKey, claim: _RowClaim) -> None:
        file.execute("DELETE FROM idempotent_results WHERE key = ? AND holder = ?", (key.digest(), claim.holder))

    def _finish(self, file: sqlite3.Connection, key: EntryKey, claim: _RowClaim, text: bytes) -> None:
        """Keep an outcome, in a file that was made anew meanwhile, too."""
        owner, until = msgspec.json.encode(key.owner).decode(), time.time() + self._seconds
        file.execute(_KEEP, (key.digest(), owner, claim.digest, claim.holder, until, text))
        file.execute(_TOO_MUCH, (owner, self._bytes_per_identity))
