"""Messages of servers that write `NaN`, endless numbers or halves of characters, read all the same; what was replaced is told with the result."""

from __future__ import annotations

from typing import Any

import msgspec

from enfold.envelope import ResultWarning
from enfold.mcp.json_rpc import RPCMessage
from enfold.sources.lenient_json import Replacements, parse_numbers


class RepairedResult(dict[str, Any]):
    """A result in which something was replaced; `warnings` has one for each place, by its path in the result."""

    warnings: tuple[ResultWarning, ...] = ()


def repair_message(text: bytes) -> RPCMessage | None:
    """A message with `null` for numbers that JSON does not know and U+FFFD for halves of characters; None if it is no message."""
    replacements = Replacements()
    try:
        message = msgspec.convert(replacements.apply(parse_numbers(text.decode("utf-8", "replace")), ""), RPCMessage)
    except (ValueError, RecursionError):
        return None
    if message.result is msgspec.UNSET or not message.is_complete:
        return message if message.is_complete else None
    result = RepairedResult(message.result)
    result.warnings = replacements.warnings_below("/result")
    return msgspec.structs.replace(message, result=result)
