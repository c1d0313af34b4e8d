"""Conformance to prov-spec v0.1: the capability manifest and the check of test vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

import enfold
from enfold.envelope import local_envelope
from enfold.errors import FormatError
from enfold.provenance.artifacts import json_pointer_evidence
from enfold.provenance.integrity import canonical_json, digest_fault, digest_json, read_json, same_json
from enfold.provenance.methods import CATALOGUE, method_id_fault
from enfold.provenance.record_store import DEFAULT_MAX_BYTES
from enfold.provenance.recording import MAX_ARTIFACTS
from enfold.provenance.records import Digest, read_artifact

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
        "engine": {"name": "enfold", "version": enfold.__version__, "license": "MIT"},
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
    """Return the faults of a manifest: its form, its method ids, and duplicate ids."""
    try:
        read = msgspec.convert(manifest, _Manifest)
    except (msgspec.ValidationError, UnicodeError) as error:
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
    """`prov-capabilities@v0.1`, following prov-spec's schema."""

    schema: Literal["prov-capabilities@v0.1"]
    engine: _Engine
    implements: Annotated[list[str], msgspec.Meta(min_length=1)]
    optional: list[str] = []
    conformance_level: Literal["syntax-conformant", "semantics-conformant", "fully-conformant"] = "syntax-conformant"
    constraints: _Constraints | None = None
    test_vectors_validated: list[str] = []
    known_deviations: list[_Deviation] = []


EXPECTED: Final = "expected.json"
INPUT: Final = "input.json"

# Writes and reads an `mcp.envelope.v0.1`; passed in, because formats are in a higher layer.
Wrap = Callable[[Any], Any]


class VectorVerdict(msgspec.Struct, frozen=True):
    """The verdict on one vector; `faults` list the differences from the expectation."""

    id: str
    faults: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.id}: {'; '.join(self.faults) or 'as expected'}"


def check_vectors(place: Path, wrap: Wrap, unwrap: Wrap) -> Iterator[VectorVerdict]:
    """Check a vector (a file, or a directory with input and expectation), or all below a directory."""
    if place.is_file():
        yield _verdict(place.stem, lambda: _check_file(read_json(place.read_bytes()), unwrap))
    elif (place / INPUT).is_file():
        yield _verdict(place.name, lambda: _check_pair(place, wrap))
        yield from _check_folder(place, wrap, unwrap)
    elif place.is_dir():
        yield from _check_folder(place, wrap, unwrap)
    else:
        raise FileNotFoundError(f"there is no vector at {place}")


def _check_folder(folder: Path, wrap: Wrap, unwrap: Wrap) -> Iterator[VectorVerdict]:
    for each in sorted(folder.iterdir()):
        if each.is_dir() or (each.suffix == ".json" and each.name not in (INPUT, EXPECTED)):
            yield from check_vectors(each, wrap, unwrap)


def _verdict(name: str, check: Callable[[], tuple[str, list[str]]]) -> VectorVerdict:
    try:
        known, faults = check()
    except (FormatError, ValueError, KeyError, TypeError, OSError) as error:
        return VectorVerdict(name, (f"it cannot be read: {error}",))
    return VectorVerdict(known or name, tuple(faults))


# --- an input, and what is expected -------------------------------------------------------------------------------


def _check_pair(folder: Path, wrap: Wrap) -> tuple[str, list[str]]:
    given, expected = (read_json((folder / name).read_bytes()) for name in (INPUT, EXPECTED))
    check = _METHODS.get(folder.name)
    if check is None:
        return folder.name, ["vectors of this method are not supported"]
    return folder.name, [
        f"{what} differs" for what, ours, theirs in check(given, expected, wrap) if not same_json(ours, theirs)
    ]


def _compare_envelope(given: Any, expected: Any, wrap: Wrap) -> Iterator[tuple[str, Any, Any]]:
    wrapped = wrap(local_envelope(given, ""))
    yield "the envelope", wrapped, {"provenance": None, **expected}


def _compare_digest(given: Any, expected: Any, wrap: Wrap) -> Iterator[tuple[str, Any, Any]]:
    del wrap
    yield "the canonical form", canonical_json(given).decode(), expected["canonical_form"]
    yield "the digest", digest_json(given, expected["digest"]["alg"]).to_wire(), expected["digest"]


def _compare_evidence(given: Any, expected: Any, wrap: Wrap) -> Iterator[tuple[str, Any, Any]]:
    """Request each field again at the location of its first evidence."""
    del wrap
    fields: dict[str, str] = {}
    for each in expected["evidence"]:
        name, bracket, _ = each["field"].partition("[")
        pointer = each["source"].partition("#json:")[2]
        fields.setdefault(name, pointer.rpartition("/")[0] if bracket else pointer)
    found = json_pointer_evidence(given["artifact_id"], given["content"], fields)
    yield "the evidence", [each.to_wire() for each in found], expected["evidence"]


_METHODS: Final = {
    "adapter.wrap.envelope_v0_1": _compare_envelope,
    "integrity.digest.sha256": _compare_digest,
    "integrity.digest.sha512": _compare_digest,
    "integrity.digest.blake3": _compare_digest,
    "engine.extract.evidence.json_pointer": _compare_evidence,
}


# --- one file, good or bad ----------------------------------------------------------------------------------------


def _check_file(vector: Any, unwrap: Wrap) -> tuple[str, list[str]]:
    """Check a vector that declares whether it is valid; for an invalid one a fault must be found."""
    about = vector["_vector_meta"]
    faults = list(_faults(vector, unwrap))
    if about["expect"] == "pass":
        return about["id"], faults
    return about["id"], [] if faults else [f"the expected fault was not found: {about.get('reason', '')}"]


def _faults(vector: Any, unwrap: Wrap) -> Iterator[str]:
    for method_id in [*vector.get("method_ids", ()), *([vector["method_id"]] if "method_id" in vector else ())]:
        fault = method_id_fault(method_id)
        if fault is not None:
            yield fault
    try:
        if "envelope" in vector:
            unwrap(vector["envelope"])
        if "artifact" in vector:
            digest = read_artifact(vector["artifact"]).digest
            fault = digest_fault(digest) if isinstance(digest, Digest) else None
            if fault is not None:
                yield fault
    except FormatError as error:
        yield str(error)
