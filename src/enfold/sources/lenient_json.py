"""JSON of servers with lone surrogates, `NaN` or numbers beyond all ranges in it: replaced, with warnings."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, Final

import msgspec

from enfold.envelope import ResultWarning
from enfold.json_pointer import escape

NOT_A_NUMBER: Final = "not_a_number"
HALF_CHARACTER: Final = "half_character"
LARGE_NUMBER: Final = "large_number"
_MAX_WARNINGS: Final = 50
_MAX_DIGITS: Final = 4_000  # of an integer; Python neither reads nor writes much longer ones


def read_json(text: str | bytes) -> tuple[Any, tuple[ResultWarning, ...]]:
    """JSON as data, with U+FFFD for each lone surrogate, text for each number that is too large, and a warning for both.

    What is no JSON raises msgspec's error.
    """
    try:
        return msgspec.json.decode(text), ()
    except (msgspec.DecodeError, UnicodeError) as error:
        # Only an escape can spell an unpaired surrogate, and only the other parser reads it; of a type that is not given, only
        # the range of a number can be wrong.
        has_escapes = b"\\u" in text if isinstance(text, bytes) else "\\u" in text
        if not has_escapes and not isinstance(error, msgspec.ValidationError):
            raise
        try:
            found = parse_numbers(text, parse_constant=_refuse)
        except (ValueError, RecursionError):
            raise error from None
    replacements = Replacements()
    return replacements.apply(found, ""), replacements.warnings_below("")


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


class _LargeNumber(str):
    """The text of a number that is too large for us."""

    __slots__ = ()


def parse_numbers(text: str | bytes, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """JSON as `json.loads` reads it; numbers that are too large are marked for `Replacements`."""
    return json.loads(text, parse_float=_float, parse_int=_integer, parse_constant=parse_constant)


def _float(text: str) -> float | _LargeNumber:
    number = float(text)
    return number if math.isfinite(number) else _LargeNumber(text)


def _integer(text: str) -> int | _LargeNumber:
    return int(text) if len(text) <= _MAX_DIGITS else _LargeNumber(text)


class Replacements:
    """Replaces what JSON cannot hold in the values of one message, and collects a warning for each."""

    def __init__(self) -> None:
        self._warnings: list[ResultWarning] = []

    def warnings_below(self, start: str) -> tuple[ResultWarning, ...]:
        """The warnings below a path, told relative to it."""
        below = [each for each in self._warnings if each.path.startswith(start)]
        return tuple(ResultWarning(each.code, each.path.removeprefix(start), type=each.type) for each in below)

    def apply(self, value: Any, path: str) -> Any:
        """The value at a path with every lone surrogate and every number that JSON or we cannot hold replaced."""
        match value:
            case dict():
                return {
                    _without_surrogates(key): self.apply(item, f"{path}/{escape(_without_surrogates(key))}")
                    for key, item in value.items()
                }
            case list():
                return [self.apply(item, f"{path}/{place}") for place, item in enumerate(value)]
            case _LargeNumber():
                self._warn(LARGE_NUMBER, path, "number")
                return str(value)
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
