"""The call protocol as pure functions: events to bytes and back, and their JSON Schemas. No I/O.

An event on the wire is `{"v": 1, "type", "id", "payload"}`; `id` is the event's own, every payload has a `requestId`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Annotated, Any, Final, Literal, Protocol, TypeAlias, Union

import msgspec
from msgspec import UNSET, UnsetType

from enfold.envelope import LocalResponseMeta, ResponseEnvelope, ResultWarning, from_wire, to_wire
from enfold.envelope.content import RESPONSE_ENVELOPE_SCHEMA
from enfold.errors import CallError, FormatError
from enfold.operations import OperationSpec

VERSION: Final = 1
MAX_CREDITS: Final = 4096
MAX_MESSAGE: Final = 2000
MAX_CODE: Final = 128


def event_ids() -> Iterator[str]:
    """Ids for the events of one peer: unlike any other peer's, and cheap to make."""
    return map(os.urandom(8).hex().__add__, map(str, count()))


# --- payloads -----------------------------------------------------------------------------------------------------

# What a caller's library could have made: it is a token of subjects, and a key of maps.
_RequestId: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{16,64}\Z")]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**53)]


class _Payload(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What every payload has."""

    request_id: _RequestId


class Requested(_Payload, frozen=True, rename="camel", omit_defaults=True):
    """Please run this; `ttl_ms` is the time that is left, `deadline` the same by the caller's clock (Unix ms)."""

    operation_id: str
    input: Any
    ttl_ms: _Count | None = None
    deadline: float | None = None
    parent_request_id: str | None = None
    credits: _Count | None = None
    idempotency_key: str | None = None
    provenance: dict[str, Any] | None = None
    last_event_id: str | None = None


class Accepted(_Payload, frozen=True, rename="camel", omit_defaults=True):
    """A worker has the request; its control subject is the message's reply, or `control` where the server rewrites replies."""

    worker: str
    control: str | None = None


class Responded(_Payload, frozen=True, rename="camel", omit_defaults=True):
    """The result of a call, or one item of a stream, which has a `seq`; an envelope gets its wire form when it is written."""

    output: Any
    seq: _Positive | None = None
    warnings: list[dict[str, Any]] | None = None
    provenance: dict[str, Any] | None = None
    event_id: str | None = None


class Completed(_Payload, frozen=True, rename="camel", omit_defaults=True):
    """The stream has ended after this many items."""

    seq: _Count


class Failed(_Payload, frozen=True, rename="camel", omit_defaults=False):
    """The call or stream has failed."""

    code: str
    message: str
    details: dict[str, Any] = {}
    retryable: bool = False
    # Only where they are not those of the code: a PermissionError is an EXECUTION_ERROR of category `authorization`.
    category: str | UnsetType = UNSET
    recoverable: bool | UnsetType = UNSET


class Aborted(_Payload, frozen=True, rename="camel"):
    """The caller has given up."""


class Credit(_Payload, frozen=True, rename="camel"):
    """The caller has room for this many items more."""

    n: _Positive


class Heartbeat(_Payload, frozen=True, rename="camel"):
    """Still there."""


class Resume(_Payload, frozen=True, rename="camel", omit_defaults=True):
    """Send again from `from_seq`; earlier frames and credits may be lost, and `n` is the whole credit from there on."""

    from_seq: _Positive
    n: _Positive | None = None


Payload: TypeAlias = Requested | Accepted | Responded | Completed | Failed | Aborted | Credit | Heartbeat | Resume

TYPES: Final[dict[type[Any], str]] = {
    Requested: "call.requested",
    Accepted: "call.accepted",
    Responded: "call.responded",
    Completed: "call.completed",
    Failed: "call.error",
    Aborted: "call.aborted",
    Credit: "call.credit",
    Heartbeat: "call.heartbeat",
    Resume: "call.resume",
}


# --- events to bytes and back -------------------------------------------------------------------------------------


class Event(Protocol):
    """A payload and the id of the event that brought it."""

    @property
    def v(self) -> int: ...

    @property
    def id(self) -> str: ...

    @property
    def payload(self) -> Payload: ...


class _Written(msgspec.Struct, frozen=True):
    v: int
    type: str
    id: str
    payload: Any


def _read_class(payload: type[Any], name: str) -> Any:
    """Each type is a class of its own, so that one pass reads any event."""
    fields = [("v", int), ("id", str), ("payload", payload)]
    return msgspec.defstruct(f"_{payload.__name__}", fields, frozen=True, tag_field="type", tag=name)


_READ: Final = tuple(_read_class(payload, name) for payload, name in TYPES.items())
_encode: Final = msgspec.json.Encoder().encode
_NOT_JSON: Final = (TypeError, ValueError, OverflowError, RecursionError)
_decode: Final[Callable[[bytes], Any]] = msgspec.json.Decoder(Union[_READ]).decode  # noqa: UP007  # of a tuple


def write_event(event_id: str, payload: Payload) -> bytes:
    """The event as JSON text; what is no JSON data raises a FormatError."""
    try:
        return _encode(_Written(VERSION, TYPES[type(payload)], event_id, payload))
    except _NOT_JSON as error:
        raise FormatError(f"Not JSON data: {error}") from error


def read_event(data: bytes) -> Event:
    """Parse an event; raises a FormatError for anything else, including another version."""
    try:
        event: Event = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"Not an event: {error}") from error
    if event.v != VERSION:
        raise FormatError(f"Not an event we know: it is of version {event.v}")
    return event


# --- results and failures -----------------------------------------------------------------------------------------


def responded(
    request_id: str, envelope: ResponseEnvelope[Any], seq: int | None = None, event_id: str | None = None
) -> Responded:
    """The event that carries an envelope; warnings and provenance travel beside it."""
    warnings = [warning.to_wire() for warning in envelope.warnings] if envelope.warnings else None
    return Responded(request_id, to_wire(envelope), seq, warnings, envelope.provenance, event_id)


def envelope_of(event: Responded) -> ResponseEnvelope[Any]:
    """The envelope an event carries, the same as it was sent; what is none raises a FormatError."""
    output = event.output
    try:
        data, meta = output["data"], output["meta"]
        operation_id, timestamp = meta["operationId"], meta["timestamp"]
        is_exact = len(output) == 2 and type(operation_id) is str and type(timestamp) is int
        local = LocalResponseMeta(operation_id, timestamp) if is_exact and meta["source"] == "local" else None
    except (KeyError, TypeError):
        data = local = None  # what is not exactly the wire form of a local result is read with care
    envelope = from_wire(_mapping(output)) if local is None else ResponseEnvelope(data, local)
    if event.warnings is None and event.provenance is None:
        return envelope
    warnings = tuple(_warning(wire) for wire in event.warnings or ())
    return msgspec.structs.replace(envelope, warnings=envelope.warnings + warnings, provenance=event.provenance)


def _mapping(output: Any) -> dict[str, Any]:
    if not isinstance(output, dict):
        raise FormatError("The output is not an envelope")
    return output


def _warning(wire: dict[str, Any]) -> ResultWarning:
    try:
        return msgspec.convert(wire, ResultWarning)
    except msgspec.ValidationError as error:
        raise FormatError(f"Not a warning: {error}") from error


def failed(request_id: str, error: CallError) -> Failed:
    """The event of a failure; code and message are cut to their limits."""
    code, message, (category, recoverable) = error.code[:MAX_CODE], error.message[:MAX_MESSAGE], error.kind_override()
    kind = (UNSET if category is None else category, UNSET if recoverable is None else recoverable)
    return Failed(request_id, code, message, error.details, error.retryable, *kind)


def call_error(event: Failed) -> CallError:
    """The CallError of a failure event."""
    error = CallError(event.code, event.message, event.details, event.retryable)
    error.override_kind(event.category or None, None if event.recoverable is UNSET else event.recoverable)
    return error


# --- schemas ------------------------------------------------------------------------------------------------------

_STRING: Final[dict[str, Any]] = {"type": "string"}
_COUNT: Final[dict[str, Any]] = {"type": "integer", "minimum": 0}
_NUMBER: Final[dict[str, Any]] = {"type": "integer", "minimum": 1}
_OBJECT: Final[dict[str, Any]] = {"type": "object"}


def _schema(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    request_id = {"requestId": {"type": "string", "pattern": "^[A-Za-z0-9_-]{16,64}$"}}
    return {
        "type": "object",
        "properties": {**request_id, **required, **(optional or {})},
        "required": ["requestId", *required],
    }


CALL_EVENT_SCHEMA: Final[dict[str, dict[str, Any]]] = {
    "call.requested": _schema(
        {"operationId": _STRING, "input": _OBJECT},
        {
            "ttlMs": _COUNT,
            "deadline": {"type": "number"},
            "parentRequestId": _STRING,
            "credits": {"type": "integer", "minimum": 1, "maximum": MAX_CREDITS},
            "idempotencyKey": _STRING,
            "provenance": _OBJECT,
            "lastEventId": _STRING,
        },
    ),
    "call.accepted": _schema({"worker": _STRING}, {"control": _STRING}),
    "call.responded": _schema(
        {"output": RESPONSE_ENVELOPE_SCHEMA},
        {
            "seq": _NUMBER,
            "warnings": {"type": "array", "items": _OBJECT},
            "provenance": _OBJECT,
            "eventId": _STRING,
        },
    ),
    "call.completed": _schema({"seq": _COUNT}),
    "call.error": _schema(
        {"code": _STRING, "message": _STRING, "details": _OBJECT, "retryable": {"type": "boolean"}},
        {"category": _STRING, "recoverable": {"type": "boolean"}},
    ),
    "call.aborted": _schema({}),
    "call.credit": _schema({"n": _NUMBER}),
    "call.heartbeat": _schema({}),
    "call.resume": _schema({"fromSeq": _NUMBER}, {"n": _NUMBER}),
}

CALL_MESSAGE_SCHEMA: Final[dict[str, Any]] = {
    "anyOf": [
        {
            "type": "object",
            "properties": {"v": {"const": VERSION}, "type": {"const": name}, "id": _STRING, "payload": payload},
            "required": ["v", "type", "id", "payload"],
        }
        for name, payload in CALL_EVENT_SCHEMA.items()
    ]
}


class Ask(msgspec.Struct, frozen=True):
    """Asks all workers what the asker may call; `known` are digests of lists it already has."""

    v: Literal[1] = 1
    known: list[str] = []


class WorkerListing(msgspec.Struct, frozen=True, omit_defaults=True):
    """One part of the list of what a worker serves to the asker."""

    worker: str
    boot: str
    digest: str
    v: Literal[1] = 1
    part: int = 0
    parts: int = 0  # none: the asker has this list already
    specs: list[dict[str, Any]] = []


class Announcement(msgspec.Struct, frozen=True):
    """A worker came, changed what it serves, or goes."""

    worker: str
    boot: str
    state: Literal["up", "changed", "down"]
    v: Literal[1] = 1


def specs_digest(specs: Iterable[OperationSpec]) -> str:
    """The digest of a list of operations."""
    return hashlib.sha256("".join(sorted(spec.digest for spec in specs)).encode()).hexdigest()
