"""Texts as the words that are searched for: names split at their parts, plurals and simple endings taken off. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

__all__ = ["search_words", "split_words"]

# Scripts without spaces between words, of which each sign is taken for a word.
_SIGNS: Final = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
# A word of capitals, one that may begin with a capital, a number, or a sign.
_WORD: Final = re.compile(rf"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[^\W\d_A-Z{_SIGNS}]+|[A-Z]+|\d+|[{_SIGNS}]")

# Words that say nothing about what is looked for.
_EMPTY: Final = frozenset(
    [
        "a",
        "about",
        "all",
        "an",
        "and",
        "any",
        "are",
        "as",
        "at",
        "based",
        "be",
        "by",
        "can",
        "could",
        "do",
        "does",
        "e",
        "each",
        "etc",
        "for",
        "from",
        "g",
        "given",
        "how",
        "i",
        "if",
        "in",
        "into",
        "is",
        "it",
        "its",
        "me",
        "more",
        "my",
        "of",
        "on",
        "or",
        "our",
        "please",
        "provided",
        "related",
        "relevant",
        "should",
        "so",
        "some",
        "specific",
        "such",
        "that",
        "the",
        "their",
        "them",
        "then",
        "there",
        "these",
        "this",
        "those",
        "to",
        "up",
        "us",
        "use",
        "used",
        "using",
        "via",
        "was",
        "we",
        "what",
        "when",
        "where",
        "which",
        "who",
        "will",
        "with",
        "would",
        "you",
        "your",
    ]
)

# An ending, what takes its place, and how many letters must stay before it. The first that fits counts.
_ENDINGS: Final = (
    ("ations", "at", 4),
    ("ation", "at", 4),
    ("izing", "iz", 3),
    ("ized", "iz", 3),
    ("ments", "", 4),
    ("ment", "", 4),
    ("edly", "", 3),
    ("sses", "ss", 2),
    ("ches", "ch", 2),
    ("shes", "sh", 2),
    ("ing", "", 3),
    ("ies", "y", 2),
    ("xes", "x", 2),
    ("ers", "", 4),
    ("ors", "or", 3),
    ("ed", "", 3),
    ("er", "", 4),
    ("ly", "", 4),
    ("s", "", 3),
)


def split_words(text: str) -> Iterator[str]:
    """The words of a text or a name, in small letters: `getHTTPServer_v2` has get, http, server, v and 2."""
    return (found.lower() for found in _WORD.findall(text))


def search_words(text: str) -> list[str]:
    """The words of a text by which it is found: without those that say nothing, each without its ending."""
    return [_stem(word) for word in split_words(text) if word not in _EMPTY]


@lru_cache(maxsize=20_000)
def _stem(word: str) -> str:
    if len(word) < 4 or not word.isascii():
        return word
    word = _without_ending(word)
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "lsz":  # stopped, stop
        word = word[:-1]
    if len(word) > 3 and word[-1] == "e":
        word = word[:-1]
    return f"{word[:-1]}i" if len(word) > 3 and word[-1] == "y" else word


def _without_ending(word: str) -> str:
    for ending, instead, least in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= least and not (ending == "s" and word[-2] in "su"):
            return word[: -len(ending)] + instead
    return word
