"""Short phrases for messages about values: paths, types, choices, counts. Each is truncated and valid UTF-8."""

from __future__ import annotations

from collections.abc import Iterable
from math import isnan
from typing import Any, Final

import msgspec

from enfold.schema.nodes.values import TYPE_NAMES

_MAX_PATH: Final = 200
_MAX_VALUE: Final = 50
_MAX_TEXT: Final = 120
_MAX_CHOICES: Final = 12

# The display name of each string format, with an example.
FORMATS: Final = {
    "date-time": ("a date and time", "2020-01-01T00:00:00Z"),
    "date": ("a date", "2020-01-01"),
    "time": ("a time", "12:00:00Z"),
    "duration": ("a duration", "PT1H"),
    "email": ("an email address", "ann@example.org"),
    "uri": ("a URI", "https://example.org"),
    "uuid": ("a UUID", "123e4567-e89b-12d3-a456-426614174000"),
    "ipv4": ("an IPv4 address", "192.0.2.1"),
    "ipv6": ("an IPv6 address", "2001:db8::1"),
    "hostname": ("a host name", "example.org"),
    "base64": ("base64 text", "aGVsbG8="),
}
_HARD_TO_READ: Final = frozenset('.[]"\\ \t\r\n')


def path(keys: tuple[str | int, ...]) -> str:
    """Format the path of an argument: `items[2].name`."""
    text = ""
    for key in keys:
        text += _step(key, is_first=not text)
        if len(text) > _MAX_PATH:
            break
    return cut(text, _MAX_PATH)


def _step(key: str | int, *, is_first: bool) -> str:
    if not isinstance(key, str):
        return f"[{short_json(key)}]"
    if is_first:
        return key
    return f".{key}" if key and _HARD_TO_READ.isdisjoint(key) else f"[{short_json(key)}]"


def refusal(expected: str) -> str:
    """Return the clause for an argument that its type rejects, with an example where the format is known."""
    if expected not in FORMATS:
        return f"is invalid: {expected}"
    name, example = FORMATS[expected]
    return f"must be {name} such as {example}"


def types(names: Iterable[str]) -> str:
    """Join type names: `integer`, `string or null`, `any value`."""
    shown = distinct_types(names)
    return "any value" if len(shown) >= 6 else " or ".join(shown) or "nothing"


def distinct_types(names: Iterable[str]) -> list[str]:
    """Return type names in the order of messages: null last, and no `integer` beside `number`."""
    kept = set(names)
    if "number" in kept:
        kept.discard("integer")
    return sorted(kept, key=lambda name: (name == "null", name))


def one_of(members: list[Any]) -> str:
    """List choices: `one of "low", "high"`, or the single one."""
    texts = [short_json(member, _MAX_VALUE) for member in members[:_MAX_CHOICES]]
    listed = ", ".join(dict.fromkeys(texts)) + (", …" if len(members) > _MAX_CHOICES else "")
    return cut(listed if len(members) == 1 else f"one of {listed}", 2 * _MAX_TEXT)


def count_of(number: float, noun: str) -> str:
    """Format a count: `1 item`, `2 properties`; without a noun the number alone."""
    if not noun:
        return str(number)
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun[:-1]}ies" if noun.endswith("y") else f"{number} {noun}s"


def type_name(value: Any) -> str:
    """Return the JSON type of a value, or the class name of a value outside JSON."""
    if type(value) is float and value - value != 0:
        return "NaN" if isnan(value) else "Infinity"
    return TYPE_NAMES.get(type(value)) or type(value).__name__


def shown(value: Any) -> str:
    """Return a scalar as text for a message, truncated; empty for other values."""
    is_scalar = isinstance(value, str | int | float)
    return short_json(value, _MAX_VALUE) if is_scalar else ""


def short_json(value: Any, most: int = _MAX_VALUE) -> str:
    if isinstance(value, str) and len(value) > most:
        value = f"{value[:most]}…"
    value = _writable(value) if isinstance(value, str) else value
    try:
        return cut(msgspec.json.encode(value).decode(), most + 3)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return cut(type_name(value))


def cut(text: str, most: int = _MAX_TEXT) -> str:
    return _writable(text if len(text) <= most else f"{text[:most]}…")


def _writable(text: str) -> str:
    # Replace unpaired surrogates, which UTF-8 cannot encode.
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
