"""Canonical JSON, digests over it, and Ed25519 signatures over record digests.


A subset of RFC 8785 with two differences: keys are in code-point order, and a whole number is written as an integer.
Reading is strict: ambiguous text is rejected.
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from decimal import Decimal
from importlib import import_module
from json.encoder import encode_basestring
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from enfold.errors import FormatError, install_command
from enfold.provenance.records import Algorithm, Digest, RecordSignature

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


def canonical_json(value: Any) -> bytes:
    """Return the canonical text of a JSON value; raise ValueError if there is none (NaN, bytes, cycles, unpaired surrogates)."""
    try:
        return _write(value).encode()
    except RecursionError:
        raise ValueError("The value is nested too deeply, or contains itself") from None


def _write(value: Any) -> str:
    if isinstance(value, str):
        return encode_basestring(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return _write_float(value)
    if isinstance(value, Mapping):
        return _write_object(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_write, value))}]"
    raise ValueError(f"{type(value).__name__} is not a JSON value")


def _write_object(value: Mapping[Any, Any]) -> str:
    if not all(isinstance(key, str) for key in value):
        raise ValueError("The keys of a JSON object must be strings")
    return "{" + ",".join(f"{encode_basestring(key)}:{_write(value[key])}" for key in sorted(value)) + "}"


def _write_float(number: float) -> str:
    if not isfinite(number):
        raise ValueError("NaN and Infinity are not JSON numbers")
    if number.is_integer():
        return str(int(number))
    digits, exponent, power = repr(number).partition("e")
    # Only small numbers have an exponent here; Python writes 1e-07 with a leading zero.
    return f"{digits}e{int(power)}" if exponent else digits


def same_json(first: Any, second: Any) -> bool:
    """Whether two values have the same canonical text; `True` and `1` do not, although they are equal in Python."""
    return canonical_json(first) == canonical_json(second)


def read_json(text: str | bytes) -> Any:
    """Parse JSON text strictly.

    Raises FormatError for invalid JSON, duplicate names, numbers that lose digits, and encodings other than UTF-8: a
    verifier must see the same value as every other reader.
    """
    try:
        plain = text if isinstance(text, str) else text.decode()
        return json.loads(
            plain, object_pairs_hook=_read_object, parse_float=_read_float, parse_constant=_refuse_constant
        )
    except RecursionError:
        raise FormatError("Not JSON: it is nested too deeply") from None
    except ValueError as error:
        raise FormatError(f"Not JSON: {error}") from error


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"duplicate name {name!r} in an object")
        found[name] = value
    return found


def _read_float(text: str) -> float:
    number = float(text)
    if not isfinite(number) or Decimal(text) != Decimal(repr(number)):
        raise ValueError(f"the number {text[:40]} cannot be read without loss")
    return number


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


_HEX_LENGTHS: Final[dict[str, int]] = {"sha256": 64, "sha512": 128, "blake3": 64}
_LOWER_HEX: Final = re.compile(r"[0-9a-f]*\Z")


def digest_json(value: Any, algorithm: Algorithm = "sha256") -> Digest:
    """Return the digest of a JSON value's canonical text."""
    return digest_bytes(canonical_json(value), algorithm)


def digest_bytes(content: bytes, algorithm: Algorithm = "sha256") -> Digest:
    return digest_chunks([content], algorithm)


def digest_chunks(chunks: Iterable[bytes], algorithm: Algorithm = "sha256") -> Digest:
    """Return the digest of streamed content."""
    state = _new_hash(algorithm)
    for chunk in chunks:
        state.update(chunk)
    return Digest(algorithm, state.hexdigest())


def same_digest(content: bytes, digest: Digest) -> bool:
    """Whether content has this digest, in canonical notation."""
    return digest_bytes(content, digest.alg) == digest


def digest_fault(digest: Digest) -> str | None:
    """Return the fault of a digest's form: its length, or characters other than lower-case hex."""
    expected = _HEX_LENGTHS[digest.alg]
    if not _LOWER_HEX.match(digest.value):
        return f"a {digest.alg} digest must be lower-case hex"
    if len(digest.value) != expected:
        return f"a {digest.alg} digest must have {expected} characters, not {len(digest.value)}"
    return None


def available_algorithms() -> tuple[Algorithm, ...]:
    """Return the algorithms available in this process."""
    return ("sha256", "sha512") if _blake3() is None else ("sha256", "sha512", "blake3")


def _new_hash(algorithm: Algorithm) -> Any:
    if algorithm != "blake3":
        return hashlib.new(algorithm)
    blake3 = _blake3()
    if blake3 is None:
        raise ValueError("blake3 digests require the package blake3: install it, or use sha256")
    return blake3()


def _blake3() -> Any:
    try:
        return import_module("blake3").blake3
    except ImportError:
        return None


SIGNATURE_ALGORITHM: Final = "Ed25519"

PublicKeys: TypeAlias = Mapping[str, "Ed25519PublicKey"]


class SigningKey:
    """A private key and the id of its public key."""

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
        """Sign the canonical JSON of the record digest, including its algorithm."""
        value = b64encode(self._key.sign(canonical_json(digest.to_wire()))).decode()
        return RecordSignature(SIGNATURE_ALGORITHM, self.key_id, value)

    def to_pem(self) -> bytes:
        """Return the private key as PEM, to be stored in a private file."""
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def public_pem(self) -> bytes:
        """Return the public key as PEM, for verifiers."""
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        return self.public_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def generate_key() -> SigningKey:
    return SigningKey(_ed25519().Ed25519PrivateKey.generate())


def load_key(path: Path) -> SigningKey:
    """Load a private key from a PEM file."""
    return SigningKey(read_key(path, "Ed25519PrivateKey"))


def load_public_keys(paths: Iterable[Path]) -> PublicKeys:
    """Load public keys from PEM files, by id."""
    return public_keys(read_key(path, "Ed25519PublicKey") for path in paths)


def public_keys(keys: Iterable[Ed25519PublicKey]) -> PublicKeys:
    """Return public keys by id, as verification expects them."""
    return {_key_id(key): key for key in keys}


def read_key(path: Path, kind: Literal["Ed25519PrivateKey", "Ed25519PublicKey"]) -> Any:
    """Read a key from a PEM file; raise ValueError if it is not of this kind."""
    expected = getattr(_ed25519(), kind)
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

    text = path.read_bytes()
    key = load_pem_public_key(text) if kind == "Ed25519PublicKey" else load_pem_private_key(text, password=None)
    if not isinstance(key, expected):
        raise ValueError(f"{path} does not contain a {kind}")  # noqa: TRY004  # the content of the file is wrong
    return key


def signature_fault(digest: Digest, signature: RecordSignature, keys: PublicKeys) -> str | None:
    """Return why a signature is invalid: another algorithm, an unknown key, or other content."""
    if signature.alg != SIGNATURE_ALGORITHM:
        return f"the signature algorithm {signature.alg!r} is not {SIGNATURE_ALGORITHM}"
    key = keys.get(signature.key_id)
    if key is None:
        return f"the signing key {signature.key_id!r} is unknown"
    return None if _holds(digest, signature.value, key) else "the signature does not match the record digest"


def _holds(digest: Digest, value: str, key: Ed25519PublicKey) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        raw = b64decode(value, validate=True)
        # Base64 is ambiguous: only the canonical encoding is accepted.
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
        raise RuntimeError(f"Signatures require cryptography: {install_command('auth')}") from error
    return ed25519
