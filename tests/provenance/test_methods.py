"""Method ids and their contracts: what a record must hold to claim what it claims."""

from __future__ import annotations

from typing import Any

import pytest

from enfold.errors import FormatError
from enfold.provenance import ClaimError, method_id_fault, read_catalogue, read_record, verify, verify_envelope
from enfold.provenance.methods import Claims, check_claims, claim_faults, deprecation_notes

Wire = dict[str, Any]

HEX = "0" * 64
ARTIFACT: Wire = {"schema_version": "artifact.v0.1", "artifact_id": "a1", "media_type": "application/json"}


def record(method: str, **fields: Any) -> Wire:
    return {
        "schema_version": "prov.record.v0.1",
        "run_id": "run-1",
        "tool": {"name": "shop.add", "version": "1"},
        "inputs": [ARTIFACT],
        "outputs": [],
        "methods": [method],
        "evidence": [],
        "parents": [],
        **fields,
    }


def digested(algorithm: str, value: str) -> Wire:
    return {"inputs": [{**ARTIFACT, "digest": {"alg": algorithm, "value": value}}]}


def evidence(source: str) -> Wire:
    return {"evidence": [{"schema_version": "evidence.v0.1", "field": "sum", "source": source}]}


DIGEST = {"alg": "sha256", "value": HEX}
SIGNATURE = {"alg": "Ed25519", "key_id": "k", "value": "0" * 88}

KEPT = {
    "register_input": record("engine.prov.artifact.register_input"),
    "register_output": record("engine.prov.artifact.register_output", outputs=[ARTIFACT]),
    "build": record("engine.prov.record_v0_1.build"),
    "json pointer": record("engine.extract.evidence.json_pointer", **evidence("artifact:a1#json:/a~1b/0")),
    "text line": record("engine.extract.evidence.text_lines", **evidence("artifact:a1#text:line:3")),
    "text lines": record("engine.extract.evidence.text_lines", **evidence("artifact:a1#text:line:3-7")),
    "coerce": record("engine.coerce.evidence.v0_1", **evidence("artifact:a1")),
    "sha256": record("integrity.digest.sha256", **digested("sha256", HEX)),
    "sha512": record("integrity.digest.sha512", **digested("sha512", HEX * 2)),
    "blake3": record("integrity.digest.blake3", **digested("blake3", HEX)),
    "record digest": record("integrity.record_digest.compute", integrity={"record_digest": DIGEST}),
    "signature": record("integrity.signature.create", integrity={"record_digest": DIGEST, "signature": SIGNATURE}),
    "parent": record("lineage.parent.link", parents=["run-0"]),
    "a tool's own": record("profile.screen_reader.apply"),
}

BROKEN = {
    "register_input": record("engine.prov.artifact.register_input", inputs=[]),
    "register_output": record("engine.prov.artifact.register_output"),
    "json pointer missing": record("engine.extract.evidence.json_pointer"),
    "json pointer without slash": record("engine.extract.evidence.json_pointer", **evidence("artifact:a1#json:a")),
    "json pointer with a bad escape": record(
        "engine.extract.evidence.json_pointer", **evidence("artifact:a1#json:/~2")
    ),
    "text line zero": record("engine.extract.evidence.text_lines", **evidence("artifact:a1#text:line:0")),
    "text lines backwards": record("engine.extract.evidence.text_lines", **evidence("artifact:a1#text:line:7-3")),
    "coerce": record("engine.coerce.evidence.v0_1"),
    "sha256 missing": record("integrity.digest.sha256"),
    "sha256 too short": record("integrity.digest.sha256", **digested("sha256", HEX[:32])),
    "sha256 upper case": record("integrity.digest.sha256", **digested("sha256", "A" * 64)),
    "another algorithm": record("integrity.digest.sha512", **digested("sha256", HEX)),
    "record digest": record("integrity.record_digest.compute"),
    "signature": record("integrity.signature.create", integrity={"record_digest": DIGEST}),
    "signature without digest": record("integrity.signature.create", integrity={"signature": SIGNATURE}),
    "parent": record("lineage.parent.link"),
    "reserved": record("policy.access.deny"),
    "reserved alone": record("audit"),
    "hyphen": record("adapter-wrap"),
    "digit": record("1adapter.wrap"),
}


@pytest.mark.parametrize("wire", KEPT.values(), ids=KEPT.keys())
def test_a_claim_that_is_kept_is_not_a_fault(wire: Wire) -> None:
    assert claim_faults(Claims(read_record(wire))) == []


@pytest.mark.parametrize("wire", BROKEN.values(), ids=BROKEN.keys())
def test_a_claim_that_is_not_kept_is_found(wire: Wire) -> None:
    assert len(claim_faults(Claims(read_record(wire)))) == 1
    assert not verify(wire).ok
    with pytest.raises(ClaimError):
        check_claims(Claims(read_record(wire)))


# --- claims that only an envelope can prove -----------------------------------------------------------------------


def enveloped(method: str, **fields: Any) -> Wire:
    return {"schema_version": "mcp.envelope.v0.1", "result": 3, "provenance": record(method), **fields}


TOLD = [{"code": "X", "message": "m"}]
WRAP, PASS = "adapter.wrap.envelope_v0_1", "adapter.pass_through.envelope_v0_1"
INNER = {"schema_version": "mcp.envelope.v0.1", "result": 1}


@pytest.mark.parametrize(
    ("envelope", "ok"),
    [
        (enveloped(WRAP), True),
        (enveloped(WRAP, result=INNER), False),
        (enveloped(WRAP, schema_version="mcp.envelope.v0.2"), False),
        (enveloped(PASS), True),
        (enveloped(PASS, result=INNER), False),
        (enveloped("adapter.provenance.attach_record_v0_1"), True),
        (enveloped("adapter.errors.capture", errors=TOLD), True),
        (enveloped("adapter.errors.capture", errors=[]), False),
        (enveloped("adapter.errors.capture"), False),
        (enveloped("adapter.warnings.capture", warnings=TOLD), True),
        (enveloped("adapter.warnings.capture"), False),
    ],
    ids=[
        "wrapped",
        "wrapped twice",
        "in another version",
        "passed through",
        "passed through, nested",
        "attached",
        "errors",
        "no errors",
        "errors absent",
        "warnings",
        "no warnings",
    ],
)
def test_claims_of_an_adapter_are_checked_against_the_envelope(envelope: Wire, ok: bool) -> None:
    assert verify_envelope(envelope).ok is ok


def test_the_original_payload_must_be_kept_where_it_is_at_hand() -> None:
    wire = enveloped(WRAP)
    claimed = read_record(wire["provenance"])
    assert claim_faults(Claims(claimed, wire, original=3)) == []
    assert claim_faults(Claims(claimed, wire, original=4)) != []


def test_a_verification_that_failed_cannot_be_claimed() -> None:
    claimed = read_record(record("integrity.signature.verify"))
    assert claim_faults(Claims(claimed, signature_verified=True)) == []
    assert claim_faults(Claims(claimed, signature_verified=False)) != []


def test_a_graph_can_be_claimed_only_of_linked_records() -> None:
    parent = read_record({**record("engine.prov.record_v0_1.build"), "run_id": "run-0"})
    child = read_record(record("lineage.graph.build", parents=["run-0"]))
    assert claim_faults(Claims(child, linked=[parent, child])) == []
    assert claim_faults(Claims(child, linked=[child])) != []


# --- ids that age -------------------------------------------------------------------------------------------------


def test_a_catalogue_with_an_unpaired_surrogate_is_refused() -> None:
    with pytest.raises(FormatError, match="Not a catalogue of methods"):
        read_catalogue({"methods": ["\ud800"], "namespaces": {}})


def test_a_deprecated_id_stays_valid_and_is_noted_with_its_successor() -> None:
    catalogue = read_catalogue(
        {
            "methods": [
                {
                    "id": "engine.old",
                    "namespace": "engine",
                    "status": "deprecated",
                    "since": "0.1.0",
                    "summary": "Old",
                    "superseded_by": "engine.new",
                }
            ],
            "namespaces": {"engine": {"description": "x", "status": "stable"}},
        }
    )
    assert method_id_fault("engine.old", catalogue) is None
    assert deprecation_notes(["engine.old"], catalogue) == ["engine.old is deprecated: use engine.new"]
    assert verify(record("engine.old"), catalogue=catalogue).ok


@pytest.mark.parametrize("id", ["", "A.b", "a..b", ".a", "a.", "a-b", "1a", "a.1b", "a b", "a\n", "_a", "é"])
def test_the_grammar_refuses(id: str) -> None:
    assert method_id_fault(id) is not None
