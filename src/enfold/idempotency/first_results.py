"""First results in the memory of one process, and how many keys each identity may use: nobody pushes out another's."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any, Final

import msgspec

from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError, invalid_argument
from enfold.idempotency.outcomes import Outcome, outcome_of, result_of
from enfold.operation.repeats import EntryKey, Owner, Run

KEEP: Final = 3600.0  # seconds in which a second call with the same key gets the first result
PER_IDENTITY: Final = 10_000  # keys of one identity that are kept at the same time
BYTES_PER_IDENTITY: Final = 64 * 1024 * 1024


def refuse_other_input(expected: str, digest: str) -> None:
    if expected != digest:
        message = "This idempotency key was used with another input"
        raise invalid_argument("idempotencyKey", "constraint", "the same input", message)


def not_ended_yet() -> CallError:
    """What a repeat hears whose time is over before the first call has ended."""
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

    def take(self, owner: Owner) -> None:
        """Count one more key, or raise RESOURCE_EXHAUSTED."""
        now = time.monotonic()
        if now >= self._sweep_at:
            self._sweep(now)
        used = self._used.setdefault(owner, deque())
        self._drop_old(used, now)
        if len(used) >= self._per_identity:
            raise too_many_keys(self._per_identity, round(used[0] + self._keep - now, 3) if used else self._keep)
        used.append(now)

    def give_back(self, owner: Owner) -> None:
        """The newest key was not kept after all."""
        if self._used.get(owner):
            self._used[owner].pop()

    def _drop_old(self, used: deque[float], now: float) -> None:
        while used and used[0] + self._keep <= now:
            used.popleft()

    def _sweep(self, now: float) -> None:
        """Forget those who have not used a key for long."""
        self._sweep_at = now + self._keep / 8
        self._used = {owner: used for owner, used in self._used.items() if used and used[-1] + self._keep > now}


# --- in memory ----------------------------------------------------------------------------------------------------


class _FirstResult(msgspec.Struct):
    digest: str
    outcome: asyncio.Future[bytes]
    running: asyncio.Task[Outcome] | None = None
    expires_at: float = float("inf")  # while it runs
    size: int = 0


class MemoryOnceStore:
    """First results of one process."""

    def __init__(
        self,
        *,
        keep: float = KEEP,
        per_identity: int = PER_IDENTITY,
        bytes_per_identity: int = BYTES_PER_IDENTITY,
    ) -> None:
        self._keep = keep
        self._bytes_per_identity = bytes_per_identity
        self._quota = KeyQuota(keep, per_identity)
        self._owners: dict[Owner, _Entries] = {}
        self._sweep_at = 0.0

    async def once(self, key: EntryKey, digest: str, ttl: float, run: Run) -> ResponseEnvelope[Any]:
        """The result of `run`, or of the first call with this key."""
        now = time.monotonic()
        if now >= self._sweep_at:
            self._sweep(now)
        entries = self._owners.get(key.owner)
        if entries is None:
            entries = self._owners[key.owner] = _Entries(self._bytes_per_identity)
        entries.drop_old(now)
        entry = entries.get(key)
        if entry is None:
            return await self._first(entries, key, digest, run)
        refuse_other_input(entry.digest, digest)
        return result_of(_read(await _in_time(entry.outcome, ttl)))

    async def _first(self, entries: _Entries, key: EntryKey, digest: str, run: Run) -> ResponseEnvelope[Any]:
        """Run the first call; whoever leaves it meanwhile finds its result when they come again."""
        self._quota.take(key.owner)
        loop = asyncio.get_running_loop()
        entry = entries[key] = _FirstResult(digest, loop.create_future())
        entry.running = loop.create_task(self._run(entries, entry, key, run))
        return result_of(await asyncio.shield(entry.running))

    async def _run(self, entries: _Entries, entry: _FirstResult, key: EntryKey, run: Run) -> Outcome:
        try:
            outcome = await outcome_of(run)
            text = _write(outcome)
        except BaseException as error:
            entries.pop(key, None)
            self._quota.give_back(key.owner)
            entry.outcome.set_exception(_for_others(error))
            entry.outcome.exception()  # whether anybody waits for it or not
            raise
        entry.outcome.set_result(text)
        entries.keep(key, entry, len(text), time.monotonic() + self._keep)
        return outcome

    def _sweep(self, now: float) -> None:
        """Forget what is too old, of those too who do not come back."""
        self._sweep_at = now + self._keep / 8
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
        entry.expires_at, entry.size, entry.running = until, size, None
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


async def _in_time(outcome: asyncio.Future[bytes], ttl: float) -> bytes:
    """Wait for the first call, as long as the second one may take."""
    try:
        return await asyncio.wait_for(asyncio.shield(outcome), ttl)
    except TimeoutError:
        raise not_ended_yet() from None


def _for_others(error: BaseException) -> CallError:
    """What those hear who waited for a first call that gave no outcome."""
    if isinstance(error, CallError):
        return error
    return CallError("UNAVAILABLE", "The first call with this idempotency key was given up")
