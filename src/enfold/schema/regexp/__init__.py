"""The `pattern` of JSON Schema, matched within a budget: both patterns and texts may be hostile.

Python's `re` is used where it provably terminates soon, otherwise a slower automaton whose work is linear in the text.
The package `regex` with a timeout takes 1.5 to 1.8 µs for common patterns instead of 0.2, depends on the speed of the
machine, and gives no answer for `^(?:a|a)*$`, which the automaton answers in 0.1 ms.
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

# Searches with less work are not counted.
_UNCOUNTED_WORK: Final = 10_000
# `re` compiles longer sources too slowly; Unicode properties expand to long sources.
_MAX_PYTHON_SOURCE: Final = 100_000
_NOTHING: Final = re.compile(r"(?!)")


@lru_cache(maxsize=512)
def compile_pattern(source: str) -> Pattern:
    """Compile a pattern; raise PatternError where it is invalid or exceeds the limits."""
    try:
        return _compile_pattern(source)
    except RecursionError:
        raise PatternError(source, "it is nested too deeply") from None


class Pattern:
    """An ECMAScript regular expression with the semantics of the `u` flag."""

    def __init__(self, source: str, node: Node, python: re.Pattern[str] | None, work: Growth) -> None:
        self.source: Final = source
        self.python: Final = None if python is None else python.pattern
        self._node: Final = node
        self._is_anchored: Final = is_anchored(node)
        # `search` would try an anchored pattern at every character.
        self._find: Final = (python or _NOTHING).match if self._is_anchored else (python or _NOTHING).search
        self._work: Final = work
        self._safe_length: Final = -1 if python is None else work.longest(WORK)
        # Linear work is not counted: it is proportional to receiving the text.
        uncounted = WORK if work.degree <= 1 else _UNCOUNTED_WORK
        self._quick_length: Final = -1 if python is None else work.longest(uncounted)

    @property
    def is_quick(self) -> bool:
        """Whether a search takes at most linear time."""
        return self._work.degree <= 1 and self._safe_length > 0

    def is_quick_within(self, length: int | None) -> bool:
        """Whether a search takes at most linear time, or little time for texts up to a length."""
        return self.is_quick or (length is not None and length <= self._quick_length)

    def search(self, text: str, steps: int = STEPS) -> bool | None:
        """Whether the pattern matches anywhere in the text; None when the budget was exceeded."""
        length = len(text)
        if length <= self._quick_length or (length <= self._safe_length and self._may_take(length)):
            return self._find(text) is not None
        return None if self._automaton is None else self._search_by_states(self._automaton, text, steps)

    def _may_take(self, length: int) -> bool:
        """Whether the budget covers the worst case for a text of this length."""
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
        raise PatternError(source, "a backreference cannot be combined with a variable-width lookbehind")
    work = measured.cost if is_anchored(node) else measured.cost.times(LENGTH)
    return Pattern(source, node, python, work)


def _compile_python(node: Node) -> re.Pattern[str] | None:
    source = to_python(node)
    if len(source) > _MAX_PYTHON_SOURCE:
        return None
    try:
        return re.compile(source, re.ASCII)
    except re.error:
        return None  # Python requires fixed-width lookbehinds; the automaton does not.


# Python's `$` also matches before a final newline; its `\B` does not match in an empty text.
_EDGES: Final = {"start": r"\A", "end": r"\Z", "word": r"\b", "not word": r"(?!\b)"}


def to_python(node: Node) -> str:
    """Return the source for `re.compile` with the flag ASCII."""
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
