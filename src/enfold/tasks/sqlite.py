"""Tasks kept in one SQLite file, shared by the processes of a machine. They survive the death of all of them.

A task is one row. Whoever runs tasks holds a lock file that the kernel lets go when its process dies; the others look
at it several times a second, and take over. Changes of other processes are seen as often, by the file's version.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec

from enfold.log import Log
from enfold.operation import Progress
from enfold.tasks.file_thread import FileThread
from enfold.tasks.process_lock import ProcessLock, dead_holders
from enfold.tasks.store import (
    Claim,
    Claims,
    Ending,
    FencedError,
    Served,
    Signal,
    after_ending,
    after_signal,
    limit_reached,
    now_ms,
    same_order,
    store_away,
)
from enfold.tasks.task import Order, Task
from enfold.tasks.transitions import accepted, claimed, died, noted, overdue, unclaimed
from enfold.tasks.wakeups import WORK, Wakeups

__all__ = ["SQLiteTasks"]

T = TypeVar("T")

VERSION: Final = 1  # of the tables
BUSY_SECONDS: Final = 2.0
LOOK_EVERY: Final = 0.1  # seconds between looks at what other processes have done
WATCH_AGAIN: Final = 5.0  # seconds after which a watcher looks although it was not woken
MOST_EXPIRED: Final = 500  # rows that one transaction ends or forgets

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS tasks (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    operation TEXT NOT NULL,
    key TEXT,
    status TEXT NOT NULL,
    holder TEXT NOT NULL,
    change INTEGER NOT NULL,
    deadline INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    ordered BLOB NOT NULL,
    state BLOB NOT NULL,
    outcome BLOB
);
CREATE UNIQUE INDEX IF NOT EXISTS tasks_by_key ON tasks (owner, operation, key) WHERE key IS NOT NULL;
CREATE INDEX IF NOT EXISTS tasks_by_change ON tasks (change);
CREATE INDEX IF NOT EXISTS tasks_by_owner ON tasks (owner, number);
CREATE INDEX IF NOT EXISTS tasks_unfinished ON tasks (owner) WHERE outcome IS NULL;
CREATE INDEX IF NOT EXISTS tasks_queued ON tasks (number) WHERE status = 'working' AND holder = '';
CREATE INDEX IF NOT EXISTS tasks_held ON tasks (holder) WHERE holder != '';
CREATE INDEX IF NOT EXISTS tasks_due ON tasks (deadline) WHERE outcome IS NULL;
CREATE INDEX IF NOT EXISTS tasks_kept ON tasks (expires) WHERE outcome IS NOT NULL;
"""
# Changes are counted, so that other processes see which tasks are others than before.
_NEXT: Final = "(SELECT COALESCE(MAX(change), 0) + 1 FROM tasks)"
_INSERT: Final = f"""
INSERT INTO tasks (id, owner, operation, key, status, holder, change, deadline, expires, ordered, state)
VALUES (?, ?, ?, ?, ?, '', {_NEXT}, ?, ?, ?, ?)
"""  # noqa: S608  # every value is bound
_UPDATE: Final = f"UPDATE tasks SET status = ?, holder = ?, change = {_NEXT}, state = ?, outcome = ? WHERE id = ?"  # noqa: S608
_WHOLE: Final = "SELECT ordered, state, outcome FROM tasks"
_QUEUED: Final = "FROM tasks WHERE status = 'working' AND holder = ''"
_STATE_FIELDS: Final = tuple(name for name in Task.__struct_fields__ if name not in ("order", "outcome"))


class SQLiteTasks:
    """A file of tasks. `fsync="normal"` is faster, and may lose the last moments when the power fails."""

    beat = 0.25

    def __init__(self, path: Path | str, *, fsync: Literal["full", "normal"] = "full") -> None:
        """The file is made with the first task, and its folder where it is not there."""
        if fsync not in ("full", "normal"):
            raise ValueError(f"Unknown fsync {fsync!r}: use full or normal")
        self.path = Path(path)
        self._fsync = fsync
        self._holders = Path(f"{self.path}-workers")
        self._lock: ProcessLock | None = None
        self._wakeups = Wakeups()
        self._changed: set[str] = set()  # in the thread: tasks that the transaction under way changes
        self._version = 0
        self._seen = 0  # the last change that this process knows of
        self._look_at = 0.0
        self._missing: dict[str, float] = {}
        self._thread = FileThread(self._open, self._look, LOOK_EVERY)

    async def close(self) -> None:
        """Let go of the file; what this process still held is for others."""
        await asyncio.to_thread(self._thread.close)
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        self._wakeups.wake()

    # the verbs

    async def accept(self, order: Order, limit: int) -> Task:
        return await self._write(partial(self._accept, order, msgspec.json.encode(order), limit))

    async def get(self, owner: str | None, task_id: str) -> Task | None:
        return await self._read(partial(_find, owner, task_id))

    async def list(self, owner: str | None, limit: int = 100) -> list[Task]:
        return await self._read(partial(_list, owner, limit))

    async def claim(self, served: Served, n: int, wait: float) -> Claims:
        moment = self._wakeups.expect(WORK)
        try:
            claims = await self._claim_now(served(), n)
            if not claims:
                await self._wakeups.wait(moment, wait)
                claims = await self._claim_now(served(), n)
        finally:
            moment.cancel()
        return claims

    async def hold(
        self, claim: Claim, progress: Progress | None = None, notes: Mapping[str, Any] | None = None
    ) -> bool:
        if progress is None and not notes:
            return (await self._read(partial(_held, claim))).is_cancelling
        step = partial(noted, progress=progress, notes=notes)
        return (await self._write(partial(self._change_held, claim, step))).is_cancelling

    async def record(self, claim: Claim, ending: Ending) -> Task:
        return await self._write(partial(self._change_held, claim, lambda task, now: after_ending(task, ending, now)))

    async def signal(self, owner: str | None, task_id: str, signal: Signal) -> Task | None:
        return await self._write(partial(self._signal, owner, task_id, signal))

    async def watch(self, owner: str | None, task_id: str) -> AsyncGenerator[Task]:
        seen: Task | None = None
        while True:
            moment = self._wakeups.expect(task_id)
            try:
                task = await self.get(owner, task_id)
                if task is None:
                    return
                if task != seen:
                    yield task
                    seen = task
                    if task.is_ended:
                        return
                else:
                    await self._wakeups.wait(moment, WATCH_AGAIN)
            finally:
                moment.cancel()

    async def expire(self) -> None:
        while await self._write(self._expire):
            pass

    # asking the thread

    async def _write(self, job: Callable[[sqlite3.Connection], T]) -> T:
        return await self._asked(self._thread.submit(job))

    async def _read(self, job: Callable[[sqlite3.Connection], T]) -> T:
        return await self._asked(self._thread.submit(job, writes=False))

    async def _asked(self, answer: asyncio.Future[T]) -> T:
        try:
            return await answer
        except (sqlite3.Error, OSError) as error:
            Log("enfold.tasks").warning("the tasks in %s cannot be used: %s", self.path, error)
            raise store_away(error) from error

    async def _claim_now(self, operations: Sequence[str] | Any, n: int) -> Claims:
        if not await self._read(partial(_wanted, operations)):
            return []
        answer = self._thread.submit(partial(self._claim, operations, n))
        try:
            return await self._asked(asyncio.shield(answer))
        except asyncio.CancelledError:
            answer.add_done_callback(self._give_back)  # claimed for nobody
            raise

    def _give_back(self, answer: asyncio.Future[Claims]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            return
        for claim in answer.result():
            given = self._thread.submit(partial(self._change_held, claim, unclaimed))
            given.add_done_callback(lambda done: done.cancelled() or done.exception())

    # jobs, in the thread

    def _accept(self, order: Order, ordered: bytes, limit: int, connection: sqlite3.Connection) -> Task:
        if order.key is not None:
            where = "owner = ? AND operation = ? AND key = ?"
            first = _one(connection, where, (order.owner, order.operation, order.key))
            if first is not None:
                return same_order(first, order)
        counting = "SELECT COUNT(*) FROM tasks WHERE owner = ? AND outcome IS NULL"
        if connection.execute(counting, (order.owner,)).fetchone()[0] >= limit:
            raise limit_reached(limit)
        task = accepted(msgspec.json.decode(ordered, type=Order))
        row = (order.id, order.owner, order.operation, order.key, task.status, order.deadline, order.expires)
        connection.execute(_INSERT, (*row, ordered, _state(task)))
        self._changed.add(task.id)
        return task

    def _claim(self, operations: Any, n: int, connection: sqlite3.Connection) -> Claims:
        names = _wanted(operations, connection)
        marks = ",".join("?" * len(names))
        # The marks are question marks; every value is bound.
        query = f"SELECT ordered, state, outcome {_QUEUED} AND operation IN ({marks}) ORDER BY number LIMIT ?"
        queued = [_decode(row) for row in connection.execute(query, (*names, n)).fetchall()]
        holder = self._held_lock().name if queued else ""
        return [Claim(self._claim_one(task, holder, connection)) for task in queued]

    def _claim_one(self, task: Task, holder: str, connection: sqlite3.Connection) -> Task:
        fence = f"{holder}.{os.urandom(8).hex()}"
        return self._put(claimed(task, fence, now_ms()), connection)

    def _held_lock(self) -> ProcessLock:
        if self._lock is None:
            self._lock = ProcessLock(self._holders)
        self._lock.hold()
        return self._lock

    def _change_held(self, claim: Claim, step: Callable[..., Task], connection: sqlite3.Connection) -> Task:
        before = _held(claim, connection)
        after = step(before, now=now_ms())
        return after if after is before else self._put(after, connection)

    def _signal(self, owner: str | None, task_id: str, signal: Signal, connection: sqlite3.Connection) -> Task | None:
        before = _find(owner, task_id, connection)
        if before is None:
            return None
        after = after_signal(before, signal, now_ms())
        return after if after is before else self._put(after, connection)

    def _expire(self, connection: sqlite3.Connection) -> bool:
        """End and forget some of what is due; whether there may be more."""
        now = now_ms()
        forgetting = "DELETE FROM tasks WHERE number IN (SELECT number FROM tasks WHERE outcome IS NOT NULL AND expires <= ? LIMIT ?)"
        gone = connection.execute(forgetting, (now, MOST_EXPIRED)).rowcount
        late = connection.execute(
            f"{_WHOLE} WHERE outcome IS NULL AND deadline <= ? LIMIT ?", (now, MOST_EXPIRED)
        ).fetchall()
        for row in late:
            self._put(overdue(_decode(row), now), connection)
        return MOST_EXPIRED in (gone, len(late))

    def _put(self, task: Task, connection: sqlite3.Connection) -> Task:
        outcome = None if task.outcome is None else msgspec.json.encode(task.outcome)
        holder = task.fence.partition(".")[0]
        connection.execute(_UPDATE, (task.status, holder, _state(task), outcome, task.id))
        self._changed.add(task.id)
        return task

    # the file, and what others do with it

    def _open(self) -> sqlite3.Connection:
        if str(self.path) != ":memory:":
            self.path.parent.mkdir(parents=True, exist_ok=True)
            os.close(
                os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600)
            )  # Inputs and results are for their owner's eyes.
        connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            _set_up(connection, self._fsync)
        except BaseException:
            connection.close()
            raise
        return connection

    def _look(self, connection: sqlite3.Connection) -> None:
        """Wake whoever waits for what has changed; now and then see whether a worker has died."""
        if self._changed:
            self._wakeups.wake(self._changed)
            self._changed = set()
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY
        version = connection.execute("PRAGMA data_version").fetchone()[0]
        if version != self._version:
            self._version = version
            self._wake_changed(connection)
        if self._lock is not None or self._wakeups:
            self._take_over(connection)

    def _wake_changed(self, connection: sqlite3.Connection) -> None:
        """Wake those who wait for what other processes have changed since the last look."""
        rows = connection.execute("SELECT id, change FROM tasks WHERE change > ?", (self._seen,)).fetchall()
        self._seen = max((change for _, change in rows), default=self._seen)
        self._wakeups.wake(task_id for task_id, _ in rows)

    def _take_over(self, connection: sqlite3.Connection) -> None:
        """Give what dead processes held to the living."""
        own = None if self._lock is None else self._lock.name
        if self._lock is not None:
            self._lock.hold()
        found = connection.execute("SELECT DISTINCT holder FROM tasks WHERE holder != ''").fetchall()
        for name in dead_holders(self._holders, [name for (name,) in found if name != own], self._missing):
            connection.execute("BEGIN IMMEDIATE")
            try:
                left = connection.execute(f"{_WHOLE} WHERE holder = ?", (name,)).fetchall()
                for row in left:
                    self._put(died(_decode(row), now_ms()), connection)
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            (self._holders / name).unlink(missing_ok=True)  # only now: until then others may find it dead, too
            self._wakeups.wake(self._changed)
            self._changed = set()


def _set_up(connection: sqlite3.Connection, fsync: str) -> None:
    """Make the tables; two processes may do so at once, so a busy file is tried again."""
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {fsync}")
            if connection.execute("PRAGMA user_version").fetchone()[0] > VERSION:
                raise OSError("The file of tasks was written by a newer version of Enfold")
            connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {VERSION}; COMMIT;")
        except sqlite3.OperationalError:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
        else:
            return


def _find(owner: str | None, task_id: str, connection: sqlite3.Connection) -> Task | None:
    task = _one(connection, "id = ?", (task_id,))
    return task if task is not None and owner in (None, task.owner) else None


def _one(connection: sqlite3.Connection, where: str, values: tuple[Any, ...]) -> Task | None:
    row = connection.execute(f"{_WHOLE} WHERE {where}", values).fetchone()
    return None if row is None else _decode(row)


def _list(owner: str | None, limit: int, connection: sqlite3.Connection) -> list[Task]:
    where, values = ("", ()) if owner is None else ("WHERE owner = ?", (owner,))
    query = f"SELECT ordered, state, NULL FROM tasks {where} ORDER BY number DESC LIMIT ?"  # noqa: S608  # bound
    return [_decode(row) for row in connection.execute(query, (*values, limit)).fetchall()]


def _wanted(operations: Any, connection: sqlite3.Connection) -> list[str]:
    """The operations that somebody waits for, of those that can be run here."""
    found = connection.execute(f"SELECT DISTINCT operation {_QUEUED}").fetchall()
    return [name for (name,) in found if name in operations]


def _held(claim: Claim, connection: sqlite3.Connection) -> Task:
    task = _one(connection, "id = ?", (claim.id,))
    if task is None or task.fence != claim.task.fence:
        raise FencedError
    return task


def _state(task: Task) -> bytes:
    return msgspec.json.encode({name: getattr(task, name) for name in _STATE_FIELDS})


_task: Final = msgspec.json.Decoder(Task).decode


def _decode(row: tuple[bytes, bytes, bytes | None]) -> Task:
    """A task from its three texts: what was ordered never changes, so that it is written only once."""
    ordered, state, outcome = row
    tail = b"}" if outcome is None else b',"outcome":' + outcome + b"}"
    return _task(b'{"order":' + ordered + b"," + state[1:-1] + tail)
