"""The right name that a wrong one comes closest to, for messages. Callers choose the wrong one, so the work is limited."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice, takewhile
from typing import Final

_MAX_NAMES: Final = 5_000
_MAX_LENGTH: Final = 100  # of a wrong name; longer ones are cut
_MAX_KNOWN_LENGTH: Final = 250  # of a right one; longer ones are not typing errors
_MAX_COMPARED: Final = 16  # names that are compared character by character
_MAX_PAIRS: Final = 16  # of characters, by which these are found


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that is most like this one, in upper or lower case; None if none is close enough."""
    from difflib import get_close_matches  # slow to import, and only needed here

    word = name[:_MAX_LENGTH].lower()
    by_word = {each.lower(): each for each in islice(known, _MAX_NAMES) if len(each) <= _MAX_KNOWN_LENGTH}
    found = get_close_matches(word, _likeliest(word, by_word), 1, cutoff)
    return by_word[found[0]] if found else None


def _likeliest(word: str, known: Collection[str]) -> Collection[str]:
    """The words that share most pairs of characters with this one, and of those the ones of its length."""
    if len(known) <= _MAX_COMPARED:
        return known
    from heapq import nlargest  # as above

    pairs = [word[start : start + 2] for start in range(len(word))]
    sample = pairs[:: len(pairs) // _MAX_PAIRS + 1]
    length = len(word)
    return nlargest(
        _MAX_COMPARED, known, key=lambda each: sum(map(each.__contains__, sample)) * 1_000 - abs(len(each) - length)
    )


def nearest_id(name: str, known: Iterable[str]) -> str | None:
    """The known operation id whose name is most like this one's: to share a namespace is not enough."""
    names = list(islice(known, _MAX_NAMES))
    found = nearest(name, names, 0.75)
    if found is None:
        return _same_end(name[:_MAX_LENGTH].lower(), names)
    pairs = zip(name.lower(), found.lower(), strict=False)
    shared = "".join(mine for mine, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    start = max(shared.rfind("."), shared.rfind("_")) + 1
    return found if nearest(name[start:], [found[start:]]) else None


def _same_end(word: str, names: list[str]) -> str | None:
    """The first name that is this one without its namespace, or in one."""
    ends = (f".{word}", f"_{word}")
    for each in names:
        own = each.lower()
        if own.endswith(ends) or (word.endswith(own) and word[: -len(own)].endswith((".", "_"))):
            return each
    return None
