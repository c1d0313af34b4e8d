"""Ids of callers from several sources (token lists, issuers) kept apart: each issuer beside another source has a prefix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Protocol


class IdSpace(Protocol):
    """An issuer, and what the ids of its callers begin with; None where its configuration does not say."""

    @property
    def issuer(self) -> str: ...

    @property
    def prefix(self) -> str | None: ...


def check_prefix(issuer: IdSpace) -> None:
    """Refuse a prefix from which the id after it cannot be told."""
    if issuer.prefix and (issuer.prefix[-1].isalnum() or not issuer.prefix.isprintable()):
        raise ValueError(f"The prefix {issuer.prefix!r} of {issuer.issuer} must end with a delimiter, as in 'partner:'")


def check_apart(issuers: Sequence[IdSpace], *, beside_others: bool = False, beside_lists: bool = False) -> None:
    """Refuse issuers that could give two callers the same id.

    `beside_others` says that there are tokens besides theirs, `beside_lists` that those have ids of their own.
    """
    if len(issuers) + beside_others < 2:
        return
    for issuer in issuers:
        if sum(each.issuer == issuer.issuer for each in issuers) > 1:
            raise ValueError(f"The issuer {issuer.issuer} is listed twice: give one table all its audiences")
        if issuer.prefix is None:
            raise ValueError(
                f"The ids of {issuer.issuer} could be those of other callers: set its prefix, as in "
                'prefix = "partner:" in its table of auth, or --issuer-prefix partner:'
            )
    empty = [issuer.issuer for issuer in issuers if not issuer.prefix]
    if len(empty) + beside_lists > 1:
        other = "the token list has ids without one too" if beside_lists else f"{empty[0]} has none either"
        raise ValueError(f"The prefix of {empty[-1]} must not be empty: {other}")
    named = sorted((issuer.prefix, issuer.issuer) for issuer in issuers if issuer.prefix)
    for (prefix, issuer_url), (longer, other_url) in pairwise(named):
        if longer.startswith(prefix):
            raise ValueError(f"The prefixes {prefix!r} of {issuer_url} and {longer!r} of {other_url} overlap")


def belongs_to_another(identity_id: str, own: str | None, issuers: Iterable[IdSpace]) -> str | None:
    """The prefix of another issuer that an id begins with; `own` is the prefix of where the id comes from."""
    others = (each.prefix for each in issuers if each.prefix and each.prefix != own)
    return next((prefix for prefix in others if identity_id.startswith(prefix)), None)
