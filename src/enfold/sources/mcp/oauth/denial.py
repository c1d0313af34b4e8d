"""The one error of a login that cannot be: what happened, and what a user can do about it."""

from __future__ import annotations

from enfold.errors import CallError


def denied(sentence: str) -> CallError:
    """ACCESS_DENIED with a short text without control characters: parts of it come from other servers."""
    visible = "".join(letter if letter.isprintable() else " " for letter in sentence)
    return CallError("ACCESS_DENIED", " ".join(visible.split())[:500], {"reason": "login"})
