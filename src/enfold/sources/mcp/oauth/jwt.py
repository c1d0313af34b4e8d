"""Signed tokens of our own (JWT): statements of who we are, and proofs that we have the key of a token (DPoP, RFC 9449).

Needs the package `joserfc` (extra `auth`), loaded when first used.
"""

from __future__ import annotations

import hashlib
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import uuid4

import msgspec

from enfold.errors import CallError
from enfold.identities.signature_algorithms import algorithms_of
from enfold.version import install_command

if TYPE_CHECKING:
    from joserfc.jwk import Key


class KeySigner(msgspec.Struct, frozen=True):
    """A private key and the way it signs."""

    key: Any
    algorithm: str

    def sign(self, claims: Mapping[str, Any], **header: Any) -> str:
        """The claims under a signature of the key."""
        from joserfc.jws import JWSRegistry

        named = {"alg": self.algorithm, "typ": "JWT", **header}
        text = b".".join(base64url(msgspec.json.encode(part)) for part in (named, claims))
        signature = JWSRegistry.algorithms[self.algorithm].sign(text, self.key)
        return b".".join((text, base64url(signature))).decode()


def base64url(value: bytes) -> bytes:
    return urlsafe_b64encode(value).rstrip(b"=")


def load_signer(pem: str, algorithm: str = "") -> KeySigner:
    """What signs with a private key (PEM); without an algorithm in the usual way of its kind."""
    key = _read_key(pem)
    possible = algorithms_of(key.as_dict(private=False))
    if not possible or algorithm not in ("", *possible):
        wanted = algorithm or "any algorithm"
        raise CallError("VALIDATION_ERROR", f"The private key of the login cannot sign with {wanted}")
    return KeySigner(key, algorithm or possible[0])


def _read_key(pem: str) -> Key:
    try:
        from joserfc.errors import JoseError
        from joserfc.jwk import ECKey, OKPKey, RSAKey
    except ImportError:
        raise CallError("UNAVAILABLE", f"A login with a private key needs joserfc: {install_command('auth')}") from None
    for kind in (ECKey, RSAKey, OKPKey):
        try:
            key = kind.import_key(pem)
        except (JoseError, ValueError, TypeError):  # whose words may hold parts of the key
            continue
        if key.is_private:
            return key
    raise CallError("VALIDATION_ERROR", "The private key of the login is no PEM without a password")


# --- proofs of possession -----------------------------------------------------------------------------------------


class ProofKey:
    """The key that the tokens of one login are bound to, stored with them."""

    def __init__(self, pem: str) -> None:
        self.pem = pem

    def prove(self, method: str, url: str, *, token: str = "", nonce: str = "") -> str:
        """A proof for one request, and for no other."""
        parts = urlsplit(url)
        claims: dict[str, Any] = {
            "jti": str(uuid4()),
            "htm": method,
            "htu": f"{parts.scheme}://{parts.netloc}{parts.path}",
            "iat": int(time.time()),
        }
        if token:
            claims["ath"] = base64url(hashlib.sha256(token.encode()).digest()).decode()
        if nonce:
            claims["nonce"] = nonce
        return self._signer.sign(claims, typ="dpop+jwt", jwk=self._signer.key.as_dict(private=False))

    @cached_property
    def _signer(self) -> KeySigner:
        return load_signer(self.pem)


def new_key() -> ProofKey:
    try:
        from joserfc.jwk import ECKey
    except ImportError:
        raise CallError(
            "UNAVAILABLE", f"Tokens that are bound to a key need joserfc: {install_command('auth')}"
        ) from None
    return ProofKey(ECKey.generate_key("P-256").as_pem(private=True).decode())
