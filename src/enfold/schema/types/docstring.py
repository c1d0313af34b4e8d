"""Parses docstrings in the Google, NumPy and Sphinx styles. Types in docstrings are ignored."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec


class Docstring(msgspec.Struct, frozen=True):
    """A parsed docstring: summary, details, and the descriptions of parameters and result."""

    summary: str = ""
    details: str = ""
    parameters: dict[str, str] = {}
    returns: str | None = None

    @property
    def text(self) -> str:
        return "\n\n".join(part for part in (self.summary, self.details) if part)


class _Section(msgspec.Struct, frozen=True):
    """Lines of a docstring: prose (kind is None), or a section of a known kind with its style."""

    kind: str | None
    lines: list[str]
    style: str = ""


_KINDS: Final = {
    "parameters": ("args", "arguments", "parameters", "params", "keyword args", "keyword arguments", "other parameters",
                   "attributes"),
    "returns": ("returns", "return", "yields", "yield"),
    "dropped": ("raises", "raise", "except", "exceptions", "warns", "receives"),
}  # fmt: skip
_KIND_OF_HEADER: Final = {header: kind for kind, headers in _KINDS.items() for header in headers}

# Strings, compiled on first use.
_FIELD: Final = r"[:@](\w+)(?:\s+([^:]*))?:(?:\s+(.*)|\s*)"
_GOOGLE_ENTRY: Final = r"(\*{0,2}\w+)\s*(?:\((?:[^()]|\([^()]*\))*\))?\s*:(?:\s+(.*)|\s*)"
_NUMPY_ENTRY: Final = r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?"
_TYPED_RETURN: Final = r"[\w.\[\], |]+:\s+(\S.*)"

_PARAMETER_FIELDS: Final = {"param", "parameter", "arg", "argument", "key", "keyword", "ivar", "var", "attribute"}
_RETURN_FIELDS: Final = {"return", "returns", "yield", "yields"}
_OTHER_FIELDS: Final = {"type", "rtype", "raise", "raises", "except", "exception", "vartype", "ytype", "meta"}


def parse_docstring(text: str | None) -> Docstring:
    """Parse a docstring; text outside known sections is the description."""
    prose: list[str] = []
    parameters: dict[str, str] = {}
    returns: str | None = None
    for section in _sections(_clean_lines(text or "")):
        if section.kind is None:
            prose.extend(section.lines)
        elif section.kind == "parameters":
            parameters.update(_entries(section))
        elif section.kind == "returns":
            returns = returns or _return_text(section)
    summary, details = _split_prose(prose)
    return Docstring(summary, details, parameters, returns)


def _clean_lines(text: str) -> list[str]:
    """Return the lines without their common indentation, which the first line does not have."""
    first, *rest = text.expandtabs().splitlines() or [""]
    margin = _margin(rest)
    return [first.strip(), *(line[margin:].rstrip() for line in rest)]


def _sections(lines: list[str]) -> Iterator[_Section]:
    place = 0
    while place < len(lines):
        section, place = _next_section(lines, place)
        yield section


def _next_section(lines: list[str], place: int) -> tuple[_Section, int]:
    line = lines[place]
    kind = _KIND_OF_HEADER.get(line.strip().lower())
    if kind and _is_underline(lines, place + 1):
        end = _end_of_numpy(lines, place + 2)
        return _Section(kind, lines[place + 2 : end], "numpy"), end
    kind = _KIND_OF_HEADER.get(line[:-1].lower()) if line.endswith(":") else None
    if kind and _is_indented_next(lines, place + 1):
        end = _end_of_block(lines, place + 1)
        return _Section(kind, lines[place + 1 : end], "google"), end
    if kind := _kind_of_field(line):
        end = _end_of_field(lines, place + 1)
        return _Section(kind, lines[place:end], "sphinx"), end
    return _Section(None, [line]), place + 1


def _is_underline(lines: list[str], place: int) -> bool:
    line = lines[place].strip() if place < len(lines) else ""
    return len(line) >= 3 and not line.strip("-")


def _field(line: str) -> re.Match[str] | None:
    return re.fullmatch(_FIELD, line) if line.startswith((":", "@")) else None


def _kind_of_field(line: str) -> str | None:
    field = _field(line)
    if field is None:
        return None
    if field[1] in _PARAMETER_FIELDS and field[2]:
        return "parameters"
    if field[1] in _RETURN_FIELDS:
        return "returns"
    return "dropped" if field[1] in _OTHER_FIELDS else None


def _is_indented_next(lines: list[str], place: int) -> bool:
    following = next((line for line in lines[place:] if line), "")
    return following.startswith(" ")


def _end_of_block(lines: list[str], place: int) -> int:
    """Return the first unindented line from `place` on."""
    while place < len(lines) and (not lines[place] or lines[place].startswith(" ")):
        place += 1
    return place


def _end_of_numpy(lines: list[str], place: int) -> int:
    """Return the position of the next underlined header."""
    while place < len(lines) and not _is_underline(lines, place + 1):
        place += 1
    return place


def _end_of_field(lines: list[str], place: int) -> int:
    """Return the end of a Sphinx field: a blank line or the next field."""
    while place < len(lines) and lines[place] and not _field(lines[place]):
        place += 1
    return place


def _entries(section: _Section) -> dict[str, str]:
    if section.style == "sphinx":
        return _sphinx_entry(section.lines)
    pattern = _GOOGLE_ENTRY if section.style == "google" else _NUMPY_ENTRY
    margin = _margin(section.lines)
    found: dict[str, list[str]] = {}
    names: list[str] = []
    for line in section.lines:
        entry = re.fullmatch(pattern, line[margin:]) if line and not line[margin:].startswith(" ") else None
        if entry:
            names = [name.strip().lstrip("*") for name in entry[1].split(",")]
            start = [entry[2]] if section.style == "google" and entry[2] else []
            found.update({name: list(start) for name in names})
        else:
            for name in names:
                found[name].append(line.strip())
    return {name: text for name, lines in found.items() if (text := _joined(lines))}


def _sphinx_entry(lines: list[str]) -> dict[str, str]:
    field = _field(lines[0])
    if field is None or not (words := (field[2] or "").split()):
        return {}
    text = _joined([field[3] or "", *(line.strip() for line in lines[1:])])
    return {words[-1].lstrip("*"): text} if text else {}


def _return_text(section: _Section) -> str | None:
    """Return the description of the result without its type."""
    if section.style == "sphinx":
        field = _field(section.lines[0])
        lines = [(field[3] or "") if field else "", *section.lines[1:]]
    elif section.style == "google":
        lines = section.lines
        typed = re.fullmatch(_TYPED_RETURN, lines[0].strip()) if lines else None
        lines = [typed[1], *lines[1:]] if typed else lines
    else:
        described = [line for line in section.lines if line.startswith(" ")]
        lines = described or section.lines
    return _joined([line.strip() for line in lines]) or None


def _margin(lines: list[str]) -> int:
    return min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)


def _joined(lines: list[str]) -> str:
    """Join the lines of each paragraph; keep blank lines between paragraphs."""
    paragraphs = "\n".join(lines).strip("\n").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs if paragraph.strip())


def _split_prose(lines: list[str]) -> tuple[str, str]:
    """Return the first paragraph in one line, and the rest unchanged."""
    text = "\n".join(lines).strip("\n")
    summary, _, details = text.partition("\n\n")
    return " ".join(summary.split()), re.sub(r"\n{3,}", "\n\n", details).strip("\n")
