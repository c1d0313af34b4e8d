"""Answers of servers with what no text can hold, half a character, and what JSON does not have, `NaN`: mended, and told of."""

from __future__ import annotations

import json
import math
from typing import Any, Final

import msgspec

from enfold.envelope import ResultWarning
from enfold.json_pointer import escape

NOT_A_NUMBER: Final = "not_a_number"
HALF_CHARACTER: Final = "half_character"
_MOST_TOLD: Final = 50


def read_json(text: str | bytes) -> tuple[Any, tuple[ResultWarning, ...]]:
    """JSON, with U+FFFD for halves of characters, which JSON can spell; msgspec's error for what is no JSON."""
    try:
        return msgspec.json.decode(text), ()
    except (msgspec.DecodeError, UnicodeError):
        found = _read_halves(text)
        if found is msgspec.UNSET:
            raise
    mending = Mending()
    return mending.mend(found, ""), mending.inside("")


def _read_halves(text: str | bytes) -> Any:
    """What another parser reads that knows halves of characters, UNSET where it reads nothing either."""
    try:
        return json.loads(text, parse_constant=_refuse) if _has_escapes(text) else msgspec.UNSET
    except (ValueError, RecursionError):
        return msgspec.UNSET


def _has_escapes(text: str | bytes) -> bool:
    return b"\\u" in text if isinstance(text, bytes) else "\\u" in text


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


class Mending:
    """One walk over a message, with what was replaced so far."""

    def __init__(self) -> None:
        self._warnings: list[ResultWarning] = []

    def inside(self, start: str) -> tuple[ResultWarning, ...]:
        """The warnings below a place, with paths that begin there."""
        below = [each for each in self._warnings if each.path.startswith(start)]
        return tuple(ResultWarning(each.code, each.path.removeprefix(start), type=each.type) for each in below)

    def mend(self, value: Any, path: str) -> Any:
        match value:
            case dict():
                return {_whole(key): self.mend(item, f"{path}/{escape(_whole(key))}") for key, item in value.items()}
            case list():
                return [self.mend(item, f"{path}/{place}") for place, item in enumerate(value)]
            case str() if (whole := _whole(value)) != value:
                self._tell(HALF_CHARACTER, path, "string")
                return whole
            case float() if not math.isfinite(value):
                self._tell(NOT_A_NUMBER, path, "number")
                return None
        return value

    def _tell(self, code: str, path: str, kind: str) -> None:
        if len(self._warnings) < _MOST_TOLD:
            self._warnings.append(ResultWarning(code, path, type=kind))


def _whole(text: str) -> str:
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
