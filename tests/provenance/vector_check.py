"""Checks the test vectors of prov-spec: files that declare whether they are valid, and inputs with what is expected of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from enfold.envelope import local_envelope
from enfold.errors import FormatError
from enfold.formats.mcp_envelope_v0_1 import read as unwrap
from enfold.formats.mcp_envelope_v0_1 import write as wrap
from enfold.provenance import canonical_json, digest_json, json_pointer_evidence, method_id_fault, read_json
from enfold.provenance.integrity import digest_fault, same_json
from enfold.provenance.records import Digest, read_artifact

EXPECTED: Final = "expected.json"
INPUT: Final = "input.json"


class VectorVerdict(msgspec.Struct, frozen=True):
    """The verdict on one vector; `faults` list the differences from the expectation."""

    id: str
    faults: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.id}: {'; '.join(self.faults) or 'as expected'}"


def check_vectors(place: Path) -> Iterator[VectorVerdict]:
    """Check a vector (a file, or a directory with input and expectation), or all below a directory."""
    if place.is_file():
        yield _verdict(place.stem, lambda: _check_file(read_json(place.read_bytes())))
    elif (place / INPUT).is_file():
        yield _verdict(place.name, lambda: _check_pair(place))
        yield from _check_folder(place)
    elif place.is_dir():
        yield from _check_folder(place)
    else:
        raise FileNotFoundError(f"there is no vector at {place}")


def _check_folder(folder: Path) -> Iterator[VectorVerdict]:
    for each in sorted(folder.iterdir()):
        if each.is_dir() or (each.suffix == ".json" and each.name not in (INPUT, EXPECTED)):
            yield from check_vectors(each)


def _verdict(name: str, check: Callable[[], tuple[str, list[str]]]) -> VectorVerdict:
    try:
        known, faults = check()
    except (FormatError, ValueError, KeyError, TypeError, OSError) as error:
        return VectorVerdict(name, (f"it cannot be read: {error}",))
    return VectorVerdict(known or name, tuple(faults))


# --- an input, and what is expected -------------------------------------------------------------------------------


def _check_pair(folder: Path) -> tuple[str, list[str]]:
    given, expected = (read_json((folder / name).read_bytes()) for name in (INPUT, EXPECTED))
    check = _METHODS.get(folder.name)
    if check is None:
        return folder.name, ["vectors of this method are not supported"]
    return folder.name, [
        f"{what} differs" for what, ours, theirs in check(given, expected) if not same_json(ours, theirs)
    ]


def _compare_envelope(given: Any, expected: Any) -> Iterator[tuple[str, Any, Any]]:
    wrapped = wrap(local_envelope(given, ""))
    yield "the envelope", wrapped, {"provenance": None, **expected}


def _compare_digest(given: Any, expected: Any) -> Iterator[tuple[str, Any, Any]]:
    yield "the canonical form", canonical_json(given).decode(), expected["canonical_form"]
    yield "the digest", digest_json(given, expected["digest"]["alg"]).to_wire(), expected["digest"]


def _compare_evidence(given: Any, expected: Any) -> Iterator[tuple[str, Any, Any]]:
    """Request each field again at the location of its first evidence."""
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


def _check_file(vector: Any) -> tuple[str, list[str]]:
    """Check a vector that declares whether it is valid; for an invalid one a fault must be found."""
    about = vector["_vector_meta"]
    faults = list(_faults(vector))
    if about["expect"] == "pass":
        return about["id"], faults
    return about["id"], [] if faults else [f"the expected fault was not found: {about.get('reason', '')}"]


def _faults(vector: Any) -> Iterator[str]:
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
