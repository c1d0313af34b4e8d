"""Ed25519 signatures over record digests. Needs the package `cryptography` (extra `auth`), loaded when first used."""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from enfold.provenance.canonical import canonical_json
from enfold.provenance.records import Digest, RecordSignature
from enfold.version import install_command

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE_ALGORITHM: Final = "Ed25519"

PublicKeys: TypeAlias = Mapping[str, "Ed25519PublicKey"]


class SigningKey:
    """A private key and the id its public half is known by."""

    __slots__ = ("_key", "key_id")

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.key_id = _key_id(key.public_key())

    def __repr__(self) -> str:
        return f"<SigningKey {self.key_id}>"

    @property
    def public_key(self) -> Ed25519PublicKey:
        return self._key.public_key()

    def sign(self, digest: Digest) -> RecordSignature:
        """A signature over the canonical JSON of the record digest, its algorithm included."""
        value = b64encode(self._key.sign(canonical_json(digest.to_wire()))).decode()
        return RecordSignature(SIGNATURE_ALGORITHM, self.key_id, value)

    def to_pem(self) -> bytes:
        """The private key, to be kept in a file nobody else can read."""
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def public_pem(self) -> bytes:
        """The public key, to be given to whoever verifies."""
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        return self.public_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def generate_key() -> SigningKey:
    return SigningKey(_ed25519().Ed25519PrivateKey.generate())


def load_key(path: Path) -> SigningKey:
    """The private key of a PEM file."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    return SigningKey(_expect(load_pem_private_key(path.read_bytes(), password=None), "Ed25519PrivateKey", path))


def load_public_keys(paths: Iterable[Path]) -> PublicKeys:
    """The public keys of PEM files, by their ids."""
    return public_keys(_load_public_key(path) for path in paths)


def public_keys(keys: Iterable[Ed25519PublicKey]) -> PublicKeys:
    """Public keys by their ids, as verification wants them."""
    return {_key_id(key): key for key in keys}


def _load_public_key(path: Path) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    public: Ed25519PublicKey = _expect(load_pem_public_key(path.read_bytes()), "Ed25519PublicKey", path)
    return public


def _expect(key: Any, kind: str, path: Path) -> Any:
    fits = isinstance(key, getattr(_ed25519(), kind))
    if not fits:
        raise ValueError(f"{path} holds no {kind}")
    return key


def signature_fault(digest: Digest, signature: RecordSignature, keys: PublicKeys) -> str | None:
    """Why a signature does not hold: another algorithm, a key we do not know, or other content."""
    if signature.alg != SIGNATURE_ALGORITHM:
        return f"the signature algorithm {signature.alg!r} is not {SIGNATURE_ALGORITHM}"
    key = keys.get(signature.key_id)
    if key is None:
        return f"the signing key {signature.key_id!r} is not known"
    return None if _holds(digest, signature.value, key) else "the signature does not fit the record digest"


def _holds(digest: Digest, value: str, key: Ed25519PublicKey) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        raw = b64decode(value, validate=True)
        # Base64 has several texts for one value: only the one we would write is taken.
        if b64encode(raw).decode() != value:
            return False
        key.verify(raw, canonical_json(digest.to_wire()))
    except (InvalidSignature, ValueError):
        return False
    return True


def _key_id(key: Ed25519PublicKey) -> str:
    return f"ed25519:{hashlib.sha256(key.public_bytes_raw()).hexdigest()[:32]}"


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise RuntimeError(f"Signatures need cryptography: {install_command('auth')}") from error
    return ed25519
