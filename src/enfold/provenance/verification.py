"""Verification of a record: form, claims, digest, signature, artifacts and parents."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any, Final

import msgspec
from msgspec import UNSET

from enfold.envelope.foreign import ENVELOPE_VERSION
from enfold.errors import FormatError, printable
from enfold.provenance.artifacts import ROLE_LABEL, anchor_fault, content_fault, is_comparable, is_json_type
from enfold.provenance.integrity import (
    PublicKeys,
    available_algorithms,
    canonical_json,
    digest_bytes,
    digest_fault,
    same_digest,
    signature_fault,
)
from enfold.provenance.methods import (
    ATTACH_METHOD,
    CATALOGUE,
    Catalogue,
    Claims,
    claim_faults,
    deprecation_notes,
)
from enfold.provenance.records import Algorithm, Artifact, Digest, Record, read_record

ANCHOR: Final = "artifact:"
PARENTS_NOT_CHECKED: Final = "parents not checked: no store was given"

# The fields of an envelope with a digest in the record, by the role of the output artifact.
RESULT_ROLES: Final = {"output": "result", "errors": "errors", "warnings": "warnings"}
_ENVELOPE_FIELDS: Final = frozenset({"schema_version", "result", "provenance", "errors", "warnings", "meta"})


class Verdict(msgspec.Struct, frozen=True):
    """The result of verification: faults make a record invalid, notes do not."""

    run_id: str
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.faults

    def __str__(self) -> str:
        word = "verified" if self.ok else "NOT verified"
        lines = [f"{self.run_id or 'record'}: {word}", *self.faults, *(f"note: {note}" for note in self.notes)]
        return "\n".join(map(printable, lines))


def record_digest(record: Mapping[str, Any], algorithm: Algorithm = "sha256") -> Digest:
    """Return the digest of a record's canonical JSON without the `integrity` field."""
    return digest_bytes(_digested_text(record), algorithm)


def _digested_text(record: Mapping[str, Any]) -> bytes:
    return canonical_json({key: value for key, value in record.items() if key != "integrity"})


def verify_envelope(
    envelope: Mapping[str, Any], keys: PublicKeys | None = None, contents: Mapping[str, Any] | None = None
) -> Verdict:
    """Verify an `mcp.envelope.v0.1`: its form, its record, and that its result matches the record."""
    if envelope.get("provenance") is None:
        return Verdict("", ("the envelope has no record",))
    return verify(envelope["provenance"], keys, contents=contents, envelope=envelope)


def verify(
    wire: Any,
    keys: PublicKeys | None = None,
    *,
    contents: Mapping[str, Any] | None = None,
    envelope: Mapping[str, Any] | None = None,
    catalogue: Catalogue = CATALOGUE,
) -> Verdict:
    """Verify a record in its wire form.

    With `keys` it must be signed by one of them; `contents` maps artifact ids to their alleged content.
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
        *(() if envelope is None else _envelope_faults(record, envelope)),
    )
    notes = (*_notes(record, keys, catalogue), *(() if envelope is None else _envelope_notes(record)))
    return Verdict(record.run_id, faults, notes)


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
    digest = UNSET if integrity is UNSET else integrity.record_digest
    signature = UNSET if integrity is UNSET else integrity.signature
    if digest is not UNSET:
        yield from filter(None, [_digest_fault(wire, digest)])
    if signature is UNSET:
        yield from () if keys is None else ("the record is not signed, but a key was given",)
    elif digest is UNSET:
        yield "there is a signature, but no record digest for it to cover"
    elif keys is not None:
        yield from filter(None, [signature_fault(digest, signature, keys)])


def _digest_fault(wire: Mapping[str, Any], digest: Digest) -> str | None:
    if digest.alg not in available_algorithms():
        return f"the record digest cannot be checked: {digest.alg} is not installed"
    try:
        fits = same_digest(_digested_text(wire), digest)
    except ValueError as error:  # an unpaired surrogate, which has no canonical form
        return f"the record digest cannot be checked: {error}"
    return None if fits else "the record digest does not match the record"


# --- the envelope around it ---------------------------------------------------------------------------------------


def _envelope_faults(record: Record, envelope: Mapping[str, Any]) -> Iterator[str]:
    if envelope.get("schema_version") != ENVELOPE_VERSION or "result" not in envelope:
        yield f"this is not an {ENVELOPE_VERSION}"
    for name in sorted(set(envelope) - _ENVELOPE_FIELDS):
        yield f"an {ENVELOPE_VERSION} has no field {name!r}"
    for role, field in RESULT_ROLES.items():
        artifacts = [artifact for artifact in record.outputs if _role(artifact) == role]
        yield from filter(None, (_field_fault(artifact, field, envelope.get(field)) for artifact in artifacts))
        if not artifacts and _is_there(field, envelope.get(field)) and _lists_everything(record):
            yield f"the envelope has {field}, but the record has none"


def _is_there(field: str, value: Any) -> bool:
    return value is not None if field == "result" else bool(value)


def _role(artifact: Artifact) -> str | None:
    return None if artifact.labels is UNSET else artifact.labels.get(ROLE_LABEL)


def _field_fault(artifact: Artifact, field: str, value: Any) -> str | None:
    if not is_comparable(artifact):
        return None
    if isinstance(value, str) and not is_json_type(artifact.media_type):
        value = _decode_base64(value)
    broken = content_fault(artifact, value)
    return f"the {field} of the envelope does not match the record ({broken})" if broken else None


def _decode_base64(text: str) -> str | bytes:
    """Return the bytes that an envelope contains as base64."""
    try:
        return b64decode(text, validate=True)
    except Base64Error:
        return text


def _lists_everything(record: Record) -> bool:
    """Whether a record lists everything its adapter put into the envelope, as ours does in mode full."""
    has_roles = any(_role(artifact) in ("input", *RESULT_ROLES) for artifact in (*record.inputs, *record.outputs))
    return has_roles and ATTACH_METHOD in record.methods


def _envelope_notes(record: Record) -> Iterator[str]:
    results = [artifact for artifact in record.outputs if _role(artifact) == "output"]
    if not results or not all(map(is_comparable, results)):
        yield "the result was not compared: the record has no digest of it in this form"


# --- notes, which are not faults ---------------------------------------------------------------------------


def _notes(record: Record, keys: PublicKeys | None, catalogue: Catalogue) -> Iterator[str]:
    integrity = record.integrity
    if integrity is UNSET or integrity.record_digest is UNSET:
        yield "the record has no digest: a change would not be detected"
    elif integrity.signature is UNSET:
        yield "the record is not signed: its digest could be recomputed after a change"
    elif keys is None:
        yield "the signature was not checked: no keys were given"
    if record.parents:
        yield PARENTS_NOT_CHECKED
    for evidence in record.evidence:
        if not evidence.source.startswith(ANCHOR):
            yield f"evidence for {evidence.field}: {evidence.source!r} is not an anchor in an artifact"
    yield from deprecation_notes(record.methods, catalogue)
