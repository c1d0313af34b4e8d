"""Tokens bound to a key (DPoP, RFC 9449): each request proves that whoever sends the token has the key too."""

from __future__ import annotations

import hashlib
import time
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from enfold.errors import CallError
from enfold.sources.mcp.oauth.jwt import KeySigner, base64url, load_signer


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
        return self._signer.sign(claims, typ="dpop+jwt", jwk=self._signer.key.as_dict(private=False))

    @cached_property
    def _signer(self) -> KeySigner:
        return load_signer(self.pem)


def new_key() -> ProofKey:
    try:
        from joserfc.jwk import ECKey
    except ImportError:
        raise CallError("UNAVAILABLE", "Tokens that are bound to a key need: pip install 'enfold[auth]'") from None
    return ProofKey(ECKey.generate_key("P-256").as_pem(private=True).decode())
