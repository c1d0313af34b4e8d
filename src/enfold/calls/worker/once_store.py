"""First results, kept for calls that may come twice: keyed by who asks, for what, under which key. Memory, or a store."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from enfold.calls.protocol.events import Failed, Requested, Responded, call_error, envelope_of, failed, responded
from enfold.calls.worker.served import Owner
from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError
from enfold.operation import Identity

__all__ = [
    "EntryKey",
    "KeyQuota",
    "MemoryOnceStore",
    "OnceStore",
    "Outcome",
    "Run",
    "entry_key",
    "outcome_of",
    "refuse_other_input",
    "result_of",
]

KEEP: Final = 3600.0  # seconds in which a second call with the same key gets the first result
PER_IDENTITY: Final = 10_000  # keys of one identity that are kept at the same time
BYTES_PER_IDENTITY: Final = 64 * 1024 * 1024
MAX_KEY: Final = 256
_NO_ID: Final = "0" * 16  # an outcome that is kept belongs to no request any more

Run: TypeAlias = Callable[[], Awaitable[ResponseEnvelope[Any]]]


class EntryKey(msgspec.Struct, frozen=True):
    """What an entry is found by: nobody can meet another caller's entry, whatever key they choose."""

    owner: Owner
    operation_id: str
    key: str

    def digest(self) -> str:
        """The key as one word of bounded length."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()


class OnceStore(Protocol):
    """Remembers first results, so that a call with the same key has its effect once."""

    async def once(self, key: EntryKey, digest: str, ttl: float, run: Run) -> ResponseEnvelope[Any]:
        """The result of `run`, or of the first call with this key; another digest is a VALIDATION_ERROR."""


def entry_key(request: Requested, identity: Identity | None, *, vouched: bool) -> EntryKey:
    """The key of a request's entry; where the transport vouches for identities, one without may not use keys."""
    key = request.idempotency_key or ""
    if len(key) > MAX_KEY:
        raise _refused(f"An idempotency key has at most {MAX_KEY} characters", f"at most {MAX_KEY} characters")
    if identity is not None:
        return EntryKey((identity.id, identity.on_behalf_of), request.operation_id, key)
    if vouched:
        message = "An idempotency key needs an identity: without one it could meet another's"
        raise CallError("ACCESS_DENIED", message, {"reason": "no_identity"})
    return EntryKey((None, None), request.operation_id, key)


def refuse_other_input(expected: str, digest: str) -> None:
    if expected != digest:
        raise _refused("This idempotency key was used with another input", "the same input")


def _refused(message: str, expected: str) -> CallError:
    details = {"argument": "idempotencyKey", "reason": "constraint", "expected": expected}
    return CallError("VALIDATION_ERROR", message, details)


# --- outcomes as values -------------------------------------------------------------------------------------------


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a call ended, in a form that can be stored: a result, or a failure."""

    result: Responded | None = None
    failure: Failed | None = None


async def outcome_of(run: Run) -> Outcome:
    """Run it, and keep how it ends; an error after which it may be tried again is raised instead."""
    try:
        return Outcome(result=responded(_NO_ID, await run()))
    except CallError as error:
        if error.retryable:
            raise
        return Outcome(failure=failed(_NO_ID, error))


def result_of(outcome: Outcome) -> ResponseEnvelope[Any]:
    if outcome.result is not None:
        return envelope_of(outcome.result)
    raise call_error(outcome.failure) if outcome.failure else CallError("UNKNOWN_ERROR", "An entry without outcome")


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
            message = f"You have used {self._per_identity} idempotency keys lately: no more are kept"
            wait = round(used[0] + self._keep - now, 3) if used else self._keep
            details = {"reason": "idempotency_keys", "retry_after": wait, "started": False}
            raise CallError("RESOURCE_EXHAUSTED", message, details)
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


class _Entry(msgspec.Struct):
    digest: str
    outcome: asyncio.Future[bytes]
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
        self._quota.take(key.owner)
        entry = entries[key] = _Entry(digest, asyncio.get_running_loop().create_future())
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
        return result_of(outcome)

    def _sweep(self, now: float) -> None:
        """Forget what is too old, of those too who do not come back."""
        self._sweep_at = now + self._keep / 8
        for owner, entries in list(self._owners.items()):
            entries.drop_old(now)
            if not entries:
                del self._owners[owner]


class _Entries(dict[EntryKey, _Entry]):
    """The entries of one identity: those that run, and then those that are kept, the oldest first."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self._size = 0
        self._kept: deque[EntryKey] = deque()

    def keep(self, key: EntryKey, entry: _Entry, size: int, until: float) -> None:
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


async def _in_time(outcome: asyncio.Future[bytes], ttl: float) -> bytes:
    """Wait for the first call, as long as the second one may take."""
    try:
        return await asyncio.wait_for(asyncio.shield(outcome), ttl)
    except TimeoutError:
        raise CallError("TIMEOUT", "The first call with this idempotency key has not ended yet") from None


def _for_others(error: BaseException) -> CallError:
    """What those hear who waited for a first call that gave no outcome."""
    if isinstance(error, CallError):
        return error
    return CallError("UNAVAILABLE", "The first call with this idempotency key was given up")
