"""Delegation: a short-lived signed token that states on whose behalf one call is made. The caller's own token is never sent.

It is bound to the calling peer, the operation, the request id and the digest of the input, so it cannot be reused.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from enfold.calls.protocol.events import Requested
from enfold.calls.protocol.transport import Message
from enfold.errors import CallError
from enfold.operations import Context, Identity
from enfold.operations.idempotency import input_digest

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

HEADER: Final = "Enfold-Delegation"
LEEWAY: Final = 30.0  # seconds by which clocks may differ
LIFETIME: Final = 60.0  # for a call without a time limit
MAX_USED: Final = 100_000  # tokens remembered until they expire

Sign: TypeAlias = Callable[[Requested, Context, str], Mapping[str, str]]  # headers of a call that this peer makes
Verify: TypeAlias = Callable[
    [Message, Requested], Identity | None
]  # the identity behind a message, including its delegation

_PROTECTED: Final = {"alg": "EdDSA", "typ": "JWT"}


class DelegationClaims(msgspec.Struct, frozen=True, omit_defaults=True):
    """The claims of a delegation: subject, peer, operation, request, digest of the input and expiry."""

    sub: str
    aud: str
    exp: float
    jti: str
    req: str
    peer: str
    iss: str = ""


def signer(key: Ed25519PrivateKey, issuer: str = "", *, peer: str | None = None) -> Sign:
    """Return a function that signs a delegation for each call made under an identity.

    `peer` is the name that workers see, if it differs from that of the transport, as with NATS accounts.
    """

    def sign(request: Requested, context: Context, name: str) -> Mapping[str, str]:
        if context.identity is None:
            return {}
        claims = DelegationClaims(
            context.identity.on_behalf_of or context.identity.id,
            request.operation_id,
            time.time() + _lifetime(request) + LEEWAY,
            request.request_id,
            input_digest(request.input),
            peer or name,
            issuer,
        )
        return {HEADER: _sign_claims(key, claims)}

    return sign


def verifier(keys: Mapping[str, Ed25519PublicKey], clock: Callable[[], float] = time.time) -> Verify:
    """Return a function that verifies delegations of known issuers; a forged or reused one is ACCESS_DENIED, none is fine."""
    used = _Used()

    def verify(message: Message, request: Requested) -> Identity | None:
        identity = message.identity
        text = (message.headers or {}).get(HEADER)
        if text is None or identity is None:
            return identity
        claims, now = _read(text, keys), clock()
        if claims is None or not _fits(claims, message, request, now) or not used.is_new(claims, now):
            raise CallError("ACCESS_DENIED", "The delegation of this call is not valid", {"reason": "delegation"})
        return msgspec.structs.replace(identity, on_behalf_of=claims.sub)

    return verify


def _fits(claims: DelegationClaims, message: Message, request: Requested, now: float) -> bool:
    return (
        claims.peer == message.peer
        and claims.aud == request.operation_id
        and claims.jti == request.request_id
        and claims.req == input_digest(request.input)
        and now <= claims.exp <= now + _lifetime(request) + 2 * LEEWAY
    )


def _lifetime(request: Requested) -> float:
    return LIFETIME if request.ttl_ms is None else request.ttl_ms / 1000


class _Used:
    """Delegations that were used, each remembered until it expires."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, str], float] = {}

    def is_new(self, claims: DelegationClaims, now: float) -> bool:
        """Whether a verified delegation is used for the first time."""
        key = (claims.iss, claims.jti)
        if key in self._until:
            return False
        if len(self._until) >= MAX_USED:
            self._until = {key: until for key, until in self._until.items() if until >= now}
        if len(self._until) >= MAX_USED:
            raise CallError("RESOURCE_EXHAUSTED", "There are too many delegated calls at once", {"started": False})
        self._until[key] = claims.exp
        return True


def _sign_claims(key: Ed25519PrivateKey, claims: DelegationClaims) -> str:
    body = f"{_text(msgspec.json.encode(_PROTECTED))}.{_text(msgspec.json.encode(claims))}"
    return f"{body}.{_text(key.sign(body.encode()))}"


def _read(text: str, keys: Mapping[str, Ed25519PublicKey]) -> DelegationClaims | None:
    from cryptography.exceptions import InvalidSignature

    try:
        head, body, signature = text.split(".")
        claims = msgspec.json.decode(_bytes(body), type=DelegationClaims)
        protected: Any = msgspec.json.decode(_bytes(head))
        if protected != _PROTECTED or claims.iss not in keys:
            return None
        keys[claims.iss].verify(_bytes(signature), f"{head}.{body}".encode())
    except (ValueError, InvalidSignature):
        return None
    return claims


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
