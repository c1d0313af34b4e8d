"""Artifacts of the inputs and outputs of a run, of files, and of a caller's references. Content is never stored.

The digest of a JSON artifact covers its canonical text, that of any other its bytes.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from enfold.errors import FormatError
from enfold.provenance.integrity import canonical_json, digest_bytes, digest_chunks, digest_fault, same_digest
from enfold.provenance.records import (
    ARTIFACT_VERSION,
    EVIDENCE_VERSION,
    Algorithm,
    Artifact,
    ArtifactRef,
    Digest,
    Evidence,
    Record,
)
from enfold.provenance.redaction import REDACTED, Redacted, is_secret_name, redact_locator
from enfold.schema.json_pointer import follow, names

MAX_FILE_BYTES: Final = 1 << 30
MAX_LABEL: Final = 200
# Larger JSON files are digested as bytes: parsing takes many times their size in memory.
MAX_JSON_FILE_BYTES: Final = 64 << 20
# The locations of removed secrets, as a JSON list; a long list continues in `redacted_2` and so on.
REDACTED_LABEL: Final = "redacted"
MAX_REDACTED_LABELS: Final = 50
ROLE_LABEL: Final = "role"
OWN_ROLES: Final = "nested_"  # reserved for Enfold: binds a run to one that it called
CALLER_ID: Final = "enfold:caller"
TASK_ID: Final = "enfold:task"
NAME_LABEL: Final = "id"  # of a caller, of a task


def json_artifact(content: Redacted, role: str, algorithm: Algorithm = "sha256") -> Artifact:
    """Return an artifact of a JSON value, named by its digest; a label lists the locations of removed secrets."""
    text = canonical_json(content.value)
    labels = {ROLE_LABEL: role, **_redacted_labels(content.paths)}
    return _artifact(digest_bytes(text, algorithm), "application/json", len(text), labels)


def _redacted_labels(paths: tuple[str, ...]) -> dict[str, str]:
    if not paths:
        return {}
    text = msgspec.json.encode(paths).decode()
    parts = [text[start : start + MAX_LABEL] for start in range(0, len(text), MAX_LABEL)]
    if len(parts) > MAX_REDACTED_LABELS:
        return {REDACTED_LABEL: f"{len(paths)} places"}
    return {_redacted_name(number): part for number, part in enumerate(parts, 1)}


def _redacted_name(number: int) -> str:
    return REDACTED_LABEL if number == 1 else f"{REDACTED_LABEL}_{number}"


def caller_artifact(identity: str) -> Artifact:
    """Return the caller of a run as one of its inputs, so that the record's digest covers it."""
    return _named_artifact(CALLER_ID, identity)


def task_artifact(task_id: str) -> Artifact:
    """Return the task of a run as one of its inputs, shared by all attempts."""
    return _named_artifact(TASK_ID, task_id)


def _named_artifact(artifact_id: str, name: str) -> Artifact:
    return Artifact(
        schema_version=ARTIFACT_VERSION,
        artifact_id=artifact_id,
        media_type="text/plain",
        labels={NAME_LABEL: name[:MAX_LABEL]},
    )


def caller_of(record: Record) -> str | None:
    """Return the caller among the inputs of a record, or None."""
    for artifact in record.inputs:
        if artifact.artifact_id == CALLER_ID and artifact.labels is not UNSET:
            return artifact.labels.get(NAME_LABEL)
    return None


def bytes_artifact(content: bytes, media_type: str, role: str, algorithm: Algorithm = "sha256") -> Artifact:
    """Return an artifact of bytes, named by its digest."""
    return _artifact(digest_bytes(content, algorithm), media_type, len(content), {ROLE_LABEL: role})


def _artifact(
    digest: Digest, media_type: str, size: int, labels: dict[str, str], locator: str | None = None
) -> Artifact:
    return Artifact(
        schema_version=ARTIFACT_VERSION,
        artifact_id=f"{digest.alg}:{digest.value}",
        media_type=media_type,
        locator=locator or UNSET,
        size_bytes=size,
        digest=digest,
        labels=labels,
    )


# --- files, for a caller on this machine --------------------------------------------------------------------------


def file_artifact(
    locator: str,
    root: Path,
    media_type: str = "application/octet-stream",
    role: str = "file",
    algorithm: Algorithm = "sha256",
) -> Artifact:
    """Return an artifact of a file below the root; raise ValueError if it is outside, too large or not a regular file."""
    path = _path_below(locator, root)
    with _open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_FILE_BYTES:
            raise ValueError(f"{locator} is larger than {MAX_FILE_BYTES} bytes")
        if is_json_type(media_type) and size <= MAX_JSON_FILE_BYTES:
            text = canonical_json(_parse_json(file.read(), locator))
            return _artifact(digest_bytes(text, algorithm), media_type, size, {"role": role}, locator)
        return _artifact(
            digest_chunks(iter(partial(file.read, 1 << 20), b""), algorithm), media_type, size, {"role": role}, locator
        )


def _path_below(locator: str, root: Path) -> Path:
    name = locator.removeprefix("file://").removeprefix("file:")
    below = root.resolve()
    path = (below / name).resolve()  # Resolves links, so that none can escape the root.
    if not path.is_relative_to(below):
        raise ValueError(f"{locator} is not below {root}")
    return path


def _open_regular(path: Path) -> Any:
    # Rejects a link created in the meantime, and pipes.
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    file = os.fdopen(number, "rb")
    if not stat.S_ISREG(os.fstat(number).st_mode):
        file.close()
        raise ValueError(f"{path} is not a regular file")
    return file


def _parse_json(content: bytes, locator: str) -> Any:
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"{locator} is not JSON: {error}") from error


def opened_artifact(reference: ArtifactRef, root: Path) -> Artifact:
    """Return an artifact that a local caller refers to: a file below the root, which must match a given digest."""
    if reference.locator is UNSET or not _is_file(reference.locator):
        return referred_artifact(reference)
    media_type = "application/octet-stream" if reference.media_type is UNSET else reference.media_type
    algorithm: Algorithm = "sha256" if reference.digest is UNSET else reference.digest.alg
    found = file_artifact(reference.locator, root, media_type, algorithm=algorithm)
    if reference.digest is not UNSET and found.digest != reference.digest:
        raise ValueError(f"{reference.locator} does not match the digest of the reference")
    named = found.artifact_id if reference.artifact_id is UNSET else reference.artifact_id
    return msgspec.structs.replace(found, artifact_id=named, labels=_labels(reference) or found.labels)


def _is_file(locator: str) -> bool:
    return locator.startswith("file:") or "://" not in locator


# --- what a caller refers to --------------------------------------------------------------------------------------


def referred_artifact(reference: ArtifactRef) -> Artifact:
    """Return an artifact that a caller refers to, recorded as given and never opened; a malformed digest is dropped."""
    locator = UNSET if reference.locator is UNSET else redact_locator(reference.locator)
    named = reference.artifact_id
    return Artifact(
        schema_version=ARTIFACT_VERSION,
        artifact_id=_name_of(locator) if named is UNSET else named,
        media_type="application/octet-stream" if reference.media_type is UNSET else reference.media_type,
        locator=locator,
        digest=UNSET if reference.digest is UNSET or digest_fault(reference.digest) else reference.digest,
        labels=_labels(reference),
    )


def _labels(reference: ArtifactRef) -> dict[str, str] | UnsetType:
    if reference.labels is UNSET:
        return UNSET
    return {
        name: REDACTED if is_secret_name(name) else text
        for name, text in reference.labels.items()
        if not (name == ROLE_LABEL and text.startswith(OWN_ROLES))
    }


def _name_of(locator: Any) -> str:
    return f"locator:{digest_bytes(str(locator).encode('utf-8', 'replace')).value[:32]}"


# --- checking -----------------------------------------------------------------------------------------------------


def content_fault(artifact: Artifact, content: Any) -> str | None:
    """Return why content does not match an artifact; None if it matches or cannot be compared."""
    if artifact.digest is UNSET:
        return None
    try:
        fits = same_digest(_digested_bytes(artifact, content), artifact.digest)
    except (ValueError, LookupError, RecursionError) as error:
        return f"artifact {artifact.artifact_id} cannot be checked: {error}"
    return None if fits else f"artifact {artifact.artifact_id} is not what was recorded"


def _digested_bytes(artifact: Artifact, content: Any) -> bytes:
    if isinstance(content, bytes) and not is_json_type(artifact.media_type):
        return content
    if isinstance(content, bytes):
        content = _parse_json(content, artifact.artifact_id)
    label = _redacted_text(artifact)
    if label:
        content = _redact_again(content, label)
    if isinstance(content, str) and not is_json_type(artifact.media_type):
        return content.encode()
    return canonical_json(content)


def is_comparable(artifact: Artifact) -> bool:
    """Whether content can be compared with an artifact: it has a digest and the locations of all secrets."""
    return artifact.digest is not UNSET and not _redacted_text(artifact).endswith("places")


def _redacted_text(artifact: Artifact) -> str:
    labels = {} if artifact.labels is UNSET else artifact.labels
    return "".join(labels.get(_redacted_name(number), "") for number in range(1, MAX_REDACTED_LABELS + 1))


def is_json_type(media_type: str) -> bool:
    kind = media_type.partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def _redact_again(content: Any, label: str) -> Any:
    """Return the content as it was digested: values at the redacted locations are replaced again."""
    if not label.startswith("["):
        raise ValueError("the locations of removed secrets are unknown")
    for path in msgspec.json.decode(label, type=list[str]):
        content = _without(content, names(path))
    return content


def _without(value: Any, path: list[str]) -> Any:
    if not path:
        return REDACTED
    if isinstance(value, Mapping):
        return {**value, path[0]: _without(value[path[0]], path[1:])}
    if isinstance(value, list | tuple):
        index = int(path[0])
        return [*value[:index], _without(value[index], path[1:]), *value[index + 1 :]]
    raise LookupError(f"{path[0]!r} not found")


JSON_POINTER_METHOD: Final = "engine.extract.evidence.json_pointer"
TEXT_LINES_METHOD: Final = "engine.extract.evidence.text_lines"

_POINTER: Final = re.compile(r"(?:/(?:[^~/]|~[01])*)*\Z", re.DOTALL)
_SOURCE: Final = re.compile(
    r"artifact:(?P<id>.+?)(?:#json:(?P<pointer>/.*)|#text:line:(?P<start>[0-9]+)(?:-(?P<end>[0-9]+))?)?\Z", re.DOTALL
)


class Anchor(msgspec.Struct, frozen=True):
    """A location in an artifact: a JSON Pointer, lines (counted from 1), or the whole artifact."""

    artifact_id: str
    pointer: str | None = None
    lines: tuple[int, int] | None = None


def read_anchor(source: str) -> Anchor:
    """Parse an anchor: `artifact:<id>#json:/…`, `artifact:<id>#text:line:<start>[-<end>]`, `artifact:<id>`."""
    found = _SOURCE.match(source)
    if found is None or "#json:" in found["id"] or "#text:" in found["id"]:
        raise FormatError(f"{source!r} is not an anchor: artifact:<id>#json:/… or artifact:<id>#text:line:<n>")
    if found["pointer"] is not None:
        return Anchor(found["id"], pointer=_checked_pointer(found["pointer"]))
    if found["start"] is None:
        return Anchor(found["id"])
    start, end = int(found["start"]), int(found["end"] or found["start"])
    if not 1 <= start <= end:
        raise FormatError(f"{start}-{end} is not a range of lines: they are counted from 1")
    return Anchor(found["id"], lines=(start, end))


def _checked_pointer(pointer: str) -> str:
    """Return the text; raise FormatError if it is not a JSON Pointer of RFC 6901."""
    if not _POINTER.match(pointer):
        raise FormatError(f"{pointer!r} is not a JSON Pointer")
    return pointer


# --- making -------------------------------------------------------------------------------------------------------


def json_pointer_evidence(
    artifact_id: str, content: Any, fields: Mapping[str, str], method: str | None = None
) -> tuple[Evidence, ...]:
    """Return evidence for output fields, each supported by the location of its pointer; a list supports item by item.

    A pointer without a target in the content gives no evidence.
    """
    return tuple(
        _evidence(field, f"artifact:{artifact_id}#json:{place}", method)
        for name, pointer in fields.items()
        for field, place in _places(content, name, pointer)
    )


def _places(content: Any, field: str, pointer: str) -> list[tuple[str, str]]:
    try:
        found = follow(content, _checked_pointer(pointer))
    except LookupError:
        return []
    if isinstance(found, list | tuple):
        return [(f"{field}[{index}]", f"{pointer}/{index}") for index in range(len(found))]
    return [(field, pointer)]


def text_line_evidence(
    artifact_id: str, text: str, fields: Mapping[str, int | tuple[int, int]], method: str | None = None
) -> tuple[Evidence, ...]:
    """Return evidence for output fields, each supported by a line or a range of existing lines."""
    count = len(text.splitlines())
    ranges = {field: (lines, lines) if isinstance(lines, int) else lines for field, lines in fields.items()}
    return tuple(
        _evidence(field, f"artifact:{artifact_id}#text:line:{start}{'' if start == end else f'-{end}'}", method)
        for field, (start, end) in ranges.items()
        if 1 <= start <= end <= count
    )


def coerce_evidence(items: Iterable[Any]) -> tuple[Evidence, ...]:
    """Read a tool's evidence as evidence.v0.1 as far as possible; long texts are truncated where allowed."""
    found = []
    for item in items:
        if not isinstance(item, Mapping):
            continue
        field, source, note = item.get("field"), item.get("source"), item.get("note")
        if isinstance(field, str) and isinstance(source, str) and 0 < len(field) <= 200 and 0 < len(source) <= 1000:
            kept = note[:400] if isinstance(note, str) else UNSET
            found.append(Evidence(schema_version=EVIDENCE_VERSION, field=field, source=source, note=kept))
    return tuple(found)


def _evidence(field: str, source: str, method: str | None) -> Evidence:
    return Evidence(
        schema_version=EVIDENCE_VERSION, field=field, source=source, method=UNSET if method is None else method
    )


# --- checking -----------------------------------------------------------------------------------------------------


def anchor_fault(source: str, artifact_ids: Iterable[str], contents: Mapping[str, Any] | None = None) -> str | None:
    """Return the fault of an anchor: its syntax, an unknown artifact, or a location missing in the content."""
    try:
        anchor = read_anchor(source)
    except FormatError as error:
        return str(error)
    if anchor.artifact_id not in artifact_ids:
        return f"{source!r} names an artifact that is not in the record"
    if contents is None or anchor.artifact_id not in contents:
        return None
    return None if _is_there(anchor, contents[anchor.artifact_id]) else f"{source!r} does not exist in its artifact"


def _is_there(anchor: Anchor, content: Any) -> bool:
    if anchor.lines is not None:
        return isinstance(content, str) and anchor.lines[1] <= len(content.splitlines())
    if anchor.pointer is None:
        return True
    try:
        follow(content, anchor.pointer)
    except LookupError:
        return False
    return True
