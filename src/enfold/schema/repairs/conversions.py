"""Text that stands for another type, and back: the text of a number and the number, the words true and false."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec

_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORDS: Final = {"true": True, "false": False}
_MAX_DIGITS: Final = 4_000  # Python reads no longer ones
_MAX_EXPONENT: Final = 308  # the power of ten up to which JSON readers know numbers with an exponent


def lossless(value: Any, types: frozenset[str]) -> Iterator[Any]:
    """R5: what a scalar may become among these types without losing anything; the text of a number must be canonical."""
    if type(value) is str:
        yield from _truth(value, types)
        number = next(_numbers(value, _ANY_NUMBER), None) if "integer" in types else None
        if number is not None and ("number" in types or number == int(number)) and _is_canonical(value, number):
            yield number
    elif "string" in types and (type(value) is int or (type(value) is float and value - value == 0)):
        with suppress(ValueError):  # an integer of more digits than Python is willing to write
            yield repr(value)


def readings(text: str, types: frozenset[str]) -> Iterator[Any]:
    """What the text of an argument may stand for, among the types that are allowed."""
    yield from _truth(text, types)
    if "integer" in types:
        yield from _numbers(text, types)
    if "string" not in types:
        yield from _structures(text, types)


def _truth(text: str, types: frozenset[str]) -> Iterator[bool]:
    if text in _WORDS and "boolean" in types:
        yield _WORDS[text]


def _numbers(text: str, types: frozenset[str]) -> Iterator[float]:
    match = _NUMBER.fullmatch(text)
    if match is None or len(text) > _MAX_DIGITS:
        return
    if match[1] is None and match[2] is None:
        yield int(text)
    elif "number" not in types:
        yield from _whole(text)
    elif (number := float(text)) - number == 0:
        yield number


def _whole(text: str) -> Iterator[int]:
    """The integer that decimal text stands for, exactly, where it is one: a float would round it."""
    with suppress(InvalidOperation):  # an exponent beyond all bounds
        exact = Decimal(text)
        if exact.adjusted() <= _MAX_EXPONENT and exact == exact.to_integral_value():
            yield int(exact)


def _is_canonical(text: str, number: float) -> bool:
    """Whether a text is how a number is written: `"42"` and `"19.99"`, but not `"1.50"` or `"-0"`."""
    # Languages write exponents differently: 1e-07 here, 1e-7 in JavaScript.
    return text == repr(number) or (type(number) is float and text == msgspec.json.encode(number).decode())


def _structures(text: str, types: frozenset[str]) -> Iterator[Any]:
    if text == "null" and "null" in types:
        yield None
    opening = text.lstrip(" \t\r\n")[:1]
    if (opening == "{" and "object" in types) or (opening == "[" and "array" in types):
        try:
            yield msgspec.json.decode(text)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return  # it only looked like JSON


_ANY_NUMBER: Final = frozenset({"integer", "number"})
