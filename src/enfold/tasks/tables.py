"""Tasks kept in the tables of an SQLite database, in memory or in a file. A task is one row."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from operator import attrgetter
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import msgspec

from enfold.errors import CallError
from enfold.middleware.idempotency_store import failure
from enfold.observability.log import Log
from enfold.operations import Progress
from enfold.tasks import transitions
from enfold.tasks.model import EVERY_TASK, NO_INPUT, Order, Task, TaskFilter
from enfold.tasks.store import (
    HOUR,
    OVERHEAD,
    WORK,
    Calls,
    Changes,
    Claim,
    Claims,
    Ending,
    FencedError,
    Room,
    Served,
    Signal,
    TaskLimits,
    Wakeups,
    after_ending,
    after_signal,
    check_kept_bytes,
    is_large_share,
    limit_reached,
    now_ms,
    same_order,
    store_unavailable,
    unreadable,
)

T = TypeVar("T")
Job: TypeAlias = Callable[[sqlite3.Connection], Any]
# Takes the results of jobs that have written, and returns the calls that wake those who wait for them.
Publish: TypeAlias = Callable[[Sequence[Any]], Calls]
_Row: TypeAlias = tuple[str, bytes, bytes, bytes | None]  # the id, and the three texts of a task

WATCH_POLL: Final = 5.0  # seconds after which a watcher looks although it was not woken
MAX_RECENT_BYTES: Final = 64 * 1024  # of a task kept in memory for watchers, who decode it on their event loop
EXPIRE_BATCH: Final = 500  # rows that one transaction ends or forgets

TABLES: Final = """
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
CREATE TABLE IF NOT EXISTS kept_bytes (
    owner TEXT NOT NULL,
    hour INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (owner, hour)
) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS tasks_by_key ON tasks (owner, operation, key) WHERE key IS NOT NULL;
CREATE INDEX IF NOT EXISTS tasks_by_change ON tasks (change);
CREATE INDEX IF NOT EXISTS tasks_by_owner ON tasks (owner, number);
CREATE INDEX IF NOT EXISTS tasks_unfinished ON tasks (owner, deadline, outcome) WHERE outcome IS NULL;
CREATE INDEX IF NOT EXISTS tasks_queued ON tasks (operation, number, status, holder)
    WHERE status = 'working' AND holder = '';
CREATE INDEX IF NOT EXISTS tasks_held ON tasks (holder) WHERE holder != '';
CREATE INDEX IF NOT EXISTS tasks_kept ON tasks (expires) WHERE outcome IS NOT NULL;
"""
# Changes are counted, so that other processes see which tasks are others than before.
_NEXT: Final = "(SELECT COALESCE(MAX(change), 0) + 1 FROM tasks)"
_INSERT: Final = f"""
INSERT INTO tasks (id, owner, operation, key, status, holder, change, deadline, expires, ordered, state)
VALUES (?, ?, ?, ?, ?, ?, {_NEXT}, ?, ?, ?, ?)
"""  # noqa: S608  # every value is bound
_UPDATE: Final = f"UPDATE tasks SET status = ?, holder = ?, change = {_NEXT}, state = ?, outcome = ? WHERE id = ?"  # noqa: S608
_END: Final = f"UPDATE tasks SET status = 'failed', holder = '', change = {_NEXT}, outcome = ? WHERE id = ?"  # noqa: S608
_SIZE: Final = f"LENGTH(ordered) + LENGTH(state) + LENGTH(outcome) + {OVERHEAD}"
_HOUR: Final = f"expires / {HOUR} + 1"  # as `hour_of` has it
_COUNT: Final = f"""
INSERT INTO kept_bytes SELECT owner, {_HOUR}, {_SIZE} FROM tasks WHERE id = ?
ON CONFLICT (owner, hour) DO UPDATE SET bytes = bytes + excluded.bytes
"""  # noqa: S608
COUNT_ALL: Final = f"""
INSERT INTO kept_bytes SELECT owner, {_HOUR}, SUM({_SIZE}) FROM tasks WHERE outcome IS NOT NULL GROUP BY 1, 2
"""  # noqa: S608
_FIELDS: Final = "SELECT id, ordered, state, outcome"
WHOLE: Final = f"{_FIELDS} FROM tasks"
_QUEUED: Final = "FROM tasks WHERE status = 'working' AND holder = ''"
# The operations of what is queued, each found by one step in the index, however much is queued of it.
_QUEUED_NAMES: Final = f"""
WITH RECURSIVE names (name) AS (
    SELECT MIN(operation) {_QUEUED}
    UNION ALL
    SELECT (SELECT MIN(operation) {_QUEUED} AND operation > name) FROM names WHERE name IS NOT NULL
)
SELECT name FROM names WHERE name IS NOT NULL
"""  # noqa: S608
_STATE_FIELDS: Final = tuple(name for name in Task.__struct_fields__ if name not in ("order", "outcome"))
_state_of: Final = attrgetter(*_STATE_FIELDS)


class Jobs(Protocol):
    """Runs jobs on the connection to a database, each in a transaction."""

    def submit(self, job: Callable[[sqlite3.Connection], T], *, writes: bool = True) -> asyncio.Future[T]:
        """Return the future result of a job; an exception rolls back its writes."""

    def close(self) -> None: ...


class TableTasks:
    """A store in the tables of a database; it belongs to this process alone, unless a subclass says otherwise."""

    beat = 0.25

    def __init__(self, place: str, make_jobs: Callable[[Publish], Jobs]) -> None:
        """`place` is named in the log; `make_jobs` gets a callback for stored jobs, called before they are answered."""
        self._place = place
        self._wakeups = Wakeups()
        self._changed: dict[
            str, Task | None
        ] = {}  # what the running job has changed; None where watchers have to read it
        self._last_error = ""  # why it could not be used the last time
        self._jobs = make_jobs(self._publish)

    async def close(self) -> None:
        await asyncio.to_thread(self._jobs.close)
        self._wakeups.wake()

    # the verbs

    def accept(self, order: Order, limits: TaskLimits, *, claims: bool = False) -> Coroutine[Any, Any, Task | Claim]:
        job = partial(self._accept, order, msgspec.json.encode(order), limits, claims)
        return self._claimed(job) if claims else self._write(job)

    async def get(self, owner: str | None, task_id: str) -> Task | None:
        recent = self._wakeups.current(owner, task_id)
        if recent is not None and self._is_settled_here(recent):
            return recent
        task, now = await self._read(partial(self._look_up, owner, task_id)), now_ms()
        if task is None or transitions.is_forgotten(task, now):
            return None
        if transitions.end_if_overdue(task, now) is task:
            return task
        return await self._write(partial(self._find_now, owner, task_id))

    async def list(self, owner: str | None, limit: int = 100, wanted: TaskFilter = EVERY_TASK) -> list[Task]:
        found, now = await self._read(partial(_list, owner, limit, wanted)), now_ms()
        if any(
            transitions.is_forgotten(task, now) or transitions.end_if_overdue(task, now) is not task for task in found
        ):
            await self.expire()
            found = await self._read(partial(_list, owner, limit, wanted))
        return found

    async def claim(self, served: Served, room: Room, wait: float, *, but: Collection[str] = ()) -> Claims:
        with self._wakeups.expect(WORK) as waiter:
            claims = await self._claim_now(served(), room, but)
            if not claims and await waiter.wait(wait):
                claims = await self._claim_now(served(), room, but)
        return claims

    def take(self, task_id: str) -> Coroutine[Any, Any, Claim | None]:
        return self._claimed(partial(self._take, task_id))

    async def has_worker(self) -> bool | None:
        return None

    async def hold(
        self, claim: Claim, progress: Progress | None = None, notes: Mapping[str, Any] | None = None
    ) -> bool:
        if progress is None and not notes:
            return (await self._read(partial(_held, claim))).is_cancelling
        step = partial(transitions.note, progress=progress, notes=notes)
        return (await self._write(partial(self._change_held, claim, step))).is_cancelling

    def record(self, claim: Claim, ending: Ending) -> Coroutine[Any, Any, Task]:
        return self._write(partial(self._change_held, claim, partial(after_ending, ending=ending)))

    def signal(self, owner: str | None, task_id: str, signal: Signal) -> Coroutine[Any, Any, Task | None]:
        return self._write(partial(self._signal, owner, task_id, signal))

    def watch(self, owner: str | None, task_id: str) -> AsyncGenerator[Task]:
        return self._wakeups.watch(owner, task_id, partial(self.get, owner, task_id), WATCH_POLL)

    async def expire(self) -> None:
        while await self._write(self._expire):
            pass

    # asking for jobs

    def _write(self, job: Callable[[sqlite3.Connection], T]) -> Coroutine[Any, Any, T]:
        return self._asked(self._submit(job))

    def _read(self, job: Callable[[sqlite3.Connection], T]) -> Coroutine[Any, Any, T]:
        return self._asked(self._submit(job, writes=False))

    def _submit(
        self, job: Callable[[sqlite3.Connection], T], *, writes: bool = True
    ) -> asyncio.Future[tuple[T, Changes]]:
        return self._jobs.submit(partial(self._run, job), writes=writes)

    async def _asked(self, answer: asyncio.Future[tuple[T, Changes]]) -> T:
        try:
            found, _ = await answer
        except (sqlite3.Error, OSError) as error:
            if str(error) != self._last_error:
                Log("enfold.tasks").warning("Cannot use the tasks in %s: %s", self._place, error)
            self._last_error = str(error)
            self._wakeups.forget()  # the file may be another now
            raise store_unavailable(error) from error
        self._last_error = ""
        return found

    async def _claim_now(self, operations: Collection[str], room: Room, but: Collection[str]) -> Claims:
        """Claim what is queued, if anything is: a look at it takes no lock."""
        if not await self._read(partial(self._wanted_here, operations)) or (n := room()) <= 0:
            return []
        return await self._claimed(partial(self._claim, operations, n, tuple(but)))

    async def _claimed(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Await a job that claims tasks; if its caller is cancelled, return the claimed tasks."""
        answer = self._submit(job)
        try:
            return await self._asked(asyncio.shield(answer))
        except asyncio.CancelledError:  # before the answer came, or in the very turn in which it did
            answer.add_done_callback(self._give_back)
            raise

    def _give_back(self, answer: asyncio.Future[tuple[Any, Changes]]) -> None:
        found = None if answer.exception() else answer.result()[0]
        for claim in found if isinstance(found, list) else [found]:
            if isinstance(claim, Claim):
                given = self._submit(partial(self._change_held, claim, transitions.unclaim))
                given.add_done_callback(lambda done: done.cancelled() or done.exception())

    # the jobs

    def _run(self, job: Callable[[sqlite3.Connection], T], connection: sqlite3.Connection) -> tuple[T, Changes]:
        """Run a job; returns its result and what it has changed."""
        self._changed = {}
        return job(connection), self._changed

    def _accept(
        self, order: Order, ordered: bytes, limits: TaskLimits, claims: bool, connection: sqlite3.Connection
    ) -> Task | Claim:
        if order.key is not None:
            where = "owner = ? AND operation = ? AND key = ?"
            known = _one(connection, where, (order.owner, order.operation, order.key))
            first = self._now(known, connection)
            if first is not None and not transitions.frees_key(first):
                return same_order(first, order)
            if known is not None:
                connection.execute("UPDATE tasks SET key = NULL WHERE id = ?", (known.id,))
        now = now_ms()
        counting = "SELECT COUNT(*) FROM tasks WHERE owner = ? AND outcome IS NULL AND deadline > ?"
        if connection.execute(counting, (order.owner, now)).fetchone()[0] >= limits.limit:
            raise limit_reached(limits.limit)
        _check_kept(order.owner, limits, now, connection)
        task = transitions.accept(msgspec.json.decode(ordered, type=Order))
        holder = self._holder() if claims else ""
        if claims:
            task = _claimed_by(holder, task, now)
        row = (order.id, order.owner, order.operation, order.key, task.status, holder, order.deadline, order.expires)
        connection.execute(_INSERT, (*row, ordered, _state(task)))
        self._mark_changed(task, len(ordered))
        return Claim(task) if claims else task

    def _look_up(self, owner: str | None, task_id: str, connection: sqlite3.Connection) -> Task | None:
        """Return a task as stored; its next watcher needs no further read."""
        row = connection.execute(f"{WHOLE} WHERE id = ?", (task_id,)).fetchone()
        task = None if row is None else _decode(row)
        if task is None or owner not in (None, task.owner):
            return None
        if task.outcome is None and len(row[1]) <= MAX_RECENT_BYTES:
            self._wakeups.remember(task_id, task)
        return task

    def _find_now(self, owner: str | None, task_id: str, connection: sqlite3.Connection) -> Task | None:
        task = _one(connection, "id = ?", (task_id,))
        return self._now(task, connection) if task is not None and owner in (None, task.owner) else None

    def _now(self, task: Task | None, connection: sqlite3.Connection) -> Task | None:
        """Return a task as of now; one past its deadline ends."""
        now = now_ms()
        if task is None or transitions.is_forgotten(task, now):
            return None
        after = transitions.end_if_overdue(task, now)
        return task if after is task else self._put(after, connection)

    def _wanted_here(self, operations: Collection[str], connection: sqlite3.Connection) -> Sequence[str]:
        """Return the queued operations that can run here; creates the lock file, which shows that there is a worker."""
        self._holder()
        return _wanted(operations, connection)

    def _claim(
        self, operations: Collection[str], n: int, but: tuple[str, ...], connection: sqlite3.Connection
    ) -> Claims:
        others = f"AND owner NOT IN ({', '.join('?' * len(but))})" if but else ""
        oldest = f"SELECT number {_QUEUED} AND operation = ? {others} ORDER BY number LIMIT ?"
        found = (connection.execute(oldest, (name, *but, n)) for name in _wanted(operations, connection))
        numbers = [number for each in found for number in each]
        rows = [connection.execute(f"{WHOLE} WHERE number = ?", number).fetchone() for number in sorted(numbers)[:n]]
        queued = self._readable(rows, connection)
        holder, now = self._holder() if queued else "", now_ms()
        return [Claim(self._put(_claimed_by(holder, task, now), connection)) for task in queued]

    def _take(self, task_id: str, connection: sqlite3.Connection) -> Claim | None:
        task = _one(connection, "id = ?", (task_id,))
        if task is None or not task.is_queued:
            return None
        return Claim(self._put(_claimed_by(self._holder(), task, now_ms()), connection))

    def _holder(self) -> str:
        """Return the name under which this process holds tasks."""
        return "this process"

    def _is_settled_here(self, task: Task) -> bool:  # noqa: ARG002  # for stores of several processes
        """Whether no other process changes the task: it has ended or runs here. They can only ask to cancel it."""
        return True

    def _change_held(self, claim: Claim, step: Callable[..., Task], connection: sqlite3.Connection) -> Task:
        before = _held(claim, connection)
        after = step(before, now=now_ms())
        return after if after is before else self._put(after, connection)

    def _signal(self, owner: str | None, task_id: str, signal: Signal, connection: sqlite3.Connection) -> Task | None:
        before = self._find_now(owner, task_id, connection)
        if before is None:
            return None
        after = after_signal(before, signal, now_ms())
        return after if after is before else self._put(after, connection)

    def _expire(self, connection: sqlite3.Connection) -> bool:
        """End and forget some of what is due; whether there may be more."""
        now = now_ms()
        late = connection.execute(
            f"{WHOLE} WHERE outcome IS NULL AND deadline <= ? LIMIT ?", (now, EXPIRE_BATCH)
        ).fetchall()
        for task in self._readable(late, connection):
            self._put(transitions.end_if_overdue(task, now), connection)
        forgetting = "DELETE FROM tasks WHERE number IN (SELECT number FROM tasks WHERE outcome IS NOT NULL AND expires <= ? LIMIT ?)"
        gone = connection.execute(forgetting, (now, EXPIRE_BATCH)).rowcount
        connection.execute("DELETE FROM kept_bytes WHERE hour * ? <= ?", (HOUR, now))
        return EXPIRE_BATCH in (gone, len(late))

    def _readable(self, rows: Sequence[_Row], connection: sqlite3.Connection) -> Sequence[Task]:
        """Return the tasks of these rows; one that cannot be read fails, so that it does not block others."""
        found: list[Task] = []
        for row in rows:
            try:
                found.append(_decode(row))
            except CallError as error:
                Log("enfold.tasks").error("task %s ends: %s", row[0], error)
                connection.execute(_END, (msgspec.json.encode(failure(error)), row[0]))
                self._changed[row[0]] = None
        return found

    def _put(self, task: Task, connection: sqlite3.Connection) -> Task:
        task_id = task.order.id
        outcome = None if task.outcome is None else msgspec.json.encode(task.outcome)
        holder = task.fence.partition(".")[0]
        connection.execute(_UPDATE, (task.status, holder, _state(task), outcome, task_id))
        if outcome is not None:  # a task ends once
            connection.execute(_COUNT, (task_id,))
        (size,) = connection.execute("SELECT LENGTH(ordered) FROM tasks WHERE id = ?", (task_id,)).fetchone()
        self._mark_changed(task, size if outcome is None else size + len(outcome))
        return task

    def _mark_changed(self, task: Task, size: int) -> None:
        self._changed[task.order.id] = task if size <= MAX_RECENT_BYTES and self._is_settled_here(task) else None
        if task.is_queued:
            self._changed[WORK] = None

    def _publish(self, results: Sequence[tuple[Any, Changes]]) -> Calls:
        """Return the calls that wake those who wait for what stored jobs have changed."""
        return self._wakeups.changed({subject: task for _, changes in results for subject, task in changes.items()})


def _check_kept(owner: str, limits: TaskLimits, now: int, connection: sqlite3.Connection) -> None:
    kept = dict(connection.execute("SELECT hour, bytes FROM kept_bytes WHERE owner = ?", (owner,)).fetchall())
    if is_large_share(kept, limits, now):
        count, free, size = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        check_kept_bytes(kept, (count - free) * size, limits, now)


def _one(connection: sqlite3.Connection, where: str, values: tuple[Any, ...]) -> Task | None:
    row = connection.execute(f"{WHOLE} WHERE {where}", values).fetchone()
    return None if row is None else _decode(row)


def _list(owner: str | None, limit: int, wanted: TaskFilter, connection: sqlite3.Connection) -> list[Task]:
    where, values = ("", ()) if owner is None else ("WHERE owner = ?", (owner,))
    # Inputs may be large, and lists do not show them.
    ordered = "CAST(json_set(CAST(ordered AS TEXT), '$.input', json('{}')) AS BLOB)"
    ordered = f"CASE WHEN json_valid(CAST(ordered AS TEXT)) THEN {ordered} END"
    query = f"SELECT id, {ordered}, state, NULL FROM tasks {where} ORDER BY number DESC LIMIT ?"  # noqa: S608  # bound
    found: list[Task] = []
    with closing(connection.execute(query, (*values, limit if wanted == EVERY_TASK else -1))) as rows:
        for row in rows:
            with suppress(CallError):  # a corrupt row
                if wanted.takes(task := _decode(row)):
                    found.append(task)
            if len(found) >= limit:
                break
    return found


def _wanted(operations: Collection[str], connection: sqlite3.Connection) -> list[str]:
    """Return the operations of queued tasks that can run here."""
    return [name for (name,) in connection.execute(_QUEUED_NAMES).fetchall() if name in operations]


def _claimed_by(holder: str, task: Task, now: int) -> Task:
    return transitions.claim(task, f"{holder}.{os.urandom(8).hex()}", now)


def _held(claim: Claim, connection: sqlite3.Connection) -> Task:
    """Return the task of an attempt as it is now; its order, which may be large, is not read again."""
    order = claim.task.order
    row = connection.execute("SELECT state, outcome FROM tasks WHERE id = ?", (order.id,)).fetchone()
    try:
        task = None if row is None else _decode((order.id, _NO_ORDER, *row))
    except CallError:
        raise FencedError from None  # a corrupt row
    if task is None or task.fence != claim.task.fence:
        raise FencedError
    return msgspec.structs.replace(task, order=order)


def _state(task: Task) -> bytes:
    return msgspec.json.encode(dict(zip(_STATE_FIELDS, _state_of(task), strict=True)))


_task: Final = msgspec.json.Decoder(Task).decode
_NO_ORDER: Final = msgspec.json.encode(Order("", "", "", NO_INPUT, 0, 0, 0.0, 0, retries=False))


def _decode(row: _Row) -> Task:
    """Decode a task from its three columns; the order never changes, so it is written only once."""
    _, ordered, state, outcome = row
    try:
        tail = b"}" if outcome is None else b',"outcome":' + outcome + b"}"
        return _task(b'{"order":' + ordered + b"," + state[1:-1] + tail)
    except (msgspec.MsgspecError, TypeError, UnicodeError) as error:
        raise unreadable(error) from error
