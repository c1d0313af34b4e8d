"""Recording calls: what a server allows (Recorder) and one run from its beginning to its record (Recording).

A run that is not recorded comes near none of this. Recording never makes a call fail: what goes wrong is a warning.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from enfold.envelope import ResponseEnvelope, ResultWarning, error_text
from enfold.log import Log
from enfold.provenance.artifacts import bytes_artifact, json_artifact, referred_artifact
from enfold.provenance.building import build_record, seal
from enfold.provenance.evidence import JSON_POINTER_METHOD, anchor_fault, coerce_evidence, json_pointer_evidence
from enfold.provenance.lineage import RECORD_LABEL, RUN_LABEL
from enfold.provenance.methods import ENVELOPE_VERSION, Claims, check_claims
from enfold.provenance.options import CaptureOptions, Mode
from enfold.provenance.records import (
    EVIDENCE_VERSION,
    Algorithm,
    Artifact,
    ArtifactRef,
    Evidence,
    Record,
    Tool,
    read_record,
)
from enfold.provenance.redaction import Redacted, redact, scrub
from enfold.provenance.signing import SigningKey

if TYPE_CHECKING:
    from enfold.errors import CallError
    from enfold.operation import OperationSpec
    from enfold.provenance.store import RecordStore

__all__ = ["Recorder", "Recording"]

MAX_ARTIFACTS: Final = 1000
MAX_EVIDENCE: Final = 200
MAX_ARGUMENT_NAME: Final = 200
ATTACH: Final = "adapter.provenance.attach_record_v0_1"
EVIDENCE_META: Final = "evidence"  # of a spec: which input place supports which output field


class Recorder:
    """What a server allows and does with records: the modes, the key that signs, the store that keeps."""

    __slots__ = ("adapter", "algorithm", "key", "modes", "store")

    def __init__(
        self,
        *,
        modes: Iterable[Mode] = ("minimal", "full"),
        key: SigningKey | None = None,
        store: RecordStore | None = None,
        algorithm: Algorithm = "sha256",
        adapter: str = "enfold",
    ) -> None:
        self.modes = frozenset(modes)
        self.key = key
        self.store = store
        self.algorithm = algorithm
        self.adapter = adapter

    def begin(
        self,
        options: CaptureOptions | None,
        *,
        adapter: str | None = None,
        identity: str = "",
        wraps: bool = False,
        artifacts: Iterable[ArtifactRef | Artifact] = (),
        clock: Callable[[], str] | None = None,
    ) -> Recording | None:
        """Begin to record a run; None where it was not asked for, or is not allowed.

        `wraps` says that the answer leaves as an `mcp.envelope.v0.1`; `clock` gives the time of a caller who does not
        mind that records then differ from run to run.
        """
        if options is None or options.mode not in self.modes:
            return None
        given = tuple(item if isinstance(item, Artifact) else referred_artifact(item) for item in artifacts)
        return Recording(self, options, adapter or self.adapter, identity, wraps, given, clock)


class Recording:
    """One run: it has its id from the beginning, so that the calls it makes can name it as their parent."""

    __slots__ = (
        "_adapter",
        "_caller",
        "_clock",
        "_consumed",
        "_given",
        "_identity",
        "_nested",
        "_recorder",
        "_wraps",
        "options",
        "run_id",
    )

    def __init__(
        self,
        recorder: Recorder,
        options: CaptureOptions,
        adapter: str,
        identity: str,
        wraps: bool,
        given: tuple[Artifact, ...] = (),
        clock: Callable[[], str] | None = None,
        caller: Recording | None = None,
    ) -> None:
        self.run_id = _new_run_id()
        self.options = options
        self._recorder = recorder
        self._adapter = adapter
        self._identity = identity
        self._wraps = wraps
        self._given = given
        self._consumed: list[Artifact] = []
        self._nested: set[str] = set()
        self._clock = clock
        self._caller = caller

    def nested(self) -> Recording:
        """The recording of a call made inside this run: this run is its parent, its result is one of our inputs."""
        options = msgspec.structs.replace(self.options, parents=(self.run_id,))
        return Recording(
            self._recorder, options, self._adapter, self._identity, wraps=False, clock=self._clock, caller=self
        )

    def request(self) -> dict[str, Any]:
        """What a `call.requested` event says, so that the run in another process names this one as its parent."""
        return {"mode": self.options.mode, "parents": [self.run_id]}

    def adopt(self, wire: Any) -> None:
        """Take over the record of a run that another process made for us; one that is none is left alone."""
        try:
            record = read_record(wire)
            self.consume(record)
            if self._recorder.store is not None and self._is_called_by_us(record):
                self._recorder.store.put(wire, identity=self._identity)
        except Exception as error:  # noqa: BLE001  # what another process sends must not fail our call
            _log("a record from another process was not kept", error)

    def _is_called_by_us(self, record: Record) -> bool:
        """Whether a record belongs into our lineage: it names this run as its parent, and does not pose as this run."""
        return self.run_id in record.parents and record.run_id != self.run_id

    def consume(self, record: Record) -> None:
        """Count what another run made among the inputs of this one, bound to its record as it now is."""
        if self._is_detailed and record.run_id not in self._nested:
            self._nested.add(record.run_id)
            self._consumed.extend(_nested_output(artifact, record) for artifact in record.outputs)

    def succeeded(self, spec: OperationSpec, input: Any, envelope: ResponseEnvelope[Any]) -> ResponseEnvelope[Any]:
        """The envelope with its record; without one, and with a warning, where it could not be made.

        A record that the envelope has already is that of a run in another process, or of one the handler passed on.
        """
        if envelope.provenance is not None:
            self.adopt(envelope.provenance)
        try:
            wire = self._record_result(spec, input, envelope)
        except Exception as error:  # noqa: BLE001  # a result that is there must not be lost for its record
            _log(f"no record of {spec.id}", error)
            failed = ResultWarning("provenance_failed", "")
            return msgspec.structs.replace(envelope, warnings=(*envelope.warnings, failed), provenance=None)
        return msgspec.structs.replace(envelope, provenance=wire)

    def failed(self, spec: OperationSpec, input: Any, error: CallError) -> dict[str, Any] | None:
        """The record of a run that gave an error; None where it could not be made."""
        try:
            return self._record_failure(spec, input, error)
        except Exception as problem:  # noqa: BLE001  # the caller is to hear of the error, not of its record
            _log(f"no record of {spec.id}", problem)
            return None

    # what happened

    def _record_result(self, spec: OperationSpec, input: Any, envelope: ResponseEnvelope[Any]) -> dict[str, Any]:
        errors = _envelope_errors(envelope)
        warnings = [{"code": warning.code, "message": warning.code} for warning in envelope.warnings[:1]]
        if not self._wraps:
            return self._finish(spec, input, envelope.data, (), None)
        if _is_envelope(envelope.data):
            return self._finish(spec, input, envelope.data, ("adapter.pass_through.envelope_v0_1",), envelope.data)
        methods = ["adapter.wrap.envelope_v0_1", ATTACH]
        methods += ["adapter.errors.capture"] if errors else []
        methods += ["adapter.warnings.capture"] if warnings else []
        written = {"schema_version": ENVELOPE_VERSION, "result": envelope.data, "errors": errors, "warnings": warnings}
        return self._finish(spec, input, envelope.data, methods, written)

    def _record_failure(self, spec: OperationSpec, input: Any, error: CallError) -> dict[str, Any]:
        partial = error.partial.data if isinstance(error.partial, ResponseEnvelope) else UNSET
        if not self._wraps:
            return self._finish(spec, input, partial, (), None)
        methods = ("adapter.errors.capture", ATTACH)
        told = [{"code": error.code, "message": error.message or error.code}]
        written = {"schema_version": ENVELOPE_VERSION, "result": None, "errors": told}
        return self._finish(spec, input, partial, methods, written)

    def _finish(
        self, spec: OperationSpec, input: Any, output: Any, methods: Iterable[str], written: dict[str, Any] | None
    ) -> dict[str, Any]:
        record = self._full(spec, input, output, methods) if self._is_detailed else self._minimal(spec, methods)
        wire = record.to_wire()
        if written is not None:
            # What only the envelope can prove is checked against it as it will be written.
            check_claims(Claims(record, {**written, "provenance": record} if ATTACH in record.methods else written))
        if self._caller is not None:
            self._caller.consume(record)
        if self._recorder.store is not None:
            self._recorder.store.put(wire, identity=self._identity)
        return wire

    @property
    def _is_full(self) -> bool:
        return self.options.mode == "full"

    @property
    def _is_detailed(self) -> bool:
        return self._is_full or self.options.artifacts

    # the record

    def _minimal(self, spec: OperationSpec, methods: Iterable[str]) -> Record:
        return build_record(
            self.run_id, self._tool(spec), parents=self.options.parents, methods=methods, time=self._time()
        )

    def _full(self, spec: OperationSpec, input: Any, output: Any, methods: Iterable[str]) -> Record:
        algorithm = self._recorder.algorithm
        given = redact(input, spec.input_schema)
        made = Redacted(UNSET) if output is UNSET else redact(output, spec.output_schema)
        secrets = given.secrets | made.secrets
        taken = json_artifact(given, "input", algorithm)
        told = tuple(_scrub_artifact(each, secrets) for each in self._given)
        inputs = (taken, *told, *self._consumed)[:MAX_ARTIFACTS]
        outputs = () if output is UNSET else (_output_artifact(made, algorithm),)
        found = _own_evidence(output, {taken.artifact_id: given.value}, inputs + outputs) if self._is_full else ()
        own = _scrubbed(found, secrets)
        extracted = _argument_evidence(spec, taken.artifact_id, given.value) if self._is_full else ()
        record = build_record(
            self.run_id,
            self._tool(spec),
            parents=self.options.parents,
            inputs=inputs,
            outputs=outputs,
            evidence=(*own, *extracted)[:MAX_EVIDENCE],
            computed=(algorithm,),
            methods=(*(("engine.coerce.evidence.v0_1",) if own else ()), *methods),
            time=self._time(),
        )
        return seal(record, algorithm, self._recorder.key) if self._is_full else record

    def _tool(self, spec: OperationSpec) -> Tool:
        return Tool(spec.id[:200], (spec.version or "0")[:100], self._adapter)

    def _time(self) -> str | UnsetType:
        return UNSET if self._clock is None else self._clock()


def _new_run_id() -> str:
    """A random UUID; written by hand, because the module's own takes three times as long."""
    digits = os.urandom(16).hex()
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def _is_envelope(data: Any) -> bool:
    return isinstance(data, Mapping) and data.get("schema_version") == ENVELOPE_VERSION


def _envelope_errors(envelope: ResponseEnvelope[Any]) -> list[dict[str, str]]:
    return [{"code": "EXECUTION_ERROR", "message": error_text(envelope)}] if envelope.is_error else []


def _output_artifact(made: Redacted, algorithm: Algorithm) -> Artifact:
    if isinstance(made.value, bytes):
        return bytes_artifact(made.value, "application/octet-stream", "output", algorithm)
    return json_artifact(made, "output", algorithm)


def _own_evidence(output: Any, contents: Mapping[str, Any], artifacts: tuple[Artifact, ...]) -> tuple[Evidence, ...]:
    """The evidence a tool gives in its result, as far as it leads to an artifact of this run."""
    told = output.get("evidence") if isinstance(output, Mapping) else None
    known = {artifact.artifact_id for artifact in artifacts}
    given = coerce_evidence(told if isinstance(told, list) else ())
    return tuple(each for each in given if anchor_fault(each.source, known, contents) is None)


def _argument_evidence(spec: OperationSpec, artifact_id: str, given: Any) -> tuple[Evidence, ...]:
    """Which place of the input supports which field: as the spec says, or each argument the result as a whole."""
    declared = spec.meta.get(EVIDENCE_META)
    if isinstance(declared, Mapping):
        return json_pointer_evidence(artifact_id, given, dict(declared), JSON_POINTER_METHOD)
    names = [name for name in given if len(name) <= MAX_ARGUMENT_NAME] if isinstance(given, Mapping) else []
    return tuple(
        Evidence(
            schema_version=EVIDENCE_VERSION,
            field="result",
            source=f"artifact:{artifact_id}#json:/{name.replace('~', '~0').replace('/', '~1')}",
            method=JSON_POINTER_METHOD,
        )
        for name in names
    )


def _nested_output(artifact: Artifact, record: Record) -> Artifact:
    labels = {"role": "nested_output", RUN_LABEL: record.run_id[:200]}
    if record.integrity is not UNSET and record.integrity.record_digest is not UNSET:
        labels[RECORD_LABEL] = record.integrity.record_digest.value[:200]
    return msgspec.structs.replace(artifact, labels=labels)


def _scrub_artifact(artifact: Artifact, secrets: frozenset[str]) -> Artifact:
    if not secrets:
        return artifact
    labels = artifact.labels
    return msgspec.structs.replace(
        artifact,
        artifact_id=scrub(artifact.artifact_id, secrets),
        media_type=scrub(artifact.media_type, secrets),
        locator=UNSET if artifact.locator is UNSET else scrub(artifact.locator, secrets),
        labels=UNSET if labels is UNSET else {name: scrub(text, secrets)[:200] for name, text in labels.items()},
    )


def _scrubbed(evidence: tuple[Evidence, ...], secrets: frozenset[str]) -> tuple[Evidence, ...]:
    """Evidence without secrets; an anchor that has one in it is left out, because a changed anchor would lie."""
    kept = (each for each in evidence if scrub(each.source, secrets) == each.source)
    return tuple(_scrub_evidence(each, secrets) for each in kept)


def _scrub_evidence(evidence: Evidence, secrets: frozenset[str]) -> Evidence:
    if not secrets:
        return evidence
    note = UNSET if evidence.note is UNSET else scrub(evidence.note, secrets)[:400]
    return msgspec.structs.replace(evidence, note=note, field=scrub(evidence.field, secrets)[:200])


def _log(message: str, error: Exception) -> None:
    Log("enfold.provenance").warning("%s: %s", message, error)
