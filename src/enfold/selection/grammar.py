"""The grammar of selections: names with commas between, `a/b` and `a(b,c)` for what lies inside, `*` for every name. Pure functions.

A name that has one of the signs of the grammar stands in quotes: `"application/json"(schema)`.
"""

from __future__ import annotations

import re
from typing import Final, NoReturn, TypeAlias, Union

from enfold.errors import CallError, Reason, invalid_argument

# The names that are taken, and of each what is taken of it: all, where it is None.
Fields: TypeAlias = dict[str, Union["Fields", None]]

EVERY: Final = "*"
MAX_CHARACTERS: Final = 8_000
MAX_NAMES: Final = 200
DEEPEST: Final = 32
_NAMES: Final = "names, as in items(id,user/login),total"

_TOKEN: Final = re.compile(r'\s*(?:("(?:[^"\\]|\\.)*")|([^\s,/()"]+)|([,/()]))')


def read_fields(text: str) -> Fields:
    """What a selection takes; what is no selection is a VALIDATION_ERROR that shows where."""
    if len(text) > MAX_CHARACTERS:
        raise wrong_selection(f"a selection has at most {MAX_CHARACTERS} characters")
    return _SelectionReader(text).read()


def wrong_selection(sentence: str, expected: str = _NAMES, *, reason: Reason = "constraint") -> CallError:
    return invalid_argument("select", reason, expected, f'Argument "select": {sentence}')


class _SelectionReader:
    """Reads one text from its beginning to its end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0
        self._names = 0
        self._sign = ""  # the token read last, where it is a sign
        self._name = ""  # the same, where it is a name
        self._next()

    def read(self) -> Fields:
        fields = self._list(1)
        if self._sign or self._name:
            self._refuse()
        return fields

    def _list(self, depth: int) -> Fields:
        fields: Fields = {}
        self._item(fields, depth)
        while self._sign == ",":
            self._next()
            self._item(fields, depth)
        return fields

    def _item(self, fields: Fields, depth: int) -> None:
        if not self._name:
            self._refuse()
        name, self._names = self._name, self._names + 1
        if depth > DEEPEST or self._names > MAX_NAMES:
            raise wrong_selection(f"a selection has at most {MAX_NAMES} names, {DEEPEST} of them inside each other")
        self._next()
        inner: Fields | None = None
        if self._sign == "/":
            self._next()
            inner = {}
            self._item(inner, depth + 1)
        elif self._sign == "(":
            self._next()
            inner = self._list(depth + 1)
            if self._sign != ")":
                self._refuse()
            self._next()
        _merge(fields, name, inner)

    def _next(self) -> None:
        found = _TOKEN.match(self._text, self._place)
        if found is None and self._text[self._place :].strip():
            self._refuse()
        quoted, name, sign = found.groups() if found is not None else (None, None, None)
        self._name = _unquoted(quoted) if quoted else name or ""
        self._sign = sign or ""
        self._place = found.end() if found is not None else len(self._text)

    def _refuse(self) -> NoReturn:
        before = self._text[: self._place].strip()
        where = f"after {before[-40:]!r}" if before else "at its beginning"
        raise wrong_selection(f"it cannot be read {where}: write {_NAMES}")


def _unquoted(quoted: str) -> str:
    return re.sub(r"\\(.)", r"\1", quoted[1:-1])


def _merge(fields: Fields, name: str, inner: Fields | None) -> None:
    """Take a name twice: all of it, where one of the two asks for all."""
    if name not in fields:
        fields[name] = inner
        return
    known = fields[name]
    if known is None or inner is None:
        fields[name] = None
        return
    for each, below in inner.items():
        _merge(known, each, below)
