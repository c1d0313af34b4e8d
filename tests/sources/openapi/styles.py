"""The table of OpenAPI parameter styles, computed from the rules of the specification.

The specification defines matrix, label, simple and form as expansions of RFC 6570 (`{;v}`, `{.v}`, `{v}`, `{?v}`, with
an asterisk where the parameter explodes); the delimited styles, deepObject and cookie have rules of their own. This
module follows those texts and shares nothing with the code under test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import quote

NAME: Final = "color"

VALUES: Final[dict[str, Any]] = {
    "string": "blue",
    "array": ["blue", "black", "brown"],
    "object": {"R": 100, "G": 200, "B": 150},
    "integer": 0,
    "number": 1.5,
    "true": True,
    "false": False,
    "reserved": "a/b?c#d e&f=g+h",
    "percent": "100%25",
    "unicode": "ü❤",
    "array of odd texts": ["a,b", "c d", "e&f"],
    "object of odd texts": {"k=1": "a&b", "ö": "x,y"},
}


class Row(NamedTuple):
    """A parameter, its value, and the text that belongs on the wire."""

    location: str
    style: str
    explode: bool
    kind: str
    value: Any
    expected: str

    @property
    def id(self) -> str:
        return f"{self.location}-{self.style}-{'explode' if self.explode else 'join'}-{self.kind}"


def rows() -> Iterator[Row]:
    """Every location with every style it allows, exploded or not, for every kind of value."""
    for location, styles in STYLES.items():
        for style, write in styles.items():
            for explode in (False, True):
                for kind, value in VALUES.items():
                    expected = write(value, explode)
                    if expected is not None:
                        yield Row(location, style, explode, kind, value, expected)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _encoded(value: Any) -> str:
    return quote(_text(value), safe="")


def _pairs(value: dict[str, Any]) -> list[tuple[str, str]]:
    return [(_encoded(name), _encoded(item)) for name, item in value.items()]


def _joined(value: Any, separator: str) -> str:
    """The value as one text: items, or names and values, one after another."""
    if isinstance(value, dict):
        return separator.join(text for pair in _pairs(value) for text in pair)
    return separator.join(map(_encoded, value)) if isinstance(value, list) else _encoded(value)


def _named(value: Any, explode: bool) -> list[str]:
    """`name=value` as matrix, form and cookie write it: several of them where the parameter explodes."""
    if explode and isinstance(value, dict):
        return [f"{name}={item}" for name, item in _pairs(value)]
    if explode and isinstance(value, list):
        return [f"{NAME}={_encoded(item)}" for item in value]
    return [f"{NAME}={_joined(value, ',')}"]


def _matrix(value: Any, explode: bool) -> str:
    return "".join(f";{each}" for each in _named(value, explode))


def _label(value: Any, explode: bool) -> str:
    if explode and isinstance(value, dict):
        return "".join(f".{name}={item}" for name, item in _pairs(value))
    return f".{_joined(value, '.' if explode else ',')}"


def _simple(value: Any, explode: bool) -> str:
    if explode and isinstance(value, dict):
        return ",".join(f"{name}={item}" for name, item in _pairs(value))
    return _joined(value, ",")


def _form(value: Any, explode: bool) -> str:
    return "&".join(_named(value, explode))


def _header(value: Any, explode: bool) -> str | None:
    """A header is not percent-encoded, so only ASCII text without a separator is unambiguous."""
    if not _text(value).isascii() or (isinstance(value, list | dict) and any("," in str(each) for each in value)):
        return None
    if isinstance(value, dict):
        pairs = [(name, _text(item)) for name, item in value.items()]
        return ",".join(f"{name}={item}" for name, item in pairs) if explode else ",".join(sum(pairs, ()))
    return ",".join(map(_text, value)) if isinstance(value, list) else _text(value)


def _delimited(separator: str) -> Callable[[Any, bool], str | None]:
    def write(value: Any, explode: bool) -> str | None:
        if explode or not isinstance(value, list | dict):
            return None  # Not defined by the specification.
        return f"{NAME}={_joined(value, separator)}"

    return write


def _deep_object(value: Any, explode: bool) -> str | None:
    if not explode or not isinstance(value, dict):
        return None  # Not defined by the specification.
    return "&".join(f"{NAME}%5B{name}%5D={item}" for name, item in _pairs(value))


def _cookie(value: Any, explode: bool) -> str | None:
    """The style `cookie` of 3.2 leaves encoding to the caller, so the table has only texts that need none."""
    texts = _named(value, explode)
    return None if "%" in "".join(texts) else "; ".join(texts)


STYLES: Final[dict[str, dict[str, Callable[[Any, bool], str | None]]]] = {
    "path": {"matrix": _matrix, "label": _label, "simple": _simple},
    "query": {
        "form": _form,
        "spaceDelimited": _delimited("%20"),
        "pipeDelimited": _delimited("%7C"),
        "deepObject": _deep_object,
    },
    "header": {"simple": _header},
    "cookie": {"form": _form, "cookie": _cookie},
}
