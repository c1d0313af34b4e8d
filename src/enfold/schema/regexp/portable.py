r"""Patterns that every client can compile: rewritten for ECMAScript's `u` flag, or left out where that cannot be done."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from enfold.schema.regexp.syntax import PatternError, parse

__all__ = ["portable_pattern"]

_PIECE: Final = re.compile(
    r"\\[pP]\{[^{}]*\}|\\u\{[0-9A-Fa-f]+\}|\\.|\(\?P?[<=]|\(\?|\{[0-9]+(?:,[0-9]*)?\}|.", re.DOTALL
)
_BRACED: Final = re.compile(r"\{[\w=]*\}")
_SYNTAX: Final = frozenset("^$\\.*+?()[]{}|/")
_KEPT_LETTERS: Final = frozenset("dDsSwWbBfnrtv0ckxupP123456789")
_EDGES: Final = {"A": "^", "z": "$", "Z": "$"}  # as other languages write them
_SETS: Final = frozenset("dDsSwWpP")


@lru_cache(maxsize=4096)
def portable_pattern(source: str) -> str | None:
    """A pattern of the same meaning that `new RegExp(pattern, "u")` takes; None where there is none."""
    try:
        written = _Rewriter(source).run()
        parse(written)
    except PatternError:
        return None
    return written


class _Rewriter:
    """One walk over the pattern: what only older grammars allow is written as the `u` flag wants it."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._out: list[str] = []
        self._at = 0

    def run(self) -> str:
        looks: list[bool] = []  # for each open group, whether it looks around
        after_look = False
        while self._at < len(self._source):
            match = _PIECE.match(self._source, self._at)
            piece = match[0] if match is not None else ""
            self._at += len(piece)
            if after_look and (piece in ("*", "+", "?") or (len(piece) > 1 and piece[0] == "{")):
                raise PatternError(self._source, "what looks around cannot be repeated", self._at)
            after_look = piece == ")" and bool(looks) and looks[-1]
            self._follow_groups(piece, looks)
            self._out.append(self._written(piece))
        return "".join(self._out)

    def _follow_groups(self, piece: str, looks: list[bool]) -> None:
        if piece.startswith("("):
            rest = self._source[self._at - len(piece) + 1 :]
            looks.append(rest.startswith(("?=", "?!", "?<=", "?<!")))
        elif piece == ")" and looks:
            looks.pop()

    def _written(self, piece: str) -> str:
        if piece.startswith("\\"):
            return piece if len(piece) > 2 else self._escape(piece[1:], in_class=False)
        if piece == "[":
            return self._class()
        if piece in ("{", "}", "]"):
            return f"\\{piece}"
        return "(?<" if piece == "(?P<" else piece

    def _escape(self, letter: str, *, in_class: bool) -> str:
        if not letter:
            raise PatternError(self._source, "it ends too early")
        if letter in _SYNTAX or (in_class and letter == "-"):
            return f"\\{letter}"
        if letter in _EDGES and not in_class:
            return _EDGES[letter]
        if letter == "U":
            return self._long_code()
        if letter == "0" and self._source[self._at : self._at + 1].isdecimal():
            raise PatternError(self._source, "an octal escape is none any more", self._at)
        if (
            letter.isascii()
            and letter.isalnum()
            and (letter not in _KEPT_LETTERS or (in_class and letter in "Bk123456789"))
        ):
            raise PatternError(self._source, f"\\{letter} has no meaning", self._at)
        return f"\\{letter}" if letter in _KEPT_LETTERS else letter

    def _long_code(self) -> str:
        digits = self._source[self._at : self._at + 8]
        if re.fullmatch(r"[0-9A-Fa-f]{8}", digits) is None:
            raise PatternError(self._source, "\\U has no meaning", self._at)
        self._at += 8
        return f"\\u{{{int(digits, 16):x}}}"

    def _class(self) -> str:
        """A set of characters; a `-` beside a set such as that of all digits is only itself."""
        out = ["["]
        if self._source.startswith("^", self._at):
            out.append("^")
            self._at += 1
        was_set = False
        while not self._source.startswith("]", self._at):
            item, is_set = self._class_item()
            if (
                item == "-"
                and out[-1] not in ("[", "^")
                and (was_set or self._next_is_set())
                and not self._ends_class()
            ):
                item = "\\-"
            out.append(item)
            was_set = is_set
        self._at += 1
        return "".join([*out, "]"])

    def _class_item(self) -> tuple[str, bool]:
        if self._at >= len(self._source):
            raise PatternError(self._source, "a [ is not closed")
        character = self._source[self._at]
        self._at += 1
        if character != "\\":
            return character, False
        letter = self._source[self._at : self._at + 1]
        self._at += 1
        found = _BRACED.match(self._source, self._at) if letter in ("p", "P", "u") else None
        if found is not None:
            self._at = found.end()
            return f"\\{letter}{found[0]}", letter != "u"
        return self._escape(letter, in_class=True), letter in _SETS

    def _ends_class(self) -> bool:
        return self._source.startswith("]", self._at)

    def _next_is_set(self) -> bool:
        """Whether a set of characters follows the `-` just read."""
        following = self._source[self._at : self._at + 2]
        return len(following) == 2 and following[0] == "\\" and following[1] in _SETS
