"""Parameter values as text, by the tables of OpenAPI 3.2 and RFC 6570: style, explode, allowReserved. No I/O.

`expand_*` answers what to escape on the wire, or None where the value is undefined and nothing is sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import msgspec

Encode: TypeAlias = Callable[[str], str]

_TRIPLE: Final = re.compile(r"(%[0-9A-Fa-f]{2})")
# A fragment sign would end the request; in a query, `&` would begin another parameter and `+` be read as a space; in a path,
# a question mark would end it, and a slash begin another segment.
_RESERVED_IN_QUERY: Final = ":/?[]@!$'()*,;="
_RESERVED_IN_PATH: Final = ":[]@!$&'()*+,;="

DELIMITERS: Final = {"spaceDelimited": " ", "pipeDelimited": "|", "tabDelimited": "\t"}


def encode(text: str) -> str:
    """Percent-encode all but unreserved characters."""
    return quote(text, safe="", errors="surrogatepass")


def unescaped(text: str) -> str:
    return text


def _encode_around_triples(text: str, safe: str) -> str:
    parts = _TRIPLE.split(text)
    return "".join(part if index % 2 else quote(part, safe=safe) for index, part in enumerate(parts))


# Reserved expansion, by location: reserved characters and percent-encoded triples pass as they are.
ENCODE_RESERVED: Final[dict[str, Encode]] = {
    "query": partial(_encode_around_triples, safe=_RESERVED_IN_QUERY),
    "cookie": partial(_encode_around_triples, safe=_RESERVED_IN_QUERY.replace(";", "")),  # which begins another cookie
    "path": partial(_encode_around_triples, safe=_RESERVED_IN_PATH),
    "path rest": partial(_encode_around_triples, safe=f"{_RESERVED_IN_PATH}/"),  # for `{+rest}`: slashes stay
}


def scalar_text(value: Any) -> str:
    """A value as the wire has it: JSON words for booleans, whole floats as integers, JSON text for what is nested."""
    if isinstance(value, str):
        return value
    if value is True:
        return "true"
    if value is False:
        return "false"
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return value.decode() if isinstance(value, bytes) else strict_json(value)


def strict_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _members(value: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(str(key), each) for key, each in value.items() if each is not None]


def _elements(value: list[Any]) -> list[Any]:
    return [each for each in value if each is not None]


def _is_undefined(value: Any) -> bool:
    """RFC 6570: null, and a list or object without a defined member, are as if they were not there."""
    if isinstance(value, dict):
        return not _members(value)
    if isinstance(value, (list, tuple)):
        return not _elements(list(value))
    return value is None


# --- path ---------------------------------------------------------------------------------------------------------


def expand_path(name: str, value: Any, style: str, explode: bool, escape: Encode) -> str:
    """The text for a placeholder of a path."""
    if _is_undefined(value):
        return ""
    if style == "matrix":
        pairs = expand_query(name, value, "form", explode, escape)
        return "".join(f";{key}={text}" if text else f";{key}" for key, text in pairs)
    if style == "label":
        return "." + _joined(value, explode, escape, separator="." if explode else ",")
    if style in DELIMITERS:  # only 2.0 has these in a path
        return encode(DELIMITERS[style]).join(escape(scalar_text(each)) for each in _flat(value))
    return _joined(value, explode, escape, separator=",")


def _joined(value: Any, explode: bool, escape: Encode, separator: str) -> str:
    if isinstance(value, dict) and explode:
        return separator.join(f"{escape(member)}={escape(scalar_text(each))}" for member, each in _members(value))
    return separator.join(escape(scalar_text(each)) for each in _flat(value))


def _flat(value: Any) -> Iterator[Any]:
    """The value as a row of scalars: names and values of an object in turn."""
    if isinstance(value, dict):
        for member, each in _members(value):
            yield member
            yield each
    elif isinstance(value, list):
        yield from _elements(value)
    else:
        yield value


# --- query and urlencoded bodies ----------------------------------------------------------------------------------


def expand_query(
    name: str, value: Any, style: str, explode: bool, escape: Encode, escape_name: Encode = encode
) -> list[tuple[str, str]]:
    """The encoded pairs of a query string; their delimiters are part of neither."""
    if _is_undefined(value):
        return []
    key = escape_name(name)
    if style == "deepObject" and isinstance(value, (dict, list)):
        return [(escape_name(path), escape(scalar_text(each))) for path, each in _deep(name, value)]
    if isinstance(value, list) and explode:
        return [(key, escape(scalar_text(each))) for each in _elements(value)]
    if isinstance(value, dict) and explode:
        return [pair for member, each in _members(value) for pair in _member_pairs(member, each, escape)]
    delimiter = encode(DELIMITERS[style]) if style in DELIMITERS else ","
    return [(key, delimiter.join(escape(scalar_text(each)) for each in _flat(value)))]


def _member_pairs(member: str, value: Any, escape: Encode) -> list[tuple[str, str]]:
    """A member of an exploded object; a list of scalars in it is a repeated name."""
    key = escape(member) if escape is unescaped else escape(member).replace("=", "%3D")  # which would end the name
    if isinstance(value, list) and not any(isinstance(each, (dict, list)) for each in value):
        return [(key, escape(scalar_text(each))) for each in _elements(value)]
    return [(key, escape(scalar_text(value)))]


def _deep(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The leaves of a nested value as `a[b][c]`; the items of a list are numbered, which servers read most widely."""
    if isinstance(value, dict):
        for member, each in _members(value):
            yield from _deep(f"{path}[{member}]", each)
    elif isinstance(value, list):
        for index, each in enumerate(_elements(value)):
            yield from _deep(f"{path}[{index}]", each)
    else:
        yield path, value


def join_pairs(pairs: list[tuple[str, str]]) -> str:
    return "&".join(f"{name}={value}" for name, value in pairs)


# --- header -------------------------------------------------------------------------------------------------------


def expand_header(value: Any, style: str, explode: bool) -> str | None:
    """A header's value: never percent-encoded."""
    if _is_undefined(value):
        return None
    separator = DELIMITERS.get(style, ",")
    return _joined(value, explode, unescaped, separator)


# --- cookie -------------------------------------------------------------------------------------------------------


def expand_cookie(name: str, value: Any, style: str, explode: bool, escape: Encode) -> list[str]:
    """The cookies of one parameter: `form` writes it like a query, `cookie` (3.2) like RFC 6265, unescaped."""
    if _is_undefined(value):
        return []
    if style != "cookie":
        return [join_pairs(expand_query(name, value, "form", explode, escape))]
    pairs = expand_query(name, value, "form", explode, unescaped, unescaped)
    return [f"{key}={text}" for key, text in pairs]


# --- forms --------------------------------------------------------------------------------------------------------


def encode_form(text: str) -> str:
    """Percent-encode for a form: a space is a plus sign."""
    return quote(text, safe=" ", errors="surrogatepass").replace(" ", "+")


def form_text(value: dict[str, Any]) -> str:
    """An object as `application/x-www-form-urlencoded`: lists repeat their name, what is nested is JSON text."""
    return join_pairs([pair for name, each in _members(value) for pair in form_pairs(name, each)])


def form_pairs(name: str, value: Any) -> list[tuple[str, str]]:
    """One field of a form without an encoding of its own: each item of a list, what is nested as JSON text."""
    if value is None:
        return []
    items = _elements(value) if isinstance(value, list) else [value]
    return [(encode_form(name), encode_form(scalar_text(each))) for each in items]
