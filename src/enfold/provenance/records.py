"""The types of prov-spec v0.1: digests, artifacts, evidence and the record, as far as a schema can describe them.

Further rules are in `methods`, `artifacts` and `verification`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from enfold.errors import FormatError, invalid_argument

RECORD_VERSION: Final = "prov.record.v0.1"
ARTIFACT_VERSION: Final = "artifact.v0.1"
EVIDENCE_VERSION: Final = "evidence.v0.1"

Algorithm: TypeAlias = Literal["sha256", "sha512", "blake3"]

Text: TypeAlias = Annotated[str, Meta(min_length=1)]
Hex: TypeAlias = Annotated[str, Meta(min_length=16, pattern=r"^[0-9a-fA-F]+\Z")]
Labels: TypeAlias = dict[str, Annotated[str, Meta(max_length=200)]]
MethodText: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[a-z0-9]+([._-][a-z0-9]+)*\Z")]
MAX_RUN_ID: Final = 200  # as a parent; a run's own id has no limit in the schema
RunId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_RUN_ID)]

T = TypeVar("T")


class _Wire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all types: unknown fields are rejected, unset fields are not written."""

    def to_wire(self) -> dict[str, Any]:
        # Through JSON text, which turns tuples into lists.
        wire: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return wire


class Digest(_Wire, frozen=True):
    """A digest of canonical content."""

    alg: Algorithm
    value: Hex


class Artifact(_Wire, frozen=True, kw_only=True):
    """Something a run consumed or produced: its description and digest, never its content."""

    schema_version: Literal["artifact.v0.1"]
    artifact_id: Text
    media_type: Text
    locator: Text | UnsetType = UNSET
    size_bytes: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    digest: Digest | UnsetType = UNSET
    labels: Labels | UnsetType = UNSET


class ArtifactRef(_Wire, frozen=True, kw_only=True):
    """A caller's reference to an artifact by id, locator, or both."""

    schema_version: Literal["artifact.ref.v0.1"]
    artifact_id: Text | UnsetType = UNSET
    locator: Text | UnsetType = UNSET
    media_type: Text | UnsetType = UNSET
    digest: Digest | UnsetType = UNSET
    labels: Labels | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.artifact_id is UNSET and self.locator is UNSET:
            raise ValueError("A reference requires an artifact_id or a locator")


class Evidence(_Wire, frozen=True, kw_only=True):
    """The part of an input that supports a field of the output."""

    schema_version: Literal["evidence.v0.1"]
    field: Annotated[str, Meta(min_length=1, max_length=200)]
    source: Annotated[str, Meta(min_length=1, max_length=1000)]
    method: Annotated[str, Meta(min_length=1, max_length=200)] | UnsetType = UNSET
    note: Annotated[str, Meta(max_length=400)] | UnsetType = UNSET


class Tool(_Wire, frozen=True):
    """The tool that ran."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    version: Annotated[str, Meta(min_length=1, max_length=100)]
    adapter: Annotated[str, Meta(max_length=100)] | UnsetType = UNSET


class RecordSignature(_Wire, frozen=True):
    """A signature over the record digest."""

    alg: Annotated[str, Meta(min_length=1, max_length=100)]
    key_id: Annotated[str, Meta(min_length=1, max_length=200)]
    value: Annotated[str, Meta(min_length=16, max_length=5000)]


class Integrity(_Wire, frozen=True):
    """The digest and signature of the record."""

    record_digest: Digest | UnsetType = UNSET
    signature: RecordSignature | UnsetType = UNSET


class Record(_Wire, frozen=True, kw_only=True):
    """A record: the tool that ran, its inputs and outputs, methods and parents."""

    schema_version: Literal["prov.record.v0.1"]
    run_id: Text
    tool: Tool
    time: str | UnsetType = UNSET
    inputs: tuple[Artifact, ...]
    outputs: tuple[Artifact, ...]
    methods: tuple[MethodText, ...]
    evidence: tuple[Evidence, ...]
    parents: tuple[RunId, ...]
    integrity: Integrity | UnsetType = UNSET


def read_record(wire: Any) -> Record:
    """Read a record from a JSON value; raise FormatError if it is malformed."""
    return _read(wire, Record, "a prov.record.v0.1")


def read_artifact(wire: Any) -> Artifact:
    return _read(wire, Artifact, "an artifact.v0.1")


def _read(wire: Any, kind: type[T], name: str) -> T:
    try:
        return msgspec.convert(wire, kind)
    except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
        raise FormatError(f"Not {name}: {error}") from error


Mode: TypeAlias = Literal["minimal", "full"]
Unasked: TypeAlias = Literal["asked", "mutations", "all"]  # which calls are recorded: on request, or more

CAPTURE_HEADER: Final = "enfold-capture-provenance"
MAX_PARENTS: Final = 100


class CaptureOptions(msgspec.Struct, frozen=True):
    """What a caller wants recorded, and the parents of the run."""

    mode: Mode = "minimal"
    artifacts: bool = False
    parents: tuple[str, ...] = ()


def options_from_meta(meta: Mapping[str, Any] | None) -> CaptureOptions | None:
    """Read the options of a `_meta` object; None if provenance is not requested."""
    if not meta or not _flag(meta, "capture_provenance"):
        return None
    return CaptureOptions(_mode(meta.get("provenance_mode", "minimal")), _flag(meta, "capture_artifacts"))


def options_from_mode(text: str | None) -> CaptureOptions | None:
    """Read the mode of a header or command-line option: `minimal`, `full`, or None."""
    return None if not text else CaptureOptions(_mode(text.strip().lower()))


def options_from_call(wire: Any) -> CaptureOptions | None:
    """Read the options of a `call.requested` event, `{mode, parents}`, or of a task, with optional `artifacts`."""
    if not isinstance(wire, Mapping):
        return None
    parents = wire.get("parents", [])
    if not isinstance(parents, list) or not all(isinstance(each, str) and 0 < len(each) <= 200 for each in parents):
        raise invalid_argument("provenance.parents", "constraint", "a list of run ids")
    return CaptureOptions(
        _mode(wire.get("mode", "minimal")), wire.get("artifacts") is True, tuple(parents[:MAX_PARENTS])
    )


def _flag(meta: Mapping[str, Any], name: str) -> bool:
    value = meta.get(name, False)
    if not isinstance(value, bool):
        raise invalid_argument(f"_meta.{name}", "constraint", "boolean")
    return value


def _mode(value: Any) -> Mode:
    if value not in ("minimal", "full"):
        raise invalid_argument("provenance_mode", "constraint", "minimal or full")
    mode: Mode = value
    return mode
