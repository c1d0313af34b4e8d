"""The `pattern` of JSON Schema: expressions by strangers on text by strangers, answered within bounds or not at all.

Python's `re` does the matching where it surely ends soon; where it might not, sets of states do, slower but steadily.
"""

from __future__ import annotations

import re
from functools import cached_property, lru_cache
from typing import Final

from enfold.schema.regexp.automaton import Automaton, build, search
from enfold.schema.regexp.effort import LENGTH, effort, is_anchored
from enfold.schema.regexp.python import to_python
from enfold.schema.regexp.syntax import Node, PatternError, parse

__all__ = ["STEPS", "Pattern", "PatternError", "compile_pattern"]

# A search that needs more steps is given up; these take a few tenths of a second.
STEPS: Final = 2_000_000
# As much work of `re` takes about as long.
_WORK: Final = 10_000_000
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

    def __init__(self, source: str, node: Node, python: re.Pattern[str] | None, safe_length: float) -> None:
        self.source: Final = source
        self.python: Final = None if python is None else python.pattern
        self._node: Final = node
        self._is_anchored: Final = is_anchored(node)
        # A `search` would try an anchored pattern at every character.
        self._find: Final = (python or _NOTHING).match if self._is_anchored else (python or _NOTHING).search
        self._safe_length: Final = safe_length

    def search(self, text: str, steps: int = STEPS) -> bool | None:
        """Whether the pattern matches anywhere in the text; None when that could not be told within the steps."""
        if len(text) <= self._safe_length:
            return self._find(text) is not None
        return self._search_by_states(text, steps)

    def _search_by_states(self, text: str, steps: int) -> bool | None:
        if self._automaton is None:
            return None
        return search(self._automaton, text, steps, is_anchored=self._is_anchored)

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
    return Pattern(source, node, python, -1 if python is None else work.longest(_WORK))


def _compile_python(node: Node) -> re.Pattern[str] | None:
    source = to_python(node)
    if len(source) > _MAX_PYTHON_SOURCE:
        return None
    try:
        return re.compile(source, re.ASCII)
    except re.error:
        return None  # Python wants a lookbehind to have one width; the automaton does not.
