"""Artifacts from what a run was given and gave, from files, and from a caller's references. Content is never kept.

A JSON artifact is digested over its canonical text, any other over its bytes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from enfold.json_pointer import names
from enfold.provenance.canonical import canonical_json
from enfold.provenance.digests import digest_bytes, digest_chunks, digest_fault, same_digest
from enfold.provenance.records import ARTIFACT_VERSION, Algorithm, Artifact, ArtifactRef, Digest, Record
from enfold.provenance.redaction import REDACTED, Redacted, is_secret_name, redact_locator

MAX_FILE_BYTES: Final = 1 << 30
MAX_LABEL: Final = 200
# A JSON file larger than this is digested as bytes: parsing it would take many times its size.
MAX_JSON_FILE_BYTES: Final = 64 << 20
# Where secrets were taken out, as a JSON list of places; a list too long for one label goes on in `redacted_2` and so on.
REDACTED_LABEL: Final = "redacted"
MAX_REDACTED_LABELS: Final = 50
ROLE_LABEL: Final = "role"
OWN_ROLES: Final = "nested_"  # what begins so is said by us alone: it binds a run to one that it called
CALLER_ID: Final = "enfold:caller"
TASK_ID: Final = "enfold:task"
NAME_LABEL: Final = "id"  # of a caller, of a task


def json_artifact(content: Redacted, role: str, algorithm: Algorithm = "sha256") -> Artifact:
    """An artifact of a JSON value, named by its digest; a label says where secrets were taken out before."""
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
    """The caller of a run as one of its inputs, so that the record's digest covers who called."""
    return _named_artifact(CALLER_ID, identity)


def task_artifact(task_id: str) -> Artifact:
    """The task that a run belongs to as one of its inputs: all attempts name the same one."""
    return _named_artifact(TASK_ID, task_id)


def _named_artifact(artifact_id: str, name: str) -> Artifact:
    return Artifact(
        schema_version=ARTIFACT_VERSION,
        artifact_id=artifact_id,
        media_type="text/plain",
        labels={NAME_LABEL: name[:MAX_LABEL]},
    )


def caller_of(record: Record) -> str | None:
    """The caller that a record names among its inputs, or None."""
    for artifact in record.inputs:
        if artifact.artifact_id == CALLER_ID and artifact.labels is not UNSET:
            return artifact.labels.get(NAME_LABEL)
    return None


def bytes_artifact(content: bytes, media_type: str, role: str, algorithm: Algorithm = "sha256") -> Artifact:
    """An artifact of bytes, named by its digest."""
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
    """An artifact of a file below the root; ValueError for one outside, too large, or no regular file."""
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
    path = (below / name).resolve()  # Links are followed here, so that none can lead out.
    if not path.is_relative_to(below):
        raise ValueError(f"{locator} is not below {root}")
    return path


def _open_regular(path: Path) -> Any:
    # A link put there since, or a pipe that would never end, is refused.
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
    """An artifact a caller on this machine refers to: a file is opened below the root and must have the digest they name."""
    if reference.locator is UNSET or not _is_file(reference.locator):
        return referred_artifact(reference)
    media_type = "application/octet-stream" if reference.media_type is UNSET else reference.media_type
    algorithm: Algorithm = "sha256" if reference.digest is UNSET else reference.digest.alg
    found = file_artifact(reference.locator, root, media_type, algorithm=algorithm)
    if reference.digest is not UNSET and found.digest != reference.digest:
        raise ValueError(f"{reference.locator} does not have the digest that the reference names")
    named = found.artifact_id if reference.artifact_id is UNSET else reference.artifact_id
    return msgspec.structs.replace(found, artifact_id=named, labels=_labels(reference) or found.labels)


def _is_file(locator: str) -> bool:
    return locator.startswith("file:") or "://" not in locator


# --- what a caller refers to --------------------------------------------------------------------------------------


def referred_artifact(reference: ArtifactRef) -> Artifact:
    """An artifact a caller refers to: recorded as they name it, never opened; their digest is kept only in proper form."""
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
    """Why content is not that of an artifact (its digest differs); None where it is, or where nothing can be compared."""
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
    """Whether content can be compared with an artifact: it has a digest, and its label names the place of each secret."""
    return artifact.digest is not UNSET and not _redacted_text(artifact).endswith("places")


def _redacted_text(artifact: Artifact) -> str:
    labels = {} if artifact.labels is UNSET else artifact.labels
    return "".join(labels.get(_redacted_name(number), "") for number in range(1, MAX_REDACTED_LABELS + 1))


def is_json_type(media_type: str) -> bool:
    kind = media_type.partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def _redact_again(content: Any, label: str) -> Any:
    """The content as it was digested: what stands at the places that the label names is replaced again."""
    if not label.startswith("["):
        raise ValueError("it does not say where secrets were taken out")
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
    raise LookupError(f"there is nothing at {path[0]!r}")
