"""Calls that come twice under one key: the first is run, its outcome is kept, and repeats get it. Kept in memory here.

How many keys each identity may use is bounded: nobody pushes out another's.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final, Generic, TypeVar

import msgspec

from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError, invalid_argument
from enfold.idempotency.outcomes import Outcome, outcome_of, result_of
from enfold.operation.repeats import EntryKey, Owner, Run

C = TypeVar("C")
T = TypeVar("T")

KEEP: Final = 3600.0  # seconds in which a second call with the same key gets the first result
PER_IDENTITY: Final = 10_000  # keys of one identity that are kept at the same time
BYTES_PER_IDENTITY: Final = 64 * 1024 * 1024
PAUSE: Final = 0.05  # seconds between two looks at a first call that another process runs


class FirstResults(ABC, Generic[C]):
    """A store of first results. A subclass keeps the entries, by three steps; `C` is its record of a call that was begun."""

    def __init__(self, quota: KeyQuota | None = None) -> None:
        self._quota = quota
        self._running: set[asyncio.Task[Any]] = set()

    async def once(self, key: EntryKey, digest: str, ttl: float, run: Run) -> ResponseEnvelope[Any]:
        """The result of `run`, or of the first call with this key."""
        return result_of(await self._to_its_end(self._outcome(key, digest, time.monotonic() + ttl, run)))

    async def _outcome(self, key: EntryKey, digest: str, ends_at: float, run: Run) -> Outcome:
        while True:
            found = await self._begin(key, digest, ends_at)
            if isinstance(found, Outcome):
                return found
            if found is not None:
                return await self._first(key, found, run)
            if time.monotonic() + PAUSE >= ends_at:
                raise not_ended_yet()
            await asyncio.sleep(PAUSE)

    async def _first(self, key: EntryKey, begun: C, run: Run) -> Outcome:
        try:
            with nullcontext() if self._quota is None else self._quota.used_by(key.owner):
                outcome = await outcome_of(run)
        except BaseException as error:
            await asyncio.shield(self._give_up(key, begun, error))
            raise
        await self._keep(key, begun, outcome)
        return outcome

    async def _to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it to its end even if the caller is cancelled: a repeat finds the outcome."""
        return await asyncio.shield(self._in_background(work))

    def _in_background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        running = asyncio.get_running_loop().create_task(work)
        self._running.add(running)
        running.add_done_callback(self._forget_task)
        return running

    def _forget_task(self, running: asyncio.Task[Any]) -> None:
        self._running.discard(running)
        if not running.cancelled():
            running.exception()  # seen, though perhaps by nobody

    @abstractmethod
    async def _begin(self, key: EntryKey, digest: str, ends_at: float) -> Outcome | C | None:
        """The outcome of the first call, a `C` if this call is the first, or None while another process runs it."""

    @abstractmethod
    async def _keep(self, key: EntryKey, begun: C, outcome: Outcome) -> None:
        """Keep the outcome of a first call."""

    @abstractmethod
    async def _give_up(self, key: EntryKey, begun: C, error: BaseException) -> None:
        """Forget a first call that ended without an outcome."""


def refuse_other_input(expected: str, digest: str) -> None:
    if expected != digest:
        message = "This idempotency key was used with another input"
        raise invalid_argument("idempotencyKey", "constraint", "the same input", message)


def not_ended_yet() -> CallError:
    """The error of a repeat whose deadline comes before the first call has ended."""
    return CallError("TIMEOUT", "The first call with this idempotency key has not ended yet")


def too_many_keys(limit: int, wait: float) -> CallError:
    message = f"You have used {limit} idempotency keys lately: no more are kept"
    return CallError(
        "RESOURCE_EXHAUSTED", message, {"reason": "idempotency_keys", "retry_after": wait, "started": False}
    )


# --- how many each may have ---------------------------------------------------------------------------------------


class KeyQuota:
    """Counts the keys each identity has used lately: nobody uses up another's."""

    def __init__(self, keep: float, per_identity: int) -> None:
        self._keep = keep
        self._per_identity = per_identity
        self._used: dict[Owner, deque[float]] = {}
        self._sweep_at = 0.0

    @contextmanager
    def used_by(self, owner: Owner) -> Iterator[None]:
        """Count one more key, or raise RESOURCE_EXHAUSTED; where the block raises, nothing is kept, and nothing counted."""
        self._take(owner)
        try:
            yield
        except BaseException:
            if self._used.get(owner):
                self._used[owner].pop()
            raise

    def _take(self, owner: Owner) -> None:
        now = time.monotonic()
        if now >= self._sweep_at:
            self._sweep(now)
        used = self._used.setdefault(owner, deque())
        self._drop_old(used, now)
        if len(used) >= self._per_identity:
            raise too_many_keys(self._per_identity, round(used[0] + self._keep - now, 3) if used else self._keep)
        used.append(now)

    def _drop_old(self, used: deque[float], now: float) -> None:
        while used and used[0] + self._keep <= now:
            used.popleft()

    def _sweep(self, now: float) -> None:
        """Drop identities whose keys have all expired."""
        self._sweep_at = now + self._keep / 8
        self._used = {owner: used for owner, used in self._used.items() if used and used[-1] + self._keep > now}


# --- in memory ----------------------------------------------------------------------------------------------------


class _FirstResult(msgspec.Struct):
    digest: str
    outcome: asyncio.Future[bytes]
    expires_at: float = float("inf")  # while it runs
    size: int = 0


class MemoryOnceStore(FirstResults[_FirstResult]):
    """First results of one process."""

    def __init__(
        self,
        *,
        keep: float = KEEP,
        per_identity: int = PER_IDENTITY,
        bytes_per_identity: int = BYTES_PER_IDENTITY,
    ) -> None:
        super().__init__(KeyQuota(keep, per_identity))
        self._seconds = keep
        self._bytes_per_identity = bytes_per_identity
        self._owners: dict[Owner, _Entries] = {}
        self._sweep_at = 0.0

    async def _begin(self, key: EntryKey, digest: str, ends_at: float) -> Outcome | _FirstResult | None:
        now = time.monotonic()
        if now >= self._sweep_at:
            self._sweep(now)
        entries = self._owners.get(key.owner)
        if entries is None:
            entries = self._owners[key.owner] = _Entries(self._bytes_per_identity)
        entries.drop_old(now)
        entry = entries.get(key)
        if entry is None:
            entry = entries[key] = _FirstResult(digest, asyncio.get_running_loop().create_future())
            return entry
        refuse_other_input(entry.digest, digest)
        try:
            return _read(await asyncio.wait_for(asyncio.shield(entry.outcome), ends_at - now))
        except TimeoutError:
            raise not_ended_yet() from None

    async def _keep(self, key: EntryKey, begun: _FirstResult, outcome: Outcome) -> None:
        text = _write(outcome)
        begun.outcome.set_result(text)
        self._owners[key.owner].keep(key, begun, len(text), time.monotonic() + self._seconds)

    async def _give_up(self, key: EntryKey, begun: _FirstResult, error: BaseException) -> None:
        self._owners[key.owner].pop(key, None)
        begun.outcome.set_exception(_for_others(error))
        begun.outcome.exception()  # whether anybody waits for it or not

    def _sweep(self, now: float) -> None:
        """Drop expired entries of all identities, also of those that do not come back."""
        self._sweep_at = now + self._seconds / 8
        for owner, entries in list(self._owners.items()):
            entries.drop_old(now)
            if not entries:
                del self._owners[owner]


class _Entries(dict[EntryKey, _FirstResult]):
    """The entries of one identity: those that run, and then those that are kept, the oldest first."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self._size = 0
        self._kept: deque[EntryKey] = deque()

    def keep(self, key: EntryKey, entry: _FirstResult, size: int, until: float) -> None:
        """Keep what has ended; where it is too much, the oldest of the same identity go."""
        entry.expires_at, entry.size = until, size
        self._kept.append(key)
        self._size += size
        while self._size > self._limit:
            self._drop()

    def drop_old(self, now: float) -> None:
        while self._kept and self[self._kept[0]].expires_at <= now:
            self._drop()

    def _drop(self) -> None:
        self._size -= self.pop(self._kept.popleft()).size


_write: Final = msgspec.json.Encoder().encode
_read: Final = msgspec.json.Decoder(Outcome).decode


def _for_others(error: BaseException) -> CallError:
    """The error of repeats that waited for a first call without an outcome."""
    if isinstance(error, CallError):
        return error
    return CallError("UNAVAILABLE", "The first call with this idempotency key was given up")
