"""Messages of careless servers, read in spite of `NaN` and halves of characters; what was mended goes with the result."""

from __future__ import annotations

import json
from typing import Any

from enfold.envelope import ResultWarning
from enfold.sources.mending import Mending


class MendedResult(dict[str, Any]):
    """A result in which something was replaced; `mended` has a warning for each place, by its path in the result."""

    mended: tuple[ResultWarning, ...] = ()


def read_loosely(text: bytes) -> Any:
    """A message with `null` for numbers that are none and U+FFFD for halves of characters; ValueError if it is no JSON."""
    mending = Mending()
    message = mending.mend(json.loads(text.decode("utf-8", "replace")), "")
    if isinstance(message, dict) and isinstance(message.get("result"), dict):
        result = MendedResult(message["result"])
        result.mended = mending.inside("/result")
        message["result"] = result
    return message
