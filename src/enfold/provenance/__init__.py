"""Provenance: records of which tool ran, on what, with which methods, from which parents (prov-spec v0.1).

Its parts are loaded when they are first named, so that a process that records nothing pays nothing.
"""

# Imports inside functions: as said above; and a store, a signature or a time is for those who ask for one.

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from enfold.provenance.artifacts import (
        bytes_artifact,
        file_artifact,
        json_artifact,
        opened_artifact,
        referred_artifact,
    )
    from enfold.provenance.building import build_record, seal
    from enfold.provenance.canonical import canonical_json, read_json
    from enfold.provenance.capture_options import (
        CaptureOptions,
        options_from_call,
        options_from_meta,
        options_from_mode,
    )
    from enfold.provenance.digests import digest_bytes, digest_json
    from enfold.provenance.drawing import to_mermaid, to_svg
    from enfold.provenance.evidence import coerce_evidence, json_pointer_evidence, text_line_evidence
    from enfold.provenance.lineage import CycleError, Graph, build_graph, verify_lineage, verify_run, verify_value
    from enfold.provenance.manifest import LEVEL, capabilities
    from enfold.provenance.methods import CATALOGUE, ClaimError, method_id_fault, read_catalogue
    from enfold.provenance.record_store import RecordStore, StoredRecordError
    from enfold.provenance.recording import Recorder, Recording
    from enfold.provenance.records import Artifact, Digest, Evidence, Record, Tool, read_record
    from enfold.provenance.redaction import redact
    from enfold.provenance.signing import SigningKey, generate_key, load_key, load_public_keys, public_keys
    from enfold.provenance.verification import Verdict, record_digest, verify, verify_envelope

__all__ = [
    "CATALOGUE",
    "LEVEL",
    "Artifact",
    "CaptureOptions",
    "ClaimError",
    "CycleError",
    "Digest",
    "Evidence",
    "Graph",
    "Record",
    "RecordStore",
    "Recorder",
    "Recording",
    "SigningKey",
    "StoredRecordError",
    "Tool",
    "Verdict",
    "build_graph",
    "build_record",
    "bytes_artifact",
    "canonical_json",
    "capabilities",
    "coerce_evidence",
    "digest_bytes",
    "digest_json",
    "file_artifact",
    "generate_key",
    "json_artifact",
    "json_pointer_evidence",
    "load_key",
    "load_public_keys",
    "method_id_fault",
    "opened_artifact",
    "options_from_call",
    "options_from_meta",
    "options_from_mode",
    "public_keys",
    "read_catalogue",
    "read_json",
    "read_record",
    "record_digest",
    "redact",
    "referred_artifact",
    "seal",
    "text_line_evidence",
    "to_mermaid",
    "to_svg",
    "verify",
    "verify_envelope",
    "verify_lineage",
    "verify_run",
    "verify_value",
]

_HOMES: Final = {
    name: module
    for module, names in {
        "artifacts": ("bytes_artifact", "file_artifact", "json_artifact", "opened_artifact", "referred_artifact"),
        "building": ("build_record", "seal"),
        "canonical": ("canonical_json", "read_json"),
        "manifest": ("LEVEL", "capabilities"),
        "digests": ("digest_bytes", "digest_json"),
        "drawing": ("to_mermaid", "to_svg"),
        "evidence": ("coerce_evidence", "json_pointer_evidence", "text_line_evidence"),
        "lineage": ("CycleError", "Graph", "build_graph", "verify_lineage", "verify_run", "verify_value"),
        "methods": ("CATALOGUE", "ClaimError", "method_id_fault", "read_catalogue"),
        "capture_options": ("CaptureOptions", "options_from_call", "options_from_meta", "options_from_mode"),
        "recording": ("Recorder", "Recording"),
        "records": ("Artifact", "Digest", "Evidence", "Record", "Tool", "read_record"),
        "redaction": ("redact",),
        "signing": ("SigningKey", "generate_key", "load_key", "load_public_keys", "public_keys"),
        "record_store": ("RecordStore", "StoredRecordError"),
        "verification": ("Verdict", "record_digest", "verify", "verify_envelope"),
    }.items()
    for name in names
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"enfold.provenance has no {name}")
    from importlib import import_module

    found = getattr(import_module(f"enfold.provenance.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
