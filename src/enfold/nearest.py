"""The right name that a wrong one comes closest to, for messages."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, takewhile
from typing import Final

__all__ = ["nearest", "nearest_id"]

_MOST_COMPARED: Final = 5_000
_MOST_OF_A_NAME: Final = 100


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that is most like this one, however either is written; None where none is."""
    from difflib import get_close_matches  # slow to import, and only needed here

    by_word = {each.lower(): each for each in islice(known, _MOST_COMPARED)}
    found = get_close_matches(name[:_MOST_OF_A_NAME].lower(), by_word, 1, cutoff)
    return by_word[found[0]] if found else None


def nearest_id(name: str, known: Iterable[str]) -> str | None:
    """The same for the names of operations: those that share nothing but their namespace are not alike."""
    found = nearest(name, known, 0.75)
    if found is None:
        return None
    pairs = zip(name.lower(), found.lower(), strict=False)
    shared = "".join(mine for mine, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    start = max(shared.rfind("."), shared.rfind("_")) + 1
    return found if nearest(name[start:], [found[start:]]) else None
