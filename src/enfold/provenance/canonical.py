"""Canonical JSON: one text for equal values, whatever their key order and white space. Digests are taken over it.

A subset of RFC 8785 with two differences: keys stand in code-point order, and a whole number is written as an integer.
"""

from __future__ import annotations

from collections.abc import Mapping
from json.encoder import encode_basestring
from math import isfinite
from typing import Any

__all__ = ["canonical_json"]


def canonical_json(value: Any) -> bytes:
    """The canonical text of a JSON value; ValueError for what has none (NaN, bytes, a cycle, a lone surrogate)."""
    try:
        return _write(value).encode()
    except RecursionError:
        raise ValueError("The value is nested too deeply, or contains itself") from None


def _write(value: Any) -> str:
    if isinstance(value, str):
        return encode_basestring(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return _write_float(value)
    if isinstance(value, Mapping):
        return _write_object(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_write, value))}]"
    raise ValueError(f"{type(value).__name__} is not a JSON value")


def _write_object(value: Mapping[Any, Any]) -> str:
    if not all(isinstance(key, str) for key in value):
        raise ValueError("The keys of a JSON object are strings")
    return "{" + ",".join(f"{encode_basestring(key)}:{_write(value[key])}" for key in sorted(value)) + "}"


def _write_float(number: float) -> str:
    if not isfinite(number):
        raise ValueError("NaN and Infinity are not JSON numbers")
    if number.is_integer():
        return str(int(number))
    digits, exponent, power = repr(number).partition("e")
    # Only small numbers come here with an exponent: Python writes 1e-07 where no leading zero is wanted.
    return f"{digits}e{int(power)}" if exponent else digits
