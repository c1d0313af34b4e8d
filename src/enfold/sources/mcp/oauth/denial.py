"""The one error of a login that cannot be: what happened, and what a user can do about it."""

from __future__ import annotations

from enfold.errors import CallError

__all__ = ["denied"]


def denied(sentence: str) -> CallError:
    """No more than a user would read: parts of it are the words of others."""
    return CallError("ACCESS_DENIED", " ".join(sentence.split())[:500], {"reason": "login"})
