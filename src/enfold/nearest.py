"""The right name that a wrong one comes closest to, for messages."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, takewhile
from typing import Final

_MAX_COMPARED: Final = 5_000
_MAX_NAME: Final = 100


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that is most like this one, in upper or lower case; None if none is close enough."""
    from difflib import get_close_matches  # slow to import, and only needed here

    by_word = {each.lower(): each for each in islice(known, _MAX_COMPARED)}
    found = get_close_matches(name[:_MAX_NAME].lower(), by_word, 1, cutoff)
    return by_word[found[0]] if found else None


def nearest_id(name: str, known: Iterable[str]) -> str | None:
    """The known operation id whose name is most like this one's: to share a namespace is not enough."""
    names = list(islice(known, _MAX_COMPARED))
    found = nearest(name, names, 0.75)
    if found is None:
        return next((each for each in names if _ends_with(name, each) or _ends_with(each, name)), None)
    pairs = zip(name.lower(), found.lower(), strict=False)
    shared = "".join(mine for mine, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    start = max(shared.rfind("."), shared.rfind("_")) + 1
    return found if nearest(name[start:], [found[start:]]) else None


def _ends_with(name: str, end: str) -> bool:
    return name[:_MAX_NAME].lower().endswith((f".{end.lower()}", f"_{end.lower()}"))
