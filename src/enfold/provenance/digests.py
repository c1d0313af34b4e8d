"""Digests over bytes and over canonical JSON: sha256, sha512, and blake3 where its package is installed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any, Final

from enfold.provenance.canonical import canonical_json
from enfold.provenance.records import Algorithm, Digest

_HEX_LENGTHS: Final[dict[str, int]] = {"sha256": 64, "sha512": 128, "blake3": 64}
_LOWER_HEX: Final = re.compile(r"[0-9a-f]*\Z")


def digest_json(value: Any, algorithm: Algorithm = "sha256") -> Digest:
    """The digest of a JSON value, over its canonical text."""
    return digest_bytes(canonical_json(value), algorithm)


def digest_bytes(content: bytes, algorithm: Algorithm = "sha256") -> Digest:
    return digest_chunks([content], algorithm)


def digest_chunks(chunks: Iterable[bytes], algorithm: Algorithm = "sha256") -> Digest:
    """The digest of content that comes piece by piece."""
    state = _new_hash(algorithm)
    for chunk in chunks:
        state.update(chunk)
    return Digest(algorithm, state.hexdigest())


def same_digest(content: bytes, digest: Digest) -> bool:
    """Whether content has this digest; a digest written in another way than ours is another one."""
    return digest_bytes(content, digest.alg) == digest


def digest_fault(digest: Digest) -> str | None:
    """What is wrong with the form of a digest: its length, or a character that is not lower-case hex."""
    expected = _HEX_LENGTHS[digest.alg]
    if not _LOWER_HEX.match(digest.value):
        return f"a {digest.alg} digest is lower-case hex"
    if len(digest.value) != expected:
        return f"a {digest.alg} digest has {expected} characters, not {len(digest.value)}"
    return None


def available_algorithms() -> tuple[Algorithm, ...]:
    """The algorithms this process can compute."""
    return ("sha256", "sha512") if _blake3() is None else ("sha256", "sha512", "blake3")


def _new_hash(algorithm: Algorithm) -> Any:
    if algorithm != "blake3":
        return hashlib.new(algorithm)
    blake3 = _blake3()
    if blake3 is None:
        raise ValueError("blake3 digests need the package blake3: install it, or use sha256")
    return blake3()


def _blake3() -> Any:
    try:
        from importlib import import_module

        return import_module("blake3").blake3
    except ImportError:
        return None
