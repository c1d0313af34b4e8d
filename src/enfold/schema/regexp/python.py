"""A regular expression in the words of Python's `re`, with the meaning it has in ECMAScript."""

from __future__ import annotations

from typing import Final

from enfold.schema.regexp.characters import LAST, Ranges, complement
from enfold.schema.regexp.syntax import Alternation, Back, Chars, Edge, Group, Look, Node, Repeat, Sequence

# `$` of Python also stands before a last line end; `\B` of Python does not hold in an empty text.
_EDGES: Final = {"start": r"\A", "end": r"\Z", "word": r"\b", "not word": r"(?!\b)"}


def to_python(node: Node) -> str:
    """The source for `re.compile` with the flag ASCII."""
    match node:
        case Chars(ranges):
            return _class(ranges)
        case Edge(kind):
            return _EDGES[kind]
        case Back(number):
            return f"(?(g{number})(?P=g{number}))"
        case Group(body, number):
            return f"(?P<g{number}>{to_python(body)})"
        case Look(body, is_ahead, is_negative):
            return f"(?{'' if is_ahead else '<'}{'!' if is_negative else '='}{to_python(body)})"
        case Sequence(items):
            return "".join(_enclosed(item) if isinstance(item, Alternation) else to_python(item) for item in items)
        case Alternation(branches):
            return "|".join(map(to_python, branches))
        case Repeat(body):
            return _repeat(node)


def _repeat(node: Repeat) -> str:
    body = to_python(node.body) if isinstance(node.body, Chars) else _enclosed(node.body)
    most = "" if node.most is None else node.most
    return f"{body}{{{node.least},{most}}}{'?' if node.is_lazy else ''}"


def _enclosed(node: Node) -> str:
    return f"(?:{to_python(node)})"


def _class(ranges: Ranges) -> str:
    if not ranges:
        return r"(?!)"
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _character(ranges[0][0])
    if ranges[-1][1] == LAST and ranges != ((0, LAST),):
        return f"[^{_ranges(complement(ranges))}]"
    return f"[{_ranges(ranges)}]"


def _ranges(ranges: Ranges) -> str:
    return "".join(
        _character(first) if first == last else f"{_character(first)}-{_character(last)}" for first, last in ranges
    )


def _character(code: int) -> str:
    character = chr(code)
    if character.isascii() and character.isalnum():
        return character
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
