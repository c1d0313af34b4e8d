"""Tokens bound to a key (DPoP, RFC 9449): each request proves that whoever sends the token has the key too."""

from __future__ import annotations

import hashlib
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import uuid4

from enfold.errors import CallError
from enfold.sources.mcp.oauth.jwt import Signer, base64url, load_signer

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

__all__ = ["ProofKey", "new_key"]


class ProofKey:
    """The key of one login, kept with its tokens, which are of no use without it."""

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
        return self._signer.sign(claims, typ="dpop+jwt", jwk=self._public)

    @cached_property
    def _signer(self) -> Signer:
        return load_signer(self.pem)

    @cached_property
    def _public(self) -> dict[str, str]:
        key: EllipticCurvePrivateKey = self._signer.key
        point = key.public_key().public_numbers()
        return {"kty": "EC", "crv": "P-256", "x": _coordinate(point.x), "y": _coordinate(point.y)}


def new_key() -> ProofKey:
    try:
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    except ImportError:
        raise CallError("UNAVAILABLE", "Tokens that are bound to a key need: pip install 'enfold[auth]'") from None
    key = ec.generate_private_key(ec.SECP256R1())
    return ProofKey(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode())


def _coordinate(number: int) -> str:
    return base64url(number.to_bytes(32, "big")).decode()
