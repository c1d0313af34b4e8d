"""Records put together from the facts of a run: the methods follow from what is there, and are checked before it leaves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from enfold.provenance.evidence import JSON_POINTER_METHOD, TEXT_LINES_METHOD
from enfold.provenance.methods import Claims, check_claims
from enfold.provenance.records import RECORD_VERSION, Algorithm, Artifact, Evidence, Integrity, Record, Tool
from enfold.provenance.signing import SigningKey
from enfold.provenance.verification import record_digest


def build_record(
    run_id: str,
    tool: Tool,
    *,
    parents: tuple[str, ...] = (),
    inputs: tuple[Artifact, ...] = (),
    outputs: tuple[Artifact, ...] = (),
    evidence: tuple[Evidence, ...] = (),
    computed: Iterable[Algorithm] = (),
    methods: Iterable[str] = (),
    time: str | UnsetType = UNSET,
) -> Record:
    """Build a record: it claims the methods that its content shows, and `methods` besides; `computed` are digests made here.

    ClaimError where it would claim what it does not keep.
    """
    found = _methods(parents, inputs, outputs, evidence, computed)
    record = Record(
        schema_version=RECORD_VERSION,
        run_id=run_id,
        tool=tool,
        time=time,
        inputs=inputs,
        outputs=outputs,
        methods=(*found, *methods),
        evidence=evidence,
        parents=parents,
    )
    check_claims(Claims(record))
    return record


def _methods(
    parents: tuple[str, ...],
    inputs: tuple[Artifact, ...],
    outputs: tuple[Artifact, ...],
    evidence: tuple[Evidence, ...],
    computed: Iterable[Algorithm],
) -> Iterator[str]:
    yield "engine.prov.record_v0_1.build"
    if inputs:
        yield "engine.prov.artifact.register_input"
    if outputs:
        yield "engine.prov.artifact.register_output"
    if any("#json:/" in each.source for each in evidence):
        yield JSON_POINTER_METHOD
    if any("#text:line:" in each.source for each in evidence):
        yield TEXT_LINES_METHOD
    for algorithm in computed:
        yield f"integrity.digest.{algorithm}"
    if parents:
        yield "lineage.parent.link"


def seal(record: Record, algorithm: Algorithm = "sha256", key: SigningKey | None = None) -> Record:
    """The record with its own digest and, with a key, a signature; it claims both, so that a record without them is invalid."""
    claimed = ("integrity.record_digest.compute", *(() if key is None else ("integrity.signature.create",)))
    claiming: Record = msgspec.structs.replace(record, methods=(*record.methods, *claimed), integrity=UNSET)
    wire: dict[str, Any] = claiming.to_wire()
    digest = record_digest(wire, algorithm)
    signature = UNSET if key is None else key.sign(digest)
    return msgspec.structs.replace(claiming, integrity=Integrity(digest, signature))
