"""The values of prov-spec v0.1 as frozen types: digests, artifacts, evidence, the record. They say what a schema can say.

What a schema cannot say is in `methods`, `evidence` and `verification`.
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
MAX_RUN_ID: Final = 200  # as a parent; a run's own id has no bound in the schema
RunId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_RUN_ID)]

T = TypeVar("T")


class _Wire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all of them share: a field nobody knows is refused, a field that is not set is not written."""

    def to_wire(self) -> dict[str, Any]:
        # By way of its text, because it keeps tuples out of what is to be plain JSON data.
        wire: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return wire


class Digest(_Wire, frozen=True):
    """A hash over canonical content."""

    alg: Algorithm
    value: Hex


class Artifact(_Wire, frozen=True, kw_only=True):
    """Something a run consumed or produced: what it is and how to recognise it, never the thing itself."""

    schema_version: Literal["artifact.v0.1"]
    artifact_id: Text
    media_type: Text
    locator: Text | UnsetType = UNSET
    size_bytes: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    digest: Digest | UnsetType = UNSET
    labels: Labels | UnsetType = UNSET


class ArtifactRef(_Wire, frozen=True, kw_only=True):
    """A caller's reference to an artifact: by id, by place, or both."""

    schema_version: Literal["artifact.ref.v0.1"]
    artifact_id: Text | UnsetType = UNSET
    locator: Text | UnsetType = UNSET
    media_type: Text | UnsetType = UNSET
    digest: Digest | UnsetType = UNSET
    labels: Labels | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.artifact_id is UNSET and self.locator is UNSET:
            raise ValueError("A reference needs an artifact_id or a locator")


class Evidence(_Wire, frozen=True, kw_only=True):
    """Which part of an input supports a field of the output."""

    schema_version: Literal["evidence.v0.1"]
    field: Annotated[str, Meta(min_length=1, max_length=200)]
    source: Annotated[str, Meta(min_length=1, max_length=1000)]
    method: Annotated[str, Meta(min_length=1, max_length=200)] | UnsetType = UNSET
    note: Annotated[str, Meta(max_length=400)] | UnsetType = UNSET


class Tool(_Wire, frozen=True):
    """What ran."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    version: Annotated[str, Meta(min_length=1, max_length=100)]
    adapter: Annotated[str, Meta(max_length=100)] | UnsetType = UNSET


class RecordSignature(_Wire, frozen=True):
    """A signature over the record digest."""

    alg: Annotated[str, Meta(min_length=1, max_length=100)]
    key_id: Annotated[str, Meta(min_length=1, max_length=200)]
    value: Annotated[str, Meta(min_length=16, max_length=5000)]


class Integrity(_Wire, frozen=True):
    """What protects the record itself."""

    record_digest: Digest | UnsetType = UNSET
    signature: RecordSignature | UnsetType = UNSET


class Record(_Wire, frozen=True, kw_only=True):
    """Which tool ran, on what, with which methods, from which parents."""

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
    """The record a JSON value describes; FormatError says what is wrong with another one."""
    return _read(wire, Record, "a prov.record.v0.1")


def read_artifact(wire: Any) -> Artifact:
    return _read(wire, Artifact, "an artifact.v0.1")


def _read(wire: Any, kind: type[T], name: str) -> T:
    try:
        return msgspec.convert(wire, kind)
    except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
        raise FormatError(f"Not {name}: {error}") from error


Mode: TypeAlias = Literal["minimal", "full"]
Unasked: TypeAlias = Literal["asked", "mutations", "all"]  # which calls are recorded: those that ask, or more

CAPTURE_HEADER: Final = "enfold-capture-provenance"
MAX_PARENTS: Final = 100


class CaptureOptions(msgspec.Struct, frozen=True):
    """What a caller wants recorded, and the runs this one depends on."""

    mode: Mode = "minimal"
    artifacts: bool = False
    parents: tuple[str, ...] = ()


def options_from_meta(meta: Mapping[str, Any] | None) -> CaptureOptions | None:
    """The options in a `_meta` object; None where provenance is not asked for."""
    if not meta or not _flag(meta, "capture_provenance"):
        return None
    return CaptureOptions(_mode(meta.get("provenance_mode", "minimal")), _flag(meta, "capture_artifacts"))


def options_from_mode(text: str | None) -> CaptureOptions | None:
    """The options that a header or a command-line option names: `minimal`, `full`, or None for nothing."""
    return None if not text else CaptureOptions(_mode(text.strip().lower()))


def options_from_call(wire: Any) -> CaptureOptions | None:
    """The options in a `call.requested` event, `{mode, parents}`, and those of a task, which may have `artifacts`."""
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
