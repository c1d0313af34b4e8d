"""Recording calls: what a server allows (Recorder) and one run from its beginning to its record (Recording).

A run that is not recorded comes near none of this. Recording never makes a call fail: what goes wrong is a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec
from msgspec import UNSET

from enfold.envelope import ResultWarning
from enfold.errors import FormatError
from enfold.json_pointer import escape
from enfold.log import Log
from enfold.provenance.artifacts import ROLE_LABEL, caller_artifact, json_artifact, referred_artifact
from enfold.provenance.building import build_record, seal
from enfold.provenance.capture_options import CaptureOptions, Mode, Unasked
from enfold.provenance.endings import Answer, Ending, Writer, failure, same_content, success
from enfold.provenance.evidence import JSON_POINTER_METHOD, anchor_fault, coerce_evidence, json_pointer_evidence
from enfold.provenance.lineage import RECORD_LABEL, RUN_LABEL
from enfold.provenance.methods import Claims, check_claims
from enfold.provenance.records import (
    ARTIFACT_VERSION,
    EVIDENCE_VERSION,
    MAX_RUN_ID,
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
from enfold.reserved import is_reserved
from enfold.runtime import drive

if TYPE_CHECKING:
    from enfold.envelope import ResponseEnvelope
    from enfold.errors import CallError
    from enfold.operation import OperationSpec
    from enfold.provenance.record_store import RecordStore

MAX_ARTIFACTS: Final = 1000
MAX_EVIDENCE: Final = 200
MAX_ARGUMENT_NAME: Final = 200
MAX_ROUNDS: Final = 5
EVIDENCE_META: Final = "evidence"  # of a spec: which input place supports which output field


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Recorder(msgspec.Struct, kw_only=True, eq=False):
    """How a server records: the modes that it allows, the key that signs, the store that keeps records."""

    modes: Collection[Mode] = ("minimal", "full")
    key: SigningKey | None = None
    store: RecordStore | None = None
    algorithm: Algorithm = "sha256"
    record: Unasked = "asked"  # what is recorded without being asked for: nothing, `mutations`, or `all` calls

    def begin(
        self,
        options: CaptureOptions | None,
        *,
        operation: OperationSpec | None = None,
        adapter: str = "enfold",
        identity: str = "",
        writer: Writer | None = None,
        artifacts: Iterable[ArtifactRef | Artifact] = (),
        deterministic: bool = False,
        clock: Callable[[], str] = _now,
    ) -> Recording | None:
        """Begin to record a run; None where it was not asked for, or is not allowed.

        `operation` is recorded in full where this recorder does so unasked. `writer` writes the answer, so that a record
        inside an `mcp.envelope.v0.1` is one of the envelope as it leaves. `deterministic` leaves out the time.
        """
        is_asked = options is not None and options.mode in self.modes
        if not is_asked and (operation is None or not self._records_unasked(operation)):
            return None
        return Recording(
            self,
            options if options is not None and is_asked else CaptureOptions("full"),
            adapter,
            identity,
            writer=writer if is_asked else None,
            given=tuple(item if isinstance(item, Artifact) else referred_artifact(item) for item in artifacts),
            clock=None if deterministic else clock,
            is_asked=is_asked,
        )

    def _records_unasked(self, operation: OperationSpec) -> bool:
        if operation.type.value == "mutation":
            return self.record in ("all", "mutations")
        # Whoever looks at the records must not make new ones by looking.
        return self.record == "all" and not is_reserved(operation.id)


class Recording(msgspec.Struct, eq=False):
    """One run: it has its id from the beginning, so that the calls it makes can name it as their parent."""

    recorder: Recorder
    options: CaptureOptions
    adapter: str
    identity: str
    writer: Writer | None = None  # of the answer that the record travels in
    given: tuple[Artifact, ...] = ()  # what the caller refers to
    clock: Callable[[], str] | None = None
    caller: Recording | None = None  # the run that this one is called by, in this process
    is_asked: bool = True  # whether the record goes back to the caller
    run_id: str = msgspec.field(default_factory=lambda: str(uuid4()))
    is_kept: bool = False  # whether the record was made and, where there is a store, is safe in it
    consumed: list[Artifact] = []  # what the runs that this one called have made
    called: set[str] = set()  # the ids of those runs
    adopted: list[dict[str, Any]] = []  # records of theirs that other processes made

    def nested(self) -> Recording:
        """The recording of a call made inside this run: this run is its parent, its result is one of our inputs."""
        return Recording(
            self.recorder,
            msgspec.structs.replace(self.options, parents=(self.run_id,)),
            self.adapter,
            self.identity,
            clock=self.clock,
            caller=self,
            is_asked=self.is_asked,
        )

    def request(self) -> dict[str, Any]:
        """What a `call.requested` event says, so that the run in another process names this one as its parent."""
        return {"mode": self.options.mode, "parents": [self.run_id]}

    def wishes(self) -> dict[str, Any] | None:
        """What the caller has asked for, to be recorded where the run is made; None where they have not asked."""
        if not self.is_asked:
            return None
        wishes: dict[str, Any] = {"mode": self.options.mode, "parents": list(self.options.parents)}
        return {**wishes, "artifacts": True} if self.options.artifacts else wishes

    def recorded_elsewhere(self, wire: dict[str, Any] | None) -> None:
        """The run was made and recorded elsewhere, as a task: its id is the one to tell."""
        if wire is not None:
            self.run_id, self.is_kept = str(wire.get("run_id")), True

    def adopt(self, wire: Any) -> None:
        """Keep the record that another process made of a call of ours; anything else is ignored, and logged if malformed."""
        try:
            record = read_record(wire)
        except FormatError as error:
            _log("a record from another process was not kept", error)
            return
        if self._is_called_by_us(record):
            self.adopted.append(wire)
            self.consume(record)

    def _is_called_by_us(self, record: Record) -> bool:
        """Whether a record is that of a call of ours: it names this run as its parent, and has another run id."""
        return self.run_id in record.parents and record.run_id != self.run_id and len(record.run_id) <= MAX_RUN_ID

    def consume(self, record: Record) -> None:
        """Add what another run made to the inputs of this one, with the digest that its record has now."""
        if self._is_detailed and record.run_id not in self.called:
            self.called.add(record.run_id)
            self.consumed.extend(_nested_artifacts(record))

    def succeeded(self, spec: OperationSpec, input: Any, envelope: ResponseEnvelope[Any]) -> ResponseEnvelope[Any]:
        """The envelope with its record, kept in place: for a program without an event loop."""
        kept: ResponseEnvelope[Any] = drive(self.keep_success(spec, input, envelope, inline=True))
        return kept

    def failed(self, spec: OperationSpec, input: Any, error: CallError) -> dict[str, Any] | None:
        """The record of a run that gave an error, kept in place: for a program without an event loop."""
        record: dict[str, Any] | None = drive(self.keep_failure(spec, input, error, inline=True))
        return record

    async def keep_success(
        self, spec: OperationSpec, input: Any, envelope: ResponseEnvelope[Any], *, inline: bool = False
    ) -> ResponseEnvelope[Any]:
        """The envelope with its record; without one, and with a warning, where it could not be made.

        A record that the envelope has already is that of a run in another process, or of one the handler passed on.
        `inline` keeps the record in place; otherwise the event loop goes on while the store writes.
        """
        if envelope.provenance is not None:
            self.adopt(envelope.provenance)
        try:
            wire = await self._build_and_store(spec, input, success(envelope, spec, self.writer), inline)
        except Exception as error:  # noqa: BLE001  # a result that is there must not be lost for its record
            _log(f"no record of {spec.id}", error)
            failed = ResultWarning("provenance_failed", "")
            return msgspec.structs.replace(envelope, warnings=(*envelope.warnings, failed), provenance=None)
        return msgspec.structs.replace(envelope, provenance=wire) if self.is_asked else envelope

    async def keep_failure(
        self, spec: OperationSpec, input: Any, error: CallError, *, inline: bool = False
    ) -> dict[str, Any] | None:
        """The record of a run that gave an error; None where it could not be made, or was not asked for."""
        try:
            wire = await self._build_and_store(spec, input, failure(error, spec, self.writer), inline)
        except Exception as problem:  # noqa: BLE001  # the caller is to hear of the error, not of its record
            _log(f"no record of {spec.id}", problem)
            return None
        return wire if self.is_asked else None

    async def _build_and_store(self, spec: OperationSpec, input: Any, ending: Ending, inline: bool) -> dict[str, Any]:
        record, wire = self._build_for_answer(spec, input, ending)
        if self.recorder.store is not None:
            await self._store(self.recorder.store, [*self.adopted, wire], inline)
        if self.caller is not None:
            self.caller.consume(record)
        self.is_kept = True
        return wire

    async def _store(self, store: RecordStore, wires: list[dict[str, Any]], inline: bool) -> None:
        for wire in wires:
            if inline:
                store.put(wire, identity=self.identity)
            else:
                await store.keep(wire, identity=self.identity)

    def _build_for_answer(self, spec: OperationSpec, input: Any, ending: Ending) -> tuple[Record, dict[str, Any]]:
        """The record and its wire form, true of the answer it travels in.

        How much of a result fits into an answer depends on the record in it, and the record tells what was left of the
        result: both are written again until neither changes.
        """
        answer = ending.answer({})
        for _ in range(MAX_ROUNDS):
            record = self._build(spec, input, ending, answer)
            wire = record.to_wire()
            written = ending.answer(wire)
            if same_content(answer, written):
                # What only the envelope can prove is checked against it as it will be.
                check_claims(Claims(record, ending.passed_on if written is None else written))
                return record, wire
            answer = written
        raise ValueError("its answer does not settle on a length")

    @property
    def _is_full(self) -> bool:
        return self.options.mode == "full"

    @property
    def _is_detailed(self) -> bool:
        return self._is_full or self.options.artifacts

    # the record

    def _build(self, spec: OperationSpec, input: Any, ending: Ending, answer: Answer) -> Record:
        methods = ending.methods(answer)
        if self._is_detailed:
            return self._full(spec, input, ending, answer, methods)
        return build_record(self.run_id, self._tool(spec), parents=self.options.parents, methods=methods)

    def _full(
        self, spec: OperationSpec, input: Any, ending: Ending, answer: Answer, methods: tuple[str, ...]
    ) -> Record:
        algorithm = self.recorder.algorithm
        given = redact(input, spec.input_schema)
        made = Redacted(UNSET) if ending.data is UNSET else redact(ending.data, spec.output_schema)
        secrets = given.secrets | made.secrets
        taken = json_artifact(given, "input", algorithm)
        caller = (caller_artifact(self.identity),) if self._is_full and self.identity else ()
        referred = tuple(_scrub_artifact(each, secrets) for each in self.given)
        inputs = (taken, *caller, *referred, *self.consumed)[:MAX_ARTIFACTS]
        outputs = ending.artifacts(answer, made, algorithm)
        found = _own_evidence(ending.data, {taken.artifact_id: given.value}, inputs + outputs) if self._is_full else ()
        own = _scrub_evidence(found, secrets)
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
            time=UNSET if self.clock is None or not self._is_full else self.clock(),
        )
        return seal(record, algorithm, self.recorder.key) if self._is_full else record

    def _tool(self, spec: OperationSpec) -> Tool:
        return Tool(spec.id[:200], (spec.version or "0")[:100], self.adapter)


def _own_evidence(output: Any, contents: Mapping[str, Any], artifacts: tuple[Artifact, ...]) -> tuple[Evidence, ...]:
    """The evidence a tool gives in its result, as far as it leads to an artifact of this run."""
    found = output.get("evidence") if isinstance(output, Mapping) else None
    known = {artifact.artifact_id for artifact in artifacts}
    given = coerce_evidence(found if isinstance(found, list) else ())
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
            source=f"artifact:{artifact_id}#json:/{escape(name)}",
            method=JSON_POINTER_METHOD,
        )
        for name in names
    )


def _nested_artifacts(record: Record) -> tuple[Artifact, ...]:
    """What a run that we called made, or that it made nothing: each names the run and its record."""
    labels = {RUN_LABEL: record.run_id}
    if record.integrity is not UNSET and record.integrity.record_digest is not UNSET:
        labels[RECORD_LABEL] = record.integrity.record_digest.value[:200]
    if record.outputs:
        made = {ROLE_LABEL: "nested_output", **labels}
        return tuple(msgspec.structs.replace(artifact, labels=made) for artifact in record.outputs)
    return (
        Artifact(
            schema_version=ARTIFACT_VERSION,
            artifact_id=f"run:{record.run_id}",
            media_type="application/json",
            labels={ROLE_LABEL: "nested_run", **labels},
        ),
    )


def _scrub_artifact(artifact: Artifact, secrets: frozenset[str]) -> Artifact:
    labels = artifact.labels
    return msgspec.structs.replace(
        artifact,
        artifact_id=scrub(artifact.artifact_id, secrets),
        media_type=scrub(artifact.media_type, secrets),
        locator=UNSET if artifact.locator is UNSET else scrub(artifact.locator, secrets),
        labels=UNSET if labels is UNSET else {name: scrub(text, secrets)[:200] for name, text in labels.items()},
    )


def _scrub_evidence(evidence: tuple[Evidence, ...], secrets: frozenset[str]) -> tuple[Evidence, ...]:
    """Evidence without secrets; an anchor that holds one is left out, because a changed anchor would point elsewhere."""
    return tuple(
        msgspec.structs.replace(
            each,
            field=scrub(each.field, secrets)[:200],
            note=UNSET if each.note is UNSET else scrub(each.note, secrets)[:400],
        )
        for each in evidence
        if scrub(each.source, secrets) == each.source
    )


def _log(message: str, error: Exception) -> None:
    Log("enfold.provenance").warning("%s: %s", message, error)
