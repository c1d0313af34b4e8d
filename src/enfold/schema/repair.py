"""Repair, the default of the result pipeline: strip, fill, convert without loss; never throw, invent or destroy."""

from __future__ import annotations

from typing import Any, Literal

from enfold.schema.check import compile_schema
from enfold.schema.repairs.fix import Repaired

__all__ = ["Repaired", "repair"]


def repair(schema: dict[str, Any] | bool, value: Any, *, extras: Literal["strip", "keep"] = "strip") -> Repaired:
    """The value made to fit the schema as far as that can be done without loss, with a warning for all else.

    The value itself is never changed; the result shares with it what stayed the same.
    """
    return compile_schema(schema).repair(value, extras)
