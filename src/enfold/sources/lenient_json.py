"""JSON of servers with lone surrogates or `NaN` in it, which no text and no JSON can hold: replaced, with warnings."""

from __future__ import annotations

import json
import math
from typing import Any, Final

import msgspec

from enfold.envelope import ResultWarning
from enfold.json_pointer import escape

NOT_A_NUMBER: Final = "not_a_number"
HALF_CHARACTER: Final = "half_character"
_MAX_WARNINGS: Final = 50


def read_json(text: str | bytes) -> tuple[Any, tuple[ResultWarning, ...]]:
    """JSON as data, with U+FFFD and a warning for each lone surrogate; msgspec's error for what is no JSON."""
    try:
        return msgspec.json.decode(text), ()
    except (msgspec.DecodeError, UnicodeError) as error:
        # Only an escape can spell half a character, and only the other parser reads it.
        has_escapes = b"\\u" in text if isinstance(text, bytes) else "\\u" in text
        if not has_escapes:
            raise
        try:
            found = json.loads(text, parse_constant=_refuse)
        except (ValueError, RecursionError):
            raise error from None
    replacements = Replacements()
    return replacements.apply(found, ""), replacements.warnings_below("")


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


class Replacements:
    """Replaces what JSON cannot hold in the values of one message, and collects a warning for each."""

    def __init__(self) -> None:
        self._warnings: list[ResultWarning] = []

    def warnings_below(self, start: str) -> tuple[ResultWarning, ...]:
        """The warnings below a path, told relative to it."""
        below = [each for each in self._warnings if each.path.startswith(start)]
        return tuple(ResultWarning(each.code, each.path.removeprefix(start), type=each.type) for each in below)

    def apply(self, value: Any, path: str) -> Any:
        """The value at a path with every lone surrogate and every number that is none replaced."""
        match value:
            case dict():
                return {
                    _without_surrogates(key): self.apply(item, f"{path}/{escape(_without_surrogates(key))}")
                    for key, item in value.items()
                }
            case list():
                return [self.apply(item, f"{path}/{place}") for place, item in enumerate(value)]
            case str() if (whole := _without_surrogates(value)) != value:
                self._warn(HALF_CHARACTER, path, "string")
                return whole
            case float() if not math.isfinite(value):
                self._warn(NOT_A_NUMBER, path, "number")
                return None
        return value

    def _warn(self, code: str, path: str, kind: str) -> None:
        if len(self._warnings) < _MAX_WARNINGS:
            self._warnings.append(ResultWarning(code, path, type=kind))


def _without_surrogates(text: str) -> str:
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
