"""How much work a backtracking matcher may have with a pattern: an upper bound, found without running it."""

from __future__ import annotations

from functools import reduce
from math import inf, log
from typing import TYPE_CHECKING, Final

import msgspec

from enfold.schema.regexp import characters
from enfold.schema.regexp.syntax import Alternation, Back, Chars, Edge, Group, Look, Node, Repeat, Sequence

if TYPE_CHECKING:
    from enfold.schema.regexp.characters import Ranges

# A bounded repeat that is longer counts as unbounded: the text is then the tighter bound.
_LONG_REPEAT: Final = 256
# Going round a loop of more than one character costs a matcher about as much as this many characters.
_LOOP_WEIGHT: Final = 8
# Sets of more ranges are not compared, so that reading a hostile pattern stays quick; all letters of Unicode are fewer.
_MANY_RANGES: Final = 1_500
_HUGE: Final = 1e15


class Growth(msgspec.Struct, frozen=True):
    """At most `factor * (n + 1) ** degree`, for a text of n characters."""

    factor: float
    degree: int

    def plus(self, other: Growth) -> Growth:
        return Growth(self.factor + other.factor, max(self.degree, other.degree))

    def times(self, other: Growth) -> Growth:
        return Growth(self.factor * other.factor, self.degree + other.degree)

    def power(self, exponent: int) -> Growth:
        if exponent * (self.degree + log(self.factor)) > log(_HUGE):
            return ENDLESS
        return Growth(self.factor**exponent, self.degree * exponent)

    def at(self, length: int) -> float:
        return self.factor * float(length + 1) ** self.degree

    def longest(self, budget: float) -> float:
        """The length of the longest text for which this stays within the budget; negative where there is none."""
        if self.factor > budget:
            return -1
        return inf if self.degree == 0 else (budget / self.factor) ** (1 / self.degree) - 1


ONCE: Final = Growth(1, 0)
LENGTH: Final = Growth(1, 1)
ENDLESS: Final = Growth(inf, 0)


class Effort(msgspec.Struct, frozen=True):
    """What matching a node from one place can take, and what its neighbours must know to tell theirs.

    A node is clear when the next character alone decides how to go on. A matcher then never walks the same text twice,
    however the repeats are nested.
    """

    ways: Growth  # in how many ways it can match, that is how often what follows is tried
    cost: Growth  # the work of trying all of them
    looks: Growth  # the share of lookarounds, which are tried anew at every place
    size: int  # how many nodes
    is_empty_possible: bool
    first: Ranges  # the characters it can begin with
    further: Ranges  # the characters that a finished match could go on with
    is_clear: bool
    has_back: bool


def effort(node: Node) -> Effort:
    match node:
        case Chars(ranges):
            return _leaf(first=ranges, is_empty_possible=False)
        case Edge():
            return _leaf()
        case Back():
            return _leaf(cost=LENGTH, is_clear=False, has_back=True)
        case Group(body):
            return effort(body)
        case Look(body):
            return _look(effort(body))
        case Sequence(items):
            return reduce(_then, map(effort, items), _leaf())
        case Alternation(branches):
            return _choice([effort(branch) for branch in branches])
        case Repeat(_, _, 0):
            return _leaf()
        case Repeat(body, least, most):
            return _repeat(effort(body), least, most)


def is_anchored(node: Node) -> bool:
    """Whether a match can only begin at the start of the text."""
    match node:
        case Edge(kind):
            return kind == "start"
        case Group(body):
            return is_anchored(body)
        case Alternation(branches):
            return all(map(is_anchored, branches))
        case Repeat(body, least):
            return least > 0 and is_anchored(body)
        case Sequence(items):
            return _begins_anchored(items)
    return False


def _begins_anchored(items: tuple[Node, ...]) -> bool:
    for item in items:
        if is_anchored(item):
            return True
        if not isinstance(item, Edge | Look):
            return False
    return False


def _leaf(
    *,
    first: Ranges = characters.NONE,
    is_empty_possible: bool = True,
    cost: Growth = ONCE,
    is_clear: bool = True,
    has_back: bool = False,
) -> Effort:
    nothing = Growth(0, 0)
    return Effort(ONCE, cost, nothing, 1, is_empty_possible, first, characters.NONE, is_clear, has_back)


def _look(body: Effort) -> Effort:
    # Once it holds, its inner ways are forgotten: nothing that follows goes back into it.
    cost = ONCE.plus(body.cost)
    return Effort(ONCE, cost, cost, 1, True, characters.NONE, characters.NONE, True, body.has_back)


def _then(left: Effort, right: Effort) -> Effort:
    is_clear = left.is_clear and right.is_clear and characters.are_disjoint(left.further, right.first)
    if left.is_empty_possible:
        is_clear = is_clear and characters.are_disjoint(left.first, right.first)
    return _bounded(
        Effort(
            ways=left.ways.times(right.ways),
            cost=left.cost.plus(left.ways.times(right.cost)),
            looks=left.looks.plus(right.looks),
            size=left.size + right.size,
            is_empty_possible=left.is_empty_possible and right.is_empty_possible,
            first=characters.union(left.first, right.first) if left.is_empty_possible else left.first,
            further=_further(left, right),
            is_clear=is_clear,
            has_back=left.has_back or right.has_back,
        )
    )


def _further(left: Effort, right: Effort) -> Ranges:
    return characters.union(left.further, right.first, right.further) if right.is_empty_possible else right.further


def _choice(branches: list[Effort]) -> Effort:
    firsts = [branch.first for branch in branches]
    empties = sum(branch.is_empty_possible for branch in branches)
    is_clear = all(branch.is_clear for branch in branches) and empties <= 1 and characters.are_disjoint(*firsts)
    return _bounded(
        Effort(
            ways=reduce(Growth.plus, (branch.ways for branch in branches)),
            cost=reduce(Growth.plus, (branch.cost for branch in branches)),
            looks=reduce(Growth.plus, (branch.looks for branch in branches)),
            size=sum(branch.size for branch in branches),
            is_empty_possible=empties > 0,
            first=characters.union(*firsts),
            further=characters.union(*(branch.further for branch in branches)),
            is_clear=is_clear,
            has_back=any(branch.has_back for branch in branches),
        )
    )


def _repeat(body: Effort, least: int, most: int | None) -> Effort:
    is_clear = body.is_clear and not body.is_empty_possible and characters.are_disjoint(body.further, body.first)
    return _bounded(
        Effort(
            ways=_repeated_ways(body, least, most),
            cost=_repeated_cost(body, least, most),
            looks=body.looks,
            size=body.size + 1,
            is_empty_possible=least == 0 or body.is_empty_possible,
            first=body.first,
            further=body.further if least == most else characters.union(body.further, body.first),
            is_clear=is_clear,
            has_back=body.has_back,
        )
    )


def _repeated_ways(body: Effort, least: int, most: int | None) -> Growth:
    counts = LENGTH if most is None or most - least > _LONG_REPEAT else Growth(most - least + 1, 0)
    return counts if body.ways == ONCE else counts.times(_ways_of_all_rounds(body, most))


def _repeated_cost(body: Effort, least: int, most: int | None) -> Growth:
    rounds = LENGTH if most is None or most > _LONG_REPEAT else Growth(most, 0)
    if body.is_empty_possible:
        rounds = rounds.plus(Growth(least, 0))  # rounds over no text at all are made as well
    weight = Growth(1 if body.size == 1 else _LOOP_WEIGHT, 0)
    once = rounds.times(body.cost).times(weight).plus(ONCE)
    return once if body.ways == ONCE else once.times(_ways_of_all_rounds(body, most))


def _ways_of_all_rounds(body: Effort, most: int | None) -> Growth:
    return ENDLESS if most is None else body.ways.power(most)


def _bounded(effort: Effort) -> Effort:
    """The effort, lowered to the bound that holds for clear nodes."""
    if not effort.is_clear or len(effort.first) + len(effort.further) > _MANY_RANGES:
        # Nothing made of a node that is not clear is clear: nobody asks for its characters any more.
        return msgspec.structs.replace(effort, is_clear=False, first=characters.NONE, further=characters.NONE)
    every_place = ONCE.plus(effort.looks)
    return msgspec.structs.replace(
        effort,
        ways=_lower(effort.ways, LENGTH),
        cost=_lower(effort.cost, Growth(effort.size * _LOOP_WEIGHT, 1).times(every_place)),
    )


def _lower(one: Growth, other: Growth) -> Growth:
    return max(one, other, key=lambda growth: growth.longest(_HUGE))
