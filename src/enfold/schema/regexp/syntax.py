r"""The syntax of ECMAScript regular expressions: nodes, and a parser that also rewrites patterns.

The semantics are those of the `u` flag. Constructs of the legacy grammar are accepted where they are unambiguous: a lone
`{`, `}` or `]`, an escaped punctuation mark, a `-` next to a class such as `\w` within brackets. A pattern rewritten for
clients may also use constructs of other languages: `\A`, `\z`, `\Z`, `\U0001F600`, `(?P<name>`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from enfold.schema.regexp import characters

if TYPE_CHECKING:
    from enfold.schema.regexp.characters import Ranges

MAX_LENGTH: Final = 10_000
MAX_NESTING: Final = 50
MAX_NODES: Final = 5_000
MAX_RANGES: Final = 20_000
# The limit of the standard library.
MAX_COUNT: Final = 2**31 - 1


class PatternError(ValueError):
    """The pattern is not a valid ECMAScript regular expression, or exceeds the limits."""

    def __init__(self, source: str, fault: str, position: int | None = None) -> None:
        shown = source if len(source) <= 50 else f"{source[:50]}…"
        where = "" if position is None else f" at character {position + 1}"
        super().__init__(f"Invalid pattern {shown}: {fault}{where}.")


class Chars(msgspec.Struct, frozen=True):
    """One character of a set."""

    ranges: Ranges


class Sequence(msgspec.Struct, frozen=True):
    items: tuple[Node, ...]


class Alternation(msgspec.Struct, frozen=True):
    branches: tuple[Node, ...]


class Repeat(msgspec.Struct, frozen=True):
    body: Node
    least: int
    most: int | None
    is_lazy: bool


class Group(msgspec.Struct, frozen=True):
    """The target of a backreference; patterns without backreferences have no groups."""

    body: Node
    number: int


class Back(msgspec.Struct, frozen=True):
    """A backreference to a closed group; empty where the group did not participate."""

    number: int


class Edge(msgspec.Struct, frozen=True):
    """An assertion: the start, the end, a word boundary, or no word boundary."""

    kind: Literal["start", "end", "word", "not word"]


class Look(msgspec.Struct, frozen=True):
    """A lookahead or lookbehind, positive or negative."""

    body: Node
    is_ahead: bool
    is_negative: bool


Node: TypeAlias = Chars | Sequence | Alternation | Repeat | Group | Back | Edge | Look

EMPTY: Final = Sequence(())


def parse(source: str) -> Node:
    """Parse a pattern; raise PatternError."""
    return _Parser(source).read()


@lru_cache(maxsize=4096)
def portable_pattern(source: str) -> str | None:
    """Return an equivalent pattern that every client can compile with `new RegExp(pattern, "u")`, or None."""
    try:
        parser = _Parser(source, rewrites=True)
        parser.read()
    except PatternError:
        return None
    for start, end, written in sorted(parser.changes, reverse=True):
        source = f"{source[:start]}{written}{source[end:]}"
    return source


_LOOKS: Final = {"?=": (True, False), "?!": (True, True), "?<=": (False, False), "?<!": (False, True)}
_GROUP_START: Final = re.compile(r"\?(?:[:=!]|<[=!]|(P?)<([A-Za-z_$][\w$]*)>)")
_QUANTIFIER: Final = re.compile(r"([*+?]|\{([0-9]+)(,?)([0-9]*)\})(\??)")
_COUNTS: Final[dict[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_PROPERTY: Final = re.compile(r"\{(\w+)(?:=(\w+))?\}", re.ASCII)
_LONG_CODE: Final = re.compile(r"\{0*([0-9A-Fa-f]{1,6})\}")
_FOUR_DIGITS: Final = re.compile(r"[0-9A-Fa-f]{4}")
_TRAILING_HALF: Final = re.compile(r"\\u([Dd][C-Fc-f][0-9A-Fa-f]{2})")
_TWO_DIGITS: Final = re.compile(r"[0-9A-Fa-f]{2}")
_EIGHT_DIGITS: Final = re.compile(r"00(?:0[0-9A-Fa-f]|10)[0-9A-Fa-f]{4}")
_NAME: Final = re.compile(r"<([A-Za-z_$][\w$]*)>")
_BACK: Final = re.compile(r"\\(?:[1-9]|k<)")
_NUMBER: Final = re.compile(r"[1-9][0-9]*")
# Escapes and classes are consumed so that only parentheses that open a group are found.
_GROUPS: Final = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]?|\((?!\?)|\(\?P?<([A-Za-z_$][\w$]*)>", re.DOTALL)

_CONTROLS: Final = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D}
_CLASSES: Final[dict[str, Ranges]] = {
    "d": characters.DIGITS,
    "D": characters.complement(characters.DIGITS),
    "w": characters.WORD,
    "W": characters.complement(characters.WORD),
    "s": characters.SPACES,
    "S": characters.complement(characters.SPACES),
}
_EDGES: Final = {"b": Edge("word"), "B": Edge("not word")}
_FOREIGN_EDGES: Final = {"A": (Edge("start"), "^"), "z": (Edge("end"), "$"), "Z": (Edge("end"), "$")}
_SYNTAX: Final = frozenset("^$\\.*+?()[]{}|/")  # characters that may be escaped with the `u` flag
_DOT: Final = Chars(characters.complement(characters.LINE_ENDS))


class _Parser:
    """Parses the source from left to right."""

    def __init__(self, source: str, *, rewrites: bool = False) -> None:
        self.source = source
        self.rewrites = rewrites
        self.changes: list[tuple[int, int, str]] = []  # start, end and replacement for the `u` flag
        self.at = 0
        self.nesting = 0
        self.nodes = 0
        self.ranges = 0
        self.opened = 0
        self.closed: set[int] = set()
        self.behinds = 0
        self.look_end = -1
        self.names = _group_names(source)
        self.has_backs = _BACK.search(source) is not None

    def read(self) -> Node:
        if len(self.source) > MAX_LENGTH:
            raise PatternError(self.source, f"it is longer than {MAX_LENGTH} characters")
        node = self.choice()
        if not self.is_done:
            raise self.error("unmatched )")
        return node

    @property
    def is_done(self) -> bool:
        return self.at == len(self.source)

    def error(self, fault: str) -> PatternError:
        return PatternError(self.source, fault, self.at)

    def change(self, start: int, written: str) -> None:
        """Replace the source read since `start`."""
        self.changes.append((start, self.at, written))

    def peek(self) -> str:
        return self.source[self.at : self.at + 1]

    def take(self, wanted: str) -> bool:
        found = self.source.startswith(wanted, self.at)
        if found:
            self.at += len(wanted)
        return found

    def take_match(self, wanted: re.Pattern[str]) -> re.Match[str] | None:
        match = wanted.match(self.source, self.at)
        if match is not None:
            self.at = match.end()
        return match

    def next_character(self) -> str:
        character = self.peek()
        if not character:
            raise self.error("unexpected end of the pattern")
        self.at += 1
        return character

    def choice(self) -> Node:
        branches = [self.sequence()]
        while self.take("|"):
            branches.append(self.sequence())
        return branches[0] if len(branches) == 1 else Alternation(tuple(branches))

    def sequence(self) -> Node:
        items: list[Node] = []
        while self.peek() not in ("", "|", ")"):
            items.append(self.term())
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def term(self) -> Node:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise self.error(f"it has more than {MAX_NODES} nodes")
        is_group = self.peek() == "("
        body = self.atom()
        match = self.take_match(_QUANTIFIER)
        if match is None:
            return body
        if isinstance(body, Edge) and not is_group:
            raise self.error("nothing to repeat")
        return self.repeated(body, match)

    def repeated(self, body: Node, match: re.Match[str]) -> Node:
        least, most = _COUNTS.get(match[1]) or _counts(match)
        if most is not None and least > most:
            raise self.error("the numbers of a quantifier are out of order")
        if self.rewrites and match.start() == self.look_end:
            raise self.error("a lookaround cannot be repeated")
        if _QUANTIFIER.match(self.source, self.at):
            raise self.error("nothing to repeat")
        return Repeat(body, least, most, match[5] == "?")

    def atom(self) -> Node:
        if _QUANTIFIER.match(self.source, self.at):
            raise self.error("nothing to repeat")
        character = self.next_character()
        match character:
            case "^":
                return Edge("start")
            case "$":
                return Edge("end")
            case ".":
                return _DOT
            case "(":
                return self.group()
            case "[":
                return self.chars(self.brackets())
            case "\\":
                return self.escape()
            case "{" | "}" | "]":
                self.change(self.at - 1, f"\\{character}")
        return Chars(characters.one(ord(character)))

    def group(self) -> Node:
        start = self.take_match(_GROUP_START)
        if (start is None and self.peek() == "?") or (start is not None and start[1] and not self.rewrites):
            raise self.error("unknown group syntax")
        if start is not None and start[1]:
            self.changes.append((*start.span(1), ""))
        if start is None or start[2]:
            return self.numbered_group()
        if start[0] == "?:":
            return self.enclosed()
        return self.look(*_LOOKS[start[0]])

    def numbered_group(self) -> Node:
        self.opened += 1
        number = self.opened
        body = self.enclosed()
        self.closed.add(number)
        return Group(body, number) if self.has_backs else body

    def look(self, is_ahead: bool, is_negative: bool) -> Node:
        self.behinds += not is_ahead
        body = self.enclosed()
        self.behinds -= not is_ahead
        self.look_end = self.at
        return Look(body, is_ahead, is_negative)

    def enclosed(self) -> Node:
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            raise self.error(f"it is nested more than {MAX_NESTING} levels deep")
        node = self.choice()
        if not self.take(")"):
            raise self.error("unterminated group")
        self.nesting -= 1
        return node

    def escape(self) -> Node:
        if (number := self.take_match(_NUMBER)) is not None:
            return self.back(_count(number[0]))
        if self.take("k"):
            return self.named_back()
        edge = _EDGES.get(self.peek())
        if edge is not None:
            self.at += 1
            return edge
        if self.rewrites and self.peek() in _FOREIGN_EDGES:
            edge, written = _FOREIGN_EDGES[self.next_character()]
            self.change(self.at - 2, written)
            return edge
        return self.chars(self.escaped_characters())

    def chars(self, ranges: Ranges) -> Node:
        self.ranges += len(ranges)
        if self.ranges > MAX_RANGES:
            raise self.error(f"its character classes have more than {MAX_RANGES} ranges")
        return Chars(ranges)

    def named_back(self) -> Node:
        name = self.take_match(_NAME)
        if name is None or name[1] not in self.names:
            raise self.error("a backreference names an unknown group")
        return self.back(self.names.index(name[1]) + 1)

    def back(self, number: int) -> Node:
        if number > len(self.names):
            raise self.error("a backreference to an unknown group")
        if self.behinds:
            # A lookbehind is matched from right to left, which changes the meaning of a backreference.
            raise self.error("a backreference inside a lookbehind is not supported")
        # A group that is still open or comes later is empty.
        return Back(number) if number in self.closed else EMPTY

    def brackets(self) -> Ranges:
        is_negated = self.take("^")
        sets: list[Ranges] = []
        while not self.take("]"):
            if self.is_done:
                raise self.error("unterminated character class")
            sets.append(self.class_item())
        found = characters.union(*sets)
        return characters.complement(found) if is_negated else found

    def class_item(self) -> Ranges:
        first = self.class_atom()
        if self.peek() != "-" or self.source[self.at + 1 : self.at + 2] in ("]", ""):
            return first
        self.at += 1
        dash, last = self.at, self.class_atom()
        if not _is_single(first) or not _is_single(last):
            self.changes.append((dash - 1, dash, "\\-"))
            return characters.union(first, characters.one(ord("-")), last)
        if first > last:
            raise self.error("a character range is out of order")
        return ((first[0][0], last[0][0]),)

    def class_atom(self) -> Ranges:
        character = self.next_character()
        if character != "\\":
            return characters.one(ord(character))
        if self.take("b"):
            return characters.one(0x08)
        if self.take("-"):
            return characters.one(ord("-"))
        return self.escaped_characters()

    def escaped_characters(self) -> Ranges:
        """Parse an escape that denotes characters."""
        letter = self.next_character()
        if letter in _CLASSES:
            return _CLASSES[letter]
        if letter in "pP":
            return self.property(is_negated=letter == "P")
        return characters.one(self.escaped_code(letter))

    def property(self, *, is_negated: bool) -> Ranges:
        match = self.take_match(_PROPERTY)
        found = characters.unicode_property(match[1], match[2]) if match else None
        if found is None:
            raise self.error("unsupported Unicode property")
        return characters.complement(found) if is_negated else found

    def escaped_code(self, letter: str) -> int:
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if letter == "x":
            return self.hexadecimal(_TWO_DIGITS)
        if letter == "u":
            return self.unicode_code()
        if letter == "c":
            return self.control_code()
        if letter == "0" and not self.peek().isdecimal():
            return 0
        if letter == "U" and self.rewrites:
            code = self.hexadecimal(_EIGHT_DIGITS)
            self.change(self.at - 10, f"\\u{{{code:x}}}")
            return code
        if letter.isascii() and letter.isalnum():
            raise self.error(f"unknown escape \\{letter}")
        if letter not in _SYNTAX:
            self.change(self.at - 2, letter)
        return ord(letter)

    def unicode_code(self) -> int:
        if self.peek() == "{":
            return self.long_code()
        code = self.hexadecimal(_FOUR_DIGITS)
        if 0xD800 <= code <= 0xDBFF and (half := self.take_match(_TRAILING_HALF)) is not None:
            return 0x10000 + ((code - 0xD800) << 10) + (int(half[1], 16) - 0xDC00)
        return code

    def long_code(self) -> int:
        match = self.take_match(_LONG_CODE)
        if match is None or int(match[1], 16) > characters.LAST:
            raise self.error("\\u{…} is not a code point")
        return int(match[1], 16)

    def hexadecimal(self, digits: re.Pattern[str]) -> int:
        match = self.take_match(digits)
        if match is None:
            raise self.error("missing hexadecimal digits")
        return int(match[0], 16)

    def control_code(self) -> int:
        letter = self.next_character()
        if not (letter.isascii() and letter.isalpha()):
            raise self.error("\\c must be followed by a letter")
        return ord(letter) % 32


def _group_names(source: str) -> list[str | None]:
    """Return the capturing groups in order: the name, or None for an unnamed one."""
    names = [match[1] for match in _GROUPS.finditer(source) if match[0].startswith("(")]
    given = [name for name in names if name is not None]
    if len(given) != len(set(given)):
        raise PatternError(source, "two groups have the same name")
    return names


def _counts(match: re.Match[str]) -> tuple[int, int | None]:
    least = _count(match[2])
    if not match[3]:
        return least, least
    return least, _count(match[4]) if match[4] else None


def _count(digits: str) -> int:
    # Truncated first: converting thousands of digits is slow.
    return min(int(digits.lstrip("0")[:10] or "0"), MAX_COUNT)


def _is_single(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]
