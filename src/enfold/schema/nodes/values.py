"""JSON values as JSON Schema sees them: equality (1 is 1.0, true is not 1), exact multiples, copies, conversions."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Generic, TypeVar

import msgspec

T = TypeVar("T")

TYPE_NAMES: Final[dict[type, str]] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
    dict: "object",
    list: "array",
}


def json_type(value: Any) -> str:
    """Return the JSON type of a plain value; for other values the class name."""
    return "number" if type(value) is int else TYPE_NAMES.get(type(value)) or type(value).__name__


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal as JSON."""
    return equality_key(one) == equality_key(other)


def is_member(value: Any, members: list[Any]) -> bool:
    """Whether a value equals one of the constants."""
    return value in members if type(value) is str else any(same(value, member) for member in members)


def all_differ(items: list[Any]) -> bool:
    """Whether no two items of an array are equal as JSON."""
    return len({equality_key(item) for item in items}) == len(items)


def equality_key(value: Any) -> Hashable:
    """Return a hashable key that is equal exactly for equal JSON."""
    kind = type(value)
    if kind is str or kind is int or kind is float or value is None:
        return value  # type: ignore[no-any-return]  # these are hashable, and equal across int and float
    if kind is bool:
        return (kind, value)
    if kind is list:
        return tuple(map(equality_key, value))
    if kind is dict:
        return frozenset((key, equality_key(item)) for key, item in value.items())
    return (kind, id(value))


def is_multiple(value: float, step: float) -> bool:
    """Whether a number is a multiple of another in decimal arithmetic: 19.99 is a multiple of 0.01."""
    if type(value) is int and type(step) is int:
        return value % step == 0
    if value - value != 0:  # infinity and NaN
        return False
    digits, exponent = _decimal(value)
    step_digits, step_exponent = _decimal(step)
    lowest = min(exponent, step_exponent)
    scaled: int = digits * 10 ** (exponent - lowest)
    scaled_step: int = step_digits * 10 ** (step_exponent - lowest)
    return scaled % scaled_step == 0


def _decimal(number: float) -> tuple[int, int]:
    """Return the digits and the exponent of a number's decimal representation."""
    if type(number) is int:
        return number, 0
    digits, _, exponent = repr(number).partition("e")
    whole, _, fraction = digits.partition(".")
    return int(whole + fraction), int(exponent or 0) - len(fraction)


class Bound(msgspec.Struct, frozen=True):
    """A keyword that limits a number or a size: its node field, its test as a function and as source, and its phrase."""

    field: str
    holds: Callable[[Any, float], bool]
    source: str
    phrase: str
    noun: str = ""  # what a size counts


def _sizes(least: str, most: str, noun: str) -> tuple[Bound, Bound]:
    return (
        Bound(least, lambda value, limit: len(value) >= limit, "len({v}) >= {limit}", "at least", noun),
        Bound(most, lambda value, limit: len(value) <= limit, "len({v}) <= {limit}", "at most", noun),
    )


_BOUNDS: Final = {
    "number": (
        Bound("minimum", operator.ge, "{v} >= {limit}", "at least"),
        Bound("exclusive_minimum", operator.gt, "{v} > {limit}", "more than"),
        Bound("maximum", operator.le, "{v} <= {limit}", "at most"),
        Bound("exclusive_maximum", operator.lt, "{v} < {limit}", "less than"),
        Bound("multiple_of", is_multiple, "is_multiple({v}, {limit})", "a multiple of"),
    ),
    "string": _sizes("min_length", "max_length", "character"),
    "array": _sizes("min_items", "max_items", "item"),
    "object": _sizes("min_properties", "max_properties", "property"),
}


def bounds_of(node: Any, kind: str) -> list[tuple[Bound, float]]:
    """Return the keywords of a node that limit values of a type, with their limits."""
    limits = [(bound, getattr(node, bound.field)) for bound in _BOUNDS[kind]]
    return [(bound, limit) for bound, limit in limits if limit is not None]


def clone(value: Any) -> Any:
    """Return a deep copy of a JSON value."""
    if isinstance(value, dict):
        return {key: clone(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clone(item) for item in value]
    return value


def detached_copy(schema: Any) -> Any:
    """Return a deep copy, made without recursion, that preserves shared objects."""
    if not isinstance(schema, dict | list):
        return schema
    copies = {id(schema): _empty(schema)}
    waiting = [schema]
    for original in waiting:  # grows while it is read
        copy = copies[id(original)]
        for key, item in original.items() if isinstance(original, dict) else enumerate(original):
            if isinstance(item, dict | list) and id(item) not in copies:
                copies[id(item)] = _empty(item)
                waiting.append(item)
            copy[key] = copies[id(item)] if isinstance(item, dict | list) else item
    return copies[id(schema)]


def _empty(original: dict[Any, Any] | list[Any]) -> Any:
    return {} if isinstance(original, dict) else [None] * len(original)


class CompiledSchemas(Generic[T]):
    """The compiled forms of schemas: equal schemas with the same key order share one, made from a copy."""

    def __init__(self, compile: Callable[[Any], T]) -> None:
        self._compile = compile
        self._known: dict[bytes, T] = {}

    def of(self, schema: Any) -> T:
        try:
            key = msgspec.json.encode(schema)
        except (TypeError, ValueError, OverflowError, RecursionError):
            return self._compile(detached_copy(schema))  # not JSON
        if len(key) > _LONG_KEY:
            from hashlib import sha256  # slow to import

            key = sha256(key).digest()
        compiled = self._known.get(key)
        if compiled is None:
            if len(self._known) >= _MAX_COMPILED:
                self._known.clear()
            compiled = self._known[key] = self._compile(detached_copy(schema))
        return compiled


_MAX_COMPILED: Final = 1024
_LONG_KEY: Final = 10_000  # bytes

_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_BOOLEANS: Final = {"true": True, "false": False}
_MAX_DIGITS: Final = 4_000  # below Python's limit for integer conversion
_MAX_EXPONENT: Final = 308  # the largest exponent of a double


def lossless(value: Any, types: frozenset[str]) -> Iterator[Any]:
    """Yield the lossless conversions of a scalar to these types (R5); the text of a number must be canonical."""
    if type(value) is str:
        yield from _truth(value, types)
        number = next(_numbers(value, _ANY_NUMBER), None) if "integer" in types else None
        if number is not None and ("number" in types or number == int(number)) and _is_canonical(value, number):
            yield number
    elif "string" in types and (type(value) is int or (type(value) is float and value - value == 0)):
        with suppress(ValueError):  # an integer beyond Python's digit limit
            yield repr(value)


def readings(text: str, types: frozenset[str]) -> Iterator[Any]:
    """Yield the values that an argument's text may represent, among the allowed types."""
    yield from _truth(text, types)
    if "integer" in types:
        yield from _numbers(text, types)
    if "string" not in types:
        yield from _structures(text, types)


def _truth(text: str, types: frozenset[str]) -> Iterator[bool]:
    if text in _BOOLEANS and "boolean" in types:
        yield _BOOLEANS[text]


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
    """Yield the exact integer that a decimal text represents, if any; a float would round it."""
    with suppress(InvalidOperation):  # the exponent is too large
        exact = Decimal(text)
        if exact.adjusted() <= _MAX_EXPONENT and exact == exact.to_integral_value():
            yield int(exact)


def _is_canonical(text: str, number: float) -> bool:
    """Whether a text is the canonical form of a number: `"42"` and `"19.99"`, but not `"1.50"` or `"-0"`."""
    # Exponents differ between languages: 1e-07 in Python, 1e-7 in JavaScript.
    return text == repr(number) or (type(number) is float and text == msgspec.json.encode(number).decode())


def _structures(text: str, types: frozenset[str]) -> Iterator[Any]:
    if text == "null" and "null" in types:
        yield None
    opening = text.lstrip(" \t\r\n")[:1]
    if (opening == "{" and "object" in types) or (opening == "[" and "array" in types):
        try:
            yield msgspec.json.decode(text)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return  # not JSON after all


_ANY_NUMBER: Final = frozenset({"integer", "number"})
