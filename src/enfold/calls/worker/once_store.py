"""First results, kept for calls that may come twice: keyed by who asks, for what, under which key. Memory, or a store."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from enfold.calls.protocol.events import Failed, Requested, Responded, call_error, envelope_of, failed, responded
from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError
from enfold.operation import Identity

__all__ = [
    "MemoryOnceStore",
    "OnceStore",
    "Outcome",
    "Run",
    "outcome_of",
    "refuse_other_input",
    "result_of",
    "store_key",
]

RETENTION: Final = 3600.0
MAX_ENTRIES: Final = 10_000
_NO_ID: Final = "0" * 16  # an outcome that is kept belongs to no request any more


Run: TypeAlias = Callable[[], Awaitable[ResponseEnvelope[Any]]]


class OnceStore(Protocol):
    """Remembers first results, so that a call with the same key has its effect once."""

    async def once(self, key: str, digest: str, ttl: float, run: Run) -> ResponseEnvelope[Any]:
        """The result of `run`, or of the first call with this key; another digest is a VALIDATION_ERROR."""


def store_key(identity: Identity | None, peer: str | None, request: Requested) -> str:
    """The key of an entry: nobody can meet another caller's entry, whatever key he chooses."""
    who = f"peer:{peer}" if identity is None else f"identity:{identity.id}:{identity.on_behalf_of or ''}"
    parts = [who, request.operation_id, request.idempotency_key or ""]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


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


def refuse_other_input(expected: str, digest: str) -> None:
    if expected != digest:
        details = {"argument": "idempotencyKey", "reason": "constraint", "expected": "the same input"}
        raise CallError("VALIDATION_ERROR", "This idempotency key was used with another input", details)


# --- in memory ----------------------------------------------------------------------------------------------------


class _Entry(msgspec.Struct):
    digest: str
    expires_at: float
    outcome: asyncio.Future[Outcome]


class MemoryOnceStore:
    """First results of one process."""

    def __init__(self, *, retention: float = RETENTION, max_entries: int = MAX_ENTRIES) -> None:
        self._retention = retention
        self._max_entries = max_entries
        self._entries: dict[str, _Entry] = {}

    async def once(self, key: str, digest: str, ttl: float, run: Run) -> ResponseEnvelope[Any]:
        """The result of `run`, or of the first call with this key."""
        del ttl  # an entry of this process ends with the call that made it
        entry = self._fresh(key)
        if entry is None:
            return await self._first(key, digest, run)
        refuse_other_input(entry.digest, digest)
        return result_of(await asyncio.shield(entry.outcome))

    async def _first(self, key: str, digest: str, run: Run) -> ResponseEnvelope[Any]:
        entry = _Entry(digest, time.monotonic() + self._retention, asyncio.get_running_loop().create_future())
        self._put(key, entry)
        try:
            outcome = await outcome_of(run)
        except BaseException as error:
            self._entries.pop(key, None)
            entry.outcome.set_exception(_for_others(error))
            entry.outcome.exception()  # whether anybody waits for it or not
            raise
        entry.outcome.set_result(outcome)
        return result_of(outcome)

    def _fresh(self, key: str) -> _Entry | None:
        entry = self._entries.get(key)
        if entry is not None and entry.outcome.done() and entry.expires_at < time.monotonic():
            del self._entries[key]
            return None
        return entry

    def _put(self, key: str, entry: _Entry) -> None:
        self._entries[key] = entry
        if len(self._entries) > self._max_entries:
            oldest = next((key for key, entry in self._entries.items() if entry.outcome.done()), None)
            if oldest is not None:
                del self._entries[oldest]


def _for_others(error: BaseException) -> CallError:
    """What those hear who waited for a first call that gave no outcome."""
    if isinstance(error, CallError):
        return error
    return CallError("UNAVAILABLE", "The first call with this idempotency key was given up")
