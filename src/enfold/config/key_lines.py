"""On which line of a file each key stands, so that what is wrong with it can be told with its place. No I/O."""

from __future__ import annotations

import re
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
    pieces: list[str] = []
    comma: int | None = None  # where the last comma stands, as long as only space and comments follow
    for token in _TOKEN.finditer(text):
        piece = token[0]
        if token.lastgroup == "comment":
            piece = re.sub(r"[^\n]", " ", piece)
        elif piece == ",":
            comma = len(pieces)
        elif token.lastgroup != "space":
            if piece in "}]" and comma is not None:
                pieces[comma] = " "
            comma = None
        pieces.append(piece)
    return "".join(pieces)


def json_lines(text: str) -> Lines:
    """The lines of the keys and items of a JSON text."""
    found: dict[Path, int] = {}
    path: list[str | int] = []  # of where we are: keys of tables, indices of lists
    line, word = 1, ""
    for token in _TOKEN.finditer(text):
        piece = token[0]
        place = path[-1] if path else ""
        if token.lastgroup in ("string", "other") or piece in "{[":
            word = piece
            if isinstance(place, int):
                found[tuple(path)] = line
            if piece in "{[":
                path.append(0 if piece == "[" else "")
        elif piece == ":" and path:
            path[-1] = _unquoted(word)
            found[tuple(path)] = line
        elif piece in "}]" and path:
            path.pop()
        elif piece == "," and isinstance(place, int):
            path[-1] = place + 1
        line += piece.count("\n")
    return Lines(found)


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
