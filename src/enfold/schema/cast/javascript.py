"""What JavaScript does with JSON values where Python does something else."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, Final

from enfold.schema.cast.failure import CastError, bad_pattern
from enfold.schema.nodes.node import MISSING
from enfold.schema.nodes.pattern import PatternError, compile_pattern

# The bytes TypeBox's hash puts before each value, by type.
_UNDEFINED, _NULL, _BOOLEAN, _NUMBER, _STRING, _OBJECT, _ARRAY = (bytes([mark]) for mark in range(7))

_EXACT_INTEGERS: Final = 2**53


def length(text: str) -> int:
    """The length of a text in UTF-16 units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def is_multiple(value: float, divisor: float) -> bool:
    try:
        return divisor != 0 and value % divisor == 0
    except OverflowError:  # An integer beyond every float, and a divisor with a fraction.
        return False


class JavaScriptPattern:
    """A pattern of JavaScript; one that is not valid raises with its first search."""

    def __init__(self, source: str) -> None:
        self.source = source

    @cached_property
    def search(self) -> Callable[[str], bool | None]:
        try:
            return compile_pattern(self.source).search
        except PatternError as error:
            return _raiser(bad_pattern(self.source, str(error)))


def _raiser(error: CastError) -> Callable[[Any], bool]:
    def refuse(_: Any) -> bool:
        raise CastError(error.kind, error.message)

    return refuse


def is_unique(items: list[Any]) -> bool:
    """Whether no two items are equal as TypeBox hashes them."""
    return len(set(map(_hashed, items))) == len(items)


def _hashed(value: Any) -> bytes:
    """The bytes TypeBox hashes, nested values without a mark at their end: [[1], 2] and [[1, 2]] count as equal."""
    match value:
        case None:
            return _NULL
        case bool():
            return _BOOLEAN + bytes([value])
        case int() | float():
            return _NUMBER + _number_bytes(value)
        case str():
            return _STRING + _text_bytes(value)
        case list():
            return _ARRAY + b"".join(map(_hashed, value))
        case dict():
            keys = sorted(value, key=str)
            return _OBJECT + b"".join(_hashed(str(key)) + _hashed(value[key]) for key in keys)
        case _:
            return _UNDEFINED


def _number_bytes(value: float) -> bytes:
    if isinstance(value, int) and abs(value) > _EXACT_INTEGERS:
        return b"%x" % value  # JavaScript would round; we keep what we were given.
    return struct.pack(">d", value)


def _text_bytes(text: str) -> bytes:
    if text.isascii():
        return text.encode()
    units = text.encode("utf-16-be", "surrogatepass")
    return b"".join(units[i : i + 2].lstrip(b"\0") or b"\0" for i in range(0, len(units), 2))


def distinct(items: list[Any]) -> list[Any]:
    """The items without repeated texts, numbers, booleans and nulls; objects and arrays are never the same."""
    first: dict[tuple[str, Any], Any] = {}
    for position, item in enumerate(items):
        first.setdefault(_identity(item, position), item)
    return list(first.values())


def _identity(item: Any, position: int) -> tuple[str, Any]:
    if isinstance(item, dict | list):
        return "position", position
    is_number = isinstance(item, int | float) and not isinstance(item, bool)
    return "number" if is_number else type(item).__name__, item


def as_object(value: Any) -> dict[str, Any] | None:
    """An object's own properties, and an array's: to JavaScript its indices and its length are properties too."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list):
        return {**{str(i): item for i, item in enumerate(value)}, "length": len(value)}
    return None


def own_values(value: Any) -> Iterable[tuple[str, Any]]:
    """The own properties of any value, as `Object.getOwnPropertyNames` finds them."""
    if value is None or value is MISSING:
        raise CastError("TypeError", "Cannot convert undefined or null to object")
    if isinstance(value, str):
        value = list(value)
    return (as_object(value) or {}).items()


def spread(value: Any) -> dict[str, Any]:
    """What `{...value}` gives."""
    if isinstance(value, str | list):
        return {str(i): item for i, item in enumerate(value)}
    return dict(value) if isinstance(value, dict) else {}
