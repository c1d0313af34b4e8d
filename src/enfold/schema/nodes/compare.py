"""Comparing JSON values as JSON Schema does: 1 equals 1.0, true does not equal 1, decimal fractions divide exactly."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

__all__ = ["all_differ", "is_multiple", "json_type", "same", "standing_for"]

_NAMES: Final[dict[type, str]] = {
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    type(None): "null",
    dict: "object",
    list: "array",
}


def json_type(value: Any) -> str:
    """The JSON type of a plain value; what JSON does not have is called by the name of its class."""
    return _NAMES.get(type(value)) or type(value).__name__


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON."""
    return standing_for(one) == standing_for(other)


def all_differ(items: list[Any]) -> bool:
    """Whether no two items of an array are the same JSON."""
    return len({standing_for(item) for item in items}) == len(items)


def standing_for(value: Any) -> Hashable:
    """Something hashable that is equal for the same JSON, and only then."""
    kind = type(value)
    if kind is str or kind is int or kind is float or value is None:
        return value  # type: ignore[no-any-return]  # these are hashable, and equal across int and float
    if kind is bool:
        return (kind, value)
    if kind is list:
        return tuple(map(standing_for, value))
    if kind is dict:
        return frozenset((key, standing_for(item)) for key, item in value.items())
    return (kind, id(value))


def is_multiple(value: float, step: float) -> bool:
    """Whether a number is a whole multiple of another, in decimal: 19.99 is one of 0.01."""
    if type(value) is int and type(step) is int:
        return value % step == 0
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
