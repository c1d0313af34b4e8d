"""The idempotency store: keeps the outcome of the first call with a key for its repeats. The in-memory store is here.

An entry is absent, running (held by one process), or has an outcome, which may be "unknown". Only the holder changes an
entry, with one exception: if the holder has died or the outcome is unknown, a call that `reruns` takes the entry over.
The number of keys per identity is limited.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Coroutine, Mapping
from copy import deepcopy
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from enfold.envelope import ResponseEnvelope, ResultWarning, from_wire, to_wire
from enfold.errors import CallError, invalid_argument
from enfold.observability.log import Log
from enfold.operations.idempotency import EntryKey, KeyedCall, Owner, in_progress
from enfold.operations.outcomes import Deferred, NeedsInput
from enfold.operations.outcomes import Outcome as CallOutcome
from enfold.schema.plain import unwritable

MAX_MESSAGE: Final = 2_000  # characters


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """A CallError in a form that can be stored."""

    code: str
    message: str
    details: dict[str, Any] = {}
    retryable: bool = False
    hidden: str | None = None  # the message instead of an exception's text, if that must not be shown
    category: str | None = None  # this and the next where they are not those of the code
    recoverable: bool | None = None


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a call ended: its envelope as JSON text and what goes beside it; or a failure, maybe with what it refused."""

    output: msgspec.Raw = msgspec.Raw()  # empty if there is none
    warnings: list[dict[str, Any]] = []
    provenance: dict[str, Any] | None = None
    failure: Failure | None = None
    headers: dict[str, str] = {}  # that the handler or its middleware added to the response


def success(envelope: ResponseEnvelope[Any], most: int | None = None) -> Outcome:
    """The outcome of a call that gave a result; one that is no JSON data, or has more than `most` bytes, is a failure."""
    warnings = [warning.to_wire() for warning in envelope.warnings]
    try:
        output = msgspec.Raw(msgspec.json.encode(to_wire(envelope)))
        outcome = Outcome(output, warnings, envelope.provenance)
        size = len(msgspec.json.encode(outcome))
    except (TypeError, ValueError, RecursionError) as error:
        return failure(unwritable(envelope.data, error))
    return outcome if most is None or size <= most else failure(_too_large(size, most))


def failure(error: CallError, most: int | None = None) -> Outcome:
    """The outcome of a call that failed; details that are no JSON data are left out."""
    partial = success(error.partial) if isinstance(error.partial, ResponseEnvelope) else Outcome()
    kept = Failure(
        error.code, error.message[:MAX_MESSAGE], error.details, error.retryable, error.hidden, *error.kind_override()
    )
    outcome = Outcome(partial.output, partial.warnings, error.provenance, kept)
    try:
        size = len(msgspec.json.encode(outcome))
    except (TypeError, ValueError, RecursionError):
        return msgspec.structs.replace(outcome, failure=msgspec.structs.replace(kept, details={}))
    return outcome if most is None or size <= most else failure(_too_large(size, most))


def with_headers(outcome: Outcome, headers: Mapping[str, str] | None) -> Outcome:
    """Return the outcome with the headers that its run has added to the response."""
    return msgspec.structs.replace(outcome, headers=dict(headers)) if headers else outcome


def _too_large(size: int, most: int) -> CallError:
    message = f"The result has {size} bytes, more than an idempotency store keeps ({most})"
    return CallError("PAYLOAD_TOO_LARGE", message, {"reason": "result", "size": size, "limit": most})


# Codes that do not say how the call ended.
_INDEFINITE: Final = frozenset({"ABORTED", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "OUTCOME_UNKNOWN"})


def unknown(reason: Literal["worker_died", "cancelled", "timeout", "indefinite"], fate: str) -> Outcome:
    """Return the outcome of a call that was started and may or may not have had its effect."""
    message = f"The first call with this idempotency key {fate}: its outcome is unknown, and it is not started again"
    return failure(CallError("OUTCOME_UNKNOWN", message, {"reason": reason}))


def is_unknown(outcome: Outcome) -> bool:
    return outcome.failure is not None and outcome.failure.code == "OUTCOME_UNKNOWN"


def kept_of(error: CallError, *, was_cut_off: bool) -> Outcome | None:
    """Return what an idempotency store keeps of a failed call; None if the key becomes free again.

    A failure that the handler produced is definite, unless it is retryable; a TIMEOUT that cut it off is not.
    """
    if was_cut_off and error.code == "TIMEOUT":
        return unknown("timeout", "exceeded its timeout")
    if error.retryable:
        return None
    return unknown("indefinite", f"ended with {error.code}") if error.code in _INDEFINITE else failure(error)


def result_of(outcome: Outcome) -> ResponseEnvelope[Any]:
    """Return the envelope of an outcome, or raise its error; each caller gets its own."""
    told = outcome.failure
    if told is None and outcome.output:
        return _envelope(outcome)
    told = told or Failure("UNKNOWN_ERROR", "The idempotency store has an entry without an outcome")
    error = CallError(told.code, told.message, deepcopy(told.details), told.retryable)
    error.provenance, error.hidden = deepcopy(outcome.provenance), told.hidden
    error.partial = _envelope(outcome) if outcome.output else None
    error.override_kind(told.category, told.recoverable)
    raise error


def _envelope(outcome: Outcome) -> ResponseEnvelope[Any]:
    envelope = from_wire(msgspec.json.decode(outcome.output))
    if not outcome.warnings and outcome.provenance is None:
        return envelope
    warnings = tuple(msgspec.convert(each, ResultWarning) for each in outcome.warnings)
    return envelope.replace(warnings=envelope.warnings + warnings, provenance=deepcopy(outcome.provenance))


C = TypeVar("C")
T = TypeVar("T")

KEEP: Final = 3600.0  # seconds in which a second call with the same key gets the first result
PER_IDENTITY: Final = 10_000  # keys of one identity that are kept at the same time
BYTES_PER_IDENTITY: Final = 64 * 1024 * 1024
PAUSE: Final = 0.05  # seconds between two looks at a first call that another process runs
LONGEST_PAUSE: Final = 0.5
RECORDING: Final = 5.0  # seconds that an answer waits for the store to take it

MARGIN: Final = 0.1  # seconds; what a handler calls ends a little before its own time is over

DIED: Final = unknown("worker_died", "ended with the process that ran it")
CANCELLED: Final = unknown("cancelled", "was cancelled")


class BaseIdempotencyStore(ABC, Generic[C]):
    """An idempotency store. A subclass keeps the entries, by three steps; `C` is its record of a call that it has claimed."""

    def __init__(self, quota: KeyQuota | None = None) -> None:
        self._quota = quota
        self._first_calls: dict[EntryKey, _FirstCall] = {}  # that run in this process
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run_once(self, call: KeyedCall) -> CallOutcome:
        """Return the result of this call, or of the first one with its key."""
        pause = PAUSE
        while True:
            task = self._first_call(call)
            await asyncio.wait({task}, timeout=max(0.0, call.waits_until - time.monotonic()))
            if not task.done():  # the first call runs on when this caller leaves
                raise in_progress()
            outcome = CANCELLED if task.cancelled() else task.result()
            if isinstance(outcome, Outcome):
                call.headers.update(outcome.headers)
                return result_of(outcome)
            if outcome is not None:
                return outcome
            if self._first_call_here(call.key) is None:  # another process or thread runs it
                left = call.waits_until - time.monotonic()
                if left <= 0:
                    raise in_progress()
                await asyncio.sleep(min(pause, left))
                pause = min(LONGEST_PAUSE, pause * 1.5)

    async def close(self, grace: float) -> None:
        """Let running calls end; those that take longer than `grace` seconds are cancelled, and their outcome is unknown.

        A store that cannot be reached is given a few seconds to take the outcomes, whatever the grace.
        """
        loop = asyncio.get_running_loop()
        running = [each.task for each in self._first_calls.values() if each.task.get_loop() is loop]
        await _end(running, grace)
        await _end([task for task in self._tasks if task.get_loop() is loop], min(grace, RECORDING))

    def _first_call(self, call: KeyedCall) -> asyncio.Task[Outcome | NeedsInput | Deferred | None]:
        """Return the first call with this key if it runs on this loop, else try to become the first."""
        running = self._first_call_here(call.key)
        if running is None:
            return self._in_background(self._attempt(call))
        refuse_other_input(running.digest, call.digest)
        return running.task

    def _first_call_here(self, key: EntryKey) -> _FirstCall | None:
        """Return the first call with this key if it runs on this event loop: only there can it be awaited."""
        running = self._first_calls.get(key)
        return running if running is not None and running.task.get_loop() is asyncio.get_running_loop() else None

    async def _attempt(self, call: KeyedCall) -> Outcome | NeedsInput | Deferred | None:
        """Claim the key and run the call; or the outcome there is; None while another process runs it."""
        found = await self._claim(call)
        if found is None or isinstance(found, Outcome):
            return found
        task: Any = asyncio.current_task()
        self._first_calls[call.key] = _FirstCall(call.digest, task)
        try:
            return await self._run(call, found)
        finally:
            del self._first_calls[call.key]

    async def _run(self, call: KeyedCall, claim: C) -> Outcome | NeedsInput | Deferred | None:
        """Run a first call to its end, and record what is definite."""
        if not await self._may_start(call, claim):
            return None
        started = time.monotonic()
        try:
            result = await call.run()
            if not isinstance(result, ResponseEnvelope):  # the caller comes back with answers, under the same key
                await self._free(call.key, claim)
                return result
            outcome = kept = with_headers(success(result), call.headers)
        except CallError as error:
            was_cut_off = call.own_time is not None and time.monotonic() - started >= call.own_time - MARGIN
            found = kept_of(error, was_cut_off=was_cut_off)
            outcome = with_headers(failure(error), call.headers)
            if found is None:
                await self._free(call.key, claim)
                return outcome
            kept = found if is_unknown(found) else with_headers(found, call.headers)
        except BaseException:  # the process ends
            await self._record(call.key, claim, CANCELLED)
            raise
        await self._record(call.key, claim, kept)
        return outcome

    async def _may_start(self, call: KeyedCall, claim: C) -> bool:
        """Whether a claimed call is run: its caller still waits for it, and may use another key."""
        try:
            if time.monotonic() < call.waits_until:
                if self._quota is not None:
                    self._quota.take(call.key.owner)
                return True
        except CallError:
            await self._release(call.key, claim)
            raise
        await self._release(call.key, claim)
        return False

    async def _free(self, key: EntryKey, claim: C) -> None:
        """Free the key: the call has not begun, or may be made again."""
        if self._quota is not None:
            self._quota.give_back(key.owner)
        await self._release(key, claim)

    async def _record(self, key: EntryKey, claim: C, outcome: Outcome) -> None:
        """Record an outcome; where the store cannot take it now, the answer does not wait, and it is recorded later."""
        recording = self._in_background(self._keep(key, claim, outcome))
        await asyncio.wait({recording}, timeout=RECORDING)

    def _in_background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget_task)
        return task

    def _forget_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, CallError):
            Log("enfold").error("An idempotency store failed", error=error)

    @abstractmethod
    async def _claim(self, call: KeyedCall) -> Outcome | C | None:
        """Return the outcome of the first call, a claim if this call is the first, or None while another runs."""

    @abstractmethod
    async def _keep(self, key: EntryKey, claim: C, outcome: Outcome) -> None:
        """Keep the outcome of a claimed call, unless another has taken it over."""

    @abstractmethod
    async def _release(self, key: EntryKey, claim: C) -> None:
        """Remove the entry of a claimed call, unless another has taken it over."""


async def _end(tasks: Collection[asyncio.Task[Any]], within: float) -> None:
    """Wait for tasks, and cancel those that exceed the time."""
    if not tasks:
        return
    _, late = await asyncio.wait(tasks, timeout=within)
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late, timeout=1.0)


class _FirstCall(msgspec.Struct, frozen=True, eq=False):
    """A first call that runs in this process."""

    digest: str  # of its input
    task: asyncio.Task[Outcome | None]


def settled(outcome: Outcome, *, reruns: bool) -> Outcome | None:
    """Return the outcome for a repeated call; None if it may run the handler again."""
    return None if reruns and is_unknown(outcome) else outcome


def refuse_other_input(expected: str, digest: str) -> None:
    if expected != digest:
        message = "This idempotency key was used with another input"
        raise invalid_argument("idempotencyKey", "constraint", "the same input", message)


def too_many_keys(limit: int, wait: float) -> CallError:
    message = f"The limit of {limit} recent idempotency keys per caller is reached: retry later"
    return CallError(
        "RESOURCE_EXHAUSTED", message, {"reason": "idempotency_keys", "retry_after": wait, "started": False}
    )


# --- how many each may have ---------------------------------------------------------------------------------------


class KeyQuota:
    """Counts the keys that each identity has used recently, so that identities have separate quotas."""

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
        """Count one less: nothing is kept under the key."""
        if self._used.get(owner):
            self._used[owner].pop()

    def _drop_old(self, used: deque[float], now: float) -> None:
        while used and used[0] + self._keep <= now:
            used.popleft()

    def _sweep(self, now: float) -> None:
        """Drop identities whose keys have all expired."""
        self._sweep_at = now + self._keep / 8
        self._used = {owner: used for owner, used in self._used.items() if used and used[-1] + self._keep > now}


# --- in memory ----------------------------------------------------------------------------------------------------


class _MemoryEntry(msgspec.Struct, eq=False):
    digest: str
    outcome: bytes | None = None  # None while it runs
    expires_at: float = float("inf")


class MemoryIdempotencyStore(BaseIdempotencyStore[_MemoryEntry]):
    """The idempotency store of one process."""

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
        self._lock = threading.Lock()  # several threads may call, each on its own event loop

    async def _claim(self, call: KeyedCall) -> Outcome | _MemoryEntry | None:
        with self._lock:
            return self._take(call)

    def _take(self, call: KeyedCall) -> Outcome | _MemoryEntry | None:
        now = time.monotonic()
        if now >= self._sweep_at:
            self._sweep(now)
        entries = self._owners.get(call.key.owner)
        if entries is None:
            entries = self._owners[call.key.owner] = _Entries(self._bytes_per_identity)
        entries.drop_old(now)
        entry = entries.get(call.key)
        if entry is not None:
            refuse_other_input(entry.digest, call.digest)
            if entry.outcome is None:
                return None
            outcome = settled(_read(entry.outcome), reruns=call.reruns)
            if outcome is not None:
                return outcome
            entries.remove(call.key)
        entry = entries[call.key] = _MemoryEntry(call.digest)
        return entry

    async def _keep(self, key: EntryKey, claim: _MemoryEntry, outcome: Outcome) -> None:
        written = _write(outcome)
        with self._lock:
            claim.outcome, claim.expires_at = written, time.monotonic() + self._seconds
            self._owners[key.owner].keep(key, claim)

    async def _release(self, key: EntryKey, claim: _MemoryEntry) -> None:
        del claim
        with self._lock:
            self._owners[key.owner].pop(key, None)

    def _sweep(self, now: float) -> None:
        """Drop expired entries of all identities, also of those that do not come back."""
        self._sweep_at = now + self._seconds / 8
        for owner, entries in list(self._owners.items()):
            entries.drop_old(now)
            if not entries:
                del self._owners[owner]


class _Entries(dict[EntryKey, _MemoryEntry]):
    """The entries of one identity: those that run, and those that are kept, the oldest first."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self._size = 0
        self._kept: deque[EntryKey] = deque()

    def keep(self, key: EntryKey, entry: _MemoryEntry) -> None:
        """Keep what has ended; where it is too much, the oldest of the same identity go."""
        self._kept.append(key)
        self._size += len(entry.outcome or b"")
        while self._size > self._limit:
            self.remove(self._kept[0])

    def drop_old(self, now: float) -> None:
        while self._kept and self[self._kept[0]].expires_at <= now:
            self.remove(self._kept[0])

    def remove(self, key: EntryKey) -> None:
        self._kept.remove(key)
        self._size -= len(self.pop(key).outcome or b"")


_write: Final = msgspec.json.Encoder().encode
_read: Final = msgspec.json.Decoder(Outcome).decode
