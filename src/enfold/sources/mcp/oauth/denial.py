"""The one error of a login that cannot be: what happened, and what a user can do about it."""

from __future__ import annotations

from enfold.errors import CallError

__all__ = ["denied"]


def denied(sentence: str) -> CallError:
    """No more than a user would read, and nothing that moves their cursor: parts of it are the words of others."""
    visible = "".join(letter if letter.isprintable() else " " for letter in sentence)
    return CallError("ACCESS_DENIED", " ".join(visible.split())[:500], {"reason": "login"})
