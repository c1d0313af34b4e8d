"""Comparing JSON values as JSON Schema does: 1 equals 1.0, true does not equal 1, decimal fractions divide exactly."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable
from typing import Any, Final

import msgspec

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
    """The JSON type of a plain value; what JSON does not have is called by the name of its class."""
    return "number" if type(value) is int else TYPE_NAMES.get(type(value)) or type(value).__name__


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON."""
    return equality_key(one) == equality_key(other)


def is_member(value: Any, members: list[Any]) -> bool:
    """Whether a value is one of a list of constants."""
    return value in members if type(value) is str else any(same(value, member) for member in members)


def all_differ(items: list[Any]) -> bool:
    """Whether no two items of an array are the same JSON."""
    return len({equality_key(item) for item in items}) == len(items)


def equality_key(value: Any) -> Hashable:
    """Something hashable that is equal for the same JSON, and only then."""
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
    """Whether a number is a whole multiple of another, in decimal: 19.99 is one of 0.01."""
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
    """The digits and the power of ten that the text of a number shows."""
    if type(number) is int:
        return number, 0
    digits, _, exponent = repr(number).partition("e")
    whole, _, fraction = digits.partition(".")
    return int(whole + fraction), int(exponent or 0) - len(fraction)


class NumberBound(msgspec.Struct, frozen=True):
    """One keyword that bounds numbers: the field of a node that holds its limit, its test as a function and as source, its words."""

    field: str
    holds: Callable[[float, float], bool]
    source: str
    words: str


_BOUNDS: Final = (
    NumberBound("minimum", operator.ge, "{v} >= {limit}", "at least"),
    NumberBound("exclusive_minimum", operator.gt, "{v} > {limit}", "more than"),
    NumberBound("maximum", operator.le, "{v} <= {limit}", "at most"),
    NumberBound("exclusive_maximum", operator.lt, "{v} < {limit}", "less than"),
    NumberBound("multiple_of", is_multiple, "is_multiple({v}, {limit})", "a multiple of"),
)
_limits: Final = operator.attrgetter(*(bound.field for bound in _BOUNDS))
_UNLIMITED: Final = (None,) * len(_BOUNDS)


def bounds_of(node: Any) -> list[tuple[NumberBound, float]]:
    """What a node demands of numbers, each with its limit."""
    limits = _limits(node)
    if limits == _UNLIMITED:  # as nearly all are
        return []
    return [(bound, limit) for bound, limit in zip(_BOUNDS, limits, strict=True) if limit is not None]
