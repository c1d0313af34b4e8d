"""Finds the line of each key in a file, for error messages. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import msgspec

Path: TypeAlias = tuple[str | int, ...]


Lines: TypeAlias = dict[Path, int]  # of keys by their path


def line_of(path: Path, lines: Lines) -> int:
    """Return the line of a key, or of the nearest known parent."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


# --- JSON, with the comments and commas that editors allow --------------------------------------------------------

_TOKEN: Final = re.compile(
    r'(?P<string>"(?:[^"\\\n]|\\.)*")|(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<mark>[{}\[\]:,])|(?P<other>[^\s"{}\[\]:,/]+)|(?P<space>\s+|.)',
    re.DOTALL,
)


def plain_json(text: str) -> str:
    """Convert JSON with comments and trailing commas to strict JSON; line numbers stay the same."""
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
    """Return the line numbers of the keys and items of a JSON text."""
    found: Lines = {}
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
    return found


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
    """Return the line numbers of the tables and keys of a TOML text; an inline table counts as one line."""
    found: Lines = {}
    table: Path = ()
    for number, line in enumerate(text.splitlines(), 1):
        header, key = _TABLE.match(line), _KEY.match(line)
        if header is not None:
            table = _parts(header[1])
            _note(found, table, number)
        elif key is not None:
            _note(found, table + _parts(key[1]), number)
    return found


def _note(found: Lines, path: Path, line: int) -> None:
    for size in range(1, len(path) + 1):
        found.setdefault(path[:size], line)


def _parts(text: str) -> Path:
    return tuple(part.strip("\"'") for part in re.findall(_PART, text))


# --- what a parser says -------------------------------------------------------------------------------------------

_AT_LINE: Final = re.compile(r" \(at line (\d+), column \d+\)")
_AT_BYTE: Final = re.compile(r" \(byte (\d+)\)")


def split_syntax_error(error: Exception, text: str) -> tuple[int, str]:
    """Return the line that a JSON or TOML parser reports, and its message without the position."""
    sentence = str(error).strip()
    at_line, at_byte = _AT_LINE.search(sentence), _AT_BYTE.search(sentence)
    if at_line is not None:
        return int(at_line[1]), _AT_LINE.sub("", sentence)
    whole = text.encode()
    before = whole[: int(at_byte[1])] if at_byte is not None else whole
    return before.count(b"\n") + 1, _AT_BYTE.sub("", sentence).replace(" (at end of document)", "")


_REFERENCE: Final = re.compile(r"\$(\$?)\{([^{}]+)\}")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class Variables:
    """The values of the references in a file."""

    def __init__(self, environ: Mapping[str, str], folder: str) -> None:
        self._environ = environ
        self._own = {
            "workspaceFolder": folder,
            "workspaceRoot": folder,
            "userHome": environ.get("HOME", environ.get("USERPROFILE", "")),
            "pathSeparator": "/",
            "/": "/",
        }

    def secrets(self, value: Any) -> Iterator[tuple[str, str]]:
        """Return the referenced variables whose names mark them as secret, with their values."""
        from enfold.sources.secrets import names_secret  # where a file has sources

        if isinstance(value, str):
            for _, reference in _REFERENCE.findall(value):
                name = reference.removeprefix("env:").partition(":-")[0]
                held = self.value(reference) if names_secret(name) else None
                if held:
                    yield name, held
        elif isinstance(value, dict | list):
            for each in value.values() if isinstance(value, dict) else value:
                yield from self.secrets(each)

    def value(self, reference: str) -> str | None:
        """Return the value of a reference; None if it is not ours, LookupError if it has no value."""
        if reference in self._own:
            return self._own[reference]
        name, has_default, default = reference.removeprefix("env:").partition(":-")
        if name.startswith("input:"):
            # An editor would ask its user; a server can only look where they may have put the answer.
            name = re.sub(r"[^A-Za-z0-9]", "_", name.removeprefix("input:")).upper()
        if not _NAME.match(name):
            return None
        found = self._environ.get(name)
        if found or (found is not None and not has_default):
            return found
        if has_default:
            return default
        raise LookupError(f"the environment variable {name} is not set")


def fill(value: Any, variables: Variables, path: Path, failed: Callable[[Path, str], Exception]) -> Any:
    """Replace every reference in the texts of a value; `$${` is a literal `${`."""
    if isinstance(value, str):
        try:
            return _REFERENCE.sub(lambda found: _replaced(found, variables), value)
        except LookupError as error:
            raise failed(path, str(error)) from None
    if isinstance(value, dict):
        return {key: fill(item, variables, (*path, key), failed) for key, item in value.items()}
    if isinstance(value, list):
        return [fill(item, variables, (*path, index), failed) for index, item in enumerate(value)]
    return value


def _replaced(found: re.Match[str], variables: Variables) -> str:
    if found[1]:
        return f"${{{found[2]}}}"
    value = variables.value(found[2])
    return found[0] if value is None else value
