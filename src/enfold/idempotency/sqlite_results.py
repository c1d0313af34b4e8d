"""First results in a SQLite file: for the processes of one machine, and for those that start after them."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError
from enfold.idempotency.first_results import KEEP, PER_IDENTITY, not_ended_yet, refuse_other_input
from enfold.idempotency.outcomes import Outcome, outcome_of, result_of
from enfold.operation.repeats import EntryKey, Run

__all__ = ["SQLiteOnceStore"]

PAUSE: Final = 0.05  # seconds between two looks at a first call that another process runs
MARGIN: Final = 1.0  # seconds after which a first call that cannot run any more is taken over

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS first_results (
    key TEXT PRIMARY KEY, owner TEXT NOT NULL, digest TEXT NOT NULL, holder TEXT NOT NULL,
    until REAL NOT NULL, outcome BLOB);
CREATE INDEX IF NOT EXISTS first_results_of ON first_results (owner);
CREATE INDEX IF NOT EXISTS first_results_until ON first_results (until);
"""
_read: Final = msgspec.json.Decoder(Outcome).decode


class SQLiteOnceStore:
    """One file; who inserts an entry first runs the call, the others wait for its outcome."""

    def __init__(self, path: Path | str, *, keep: float = KEEP, per_identity: int = PER_IDENTITY) -> None:
        """The file is made with the first key; its folder must be there."""
        self.path = Path(path)
        self._keep = keep
        self._per_identity = per_identity
        self._lock = threading.Lock()
        self._opened: sqlite3.Connection | None = None
        self._running: set[asyncio.Task[Any]] = set()

    async def once(self, key: EntryKey, digest: str, ttl: float, run: Run) -> ResponseEnvelope[Any]:
        """The result of `run`, or of the first call with this key."""
        holder, ends_at = os.urandom(16).hex(), time.monotonic() + ttl
        while True:
            found = await self._do(self._take, key, digest, holder, ttl + MARGIN)
            if found is True:
                running = asyncio.get_running_loop().create_task(self._first(key, holder, run))
                self._running.add(running)
                running.add_done_callback(self._forget)
                return result_of(await asyncio.shield(running))  # who leaves finds the result when they come again
            if isinstance(found, bytes):
                return result_of(_read(found))
            if time.monotonic() + PAUSE >= ends_at:
                raise not_ended_yet()
            await asyncio.sleep(PAUSE)

    def _forget(self, running: asyncio.Task[Any]) -> None:
        self._running.discard(running)
        if not running.cancelled():
            running.exception()  # seen, though perhaps by nobody

    async def _first(self, key: EntryKey, holder: str, run: Run) -> Outcome:
        try:
            outcome = await outcome_of(run)
            text = msgspec.json.encode(outcome)
        except BaseException:
            await asyncio.shield(self._do(self._finish, key, holder, None))
            raise
        await self._do(self._finish, key, holder, text)
        return outcome

    async def _do(self, step: Any, *facts: Any) -> Any:
        """Take a step in a thread, one at a time; a file that cannot be used is told in one sentence."""

        def locked() -> Any:
            with self._lock:
                return step(self._open(), *facts)

        try:
            return await asyncio.to_thread(locked)
        except sqlite3.Error as error:
            message = "The store of first results cannot be used now: try again"
            raise CallError("UNAVAILABLE", message, {"reason": "store"}) from error

    # in a thread

    def _open(self) -> sqlite3.Connection:
        if self._opened is None:
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))  # results are nobody else's
            connection = sqlite3.connect(self.path, timeout=5.0, isolation_level=None, check_same_thread=False)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.executescript(_SCHEMA)
            self._opened = connection
        return self._opened

    def _take(self, file: sqlite3.Connection, key: EntryKey, digest: str, holder: str, lease: float) -> bool | bytes:
        """True where the call is ours to run, its outcome where it has ended, False while another runs it."""
        file.execute("BEGIN IMMEDIATE")
        try:
            found = self._taken(file, key, digest, holder, lease)
        except BaseException:
            file.execute("ROLLBACK")
            raise
        file.execute("COMMIT")
        return found

    def _taken(self, file: sqlite3.Connection, key: EntryKey, digest: str, holder: str, lease: float) -> bool | bytes:
        now, name, owner = time.time(), key.digest(), msgspec.json.encode(key.owner).decode()
        file.execute("DELETE FROM first_results WHERE until < ?", (now,))
        row = file.execute("SELECT digest, outcome FROM first_results WHERE key = ?", (name,)).fetchone()
        if row is not None:
            refuse_other_input(row[0], digest)
            return bytes(row[1]) if row[1] is not None else False
        used = file.execute("SELECT count(*) FROM first_results WHERE owner = ?", (owner,)).fetchone()[0]
        if used >= self._per_identity:
            message = f"You have used {self._per_identity} idempotency keys lately: no more are kept"
            details = {"reason": "idempotency_keys", "retry_after": int(self._keep), "started": False}
            raise CallError("RESOURCE_EXHAUSTED", message, details)
        entry = (name, owner, digest, holder, now + lease)
        file.execute("INSERT INTO first_results VALUES (?, ?, ?, ?, ?, NULL)", entry)
        return True

    def _finish(self, file: sqlite3.Connection, key: EntryKey, holder: str, text: bytes | None) -> None:
        """Keep an outcome, or forget that the call was begun; an entry that another has taken over stays."""
        ours = (key.digest(), holder)
        if text is None:
            file.execute("DELETE FROM first_results WHERE key = ? AND holder = ?", ours)
        else:
            until = time.time() + self._keep
            file.execute(
                "UPDATE first_results SET outcome = ?, until = ? WHERE key = ? AND holder = ?", (text, until, *ours)
            )
