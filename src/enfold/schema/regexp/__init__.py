"""The `pattern` of JSON Schema: expressions by strangers on text by strangers, answered within bounds or not at all.

Python's `re` does the matching where it surely ends soon; where it might not, sets of states do, slower but steadily.
"""

from __future__ import annotations

import re
from functools import cached_property, lru_cache
from typing import Final

from enfold.schema.budget import STEPS, WORK, remaining
from enfold.schema.regexp.automaton import LENGTH, Automaton, Growth, build, effort, is_anchored, search
from enfold.schema.regexp.characters import LAST, Ranges, complement
from enfold.schema.regexp.syntax import (
    Alternation,
    Back,
    Chars,
    Edge,
    Group,
    Look,
    Node,
    PatternError,
    Repeat,
    Sequence,
    parse,
)

__all__ = ["Pattern", "PatternError", "compile_pattern"]

# Less work than this is not worth counting.
_UNCOUNTED_WORK: Final = 10_000
# Python reads longer ones too slowly. Unicode properties make a pattern grow like that.
_MAX_PYTHON_SOURCE: Final = 100_000
_NOTHING: Final = re.compile(r"(?!)")


@lru_cache(maxsize=512)
def compile_pattern(source: str) -> Pattern:
    """The pattern, ready to be searched for; raises PatternError where it is none, or is over our limits."""
    try:
        return _compile_pattern(source)
    except RecursionError:
        raise PatternError(source, "it is nested too deeply") from None


class Pattern:
    """A regular expression of ECMAScript, with the meaning of the `u` flag."""

    def __init__(self, source: str, node: Node, python: re.Pattern[str] | None, work: Growth) -> None:
        self.source: Final = source
        self.python: Final = None if python is None else python.pattern
        self._node: Final = node
        self._is_anchored: Final = is_anchored(node)
        # A `search` would try an anchored pattern at every character.
        self._find: Final = (python or _NOTHING).match if self._is_anchored else (python or _NOTHING).search
        self._work: Final = work
        self._safe_length: Final = -1 if python is None else work.longest(WORK)
        # Work that grows as the text does is not counted: whoever sent the text had as much to do.
        uncounted = WORK if work.degree <= 1 else _UNCOUNTED_WORK
        self._quick_length: Final = -1 if python is None else work.longest(uncounted)

    @property
    def is_quick(self) -> bool:
        """Whether no text makes a search take long, but by its length."""
        return self._work.degree <= 1 and self._safe_length > 0

    def is_quick_within(self, length: int | None) -> bool:
        """Whether no text, or none up to a length, makes a search take long."""
        return self.is_quick or (length is not None and length <= self._quick_length)

    def search(self, text: str, steps: int = STEPS) -> bool | None:
        """Whether the pattern matches anywhere in the text; None when that could not be told within the steps."""
        length = len(text)
        if length <= self._quick_length or (length <= self._safe_length and self._may_take(length)):
            return self._find(text) is not None
        return None if self._automaton is None else self._search_by_states(self._automaton, text, steps)

    def _may_take(self, length: int) -> bool:
        """Whether there is effort left for the work that a text of this length can be at worst."""
        if not remaining.is_shared:
            return True
        remaining.work -= self._work.at(length)
        return remaining.work >= 0

    def _search_by_states(self, automaton: Automaton, text: str, steps: int) -> bool | None:
        if remaining.is_shared:
            steps = min(steps, remaining.steps)
        found, unused = search(automaton, text, steps, is_anchored=self._is_anchored)
        if remaining.is_shared:
            remaining.steps -= steps - max(0, unused)
        return found

    @cached_property
    def _automaton(self) -> Automaton | None:
        return build(self._node)


def _compile_pattern(source: str) -> Pattern:
    node = parse(source)
    measured = effort(node)
    python = _compile_python(node)
    if python is None and measured.has_back:
        raise PatternError(source, "a backreference and a lookbehind of more than one width are too much together")
    work = measured.cost if is_anchored(node) else measured.cost.times(LENGTH)
    return Pattern(source, node, python, work)


def _compile_python(node: Node) -> re.Pattern[str] | None:
    source = to_python(node)
    if len(source) > _MAX_PYTHON_SOURCE:
        return None
    try:
        return re.compile(source, re.ASCII)
    except re.error:
        return None  # Python wants a lookbehind to have one width; the automaton does not.


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
