"""JSON Pointers (RFC 6901): escaping, parsing and resolution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def escape(name: str) -> str:
    """Escape a name for use in a pointer."""
    return name.replace("~", "~0").replace("/", "~1") if "~" in name or "/" in name else name


def unescape(token: str) -> str:
    return token.replace("~1", "/").replace("~0", "~") if "~" in token else token


def names(pointer: str) -> list[str]:
    """Return the unescaped names of a pointer, outermost first."""
    return [unescape(token) for token in pointer.split("/")[1:]]


def follow(value: Any, pointer: str) -> Any:
    """Resolve a pointer in a value; raise LookupError if there is no such part."""
    for name in names(pointer):
        value = step(value, name)
    return value


def step(value: Any, name: str) -> Any:
    """Return the member of an object or the item of an array with that name."""
    if isinstance(value, Mapping) and name in value:
        return value[name]
    if isinstance(value, list | tuple) and _is_index(name) and int(name) < len(value):
        return value[int(name)]
    raise LookupError(f"{name!r} not found")


def _is_index(name: str) -> bool:
    return len(name) < 19 and name.isascii() and name.isdigit() and (name == "0" or name[0] != "0")
