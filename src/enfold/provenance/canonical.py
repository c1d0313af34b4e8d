"""Canonical JSON: one text for equal values, whatever their key order and white space. Digests are taken over it.

A subset of RFC 8785 with two differences: keys stand in code-point order, and a whole number is written as an integer.
Reading is strict: a text that two readers could understand differently is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from json.encoder import encode_basestring
from math import isfinite
from typing import Any

from enfold.errors import FormatError


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


def same_json(first: Any, second: Any) -> bool:
    """Whether two values have the same canonical text; `True` and `1` do not, though Python calls them equal."""
    return canonical_json(first) == canonical_json(second)


def read_json(text: str | bytes) -> Any:
    """The value of a JSON text that can be read in one way only.

    FormatError for what is not JSON, and for a name that stands twice in an object, a number that loses digits when it
    is read, or an encoding other than UTF-8: a verifier must not see another value than the next reader.
    """
    try:
        plain = text if isinstance(text, str) else text.decode()
        return json.loads(
            plain, object_pairs_hook=_read_object, parse_float=_read_float, parse_constant=_refuse_constant
        )
    except RecursionError:
        raise FormatError("Not JSON: it is nested too deeply") from None
    except ValueError as error:
        raise FormatError(f"Not JSON: {error}") from error


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the name {name!r} stands twice in one object")
        found[name] = value
    return found


def _read_float(text: str) -> float:
    number = float(text)
    if not isfinite(number) or Decimal(text) != Decimal(repr(number)):
        raise ValueError(f"the number {text[:40]} cannot be read without loss")
    return number


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
