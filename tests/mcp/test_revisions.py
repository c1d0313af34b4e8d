"""What each revision supports."""

from __future__ import annotations

import pytest

from enfold.mcp.revisions import HANDSHAKE, KNOWN, LATEST, LATEST_HANDSHAKE, find_revision, negotiate

FEATURES = {
    "has_batches": ["2024-11-05", "2025-03-26"],
    "has_annotations": ["2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"],
    "has_structure": ["2025-06-18", "2025-11-25", "2026-07-28"],
    "has_icons": ["2025-11-25", "2026-07-28"],
    "has_priming": ["2025-11-25", "2026-07-28"],
    "has_any_structure": ["2026-07-28"],
    "is_stateless": ["2026-07-28"],
}


@pytest.mark.parametrize(("feature", "names"), FEATURES.items(), ids=FEATURES)
def test_a_feature_is_known_from_its_revision_on(feature: str, names: list[str]) -> None:
    assert [name for name, revision in KNOWN.items() if getattr(revision, feature)] == names


def test_a_handshake_gives_what_was_asked_for_or_the_latest_that_has_one() -> None:
    assert [negotiate(revision.name) for revision in HANDSHAKE] == list(HANDSHAKE)
    assert negotiate(LATEST.name) == negotiate("1999-01-01") == negotiate(None) == LATEST_HANDSHAKE


def test_anything_but_a_revision_is_not_found() -> None:
    assert find_revision("2025-11-26") is None
    assert find_revision(7) is None
