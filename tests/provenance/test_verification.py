"""Verification: a record that is what it says passes, and any change to it is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from enfold.envelope import local_envelope
from enfold.operations import OperationSpec
from enfold.provenance import (
    Recorder,
    SigningKey,
    build_record,
    canonical_json,
    generate_key,
    load_key,
    load_public_keys,
    options_from_mode,
    public_keys,
    record_digest,
    seal,
    verify,
)
from enfold.provenance.records import Artifact, Tool

Wire = dict[str, Any]

KEY = generate_key()
KEYS = public_keys([KEY.public_key])
TOOL = Tool("shop.add", "1.0.0", "cli")
ARTIFACT = Artifact(
    schema_version="artifact.v0.1", artifact_id="a1", media_type="application/json", locator="file:/tmp/é.json"
)


def signed(key: SigningKey | None = KEY) -> Wire:
    return seal(build_record("run-1", TOOL, inputs=(ARTIFACT,), parents=("run-0",)), key=key).to_wire()


def test_a_signed_record_is_verified() -> None:
    verdict = verify(signed(), KEYS)
    assert (verdict.ok, verdict.notes) == (True, ("parents not checked: no store was given",))
    assert str(verdict).splitlines()[0] == "run-1: verified"


def test_the_record_digest_leaves_out_only_the_integrity_field() -> None:
    wire = signed()
    assert wire["integrity"]["record_digest"] == record_digest(wire).to_wire()
    assert record_digest({**wire, "integrity": {}}) == record_digest(wire)
    assert record_digest({**wire, "run_id": "run-2"}) != record_digest(wire)


@pytest.mark.parametrize("indent", [None, 2])
def test_how_the_json_is_laid_out_does_not_matter(indent: int | None) -> None:
    shuffled = dict(reversed(signed().items()))
    assert verify(json.loads(json.dumps(shuffled, indent=indent)), KEYS).ok


CANONICAL = canonical_json(signed())


@settings(max_examples=400, deadline=None)
@given(st.integers(0, len(CANONICAL) * 8 - 1))
def test_a_change_of_one_bit_anywhere_is_found(bit: int) -> None:
    changed = bytearray(CANONICAL)
    changed[bit // 8] ^= 1 << (bit % 8)
    try:
        wire = json.loads(changed)
    except ValueError:
        return  # It is not even JSON any more.
    assume(wire != json.loads(CANONICAL))
    assert not verify(wire, KEYS).ok


def changed(**fields: Any) -> Wire:
    return {**signed(), **fields}


def integrity(**fields: Any) -> Wire:
    wire = signed()
    return {**wire, "integrity": {**wire["integrity"], **fields}}


def without(name: str) -> Wire:
    wire = signed()
    del wire["integrity"][name]
    return wire


TAMPERED = {
    "another tool": changed(tool={"name": "shop.sub", "version": "1.0.0", "adapter": "cli"}),
    "another parent": changed(parents=["run-9"]),
    "a method added": changed(methods=[*signed()["methods"], "my.method"]),
    "an input removed": changed(inputs=[]),
    "no integrity": {name: value for name, value in signed().items() if name != "integrity"},
    "no signature": without("signature"),
    "no digest": without("record_digest"),
    "an own parent": changed(parents=["run-1"]),
    "an invalid time": changed(time="yesterday"),
    "an unknown field": changed(extra=1),
    "another key id": integrity(signature={**signed()["integrity"]["signature"], "key_id": "ed25519:0"}),
    "another algorithm": integrity(signature={**signed()["integrity"]["signature"], "alg": "ed25519"}),
    "signature of another key": {**signed(), "integrity": signed(generate_key())["integrity"]},
    "not a record": {},
}


@pytest.mark.parametrize("wire", TAMPERED.values(), ids=TAMPERED.keys())
def test_a_changed_record_is_not_verified(wire: Wire) -> None:
    verdict = verify(wire, KEYS)
    assert not verdict.ok
    assert "NOT verified" in str(verdict)


def test_a_record_signed_again_with_an_unknown_key_is_not_verified() -> None:
    other = generate_key()
    assert verify(signed(other), public_keys([other.public_key])).ok
    assert verify(signed(other), KEYS).faults == (f"the signing key {other.key_id!r} is unknown",)


def test_another_base64_text_of_the_same_signature_is_another_signature() -> None:
    value = signed()["integrity"]["signature"]["value"]
    twin = chr(ord(value[85]) + 1)  # its last bits mean nothing in base64
    wire = integrity(signature={**signed()["integrity"]["signature"], "value": f"{value[:85]}{twin}=="})
    assert not verify(wire, KEYS).ok


def test_unprotected_parts_are_noted() -> None:
    assert "not signed" in verify(signed(None)).notes[0]
    assert "no keys were given" in verify(signed()).notes[0]
    assert "no digest" in verify(build_record("run-1", TOOL).to_wire()).notes[0]


@pytest.mark.parametrize(
    ("time", "ok"),
    [
        ("2026-01-02T03:04:05Z", True),
        ("2026-01-02t03:04:05.678+02:00", True),
        ("2016-12-31T23:59:60Z", True),
        ("2026-02-30T00:00:00Z", False),
        ("2026-01-02T24:00:00Z", False),
        ("2026-01-02T03:04:05", False),
        ("2026-01-02", False),
        ("20260102T030405Z", False),
    ],
)
def test_a_time_is_one_of_rfc_3339(time: str, ok: bool) -> None:
    assert verify(build_record("run-1", TOOL, time=time).to_wire()).ok is ok


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec=None)), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(signed())), json_values)
def test_verification_returns_a_verdict_for_any_value_of_a_field(field: str, value: Any) -> None:
    assume(value != signed()[field])
    assert not verify({**signed(), field: value}, KEYS).ok
    assert not verify(value, KEYS).ok


def test_artifacts_are_compared_with_their_contents(add: OperationSpec) -> None:
    recording = Recorder().begin(options_from_mode("full"))
    assert recording is not None
    wire = recording.succeeded(add, {"x": 1, "y": 2, "token": "t0ps3cret"}, local_envelope(3, "shop.add")).provenance
    assert wire is not None
    taken, made = wire["inputs"][0]["artifact_id"], wire["outputs"][0]["artifact_id"]
    assert verify(wire, contents={taken: {"y": 2.0, "x": 1, "token": "t0ps3cret"}, made: 3}).ok
    assert not verify(wire, contents={made: 4}).ok
    assert not verify(wire, contents={taken: {"x": 1, "y": 3, "token": "t0ps3cret"}}).ok


def test_keys_are_kept_in_files(tmp_path: Path) -> None:
    (tmp_path / "private.pem").write_bytes(KEY.to_pem())
    (tmp_path / "public.pem").write_bytes(KEY.public_pem())
    again = load_key(tmp_path / "private.pem")
    assert again.key_id == KEY.key_id
    assert verify(signed(again), load_public_keys([tmp_path / "public.pem"])).ok
