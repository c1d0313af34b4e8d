"""On which line of a file each key stands, so that what is wrong with it can be told with its place. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, TypeAlias

import msgspec

Path: TypeAlias = tuple[str | int, ...]


class Lines(msgspec.Struct, frozen=True):
    """The lines of keys by their path."""

    found: dict[Path, int]

    def of(self, path: Path) -> int:
        """The line of a key; of the nearest one around it, where it was not seen itself."""
        while path and path not in self.found:
            path = path[:-1]
        return self.found.get(path, 1)


# --- JSON, with the comments and commas that editors allow --------------------------------------------------------

_TOKEN: Final = re.compile(
    r'(?P<string>"(?:[^"\\\n]|\\.)*")|(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<mark>[{}\[\]:,])|(?P<other>[^\s"{}\[\]:,/]+)|(?P<space>\s+|.)',
    re.DOTALL,
)


def plain_json(text: str) -> str:
    """The same text as strict JSON: comments and trailing commas blanked out, every line where it was."""
    parts = [_blank(found[0]) if found.lastgroup == "comment" else found[0] for found in _TOKEN.finditer(text)]
    return _without_trailing_commas("".join(parts))


def _blank(comment: str) -> str:
    return re.sub(r"[^\n]", " ", comment)


def _without_trailing_commas(text: str) -> str:
    """A comma before a closing bracket, unless it stands in a string."""
    kept: list[str] = []
    pending = ""  # a comma and the space behind it, until it is known what follows
    for found in _TOKEN.finditer(text):
        piece = found[0]
        if pending and found.lastgroup == "space":
            pending += piece
            continue
        kept.append(pending.replace(",", " ", 1) if piece in "}]" else pending)
        pending = piece if piece == "," else ""
        kept.append("" if pending else piece)
    return "".join([*kept, pending])


def json_lines(text: str) -> Lines:
    """The lines of the keys and items of a JSON text."""
    return Lines(dict(_JSONWalk(text).keys()))


class _JSONWalk:
    """One way through the tokens of a JSON text; `path` leads to where it stands."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._path: list[str | int] = []
        self._is_list: list[bool] = []
        self._word = ""  # the last text, which is a key if a colon follows

    def keys(self) -> Iterator[tuple[Path, int]]:
        line = 1
        for found in _TOKEN.finditer(self._text):
            piece, kind = found[0], found.lastgroup
            if kind in ("string", "other") or piece in "{[":
                yield from self._begin_value(piece, line)
            elif piece == ":" and self._is_list:
                self._path[-1] = _unquoted(self._word)
                yield tuple(self._path), line
            elif kind == "mark":
                self._move(piece)
            line += piece.count("\n")

    def _begin_value(self, piece: str, line: int) -> Iterator[tuple[Path, int]]:
        self._word = piece
        if self._is_list and self._is_list[-1]:
            yield tuple(self._path), line
        if piece in "{[":
            self._is_list.append(piece == "[")
            self._path.append(0 if piece == "[" else "")

    def _move(self, mark: str) -> None:
        """Out of a table or a list, or on to the next item of a list."""
        if mark in "}]" and self._is_list:
            self._is_list.pop()
            self._path.pop()
        elif mark == "," and self._is_list and self._is_list[-1]:
            self._path[-1] = int(self._path[-1]) + 1


def _unquoted(token: str) -> str:
    try:
        return str(msgspec.json.decode(token))
    except msgspec.DecodeError:
        return token.strip('"')


# --- TOML ---------------------------------------------------------------------------------------------------------

_PART: Final = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_KEY: Final = re.compile(rf"\s*({_PART}(?:\s*\.\s*{_PART})*)\s*=")
_TABLE: Final = re.compile(rf"\s*\[\[?\s*({_PART}(?:\s*\.\s*{_PART})*)\s*\]")


def toml_lines(text: str) -> Lines:
    """The lines of the tables and keys of a TOML text; a key inside an inline table counts as its table's."""
    found: dict[Path, int] = {}
    table: Path = ()
    for number, line in enumerate(text.splitlines(), 1):
        header, key = _TABLE.match(line), _KEY.match(line)
        if header is not None:
            table = _parts(header[1])
            _note(found, table, number)
        elif key is not None:
            _note(found, table + _parts(key[1]), number)
    return Lines(found)


def _note(found: dict[Path, int], path: Path, line: int) -> None:
    for size in range(1, len(path) + 1):
        found.setdefault(path[:size], line)


def _parts(text: str) -> Path:
    return tuple(part.strip("\"'") for part in re.findall(_PART, text))


# --- what a parser says -------------------------------------------------------------------------------------------

_AT_LINE: Final = re.compile(r" \(at line (\d+), column \d+\)")
_AT_BYTE: Final = re.compile(r" \(byte (\d+)\)")


def split_syntax_error(error: Exception, text: str) -> tuple[int, str]:
    """The line a parser of either kind complains about, and its complaint without the place."""
    sentence = str(error).strip()
    at_line, at_byte = _AT_LINE.search(sentence), _AT_BYTE.search(sentence)
    if at_line is not None:
        return int(at_line[1]), _AT_LINE.sub("", sentence)
    whole = text.encode()
    before = whole[: int(at_byte[1])] if at_byte is not None else whole
    return before.count(b"\n") + 1, _AT_BYTE.sub("", sentence).replace(" (at end of document)", "")
