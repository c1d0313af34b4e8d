"""Test vectors of prov-spec, checked: what a vector expects, and what we make of it. Reads files, writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from enfold.envelope import local_envelope
from enfold.errors import FormatError
from enfold.provenance.canonical import canonical_json, read_json, same_json
from enfold.provenance.digests import digest_fault, digest_json
from enfold.provenance.evidence import json_pointer_evidence
from enfold.provenance.methods import method_id_fault
from enfold.provenance.records import Digest, read_artifact

EXPECTED: Final = "expected.json"
INPUT: Final = "input.json"

# Writes a value as an `mcp.envelope.v0.1`, and reads one: formats lie above this room, so they are given.
Wrap = Callable[[Any], Any]


class VectorVerdict(msgspec.Struct, frozen=True):
    """What became of one vector; `faults` say in which way it is not what it expects to be."""

    id: str
    faults: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.id}: {'; '.join(self.faults) or 'as expected'}"


def check_vectors(place: Path, wrap: Wrap, unwrap: Wrap) -> Iterator[VectorVerdict]:
    """The verdict on a vector, which is a file or a folder with an input and what is expected; or on all below a folder."""
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
        return folder.name, ["nobody here knows vectors of this method"]
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
    """Each field is asked for again at the place that its first evidence names."""
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
    """A vector that says of itself whether it is good; where it is bad, some fault must be found."""
    about = vector["_vector_meta"]
    faults = list(_faults(vector, unwrap))
    if about["expect"] == "pass":
        return about["id"], faults
    return about["id"], [] if faults else [f"no fault was found, but there is one: {about.get('reason', '')}"]


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
