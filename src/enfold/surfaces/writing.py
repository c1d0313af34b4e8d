"""Answers as JSON text: a result that has no such form is a failure, and a failure always has one. Pure functions."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from enfold.errors import CallError
from enfold.schema.structs import encode

__all__ = ["UNWRITABLE", "encode", "encode_failure", "encode_result", "unwritable"]

_DEEPEST: Final = 8


def encode_result(wire: Any) -> bytes:
    """The JSON of a result, or the failure to write it: text may hold half a character, which UTF-8 cannot."""
    try:
        return encode(wire)
    except UNWRITABLE as error:
        raise unwritable(error) from error


UNWRITABLE: Final = (ValueError, TypeError, RecursionError)


def unwritable(error: Exception) -> CallError:
    return CallError("EXECUTION_ERROR", f"failed to marshal response: {error}")


def encode_failure(wire: Any) -> bytes:
    """The JSON of a failure; nothing that a handler put into it can make the answer fail too."""
    try:
        return msgspec.json.encode(wire, enc_hook=str)
    except (ValueError, TypeError, RecursionError):
        return msgspec.json.encode(_readable(wire))


def _readable(value: Any, depth: int = 0) -> Any:
    """The value with all that has no JSON form told as text: lone surrogates, odd keys, endless nesting."""
    if isinstance(value, bool | int | float | None):
        return value
    if depth < _DEEPEST and isinstance(value, dict):
        return {_readable(str(key)): _readable(item, depth + 1) for key, item in value.items()}
    if depth < _DEEPEST and isinstance(value, list | tuple):
        return [_readable(item, depth + 1) for item in value]
    return str(value).encode("utf-8", "replace").decode() if depth < _DEEPEST else "…"
