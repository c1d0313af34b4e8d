"""Recording of calls: what a server allows (Recorder) and one run from start to record (Recording).

Runs that are not recorded do not load this module. Recording never makes a call fail: problems become warnings.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from uuid import uuid4

import msgspec
from msgspec import UNSET, UnsetType

from enfold.envelope import ResponseEnvelope, ResultWarning
from enfold.envelope.foreign import ENVELOPE_VERSION
from enfold.errors import FormatError
from enfold.observability.log import Log
from enfold.provenance.artifacts import (
    JSON_POINTER_METHOD,
    ROLE_LABEL,
    TEXT_LINES_METHOD,
    anchor_fault,
    bytes_artifact,
    caller_artifact,
    coerce_evidence,
    json_artifact,
    json_pointer_evidence,
    referred_artifact,
)
from enfold.provenance.integrity import SigningKey, same_json
from enfold.provenance.lineage import RECORD_LABEL, RUN_LABEL
from enfold.provenance.methods import ATTACH_METHOD, Claims, check_claims
from enfold.provenance.records import (
    ARTIFACT_VERSION,
    EVIDENCE_VERSION,
    MAX_RUN_ID,
    RECORD_VERSION,
    Algorithm,
    Artifact,
    ArtifactRef,
    CaptureOptions,
    Evidence,
    Integrity,
    Mode,
    Record,
    Tool,
    Unasked,
    read_record,
)
from enfold.provenance.redaction import Redacted, redact, scrub
from enfold.provenance.verification import RESULT_ROLES, record_digest
from enfold.runtime.handlers import drive
from enfold.runtime.reserved import is_reserved
from enfold.schema.json_pointer import escape

if TYPE_CHECKING:
    from enfold.envelope import ResponseEnvelope
    from enfold.errors import CallError
    from enfold.operations import OperationSpec
    from enfold.provenance.record_store import RecordStore


MAX_ARTIFACTS: Final = 1000
MAX_EVIDENCE: Final = 200
MAX_ARGUMENT_NAME: Final = 200
MAX_ROUNDS: Final = 5
EVIDENCE_META: Final = "evidence"  # of a spec: the input location that supports each output field


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Recorder(msgspec.Struct, kw_only=True, eq=False):
    """How a server records: the allowed modes, the signing key and the store."""

    modes: Collection[Mode] = ("minimal", "full")
    key: SigningKey | None = None
    store: RecordStore | None = None
    algorithm: Algorithm = "sha256"
    record: Unasked = "asked"  # calls recorded without a request: none (`asked`), `mutations`, or `all`

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
        """Start recording a run; None if it was not requested or is not allowed.

        `operation` is recorded in full where this recorder does so by default. `writer` writes the response, so that a
        record inside an `mcp.envelope.v0.1` describes the envelope as sent. `deterministic` omits the time.
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
        # Reading records must not create new ones.
        return self.record == "all" and not is_reserved(operation.id)


class Recording(msgspec.Struct, eq=False):
    """One run; its id exists from the start, so that nested calls can name it as their parent."""

    recorder: Recorder
    options: CaptureOptions
    adapter: str
    identity: str
    writer: Writer | None = None  # of the response that contains the record
    given: tuple[Artifact, ...] = ()  # referenced by the caller
    clock: Callable[[], str] | None = None
    caller: Recording | None = None  # the calling run in this process
    is_asked: bool = True  # whether the record is returned to the caller
    run_id: str = msgspec.field(default_factory=lambda: str(uuid4()))
    is_kept: bool = False  # whether the record was created and, with a store, stored
    consumed: list[Artifact] = []  # outputs of the runs that this one called
    called: set[str] = set()  # the ids of those runs
    adopted: list[dict[str, Any]] = []  # their records, if created by other processes

    def nested(self) -> Recording:
        """Return the recording of a nested call: this run is its parent, and its result becomes an input of this run."""
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
        """Return the options for a `call.requested` event, so that the remote run names this one as its parent."""
        return {"mode": self.options.mode, "parents": [self.run_id]}

    def wishes(self) -> dict[str, Any] | None:
        """Return the caller's request for a record elsewhere; None if there is none."""
        if not self.is_asked:
            return None
        wishes: dict[str, Any] = {"mode": self.options.mode, "parents": list(self.options.parents)}
        return {**wishes, "artifacts": True} if self.options.artifacts else wishes

    def recorded_elsewhere(self, wire: dict[str, Any] | None) -> None:
        """Use the id of a run that was recorded elsewhere, as a task."""
        if wire is not None:
            self.run_id, self.is_kept = str(wire.get("run_id")), True

    def adopt(self, wire: Any) -> None:
        """Store the record of a nested call from another process; unrelated records are ignored, malformed ones logged."""
        try:
            record = read_record(wire)
        except FormatError as error:
            _log("a record from another process was not stored", error)
            return
        if self._is_called_by_us(record):
            self.adopted.append(wire)
            self.consume(record)

    def _is_called_by_us(self, record: Record) -> bool:
        """Whether a record belongs to a nested call: it names this run as its parent and has another run id."""
        return self.run_id in record.parents and record.run_id != self.run_id and len(record.run_id) <= MAX_RUN_ID

    def consume(self, record: Record) -> None:
        """Add the output of another run to the inputs of this one, with the digest of its record."""
        if self._is_detailed and record.run_id not in self.called:
            self.called.add(record.run_id)
            self.consumed.extend(_nested_artifacts(record))

    def succeeded(self, spec: OperationSpec, input: Any, envelope: ResponseEnvelope[Any]) -> ResponseEnvelope[Any]:
        """Return the envelope with its record, stored synchronously, for programs without an event loop."""
        kept: ResponseEnvelope[Any] = drive(self.keep_success(spec, input, envelope, inline=True))
        return kept

    def failed(self, spec: OperationSpec, input: Any, error: CallError) -> dict[str, Any] | None:
        """Return the record of a failed run, stored synchronously, for programs without an event loop."""
        record: dict[str, Any] | None = drive(self.keep_failure(spec, input, error, inline=True))
        return record

    async def keep_success(
        self, spec: OperationSpec, input: Any, envelope: ResponseEnvelope[Any], *, inline: bool = False
    ) -> ResponseEnvelope[Any]:
        """Return the envelope with its record, or with a warning if it could not be created.

        An existing record of the envelope belongs to a run in another process, or was passed on by the handler.
        `inline` stores the record synchronously; otherwise in the store's thread.
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
        """Return the record of a failed run; None if it could not be created or was not requested."""
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
        """Return the record and its wire form, consistent with the response that contains it.

        The record limits how much of the result fits into the response, and describes what is left of the result: both
        are written again until neither changes.
        """
        answer = ending.answer({})
        for _ in range(MAX_ROUNDS):
            record = self._build(spec, input, ending, answer)
            wire = record.to_wire()
            written = ending.answer(wire)
            if same_content(answer, written):
                # Claims about the envelope are checked against its final form.
                check_claims(Claims(record, ending.passed_on if written is None else written))
                return record, wire
            answer = written
        raise ValueError("the size of the response does not converge")

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
    """Return the evidence in a tool's result that refers to artifacts of this run."""
    found = output.get("evidence") if isinstance(output, Mapping) else None
    known = {artifact.artifact_id for artifact in artifacts}
    given = coerce_evidence(found if isinstance(found, list) else ())
    return tuple(each for each in given if anchor_fault(each.source, known, contents) is None)


def _argument_evidence(spec: OperationSpec, artifact_id: str, given: Any) -> tuple[Evidence, ...]:
    """Return the evidence from the input: as the spec declares, or each argument for the whole result."""
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
    """Return the outputs of a nested run as artifacts that name the run and its record."""
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
    """Remove secrets from evidence; an anchor that contains one is dropped, since a changed one would be wrong."""
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
    """Build a record that claims the methods its content shows, and `methods`; `computed` are digests computed here.

    Raises ClaimError for a claim whose conditions are not met.
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
    """Add the digest of the record and, with a key, a signature; both are claimed, so a record without them is invalid."""
    claimed = ("integrity.record_digest.compute", *(() if key is None else ("integrity.signature.create",)))
    claiming: Record = msgspec.structs.replace(record, methods=(*record.methods, *claimed), integrity=UNSET)
    wire: dict[str, Any] = claiming.to_wire()
    digest = record_digest(wire, algorithm)
    signature = UNSET if key is None else key.sign(digest)
    return msgspec.structs.replace(claiming, integrity=Integrity(digest, signature))


# An mcp.envelope.v0.1 written here; None for other formats and for envelopes passed through.
Answer: TypeAlias = Mapping[str, Any] | None

_NOTICES: Final = ("errors", "warnings")


class Writer(Protocol):
    """Writes the response: a format, or a request that truncates its response to the caller's limit."""

    def write(self, envelope: ResponseEnvelope[Any], operation: OperationSpec | None = None, /) -> Any: ...

    def write_error(self, error: CallError, operation_id: str, /) -> Any: ...


class Ending(msgspec.Struct):
    """The output of a run (UNSET for none), and how it is written with a record."""

    data: Any
    schema: Any
    write: Callable[[dict[str, Any]], Any]
    wraps: bool
    passed_on: Mapping[str, Any] | None = None  # an envelope passed through without our record

    def answer(self, record: dict[str, Any]) -> Answer:
        """Return the response envelope with this record; None if it is not such an envelope or is passed through."""
        written = self.write(record)
        if not isinstance(written, Mapping) or written.get("schema_version") != ENVELOPE_VERSION:
            return None
        if written.get("provenance") is record:
            return written
        self.passed_on = written
        return None

    def methods(self, answer: Answer) -> tuple[str, ...]:
        """Return the methods that turned the outcome into its response."""
        if answer is None:
            return () if self.passed_on is None else ("adapter.pass_through.envelope_v0_1",)
        wrapped = ("adapter.wrap.envelope_v0_1",) if self.wraps and _is_whole(answer, self.data) else ()
        return (*wrapped, ATTACH_METHOD, *(f"adapter.{name}.capture" for name in _NOTICES if answer.get(name)))

    def artifacts(self, answer: Answer, made: Redacted, algorithm: Algorithm) -> tuple[Artifact, ...]:
        """Return the output of the run, what is left of it in a truncated response, and its errors and warnings."""
        if answer is None:
            return () if made.value is UNSET else (_artifact(made, "output", algorithm),)
        notices = (json_artifact(redact(answer[name]), name, algorithm) for name in _NOTICES if answer.get(name))
        return (*self._results(answer, made, algorithm), *notices)

    def _results(self, answer: Mapping[str, Any], made: Redacted, algorithm: Algorithm) -> tuple[Artifact, ...]:
        if made.value is UNSET:
            return ()
        if _is_whole(answer, self.data):
            return (_artifact(made, "output", algorithm),)
        left = json_artifact(redact(answer["result"], self.schema), "output", algorithm)
        # Without its size, so that the length of the record does not depend on that of the result.
        return (msgspec.structs.replace(left, size_bytes=UNSET), _artifact(made, "uncut_output", algorithm))


def success(envelope: ResponseEnvelope[Any], spec: OperationSpec, writer: Writer | None) -> Ending:
    """Record a successful run."""

    def write(record: dict[str, Any]) -> Any:
        return None if writer is None else writer.write(msgspec.structs.replace(envelope, provenance=record), spec)

    return Ending(envelope.data, spec.output_schema, write, wraps=True)


def failure(error: CallError, spec: OperationSpec, writer: Writer | None) -> Ending:
    """Record a failed run, possibly with a partial result."""

    def write(record: dict[str, Any]) -> Any:
        before, error.provenance = error.provenance, record
        try:
            return None if writer is None else writer.write_error(error, spec.id)
        finally:
            error.provenance = before

    data = error.partial.data if isinstance(error.partial, ResponseEnvelope) else UNSET
    return Ending(data, spec.output_schema, write, wraps=False)


def same_content(first: Answer, second: Answer) -> bool:
    """Whether two responses are equal in everything that a record describes."""
    if first is None or second is None:
        return first is second
    return all(same_json(first.get(name), second.get(name)) for name in RESULT_ROLES.values())


def _is_whole(answer: Mapping[str, Any], data: Any) -> bool:
    """Whether the result is sent without truncation."""
    result = answer["result"]
    return result is data or same_json(result, b64encode(data).decode() if isinstance(data, bytes) else data)


def _artifact(made: Redacted, role: str, algorithm: Algorithm) -> Artifact:
    if isinstance(made.value, bytes):
        return bytes_artifact(made.value, "application/octet-stream", role, algorithm)
    return json_artifact(made, role, algorithm)
