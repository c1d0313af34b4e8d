"""Calls that may come twice, as values: whose key it is, for which operation, and the store of first results as a port."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import msgspec

from enfold.errors import CallError
from enfold.operation.identity import Identity
from enfold.operation.names import sha256

if TYPE_CHECKING:
    from enfold.envelope import ResponseEnvelope

__all__ = ["MAX_KEY", "EntryKey", "OnceStore", "Owner", "Run", "checked_key", "input_digest", "owned_by"]

MAX_KEY: Final = 256  # characters

Owner: TypeAlias = tuple[str | None, str | None]  # an identity, and on whose behalf it acts
Run: TypeAlias = "Callable[[], Awaitable[ResponseEnvelope[Any]]]"


class EntryKey(msgspec.Struct, frozen=True):
    """What a first result is found by: nobody can meet another caller's, whatever key they choose."""

    owner: Owner
    operation_id: str
    key: str

    def digest(self) -> str:
        """The key as one word of bounded length."""
        return sha256(msgspec.json.encode(self))


class OnceStore(Protocol):
    """Remembers first results, so that a call with the same key has its effect once."""

    async def once(self, key: EntryKey, digest: str, ttl: float, run: Run) -> ResponseEnvelope[Any]:
        """The result of `run`, or of the first call with this key; another digest is a VALIDATION_ERROR.

        A repeat waits for the first call at most `ttl` seconds.
        """


def owned_by(identity: Identity | None) -> Owner:
    return (None, None) if identity is None else (identity.id, identity.on_behalf_of)


def checked_key(key: str, identity: Identity | None, *, vouched: bool) -> str:
    """The key that a caller gave; where the surface knows identities (`vouched`), who has none may not use keys."""
    if not 0 < len(key) <= MAX_KEY:
        details = {"argument": "idempotencyKey", "reason": "constraint", "expected": f"1 to {MAX_KEY} characters"}
        raise CallError("VALIDATION_ERROR", f"An idempotency key has 1 to {MAX_KEY} characters", details)
    if identity is None and vouched:
        message = "An idempotency key needs an identity: without one it could meet another's"
        raise CallError("ACCESS_DENIED", message, {"reason": "no_identity"})
    return key


def input_digest(input: Any) -> str:
    """What tells one input from another, however its keys are ordered."""
    return sha256(msgspec.json.encode(input, order="deterministic"))
