"""Is a record what it says: its form, its claims, its digest, its signature, its artifacts, its parents."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any, Final

import msgspec
from msgspec import UNSET

from enfold.errors import FormatError
from enfold.provenance.artifacts import content_fault
from enfold.provenance.canonical import canonical_json
from enfold.provenance.digests import available_algorithms, digest_bytes, digest_fault, same_digest
from enfold.provenance.evidence import anchor_fault
from enfold.provenance.methods import CATALOGUE, Catalogue, Claims, claim_faults, deprecation_notes
from enfold.provenance.records import Algorithm, Digest, Record, read_record
from enfold.provenance.signing import PublicKeys, signature_fault

__all__ = ["Verdict", "record_digest", "verify", "verify_envelope"]

ANCHOR: Final = "artifact:"


class Verdict(msgspec.Struct, frozen=True):
    """What verification found: faults make a record invalid, notes do not."""

    run_id: str
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.faults

    def __str__(self) -> str:
        word = "verified" if self.ok else "NOT verified"
        return "\n".join(
            [f"{self.run_id or 'record'}: {word}", *self.faults, *(f"note: {note}" for note in self.notes)]
        )


def record_digest(record: Mapping[str, Any], algorithm: Algorithm = "sha256") -> Digest:
    """The digest of a record: over its canonical JSON without the `integrity` field."""
    return digest_bytes(_digested_text(record), algorithm)


def _digested_text(record: Mapping[str, Any]) -> bytes:
    return canonical_json({key: value for key, value in record.items() if key != "integrity"})


def verify_envelope(
    envelope: Mapping[str, Any], keys: PublicKeys | None = None, contents: Mapping[str, Any] | None = None
) -> Verdict:
    """Verify the record inside an `mcp.envelope.v0.1`, with the claims that only the envelope can prove."""
    return verify(envelope.get("provenance"), keys, contents=contents, envelope=envelope)


def verify(
    wire: Any,
    keys: PublicKeys | None = None,
    *,
    contents: Mapping[str, Any] | None = None,
    envelope: Mapping[str, Any] | None = None,
    catalogue: Catalogue = CATALOGUE,
) -> Verdict:
    """Verify a record in its wire form.

    With `keys` a signature must hold under one of them; `contents` maps artifact ids to what they are said to be.
    """
    try:
        record = read_record(wire)
    except FormatError as error:
        return Verdict(_run_id(wire), (str(error),))
    claims = Claims(record, envelope)
    faults = (
        *_form_faults(record),
        *claim_faults(claims, catalogue),
        *_artifact_faults(record, contents or {}),
        *_evidence_faults(record, contents),
        *_integrity_faults(record, wire, keys),
    )
    return Verdict(record.run_id, faults, tuple(_notes(record, keys, catalogue)))


def _run_id(wire: Any) -> str:
    found = wire.get("run_id") if isinstance(wire, Mapping) else None
    return found if isinstance(found, str) else ""


def _form_faults(record: Record) -> Iterator[str]:
    if record.time is not UNSET and not _is_time(record.time):
        yield f"{record.time!r} is not an RFC 3339 time"
    if record.run_id in record.parents:
        yield "the run is its own parent"


def _is_time(text: str) -> bool:
    found = _TIME.match(text)
    if found is None:
        return False
    try:
        date.fromisoformat(found["date"])
    except ValueError:
        return False
    return True


_HOUR: Final = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME: Final = re.compile(rf"(?P<date>[0-9-]{{10}})[Tt ]{_HOUR}:([0-5][0-9]|60)(\.[0-9]+)?([Zz]|[+-]{_HOUR})\Z")


def _artifact_faults(record: Record, contents: Mapping[str, Any]) -> Iterator[str]:
    for artifact in (*record.inputs, *record.outputs):
        fault = None if artifact.digest is UNSET else digest_fault(artifact.digest)
        if fault:
            yield f"artifact {artifact.artifact_id}: {fault}"
        elif artifact.artifact_id in contents:
            yield from filter(None, [content_fault(artifact, contents[artifact.artifact_id])])


def _evidence_faults(record: Record, contents: Mapping[str, Any] | None) -> Iterator[str]:
    ids = {artifact.artifact_id for artifact in (*record.inputs, *record.outputs)}
    for evidence in record.evidence:
        fault = anchor_fault(evidence.source, ids, contents) if evidence.source.startswith(ANCHOR) else None
        if fault:
            yield f"evidence for {evidence.field}: {fault}"


def _integrity_faults(record: Record, wire: Mapping[str, Any], keys: PublicKeys | None) -> Iterator[str]:
    integrity = record.integrity
    if integrity is UNSET:
        return
    digest, signature = integrity.record_digest, integrity.signature
    if digest is not UNSET:
        yield from filter(None, [_digest_fault(wire, digest)])
    if signature is not UNSET and digest is UNSET:
        yield "there is a signature, but no record digest for it to cover"
    elif signature is not UNSET and digest is not UNSET and keys is not None:
        yield from filter(None, [signature_fault(digest, signature, keys)])


def _digest_fault(wire: Mapping[str, Any], digest: Digest) -> str | None:
    if digest.alg not in available_algorithms():
        return f"the record digest cannot be checked: {digest.alg} is not installed"
    try:
        fits = same_digest(_digested_text(wire), digest)
    except ValueError as error:  # a text with a lone surrogate, which has no canonical form
        return f"the record digest cannot be checked: {error}"
    return None if fits else "the record digest does not fit the record"


def _notes(record: Record, keys: PublicKeys | None, catalogue: Catalogue) -> Iterator[str]:
    integrity = record.integrity
    if integrity is UNSET or integrity.record_digest is UNSET:
        yield "the record has no digest: a change would not be noticed"
    elif integrity.signature is UNSET:
        yield "the record is not signed"
    elif keys is None:
        yield "the signature was not checked: no keys were given"
    for evidence in record.evidence:
        if not evidence.source.startswith(ANCHOR):
            yield f"evidence for {evidence.field}: {evidence.source!r} is no anchor into an artifact"
    yield from deprecation_notes(record.methods, catalogue)
