"""JSON Pointers (RFC 6901): the names on the way to a part of a value, written as one text and read again. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def escape(name: str) -> str:
    """A name as it stands between the slashes."""
    return name.replace("~", "~0").replace("/", "~1") if "~" in name or "/" in name else name


def unescape(token: str) -> str:
    return token.replace("~1", "/").replace("~0", "~") if "~" in token else token


def names(pointer: str) -> list[str]:
    """The unescaped names of a pointer, outermost first."""
    return [unescape(token) for token in pointer.split("/")[1:]]


def follow(value: Any, pointer: str) -> Any:
    """The part of a value that a pointer names; LookupError if there is none."""
    for name in names(pointer):
        value = step(value, name)
    return value


def step(value: Any, name: str) -> Any:
    """The member of an object, or the item of an array, of that name."""
    if isinstance(value, Mapping) and name in value:
        return value[name]
    if isinstance(value, list | tuple) and _is_index(name) and int(name) < len(value):
        return value[int(name)]
    raise LookupError(f"there is no {name!r}")


def _is_index(name: str) -> bool:
    return len(name) < 19 and name.isascii() and name.isdigit() and (name == "0" or name[0] != "0")
