"""Provenance: records of the tool that ran, its inputs, methods and parents (prov-spec v0.1).

Submodules are imported on first use, so that a process without provenance does not load them.
"""

# Imports inside functions: see above; stores, signatures and times are optional.

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from enfold.provenance.artifacts import (
        bytes_artifact,
        coerce_evidence,
        file_artifact,
        json_artifact,
        json_pointer_evidence,
        opened_artifact,
        referred_artifact,
        text_line_evidence,
    )
    from enfold.provenance.conformance import LEVEL, capabilities
    from enfold.provenance.integrity import (
        SigningKey,
        canonical_json,
        digest_bytes,
        digest_json,
        generate_key,
        load_key,
        load_public_keys,
        public_keys,
        read_json,
    )
    from enfold.provenance.lineage import (
        CycleError,
        Graph,
        build_graph,
        to_mermaid,
        to_svg,
        verify_lineage,
        verify_run,
        verify_value,
    )
    from enfold.provenance.methods import CATALOGUE, ClaimError, method_id_fault, read_catalogue
    from enfold.provenance.record_store import RecordStore, StoredRecordError
    from enfold.provenance.recording import Recorder, Recording, build_record, seal
    from enfold.provenance.records import (
        Artifact,
        CaptureOptions,
        Digest,
        Evidence,
        Record,
        Tool,
        options_from_call,
        options_from_meta,
        options_from_mode,
        read_record,
    )
    from enfold.provenance.redaction import redact
    from enfold.provenance.verification import Verdict, record_digest, verify, verify_envelope

__all__ = [
    "CATALOGUE", "LEVEL", "Artifact", "CaptureOptions", "ClaimError", "CycleError", "Digest", "Evidence",
    "Graph", "Record", "RecordStore", "Recorder", "Recording", "SigningKey", "StoredRecordError", "Tool",
    "Verdict", "build_graph", "build_record", "bytes_artifact", "canonical_json", "capabilities",
    "coerce_evidence", "digest_bytes", "digest_json", "file_artifact", "generate_key", "json_artifact",
    "json_pointer_evidence", "load_key", "load_public_keys", "method_id_fault", "opened_artifact",
    "options_from_call", "options_from_meta", "options_from_mode", "public_keys", "read_catalogue", "read_json",
    "read_record", "record_digest", "redact", "referred_artifact", "seal", "text_line_evidence", "to_mermaid",
    "to_svg", "verify", "verify_envelope", "verify_lineage", "verify_run", "verify_value",
]  # fmt: skip

# Searched in this order: the first ones load the least.
_MODULES: Final = (
    "records", "redaction", "integrity", "artifacts", "methods", "verification", "lineage", "record_store", "recording",
    "conformance",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in __all__:
        from importlib import import_module

        for module in _MODULES:
            found = getattr(import_module(f"enfold.provenance.{module}"), name, None)
            if found is not None:
                globals()[name] = found
                return found
    raise AttributeError(f"enfold.provenance has no {name}")
