"""Conversions without loss: the text of a number and the number, the words true and false and the truth values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)\Z")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?\Z")
_MOST_DIGITS: Final = 400  # Python refuses to read very long numbers, and takes its time before that


def lossless(value: Any, types: frozenset[str]) -> Iterator[Any]:
    """What a scalar may become among these types without losing anything."""
    if type(value) is str:
        if "boolean" in types and value in {"true", "false"}:
            yield value == "true"
        number = number_of(value) if "integer" in types else None
        if number is not None and ("number" in types or number == int(number)):
            yield number
    elif "string" in types and (type(value) is int or (type(value) is float and value - value == 0)):
        text = _text(value)
        if text is not None:
            yield text


def number_of(text: str) -> float | None:
    """The number whose canonical text this is: `"42"` and `"19.99"`, but not `"042"`, `"1.50"` or `" 1"`."""
    if len(text) > _MOST_DIGITS or text == "-0":
        return None
    if _INTEGER.match(text):
        return int(text)
    if not _NUMBER.match(text):
        return None
    number = float(text)
    return number if number - number == 0 and text in _texts(number) else None


def _texts(number: float) -> tuple[str, str]:
    # Languages write exponents differently: 1e-07 here, 1e-7 in JavaScript.
    return repr(number), msgspec.json.encode(number).decode()


def _text(number: float) -> str | None:
    try:
        return repr(number)
    except ValueError:  # an integer of more digits than Python is willing to write
        return None
