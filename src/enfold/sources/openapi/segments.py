"""Which arguments would lead a request to another path: those that are `.` or `..`, or put such a segment there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

EXPECTED: Final = "text without a part that is . or .. between slashes"

_SLASHES: Final = re.compile(r"[/\\]")
_MOST_DECODED: Final = 8  # how often text may be percent-encoded before it counts as an attack


def leaving(pieces: Sequence[str], named: Sequence[str | None], arguments: Mapping[str, Any]) -> Iterator[str]:
    """The names of the arguments that leave their segment; `named` has the argument of each piece, None for plain text."""
    for argument in filter(None, named):
        if any(map(_has_dots, _texts(arguments[argument]))):
            yield argument
    yield from _by_segment(pieces, named)


def _by_segment(pieces: Sequence[str], named: Sequence[str | None]) -> Iterator[str]:
    """The first argument of each segment that only as a whole is `..`; one empty label is `.` by the standard's table."""
    segment, first = "", None
    for piece, argument in zip([*pieces, "/"], [*named, None], strict=True):
        head, *others = piece.split("/")
        segment, first = segment + head, first or argument
        for other in others:
            if first is not None and _has_dots(segment, only=("..",)):
                yield first
            segment, first = other, argument


def _has_dots(text: str, only: tuple[str, ...] = (".", "..")) -> bool:
    """Whether a part of the text is only dots, also for a server that decodes twice or cuts off `;` and what follows."""
    if "." not in text and "%" not in text:
        return False
    for _ in range(_MOST_DECODED):
        if any(part.partition(";")[0] in only for part in _SLASHES.split(text)):
            return True
        decoded = unquote(text)
        if decoded == text:
            return False
        text = decoded
    return True


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value, the names in objects too."""
    if isinstance(value, (str, bytes)):
        yield value if isinstance(value, str) else value.decode(errors="replace")
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield str(name)
            yield from _texts(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _texts(each)
