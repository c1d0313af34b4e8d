"""What this engine implements of prov-spec v0.1, as its capability manifest says it (`prov-capabilities.json`)."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from enfold.provenance.methods import CATALOGUE, method_id_fault
from enfold.provenance.record_store import DEFAULT_MAX_BYTES
from enfold.provenance.recording import MAX_ARTIFACTS
from enfold.version import installed_version

LEVEL: Final = 3  # Lineage: parents link to real runs, which can be fetched, and form no circle.

# The package of blake3 is not ours: an installation may be without it.
_OPTIONAL: Final = ("integrity.digest.blake3",)

_VECTORS: Final = (
    "adapter.wrap.envelope_v0_1",
    "adapter.wrap.envelope_v0_1/negative/double_wrapped",
    "adapter.wrap.envelope_v0_1/negative/wrong_schema_version",
    "engine.extract.evidence.json_pointer",
    "integrity.digest.sha256",
    "integrity.digest.sha256/negative/non_hex_chars",
    "integrity.digest.sha256/negative/uppercase_hex",
    "integrity.digest.sha256/negative/wrong_length",
    "method_id_syntax/negative/hyphen_separator",
    "method_id_syntax/negative/reserved_namespace",
    "method_id_syntax/negative/starts_with_digit",
    "method_id_syntax/negative/uppercase",
    "method_id_syntax/positive/valid_ids",
)

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
    """The manifest, in the form of `prov-capabilities@v0.1`."""
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


def manifest_faults(manifest: Any) -> list[str]:
    """What is wrong with somebody's manifest: its form, its method ids, and ids that stand there twice."""
    try:
        read = msgspec.convert(manifest, _Manifest)
    except msgspec.ValidationError as error:
        return [str(error)]
    claimed = [*read.implements, *read.optional]
    faults = [fault for fault in map(method_id_fault, claimed) if fault is not None]
    return faults + [
        f"{each} is listed twice" for each in sorted({each for each in claimed if claimed.count(each) > 1})
    ]


class _Engine(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
    version: Annotated[str, msgspec.Meta(max_length=50)]
    vendor: Annotated[str, msgspec.Meta(max_length=200)] = ""
    repo: str = ""
    license: str = ""


class _Constraints(msgspec.Struct, forbid_unknown_fields=True):
    canonicalization: Literal["jcs-subset", "jcs-full", "custom"] = "jcs-subset"
    max_record_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    max_artifacts: Annotated[int, msgspec.Meta(ge=0)] = 0
    supported_digest_algorithms: list[Literal["sha256", "sha512", "blake3"]] = []


class _Deviation(msgspec.Struct):
    method_id: str
    deviation: str
    reason: str = ""


class _Manifest(msgspec.Struct, forbid_unknown_fields=True):
    """`prov-capabilities@v0.1`, as prov-spec's schema has it."""

    schema: Literal["prov-capabilities@v0.1"]
    engine: _Engine
    implements: Annotated[list[str], msgspec.Meta(min_length=1)]
    optional: list[str] = []
    conformance_level: Literal["syntax-conformant", "semantics-conformant", "fully-conformant"] = "syntax-conformant"
    constraints: _Constraints | None = None
    test_vectors_validated: list[str] = []
    known_deviations: list[_Deviation] = []
