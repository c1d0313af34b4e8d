"""Method ids: their grammar, the catalogue of prov-spec v0.1, and the conditions for claiming each of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET

from enfold.envelope.foreign import ENVELOPE_VERSION, names_itself
from enfold.errors import FormatError
from enfold.provenance.artifacts import JSON_POINTER_METHOD, TEXT_LINES_METHOD, Anchor, read_anchor
from enfold.provenance.integrity import digest_fault, same_json
from enfold.provenance.records import EVIDENCE_VERSION, Record, read_record

ATTACH_METHOD: Final = "adapter.provenance.attach_record_v0_1"

_GRAMMAR: Final = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*(_v[0-9]+_[0-9]+)?\Z")


class ClaimError(ValueError):
    """A record claims a method whose conditions it does not meet."""


class Method(msgspec.Struct, frozen=True):
    """One id of the catalogue: its meaning and whether it is deprecated."""

    id: str
    summary: str = ""
    status: str = "stable"
    superseded_by: str | None = None


class Catalogue(msgspec.Struct, frozen=True):
    """The known methods by id, and the reserved namespaces."""

    methods: dict[str, Method]
    reserved: frozenset[str]


def read_catalogue(document: Mapping[str, Any]) -> Catalogue:
    """Read a catalogue in prov-spec's format (`methods-catalog@v0.1`)."""
    try:
        methods = msgspec.convert(document["methods"], list[Method])
        namespaces = msgspec.convert(document["namespaces"], dict[str, dict[str, str]])
    except (msgspec.ValidationError, UnicodeError, KeyError, TypeError) as error:
        raise FormatError(f"Not a catalogue of methods: {error}") from error
    reserved = frozenset(name for name, fields in namespaces.items() if fields.get("status") == "reserved")
    return Catalogue({method.id: method for method in methods}, reserved)


# --- what a claim promises ----------------------------------------------------------------------------------------


class Claims(msgspec.Struct, frozen=True):
    """A record and the data to check its claims against; a claim without data passes."""

    record: Record
    envelope: Mapping[str, Any] | None = None
    original: Any = UNSET  # what the tool returned, if available
    signature_verified: bool | None = None
    linked: Sequence[Record] | None = None  # the records of the graph that was built


Contract: TypeAlias = Callable[[Claims], str | None]


def _is_wrapped(claims: Claims) -> str | None:
    envelope = claims.envelope
    if envelope is None:
        return None
    if envelope.get("schema_version") != ENVELOPE_VERSION or "result" not in envelope:
        return f"the record is not inside an {ENVELOPE_VERSION}"
    if names_itself(envelope["result"]):
        return "the result is an envelope itself"
    if claims.original is not UNSET and not same_json(envelope["result"], claims.original):
        return "the result is not the original payload"
    return None


def _is_passed_through(claims: Claims) -> str | None:
    envelope = claims.envelope
    if envelope is None:
        return None
    if names_itself(envelope.get("result")):
        return "the envelope is wrapped twice"
    if claims.original is not UNSET and not same_json(envelope, claims.original):
        return "the envelope is not the original one"
    return None


def _is_attached(claims: Claims) -> str | None:
    if claims.envelope is None:
        return None
    attached = claims.envelope.get("provenance")
    try:
        found = attached if isinstance(attached, Record) else read_record(attached)
    except FormatError:
        return "the envelope has no valid record"
    return None if found.run_id == claims.record.run_id else "the envelope has the record of another run"


def _has_entries(field: str, word: str) -> Contract:
    def has_entries(claims: Claims) -> str | None:
        entries = () if claims.envelope is None else claims.envelope.get(field)
        has_entry = any(
            isinstance(entry, Mapping) and entry.get("code") and entry.get("message") for entry in entries or ()
        )
        return None if claims.envelope is None or has_entry else f"the envelope has no {word} with code and message"

    return has_entries


def _has(field: str, fault: str) -> Contract:
    """Return a check that the record has this field."""
    return lambda claims: None if getattr(claims.record, field) else fault


def _has_anchor(mark: str, is_kind: Callable[[Anchor], bool]) -> Contract:
    def has_anchor(claims: Claims) -> str | None:
        sources = [evidence.source for evidence in claims.record.evidence if mark in evidence.source]
        return None if any(_is_anchor(source, is_kind) for source in sources) else f"no evidence has a valid {mark}…"

    return has_anchor


def _is_anchor(source: str, is_kind: Callable[[Anchor], bool]) -> bool:
    try:
        return is_kind(read_anchor(source))
    except FormatError:
        return False


def _has_digest(algorithm: str) -> Contract:
    def has_digest(claims: Claims) -> str | None:
        artifacts = (*claims.record.inputs, *claims.record.outputs)
        digests = [item.digest for item in artifacts if item.digest is not UNSET and item.digest.alg == algorithm]
        if not digests:
            return f"no artifact has a {algorithm} digest"
        return next(filter(None, map(digest_fault, digests)), None)

    return has_digest


def _has_record_digest(claims: Claims) -> str | None:
    integrity = claims.record.integrity
    return None if integrity is not UNSET and integrity.record_digest is not UNSET else "there is no record digest"


def _is_signed(claims: Claims) -> str | None:
    integrity = claims.record.integrity
    if integrity is UNSET or integrity.signature is UNSET:
        return "there is no signature"
    return _has_record_digest(claims)


def _was_verified(claims: Claims) -> str | None:
    return "the signature was not verified" if claims.signature_verified is False else None


def _is_linked(claims: Claims) -> str | None:
    if claims.linked is None:
        return None
    ids = {record.run_id for record in claims.linked}
    linked = any(parent in ids for record in claims.linked for parent in record.parents)
    return None if linked else "no records are linked"


# --- the catalogue ------------------------------------------------------------------------------------------------

# The meaning of each id, and the condition for a record that claims it.
_METHODS: Final[dict[str, tuple[str, Contract]]] = {
    "adapter.wrap.envelope_v0_1": ("A payload was wrapped in an envelope", _is_wrapped),
    "adapter.pass_through.envelope_v0_1": ("An envelope was passed on unchanged", _is_passed_through),
    ATTACH_METHOD: ("The adapter attached this record", _is_attached),
    "adapter.errors.capture": ("A failure became an error of the envelope", _has_entries("errors", "error")),
    "adapter.warnings.capture": ("Warnings became warnings of the envelope", _has_entries("warnings", "warning")),
    # A Record cannot exist without its required fields.
    "engine.prov.record_v0_1.build": ("The record was created", lambda _: None),
    "engine.prov.artifact.register_input": (
        "The inputs are artifacts of the record",
        _has("inputs", "there is no input artifact"),
    ),
    "engine.prov.artifact.register_output": (
        "The outputs are artifacts of the record",
        _has("outputs", "there is no output artifact"),
    ),
    JSON_POINTER_METHOD: (
        "Evidence refers to locations in JSON",
        _has_anchor("#json:/", lambda anchor: anchor.pointer is not None),
    ),
    TEXT_LINES_METHOD: (
        "Evidence refers to lines of text",
        _has_anchor("#text:line:", lambda anchor: anchor.lines is not None),
    ),
    "engine.coerce.evidence.v0_1": (
        "Evidence returned by the tool was normalized",
        _has("evidence", f"there is no evidence of {EVIDENCE_VERSION}"),
    ),
    "integrity.digest.sha256": ("Artifacts have sha256 digests", _has_digest("sha256")),
    "integrity.digest.sha512": ("Artifacts have sha512 digests", _has_digest("sha512")),
    "integrity.digest.blake3": ("Artifacts have blake3 digests", _has_digest("blake3")),
    "integrity.record_digest.compute": ("The record has a digest", _has_record_digest),
    "integrity.signature.create": ("The record digest is signed", _is_signed),
    "integrity.signature.verify": ("A signature was verified", _was_verified),
    "lineage.parent.link": ("The record names its parents", _has("parents", "there is no parent")),
    "lineage.graph.build": ("Records were linked into a graph", _is_linked),
}
CONTRACTS: Final = {method_id: contract for method_id, (_, contract) in _METHODS.items()}
CATALOGUE: Final = Catalogue(
    {method_id: Method(method_id, summary) for method_id, (summary, _) in _METHODS.items()},
    frozenset({"policy", "attestation", "execution", "audit"}),
)


# --- the ids themselves -------------------------------------------------------------------------------------------


def method_id_fault(method_id: str, catalogue: Catalogue = CATALOGUE) -> str | None:
    """Return the fault of a method id: its grammar, or a reserved namespace."""
    if not _GRAMMAR.match(method_id):
        return f"{method_id!r} is not a method id: lower-case segments with dots between, a version as _vMAJOR_MINOR"
    namespace = method_id.partition(".")[0]
    if namespace in catalogue.reserved:
        return f"{method_id!r} is in the reserved namespace {namespace!r}"
    return None


def deprecation_notes(methods: Iterable[str], catalogue: Catalogue = CATALOGUE) -> list[str]:
    """Return a note for each deprecated id, with its replacement."""
    known = map(catalogue.methods.get, methods)
    return [
        f"{method.id} is deprecated" + (f": use {method.superseded_by}" if method.superseded_by else "")
        for method in known
        if method is not None and method.status == "deprecated"
    ]


# --- checking claims ----------------------------------------------------------------------------------------------


def check_claims(claims: Claims, catalogue: Catalogue = CATALOGUE) -> None:
    """Raise ClaimError for a record with an unmet claim; called before a record is sent."""
    faults = claim_faults(claims, catalogue)
    if faults:
        raise ClaimError("; ".join(faults))


def claim_faults(claims: Claims, catalogue: Catalogue = CATALOGUE) -> list[str]:
    """Return a fault for each method id that is malformed, reserved, or whose conditions are not met."""
    faults = []
    for method in claims.record.methods:
        fault = method_id_fault(method, catalogue)
        contract = CONTRACTS.get(method)
        if fault is None and contract is not None:
            broken = contract(claims)
            fault = f"{method} is claimed, but {broken}" if broken else None
        if fault:
            faults.append(fault)
    return faults
