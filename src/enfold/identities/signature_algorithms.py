"""The algorithms of signed tokens (JWT), by the keys that sign with them. Asymmetric ones alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

# By the kind of a key and its curve; the usual one first. With a shared secret whoever verifies could issue, so there
# is none of that.
_BY_KEY: Final = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC P-256": ("ES256",),
    "EC P-384": ("ES384",),
    "EC P-521": ("ES512",),
    "OKP Ed25519": ("EdDSA", "Ed25519"),
}

ALGORITHMS: Final = tuple(name for names in _BY_KEY.values() for name in names)


def algorithms_of(key: Mapping[str, Any]) -> tuple[str, ...]:
    """What a key (JWK) signs with, the usual algorithm first; nothing for a key of another kind."""
    return _BY_KEY.get(" ".join(str(key[name]) for name in ("kty", "crv") if name in key), ())
