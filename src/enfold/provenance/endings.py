"""How a recorded run ended, the envelope its answer leaves in, and what a record may say of the two."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import msgspec
from msgspec import UNSET

from enfold.envelope import ResponseEnvelope
from enfold.provenance.artifacts import bytes_artifact, json_artifact
from enfold.provenance.canonical import same_json
from enfold.provenance.methods import ATTACH_METHOD
from enfold.provenance.records import Algorithm, Artifact
from enfold.provenance.redaction import Redacted, redact
from enfold.provenance.verification import RESULT_ROLES
from enfold.self_named import ENVELOPE_VERSION

if TYPE_CHECKING:
    from enfold.errors import CallError
    from enfold.operation import OperationSpec

# An mcp.envelope.v0.1 of ours; None where the answer has another form, or is an envelope that is passed on.
Answer: TypeAlias = Mapping[str, Any] | None

_NOTICES: Final = ("errors", "warnings")


class Writer(Protocol):
    """Who writes the answer: a format, or a request that cuts its answer to the length its caller prefers."""

    def write(self, envelope: ResponseEnvelope[Any], operation: OperationSpec | None = None, /) -> Any: ...

    def write_error(self, error: CallError, operation_id: str, /) -> Any: ...


class Ending(msgspec.Struct):
    """What a run gave (UNSET for nothing), and how it is written with a record in it."""

    data: Any
    schema: Any
    write: Callable[[dict[str, Any]], Any]
    wraps: bool
    passed_on: Mapping[str, Any] | None = None  # an envelope that came as one, and leaves without our record

    def answer(self, record: dict[str, Any]) -> Answer:
        """The envelope of the answer with this record in it; None where the answer is not such an envelope, or came as one."""
        written = self.write(record)
        if not isinstance(written, Mapping) or written.get("schema_version") != ENVELOPE_VERSION:
            return None
        if written.get("provenance") is record:
            return written
        self.passed_on = written
        return None

    def methods(self, answer: Answer) -> tuple[str, ...]:
        """The methods by which the outcome became its answer, for the record to claim."""
        if answer is None:
            return () if self.passed_on is None else ("adapter.pass_through.envelope_v0_1",)
        wrapped = ("adapter.wrap.envelope_v0_1",) if self.wraps and _is_whole(answer, self.data) else ()
        return (*wrapped, ATTACH_METHOD, *(f"adapter.{name}.capture" for name in _NOTICES if answer.get(name)))

    def artifacts(self, answer: Answer, made: Redacted, algorithm: Algorithm) -> tuple[Artifact, ...]:
        """What the run made, what is left of it in the answer where that was cut, and the errors and warnings there."""
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
        # Without its size, so that a record is as long for a result that is one byte shorter.
        return (msgspec.structs.replace(left, size_bytes=UNSET), _artifact(made, "uncut_output", algorithm))


def success(envelope: ResponseEnvelope[Any], spec: OperationSpec, writer: Writer | None) -> Ending:
    """A run that gave a result."""

    def write(record: dict[str, Any]) -> Any:
        return None if writer is None else writer.write(msgspec.structs.replace(envelope, provenance=record), spec)

    return Ending(envelope.data, spec.output_schema, write, wraps=True)


def failure(error: CallError, spec: OperationSpec, writer: Writer | None) -> Ending:
    """A run that gave an error, perhaps with a part of its result."""

    def write(record: dict[str, Any]) -> Any:
        before, error.provenance = error.provenance, record
        try:
            return None if writer is None else writer.write_error(error, spec.id)
        finally:
            error.provenance = before

    data = error.partial.data if isinstance(error.partial, ResponseEnvelope) else UNSET
    return Ending(data, spec.output_schema, write, wraps=False)


def same_content(first: Answer, second: Answer) -> bool:
    """Whether two answers are equal in all that a record tells of them."""
    if first is None or second is None:
        return first is second
    return all(same_json(first.get(name), second.get(name)) for name in RESULT_ROLES.values())


def _is_whole(answer: Mapping[str, Any], data: Any) -> bool:
    """Whether the result leaves as the run gave it, and not cut to a length."""
    result = answer["result"]
    return result is data or same_json(result, b64encode(data).decode() if isinstance(data, bytes) else data)


def _artifact(made: Redacted, role: str, algorithm: Algorithm) -> Artifact:
    if isinstance(made.value, bytes):
        return bytes_artifact(made.value, "application/octet-stream", role, algorithm)
    return json_artifact(made, role, algorithm)
