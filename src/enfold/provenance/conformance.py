"""Conformance to prov-spec v0.1: the capability manifest."""

from __future__ import annotations

from typing import Any, Final

from enfold.provenance.methods import CATALOGUE
from enfold.provenance.record_store import DEFAULT_MAX_BYTES
from enfold.provenance.recording import MAX_ARTIFACTS
from enfold.version import installed_version

LEVEL: Final = 3  # Lineage: parents link to existing runs without cycles.

# blake3 is an optional package.
_OPTIONAL: Final = ("integrity.digest.blake3",)

_VECTORS: Final = (
    "adapter.wrap.envelope_v0_1", "adapter.wrap.envelope_v0_1/negative/double_wrapped",
    "adapter.wrap.envelope_v0_1/negative/wrong_schema_version", "engine.extract.evidence.json_pointer",
    "integrity.digest.sha256", "integrity.digest.sha256/negative/non_hex_chars",
    "integrity.digest.sha256/negative/uppercase_hex", "integrity.digest.sha256/negative/wrong_length",
    "method_id_syntax/negative/hyphen_separator", "method_id_syntax/negative/reserved_namespace",
    "method_id_syntax/negative/starts_with_digit", "method_id_syntax/negative/uppercase",
    "method_id_syntax/positive/valid_ids",
)  # fmt: skip

_DEVIATIONS: Final = (
    {
        "method_id": "integrity.record_digest.compute",
        "deviation": "Object keys are ordered by Unicode code point, where RFC 8785 orders them by UTF-16 unit.",
        "reason": "prov-spec says so; the two differ only for keys with characters beyond U+FFFF.",
    },
    {
        "method_id": "integrity.record_digest.compute",
        "deviation": "A whole number is written as an integer whatever its size, where RFC 8785 writes 1e+21.",
        "reason": "prov-spec allows no plus sign; integers beyond 2**53 keep all their digits.",
    },
)


def capabilities() -> dict[str, Any]:
    """Return the manifest in the form of `prov-capabilities@v0.1`."""
    return {
        "schema": "prov-capabilities@v0.1",
        "engine": {"name": "enfold", "version": installed_version(), "license": "MIT"},
        "implements": [method for method in CATALOGUE.methods if method not in _OPTIONAL],
        "optional": list(_OPTIONAL),
        "conformance_level": "fully-conformant",
        "constraints": {
            "canonicalization": "jcs-subset",
            "max_record_bytes": DEFAULT_MAX_BYTES,
            "max_artifacts": MAX_ARTIFACTS,
            "supported_digest_algorithms": ["sha256", "sha512", "blake3"],
        },
        "test_vectors_validated": list(_VECTORS),
        "known_deviations": [dict(deviation) for deviation in _DEVIATIONS],
    }
