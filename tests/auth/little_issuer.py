"""An issuer for tests, without a network: keys, tokens, and a `fetch` that can fail. Tests set its clock."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import get_default_algorithms

__all__ = ["AUDIENCE", "ISSUER", "Clock", "LittleIssuer", "part"]

ISSUER = "https://login.example.com/realm"
AUDIENCE = "https://api.example.com/"

RSA_KEY = rsa.generate_private_key(65537, 2048)
OTHER_RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()
PRIVATE: dict[str, tuple[Any, str]] = {
    "r1": (RSA_KEY, "RS256"),
    "e1": (EC_KEY, "ES256"),
    "d1": (ED_KEY, "EdDSA"),
    "r2": (OTHER_RSA_KEY, "RS256"),
}


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += seconds


class LittleIssuer:
    """What an issuer publishes; `shown` are the kids of its keys."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.shown = ["r1", "e1", "d1"]
        self.is_away = False
        self.fetched: list[str] = []

    async def fetch(self, url: str) -> bytes:
        self.fetched.append(url)
        if self.is_away:
            raise OSError("no answer")
        if url == f"{ISSUER}/.well-known/openid-configuration":
            return json.dumps({"issuer": ISSUER, "jwks_uri": "https://login.example.com/keys"}).encode()
        if url == "https://login.example.com/keys":
            return self.key_set()
        raise OSError(f"nothing at {url}")

    def key_set(self) -> bytes:
        return json.dumps({"keys": [public(kid) for kid in self.shown]}).encode()

    def claims(self, **changed: Any) -> dict[str, Any]:
        now = int(self.clock())
        usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "scope": "shop:order read", "iat": now, "exp": now + 300}
        return {name: value for name, value in {**usual, **changed}.items() if value is not ...}

    def token(self, kid: str = "r1", header: dict[str, Any] | None = None, **changed: Any) -> str:
        key, algorithm = PRIVATE[kid]
        headers = {"kid": kid, **(header or {})}
        return jwt.encode(self.claims(**changed), key, algorithm=algorithm, headers=headers)


def public(kid: str) -> dict[str, Any]:
    key, algorithm = PRIVATE[kid]
    jwk = get_default_algorithms()[algorithm].to_jwk(key.public_key(), as_dict=True)
    return {**jwk, "kid": kid, "use": "sig"}


def part(value: Any) -> str:
    """One part of a JWT."""
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return urlsafe_b64encode(text).rstrip(b"=").decode()
