"""Signed statements (JWT) about ourselves. Needs the package `cryptography` (extra `auth`), loaded when first used."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from enfold.errors import CallError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

__all__ = ["Signer", "base64url", "load_signer"]

_BITS: Final = {"256": "SHA256", "384": "SHA384", "512": "SHA512"}
_CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


class Signer:
    """A private key and the way it signs."""

    __slots__ = ("_algorithm", "_sign", "key")

    def __init__(self, key: Any, algorithm: str, sign: Callable[[bytes], bytes]) -> None:
        self.key = key
        self._algorithm = algorithm
        self._sign = sign

    def sign(self, claims: Mapping[str, Any], **header: Any) -> str:
        """The claims under a signature of the key."""
        named = {"alg": self._algorithm, "typ": "JWT", **header}
        text = b".".join(base64url(msgspec.json.encode(part)) for part in (named, claims))
        return b".".join((text, base64url(self._sign(text)))).decode()


def base64url(value: bytes) -> bytes:
    return urlsafe_b64encode(value).rstrip(b"=")


def load_signer(pem: str, algorithm: str = "") -> Signer:
    """What signs with a private key (PEM); without an algorithm in the usual way of its kind."""
    try:
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError:
        raise CallError("UNAVAILABLE", "A login with a private key needs: pip install 'enfold[auth]'") from None
    try:
        key = load_pem_private_key(pem.encode(), None)
    except (ValueError, TypeError):  # whose words may hold parts of the key
        raise CallError("VALIDATION_ERROR", "The private key of the login is no PEM without a password") from None
    if isinstance(key, ed25519.Ed25519PrivateKey) and algorithm in ("", "EdDSA", "Ed25519"):
        return Signer(key, algorithm or "EdDSA", key.sign)
    if isinstance(key, ec.EllipticCurvePrivateKey) and algorithm in ("", _CURVES.get(key.curve.name)):
        return Signer(key, _CURVES[key.curve.name], lambda text: _sign_ec(key, text))
    if isinstance(key, rsa.RSAPrivateKey) and algorithm[:2] in ("", "RS", "PS") and algorithm[2:] in ("", *_BITS):
        chosen = algorithm or "RS256"
        return Signer(key, chosen, lambda text: _sign_rsa(key, chosen, text))
    raise CallError("VALIDATION_ERROR", f"The private key of the login cannot sign with {algorithm or 'any algorithm'}")


def _hash(bits: str) -> Any:
    from cryptography.hazmat.primitives import hashes

    return getattr(hashes, _BITS[bits])()


def _sign_rsa(key: RSAPrivateKey, algorithm: str, text: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric import padding

    hashed = _hash(algorithm[2:])
    if algorithm.startswith("RS"):
        return key.sign(text, padding.PKCS1v15(), hashed)
    return key.sign(text, padding.PSS(padding.MGF1(hashed), hashed.digest_size), hashed)


def _sign_ec(key: EllipticCurvePrivateKey, text: bytes) -> bytes:
    """The two numbers of the signature side by side, as JWT has them."""
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

    bits = _CURVES[key.curve.name][2:]
    size = (key.curve.key_size + 7) // 8
    numbers = decode_dss_signature(key.sign(text, ECDSA(_hash(bits))))
    return b"".join(number.to_bytes(size, "big") for number in numbers)
