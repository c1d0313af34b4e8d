"""Results of servers that write what JSON does not have, `NaN` and half a character: mended, and told of."""

from __future__ import annotations

import json
import math
from typing import Any, Final

from enfold.envelope import ResultWarning
from enfold.json_pointer import escape

NOT_A_NUMBER: Final = "not_a_number"
HALF_CHARACTER: Final = "half_character"
_MOST_TOLD: Final = 50


class MendedResult(dict[str, Any]):
    """A result in which something was replaced; `mended` has a warning for each place, by its path in the result."""

    mended: tuple[ResultWarning, ...] = ()


def read_loosely(text: bytes) -> Any:
    """A message with `null` for numbers that are none and U+FFFD for halves of characters; ValueError if it is no JSON."""
    mending = _Mending()
    message = mending.mend(json.loads(text.decode("utf-8", "replace")), "")
    if isinstance(message, dict) and isinstance(message.get("result"), dict):
        result = MendedResult(message["result"])
        result.mended = mending.inside("/result")
        message["result"] = result
    return message


class _Mending:
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
