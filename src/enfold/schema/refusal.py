"""What a type says when it refuses JSON data. It stands alone, so that whoever catches it need not load an engine."""

from __future__ import annotations

from typing import Literal, TypeAlias

__all__ = ["DecodeError", "Reason"]

Reason: TypeAlias = Literal["missing", "unknown", "type", "constraint"]


class DecodeError(ValueError):
    """JSON data that a type refuses.

    `path` says where (`due`, `items[1].due`, empty for the whole), `reason` in which way, in the words of the contract,
    and `expected` what would be right: a format such as `date-time`, or the sentence of a validator.
    """

    def __init__(self, path: str, expected: str, reason: Reason = "type") -> None:
        super().__init__(path, expected, reason)
        self.path = path
        self.expected = expected
        self.reason: Reason = reason

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        if self.reason == "type":
            return f"{where}expected {self.expected}"
        return f"{where}{self.expected}" if self.reason == "constraint" else f"{where}{self.reason}"
