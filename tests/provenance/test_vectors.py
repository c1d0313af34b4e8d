"""Conformance to prov-spec v0.1: our test vectors, and the published vectors, examples and catalogue where present."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from enfold import provenance
from enfold.envelope import local_envelope
from enfold.errors import FormatError
from enfold.formats import mcp_envelope_v0_1
from enfold.provenance import (
    CATALOGUE,
    LEVEL,
    canonical_json,
    capabilities,
    digest_json,
    json_pointer_evidence,
    method_id_fault,
    read_catalogue,
    read_record,
    verify,
    verify_envelope,
)
from enfold.provenance.conformance import check_vectors
from enfold.provenance.integrity import digest_fault
from enfold.provenance.methods import CONTRACTS
from enfold.provenance.records import Evidence, read_artifact

Faults = Callable[[str, Any], list[str]]


def load(path: Path) -> Any:
    return json.loads(path.read_text())


def test_the_wrap_vector(vectors: Path) -> None:
    folder = vectors / "adapter.wrap.envelope_v0_1"
    wrapped = mcp_envelope_v0_1.write(local_envelope(load(folder / "input.json"), ""))
    assert wrapped.pop("provenance") is None
    assert wrapped == load(folder / "expected.json")


@pytest.mark.parametrize("name", ["double_wrapped", "wrong_schema_version"])
def test_the_negative_wrap_vectors(vectors: Path, name: str) -> None:
    vector = load(vectors / f"adapter.wrap.envelope_v0_1/negative/{name}.json")
    with pytest.raises(FormatError):
        mcp_envelope_v0_1.read(vector["envelope"])


def test_the_evidence_vector(vectors: Path) -> None:
    folder = vectors / "engine.extract.evidence.json_pointer"
    given = load(folder / "input.json")
    fields = {"anchored_id": "/id", "safest_next_step": "/why/0", "plan": "/fix"}
    found = json_pointer_evidence(given["artifact_id"], given["content"], fields)
    assert [evidence.to_wire() for evidence in found] == load(folder / "expected.json")["evidence"]


def test_the_digest_vector(vectors: Path) -> None:
    folder = vectors / "integrity.digest.sha256"
    given, expected = load(folder / "input.json"), load(folder / "expected.json")
    assert canonical_json(given).decode() == expected["canonical_form"]
    assert digest_json(given).to_wire() == expected["digest"]


@pytest.mark.parametrize("name", ["non_hex_chars", "uppercase_hex", "wrong_length"])
def test_the_negative_digest_vectors(vectors: Path, name: str) -> None:
    wire = load(vectors / f"integrity.digest.sha256/negative/{name}.json")["artifact"]
    assert _artifact_is_refused(wire)


def _artifact_is_refused(wire: Any) -> bool:
    try:
        artifact = read_artifact(wire)
    except FormatError:
        return True
    return digest_fault(artifact.digest) is not None  # type: ignore[arg-type]  # each of the vectors has one


def test_the_method_id_vectors(vectors: Path) -> None:
    folder = vectors / "method_id_syntax"
    good = load(folder / "positive/valid_ids.json")["method_ids"]
    bad = [load(path)["method_id"] for path in sorted((folder / "negative").glob("*.json"))]
    assert [method_id_fault(each) for each in good] == [None] * len(good)
    assert len(bad) == 4
    assert all(method_id_fault(each) for each in bad)


def test_our_catalogue_is_the_published_one_and_every_id_has_a_contract(prov_spec: Path) -> None:
    published = read_catalogue(load(prov_spec / "spec/methods.json"))
    assert published.methods.keys() == CATALOGUE.methods.keys() == CONTRACTS.keys()
    assert published.reserved == CATALOGUE.reserved


@pytest.mark.parametrize("name", ["artifact", "artifact.ref", "evidence", "mcp.envelope", "mcp.request", "prov.record"])
def test_every_example_is_valid_for_an_independent_validator(prov_spec: Path, name: str, schema_faults: Faults) -> None:
    assert schema_faults(name, load(prov_spec / f"examples/{name}.example.json")) == []


def test_the_examples_are_read_and_verified(prov_spec: Path) -> None:
    record, envelope = (load(prov_spec / f"examples/{name}.example.json") for name in ("prov.record", "mcp.envelope"))
    assert read_record(record).to_wire() == record
    assert verify(record).faults == ()
    assert verify_envelope(envelope).faults == ()
    assert mcp_envelope_v0_1.write(mcp_envelope_v0_1.read(envelope)) == envelope
    assert msgspec.convert(load(prov_spec / "examples/evidence.example.json"), Evidence).field == "plan[0]"


def test_the_capabilities_declare_full_conformance_and_the_level_of_lineage(prov_spec: Path) -> None:
    import jsonschema_rs

    manifest = capabilities()
    validator = jsonschema_rs.Draft202012Validator(load(prov_spec / "spec/schemas/prov-capabilities.schema.json"))
    assert [error.message for error in validator.iter_errors(manifest)] == []
    assert (manifest["conformance_level"], LEVEL) == ("fully-conformant", 3)
    assert {*manifest["implements"], *manifest["optional"]} == set(CATALOGUE.methods)
    ids = {load(path)["_vector_meta"]["id"] for path in prov_spec.glob("spec/vectors/*/*/*.json")}
    folders = {path.parent.name for path in prov_spec.glob("spec/vectors/*/input.json")}
    assert set(manifest["test_vectors_validated"]) == ids | folders


def test_the_file_that_is_shipped_says_the_same() -> None:
    shipped = Path(provenance.__file__).with_name("prov-capabilities.json")
    assert load(shipped) == capabilities()


def test_the_check_of_vectors_reports_no_fault(vectors: Path) -> None:
    found = list(check_vectors(vectors, mcp_envelope_v0_1.write, mcp_envelope_v0_1.read))
    assert [str(each) for each in found if each.faults] == []
    assert {each.id for each in found} == set(capabilities()["test_vectors_validated"])
