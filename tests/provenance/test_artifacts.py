"""Artifacts of files and of a caller's references: opened only below a root, and never for someone far away."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from enfold.provenance import digest_bytes, digest_json, file_artifact, opened_artifact, referred_artifact
from enfold.provenance.artifacts import content_fault
from enfold.provenance.records import ArtifactRef, Digest


def test_a_file_below_the_root_is_digested(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    for locator in ("a.txt", "file:a.txt", f"file://{tmp_path}/a.txt"):
        artifact = file_artifact(locator, tmp_path, "text/plain")
        assert (artifact.digest, artifact.size_bytes, artifact.locator) == (digest_bytes(b"hello"), 5, locator)
    assert content_fault(artifact, "hello") is None
    assert content_fault(artifact, b"hullo") is not None


def test_a_json_file_is_digested_over_its_canonical_text(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{ "b": 1.0,\n "a": 2 }')
    artifact = file_artifact("a.json", tmp_path, "application/json")
    assert artifact.digest == digest_json({"a": 2, "b": 1})
    assert content_fault(artifact, b'{"a":2,"b":1}') is None


@pytest.mark.parametrize("locator", ["../secret", "/etc/passwd", "link", "folder/../../secret", "file:///etc/passwd"])
def test_nothing_outside_the_root_is_opened(tmp_path: Path, locator: str) -> None:
    root = tmp_path / "root"
    (root / "folder").mkdir(parents=True)
    (tmp_path / "secret").write_text("hush")
    (root / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(ValueError, match="not below"):
        file_artifact(locator, root)


def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="regular"):
        file_artifact("pipe", tmp_path)
    with pytest.raises(FileNotFoundError):
        file_artifact("nothing", tmp_path)


def test_an_invalid_json_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        file_artifact("a.json", tmp_path, "application/json")


def test_a_reference_is_recorded_as_it_is_named_without_credentials() -> None:
    reference = ArtifactRef(schema_version="artifact.ref.v0.1", locator="https://me:pw@host/a?token=t")
    artifact = referred_artifact(reference)
    assert artifact.locator == "https://host/a?token=[redacted]"
    assert artifact.artifact_id.startswith("locator:")
    assert artifact == referred_artifact(reference)


def test_the_digest_of_a_reference_is_kept_only_in_proper_form() -> None:
    for value, kept in (("a" * 64, True), ("A" * 64, False), ("a" * 20, False)):
        reference = ArtifactRef(schema_version="artifact.ref.v0.1", artifact_id="x", digest=Digest("sha256", value))
        assert (referred_artifact(reference).digest == Digest("sha256", value)) is kept


def reference(**fields: Any) -> ArtifactRef:
    return ArtifactRef(schema_version="artifact.ref.v0.1", **fields)


def test_a_caller_on_this_machine_has_their_files_opened_and_their_digests_checked(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    named = reference(locator="file:a.txt", artifact_id="note", digest=digest_bytes(b"hello", "sha512"))
    found = opened_artifact(named, tmp_path)
    assert (found.artifact_id, found.digest, found.size_bytes) == ("note", digest_bytes(b"hello", "sha512"), 5)
    with pytest.raises(ValueError, match="does not match the digest"):
        opened_artifact(reference(locator="a.txt", digest=digest_bytes(b"hullo")), tmp_path)
    far = reference(locator="https://host/a.txt")
    assert opened_artifact(far, tmp_path) == referred_artifact(far)


def test_a_label_with_a_secret_name_is_hidden() -> None:
    found = referred_artifact(reference(artifact_id="x", labels={"api_key": "abc", "role": "log"}))
    assert found.labels == {"api_key": "[redacted]", "role": "log"}
