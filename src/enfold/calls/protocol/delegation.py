"""On whose behalf a call is made: a short-lived signed statement for one call, and never the caller's own token.

It names the operation and the request, and holds the digest of the input: it is good for nothing else.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from enfold.calls.protocol.events import Requested, input_digest
from enfold.calls.protocol.transport import Message
from enfold.errors import CallError
from enfold.operation import Context, Identity

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

__all__ = ["HEADER", "Sign", "Verify", "signer", "verifier"]

HEADER: Final = "Enfold-Delegation"
LEEWAY: Final = 30.0  # seconds by which clocks may differ
LIFETIME: Final = 60.0  # for a call that says no time of its own

Sign: TypeAlias = Callable[[Requested, Context], Mapping[str, str]]  # headers that say on whose behalf a call is made
Verify: TypeAlias = Callable[[Message, Requested], Identity | None]  # who is behind a message, delegation included

_PROTECTED: Final = {"alg": "EdDSA", "typ": "JWT"}


class DelegationClaims(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is stated: who is behind the call, for which operation, request and input, and until when."""

    sub: str
    aud: str
    exp: float
    jti: str
    req: str
    iss: str = ""


def signer(key: Ed25519PrivateKey, issuer: str = "") -> Sign:
    """States for each call on whose behalf it is made; a call on nobody's behalf states nothing."""

    def sign(request: Requested, context: Context) -> Mapping[str, str]:
        if context.identity is None:
            return {}
        ttl = LIFETIME if request.ttl_ms is None else request.ttl_ms / 1000
        claims = DelegationClaims(
            context.identity.on_behalf_of or context.identity.id,
            request.operation_id,
            time.time() + ttl + LEEWAY,
            request.request_id,
            input_digest(request.input),
            issuer,
        )
        return {HEADER: _written(key, claims)}

    return sign


def verifier(keys: Mapping[str, Ed25519PublicKey], clock: Callable[[], float] = time.time) -> Verify:
    """Reads statements of known issuers; one that is false is refused, and none claims nothing."""

    def verify(message: Message, request: Requested) -> Identity | None:
        identity = message.identity
        text = (message.headers or {}).get(HEADER)
        if text is None or identity is None:
            return identity
        claims = _read(text, keys)
        if claims is None or not _fits(claims, request, clock()):
            raise CallError("ACCESS_DENIED", "The delegation of this call is not valid", {"reason": "delegation"})
        return msgspec.structs.replace(identity, on_behalf_of=claims.sub)

    return verify


def _fits(claims: DelegationClaims, request: Requested, now: float) -> bool:
    return (
        claims.aud == request.operation_id
        and claims.jti == request.request_id
        and claims.req == input_digest(request.input)
        and claims.exp >= now
    )


def _written(key: Ed25519PrivateKey, claims: DelegationClaims) -> str:
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
