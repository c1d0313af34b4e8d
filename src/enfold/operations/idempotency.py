"""Idempotency keys: how a call with a key is identified, and the port of the stores that keep its outcome."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import msgspec

from enfold.errors import CallError, invalid_argument
from enfold.operations.access import Identity
from enfold.operations.spec import json_digest, sha256

if TYPE_CHECKING:
    from enfold.operations.outcomes import Outcome

MAX_KEY: Final = 256  # characters
IN_PROGRESS: Final = "in_progress"  # the reason of a TIMEOUT after which the first call with a key still runs

Owner: TypeAlias = tuple[str | None, str | None]  # an identity, and on whose behalf it acts
Run: TypeAlias = "Callable[[], Awaitable[Outcome]]"


class EntryKey(msgspec.Struct, frozen=True):
    """The key of an idempotency entry, scoped to the caller."""

    owner: Owner
    operation_id: str
    key: str

    def digest(self) -> str:
        """Return the key as one word of bounded length."""
        return sha256(msgspec.json.encode(self))


class KeyedCall(msgspec.Struct, frozen=True):
    """A call with an idempotency key, as its store sees it."""

    key: EntryKey
    digest: str  # of the input
    run: Run  # starts the handler, with the operation's own time
    waits_until: float  # by `time.monotonic()`: when this caller stops waiting
    own_time: float | None = (
        None  # seconds; a TIMEOUT after them has cut the handler off, and says nothing of its effect
    )
    reruns: bool = False  # whether the handler may be started again where the outcome is unknown
    headers: dict[str, str] = {}  # of the response: filled by the run, or by the store for a repeat


class IdempotencyStore(Protocol):
    """Keeps the outcomes of calls with an idempotency key: under one key the handler is started at most once."""

    async def run_once(self, call: KeyedCall) -> Outcome:
        """Return the result of this call, or of the first one with its key; another input is a VALIDATION_ERROR.

        The handler runs to its end even if its caller stops waiting, who then gets a TIMEOUT. Where the outcome of the
        first call is unknown, that is OUTCOME_UNKNOWN, or the handler is started again if the call `reruns`.
        """

    async def close(self, grace: float) -> None:
        """Let running calls end; those that take longer than `grace` seconds are cancelled."""


def owned_by(identity: Identity | None) -> Owner:
    return (None, None) if identity is None else (identity.id, identity.on_behalf_of)


def checked_key(key: str, identity: Identity | None, *, vouched: bool) -> str:
    """Check a caller's key; where the surface authenticates (`vouched`), anonymous callers cannot use keys."""
    check_key(key)
    if identity is None and vouched:
        message = "An idempotency key requires an identity: call with a token"
        raise CallError("ACCESS_DENIED", message, {"reason": "no_identity"})
    return key


def check_key(key: str) -> None:
    """Refuse a key that cannot be kept: none, one that is too long, or bytes of a shell that are no text."""
    try:
        is_right = 0 < len(key) <= MAX_KEY and bool(key.encode())
    except UnicodeEncodeError:
        is_right = False
    if not is_right:
        raise invalid_argument("idempotencyKey", "constraint", f"1 to {MAX_KEY} characters of text")


def in_progress() -> CallError:
    """Return the error for a caller whose time ends before the first call with their key has ended."""
    message = "The first call with this idempotency key is still running: retry with the same key"
    return CallError("TIMEOUT", message, {"reason": IN_PROGRESS}, retryable=True)


def input_digest(input: Any, select: str | None = None) -> str:
    """Return a digest of the input that does not depend on the order of keys or on how integers are written.

    What is selected of the result is part of it: what is kept is what was selected.
    """
    try:
        return json_digest(input if select is None else [input, select])
    except (TypeError, ValueError, RecursionError):
        raise invalid_argument("input", "constraint", "JSON") from None
