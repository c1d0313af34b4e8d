"""Recording calls: what a record says in each mode, how nested calls and other processes link, and what never fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enfold.envelope import ResponseEnvelope, ResultWarning, http_envelope, local_envelope, mcp_envelope
from enfold.envelope.content import TextContent
from enfold.errors import CallError
from enfold.formats import mcp_envelope_v0_1
from enfold.operations import OperationSpec
from enfold.provenance import (
    CaptureOptions,
    Recorder,
    Recording,
    RecordStore,
    build_graph,
    generate_key,
    options_from_call,
    options_from_meta,
    options_from_mode,
    public_keys,
    verify,
    verify_envelope,
    verify_lineage,
)
from enfold.provenance.records import ArtifactRef

Faults = Callable[[str, Any], list[str]]
Wire = dict[str, Any]

FULL = CaptureOptions("full")
INPUT = {"x": 1, "y": 2}


def begin(options: CaptureOptions = FULL, recorder: Recorder | None = None, **facts: Any) -> Recording:
    recording = (recorder or Recorder()).begin(options, **facts)
    assert recording is not None
    return recording


def record_of(recording: Recording, spec: OperationSpec, envelope: Any = None, input: Any = None) -> Wire:
    given = local_envelope(3, spec.id) if envelope is None else envelope
    provenance = recording.succeeded(spec, INPUT if input is None else input, given).provenance
    assert provenance is not None
    return provenance


# --- the modes ----------------------------------------------------------------------------------------------------


def test_a_minimal_record_names_tool_run_parents_and_methods(add: OperationSpec, schema_faults: Faults) -> None:
    record = record_of(begin(CaptureOptions("minimal", parents=("run-0",)), adapter="http"), add)
    assert schema_faults("prov.record", record) == []
    assert record["tool"] == {"name": "shop.add", "version": "1.0.0", "adapter": "http"}
    assert record["parents"] == ["run-0"]
    assert record["methods"] == ["engine.prov.record_v0_1.build", "lineage.parent.link"]
    assert (record["inputs"], record["outputs"], record["evidence"], "integrity" in record) == ([], [], [], False)


def test_minimal_with_artifacts_has_their_digests_and_no_more(add: OperationSpec, schema_faults: Faults) -> None:
    record = record_of(begin(CaptureOptions("minimal", artifacts=True)), add)
    assert schema_faults("prov.record", record) == []
    assert [len(record[side]) for side in ("inputs", "outputs", "evidence")] == [1, 1, 0]
    assert "integrity" not in record


def test_a_full_record_has_artifacts_evidence_digest_and_signature(add: OperationSpec, schema_faults: Faults) -> None:
    key = generate_key()
    record = record_of(begin(recorder=Recorder(key=key)), add)
    assert schema_faults("prov.record", record) == []
    taken, made = record["inputs"][0]["artifact_id"], record["outputs"][0]["artifact_id"]
    assert [each["source"] for each in record["evidence"]] == [f"artifact:{taken}#json:/x", f"artifact:{taken}#json:/y"]
    verdict = verify(record, public_keys([key.public_key]), contents={taken: INPUT, made: 3})
    assert (verdict.faults, verdict.notes) == ((), ())


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
def test_the_digest_algorithm_is_the_recorders_choice(add: OperationSpec, algorithm: Any) -> None:
    record = record_of(begin(recorder=Recorder(algorithm=algorithm)), add)
    assert {record["outputs"][0]["digest"]["alg"], record["integrity"]["record_digest"]["alg"]} == {algorithm}
    assert f"integrity.digest.{algorithm}" in record["methods"]
    assert verify(record).ok


def test_each_run_has_its_own_id_and_its_time_unless_determinism_is_preferred(add: OperationSpec) -> None:
    first, second = record_of(begin(), add), record_of(begin(deterministic=True), add)
    assert first["run_id"] != second["run_id"]
    assert (verify(first).ok, "time" in first, "time" in second) == (True, True, False)
    timed = record_of(begin(clock=lambda: "2026-01-02T03:04:05Z"), add)
    assert (timed["time"], verify(timed).ok) == ("2026-01-02T03:04:05Z", True)


def test_the_caller_is_under_the_digest_of_a_full_record(add: OperationSpec, schema_faults: Faults) -> None:
    record = record_of(begin(identity="ann"), add)
    assert schema_faults("prov.record", record) == []
    assert record["inputs"][1] == {
        "schema_version": "artifact.v0.1",
        "artifact_id": "enfold:caller",
        "media_type": "text/plain",
        "labels": {"id": "ann"},
    }
    record["inputs"][1]["labels"]["id"] = "bob"
    assert verify(record).faults == ("the record digest does not match the record",)
    assert "enfold:caller" not in str(record_of(begin(CaptureOptions("minimal", artifacts=True), identity="ann"), add))


def test_a_mode_the_server_does_not_allow_is_not_recorded() -> None:
    recorder = Recorder(modes=["minimal"])
    assert recorder.begin(FULL) is None
    assert recorder.begin(None) is None
    assert recorder.begin(CaptureOptions("minimal")) is not None


# --- evidence and artifacts ---------------------------------------------------------------------------------------


def test_a_spec_may_say_which_place_of_the_input_supports_which_field() -> None:
    spec = OperationSpec(name="explain", meta={"evidence": {"plan": "/fix", "cause": "/why/0", "none": "/nowhere"}})
    record = record_of(begin(), spec, input={"fix": ["a", "b"], "why": ["c"]})
    assert [each["field"] for each in record["evidence"]] == ["plan[0]", "plan[1]", "cause"]
    assert verify(record).ok


def test_a_tools_own_evidence_is_kept_where_it_leads_to_an_artifact_of_the_run(add: OperationSpec) -> None:
    reference = ArtifactRef(schema_version="artifact.ref.v0.1", artifact_id="err-1", locator="file:/etc/passwd")
    told = [{"field": "a", "source": "artifact:err-1#json:/id"}, {"field": "b", "source": "artifact:other#json:/id"}]
    record = record_of(begin(artifacts=[reference]), add, local_envelope({"evidence": told}, "shop.add"))
    assert record["inputs"][1] == {
        "schema_version": "artifact.v0.1",
        "artifact_id": "err-1",
        "media_type": "application/octet-stream",
        "locator": "file:/etc/passwd",
    }
    assert [each["field"] for each in record["evidence"]] == ["a", "result", "result"]
    assert "engine.coerce.evidence.v0_1" in record["methods"]


def test_bytes_are_digested_as_they_are(add: OperationSpec) -> None:
    record = record_of(begin(), add, http_envelope(b"\x00\x01"))
    assert (record["outputs"][0]["media_type"], record["outputs"][0]["size_bytes"]) == ("application/octet-stream", 2)


# --- what the adapter claims --------------------------------------------------------------------------------------


def test_inside_an_envelope_the_record_says_so_and_is_right(add: OperationSpec, schema_faults: Faults) -> None:
    envelope = begin(writer=mcp_envelope_v0_1).succeeded(add, INPUT, local_envelope(3, "shop.add"))
    wire = mcp_envelope_v0_1.write(envelope)
    assert schema_faults("mcp.envelope", wire) == []
    assert {"adapter.wrap.envelope_v0_1", "adapter.provenance.attach_record_v0_1"} <= set(wire["provenance"]["methods"])
    assert verify_envelope(wire).ok
    assert not verify_envelope({**wire, "result": wire}).ok


def test_warnings_and_the_failure_of_an_mcp_result_are_claimed(add: OperationSpec) -> None:
    failed: ResponseEnvelope[Any] = mcp_envelope({}, is_error=True, content=[TextContent(text="no")])
    wire = mcp_envelope_v0_1.write(begin(writer=mcp_envelope_v0_1).succeeded(add, INPUT, failed))
    assert "adapter.errors.capture" in wire["provenance"]["methods"]
    assert verify_envelope(wire).ok
    warned: ResponseEnvelope[Any] = ResponseEnvelope({}, local_envelope(None, "").meta, (ResultWarning("strip", "/a"),))
    wire = mcp_envelope_v0_1.write(begin(writer=mcp_envelope_v0_1).succeeded(add, INPUT, warned))
    assert "adapter.warnings.capture" in wire["provenance"]["methods"]
    assert verify_envelope(wire).ok


def test_an_envelope_that_is_passed_through_is_unchanged_and_its_run_is_recorded(
    add: OperationSpec, tmp_path: Path
) -> None:
    existing = {"schema_version": "mcp.envelope.v0.1", "result": 1}
    with RecordStore(tmp_path / "r.db") as store:
        recording = begin(recorder=Recorder(store=store), writer=mcp_envelope_v0_1)
        assert mcp_envelope_v0_1.write(recording.succeeded(add, INPUT, local_envelope(existing, ""))) == existing
        stored = store.get(recording.run_id)
    assert stored is not None
    assert "adapter.pass_through.envelope_v0_1" in stored["methods"]


def test_a_failure_has_a_record_too(add: OperationSpec, schema_faults: Faults) -> None:
    record = begin(writer=mcp_envelope_v0_1).failed(add, INPUT, CallError("TIMEOUT", "Too slow"))
    assert record is not None
    assert schema_faults("prov.record", record) == []
    assert "adapter.errors.capture" in record["methods"]
    assert [each["labels"]["role"] for each in record["outputs"]] == ["errors"]
    assert verify(record).ok


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
names = st.text(max_size=20) | st.sampled_from(["password", "evidence", "a/b~c", "x" * 300])


@settings(max_examples=120, deadline=None)
@given(
    st.dictionaries(names, json_values, max_size=4), json_values, st.sampled_from(["minimal", "full"]), st.booleans()
)
def test_every_record_we_emit_is_valid_and_verifies(
    schema_faults: Faults, input: Wire, output: Any, mode: Any, artifacts: bool
) -> None:
    spec = OperationSpec(name="any", namespace="shop")
    options = CaptureOptions(mode, artifacts, parents=("run-0",))
    envelope = begin(options, writer=mcp_envelope_v0_1).succeeded(spec, input, local_envelope(output, "shop.any"))
    wire = mcp_envelope_v0_1.write(envelope)
    assert wire["provenance"] is not None
    assert schema_faults("mcp.envelope", wire) == []
    taken = {each["artifact_id"]: input for each in wire["provenance"]["inputs"]}
    assert verify_envelope(wire, contents=taken).faults == ()


# --- lineage ------------------------------------------------------------------------------------------------------


def test_a_composed_call_leaves_a_linked_lineage_that_verifies(tmp_path: Path, add: OperationSpec) -> None:
    key = generate_key()
    steps = [OperationSpec(name=name, namespace="step") for name in ("function", "openapi", "mcp")]
    with RecordStore(tmp_path / "r.db") as store:
        outer = begin(recorder=Recorder(store=store, key=key))
        middle = outer.nested()
        inner = middle.nested()
        inner.succeeded(steps[2], {"q": "x"}, mcp_envelope({"found": 1}))
        middle.succeeded(steps[1], {"id": 1}, http_envelope({"name": "x"}))
        outer.succeeded(steps[0], {"start": True}, local_envelope("done", "step.function"))
        records = store.lineage(inner.run_id)
        assert store.parents(inner.run_id) == [middle.run_id]
        assert store.children(outer.run_id) == [middle.run_id]
    assert all(verdict.ok for verdict in verify_lineage(records, public_keys([key.public_key])))
    graph = build_graph(records)
    assert list(graph.records) == [outer.run_id, middle.run_id, inner.run_id]
    # What the inner run made is what the one that called it consumed.
    made = graph.records[inner.run_id].outputs[0].artifact_id
    assert made in [artifact.artifact_id for artifact in graph.records[middle.run_id].inputs]


def test_a_call_to_another_process_links_to_its_caller_and_its_record_is_adopted(
    tmp_path: Path, add: OperationSpec
) -> None:
    with RecordStore(tmp_path / "here.db") as store:
        here = begin(recorder=Recorder(store=store))
        options = options_from_call(here.request())
        assert options is not None
        there = begin(options).succeeded(add, INPUT, local_envelope(3, "shop.add"))
        own = record_of(here, add, there)
        assert all(verdict.ok for verdict in verify_lineage(store.lineage(here.run_id)))
    assert there.provenance is not None
    assert there.provenance["parents"] == [own["run_id"]]
    assert own["inputs"][1]["artifact_id"] == there.provenance["outputs"][0]["artifact_id"]


def test_a_nested_result_that_is_passed_on_is_an_input_only_once(add: OperationSpec) -> None:
    outer = begin()
    passed_on = outer.nested().succeeded(add, INPUT, local_envelope(3, "shop.add"))
    assert len(record_of(outer, add, passed_on)["inputs"]) == 2


def test_another_record_cannot_replace_our_own(add: OperationSpec, tmp_path: Path) -> None:
    with RecordStore(tmp_path / "r.db") as store:
        ours = begin(recorder=Recorder(store=store))
        other = record_of(begin(), add)
        for forged in ({**other, "run_id": ours.run_id, "integrity": {}}, other):
            ours.adopt(forged)
        assert len(store) == 0
        assert store.get(record_of(ours, add)["run_id"]) is not None


def test_invalid_records_of_another_process_are_ignored(add: OperationSpec) -> None:
    odd = ResponseEnvelope(3, local_envelope(None, "").meta, provenance={"not": "a record"})
    record = record_of(begin(), add, odd)
    assert (len(record["inputs"]), verify(record).ok) == (1, True)


# --- recording never makes a call fail ----------------------------------------------------------------------------


def test_a_result_that_cannot_be_recorded_is_returned_with_a_warning(add: OperationSpec, tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "r.db")
    store.close()
    envelope = begin(recorder=Recorder(store=store)).succeeded(add, INPUT, local_envelope(3, "shop.add"))
    assert (envelope.data, envelope.provenance) == (3, None)
    assert [warning.code for warning in envelope.warnings] == ["provenance_failed"]
    assert begin(recorder=Recorder(store=store)).failed(add, INPUT, CallError("TIMEOUT", "Too slow")) is None


# --- how it is asked for ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("meta", "options"),
    [
        (None, None),
        ({}, None),
        ({"capture_provenance": False, "provenance_mode": "full"}, None),
        ({"capture_provenance": True}, CaptureOptions("minimal")),
        ({"capture_provenance": True, "capture_artifacts": True}, CaptureOptions("minimal", artifacts=True)),
        ({"capture_provenance": True, "provenance_mode": "full"}, CaptureOptions("full")),
    ],
    ids=str,
)
def test_the_wish_in_a_meta_object(meta: Any, options: CaptureOptions | None) -> None:
    assert options_from_meta(meta) == options


def test_the_wish_in_a_header_or_an_option() -> None:
    assert [options_from_mode(text) for text in (None, "", "minimal", " Full ")] == [
        None,
        None,
        CaptureOptions("minimal"),
        CaptureOptions("full"),
    ]


@pytest.mark.parametrize(
    "ask",
    [
        lambda: options_from_mode("everything"),
        lambda: options_from_meta({"capture_provenance": "yes"}),
        lambda: options_from_call({"mode": "full", "parents": "run-1"}),
        lambda: options_from_call({"mode": "full", "parents": [1]}),
    ],
    ids=["mode", "flag", "parents", "parent"],
)
def test_invalid_provenance_options_are_a_validation_error(ask: Callable[[], object]) -> None:
    with pytest.raises(CallError) as raised:
        ask()
    assert raised.value.code == "VALIDATION_ERROR"
