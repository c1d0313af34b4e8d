"""The revisions of the protocol, and what each of them supports."""

from __future__ import annotations

from typing import Final

import msgspec


class Revision(msgspec.Struct, frozen=True):
    """One revision by its date, and what it knows."""

    name: str
    has_batches: bool  # several messages may come as one array; only the two oldest allowed it
    has_annotations: bool  # tools have annotations, progress a message, and content may be audio
    has_structure: bool  # results may have `structuredContent`, tools an `outputSchema` and a `title`
    has_icons: bool
    has_priming: bool  # an event stream opens with an empty event, from whose id a client may resume
    has_any_structure: bool  # structured content may be any JSON value, and not only an object
    is_stateless: bool  # every request brings its own version and capabilities, without a handshake
    is_text_alone: bool = (
        False  # not the revision's: whether this client gets results as text, and no structure besides
    )


def _revision(name: str) -> Revision:
    """Dates compare, so a feature is known from its first revision on."""
    return Revision(
        name,
        has_batches=name <= "2025-03-26",
        has_annotations=name >= "2025-03-26",
        has_structure=name >= "2025-06-18",
        has_icons=name >= "2025-11-25",
        has_priming=name >= "2025-11-25",
        has_any_structure=name >= "2026-07-28",
        is_stateless=name >= "2026-07-28",
    )


HANDSHAKE: Final = tuple(_revision(name) for name in ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"))
STATELESS: Final = (_revision("2026-07-28"),)
KNOWN: Final = {revision.name: revision for revision in (*HANDSHAKE, *STATELESS)}

LATEST: Final = STATELESS[-1]
LATEST_HANDSHAKE: Final = HANDSHAKE[-1]
# What a request over HTTP speaks that names no revision: the last one that had no header for it.
UNSAID: Final = KNOWN["2025-03-26"]


def find_revision(name: object) -> Revision | None:
    return KNOWN.get(name) if isinstance(name, str) else None


def negotiate(requested: object) -> Revision:
    """Return the revision that a handshake agrees on: the requested one, or the latest with a handshake."""
    found = find_revision(requested)
    return LATEST_HANDSHAKE if found is None or found.is_stateless else found


LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
_PLACES: Final = {level: place for place, level in enumerate(LEVELS)} | {"warn": 3, "fatal": 5}


def urgency_of(level: str) -> int:
    """Return how urgent a level is; an unknown one counts as `info`."""
    return _PLACES.get(level.lower(), 1)
