"""Matching with a nondeterministic automaton: all paths at once, so the work is linear in the text.

Transitions between sets of states are memoized per search. Lookarounds are separate automata evaluated at a position of
the text; backreferences are not supported. The cost analysis that decides when `re` is safe is here too.
"""

from __future__ import annotations

from functools import reduce
from math import inf, log
from typing import Final, TypeAlias

import msgspec

from enfold.schema.regexp import characters
from enfold.schema.regexp.characters import WORD, Ranges, contains
from enfold.schema.regexp.syntax import Alternation, Back, Chars, Edge, Group, Look, Node, Repeat, Sequence

MAX_STATES: Final = 5_000
# The cost of computing a transition, per state, relative to a memoized one.
_STATE_COST: Final = 4

_DONE: Final = 0  # the accepting state


class Automaton(msgspec.Struct, frozen=True):
    """States by number, each with its test and targets."""

    tests: tuple[Test, ...]
    targets: tuple[tuple[int, ...], ...]
    start: int
    is_forward: bool
    has_lookaround: bool


class LookAround(msgspec.Struct, frozen=True):
    """A lookaround: an automaton that must match, or must not."""

    automaton: Automaton
    is_negative: bool


# None is an empty transition, Ranges consume a character, the others test the position.
Test: TypeAlias = Ranges | Edge | LookAround | None


def build(node: Node) -> Automaton | None:
    """Build the automaton of a pattern; None where it would have too many states or has a backreference."""
    try:
        return _build(node, is_forward=True, max_states=MAX_STATES)
    except _CannotBuildError:
        return None


def search(automaton: Automaton, text: str, steps: int, *, is_anchored: bool = False) -> tuple[bool | None, int]:
    """Return whether the pattern matches anywhere in the text (None when out of steps), and the steps left."""
    run = _StateSearch(text, steps)
    try:
        return run.finds(automaton, 0, restarts=not is_anchored), run.left
    except (_OutOfStepsError, RecursionError):
        return None, run.left


class _CannotBuildError(Exception):
    """The pattern is too large or has a backreference."""


class _OutOfStepsError(Exception):
    """The budget of a search is exhausted."""


def _build(node: Node, *, is_forward: bool, max_states: int) -> Automaton:
    builder = _StateBuilder(is_forward, max_states)
    start = builder.before(_DONE, node)
    has_lookaround = any(isinstance(test, LookAround) for test in builder.tests)
    return Automaton(tuple(builder.tests), tuple(builder.targets), start, is_forward, has_lookaround)


class _StateBuilder:
    """Adds states from the end of the pattern to its beginning, so that targets exist before their sources."""

    def __init__(self, is_forward: bool, max_states: int) -> None:
        self.is_forward = is_forward
        self.max_states = max_states
        self.tests: list[Test] = [None]
        self.targets: list[tuple[int, ...]] = [()]

    def add(self, test: Test, *targets: int) -> int:
        if len(self.tests) >= self.max_states:
            raise _CannotBuildError
        self.tests.append(test)
        self.targets.append(targets)
        return len(self.tests) - 1

    def before(self, after: int, node: Node) -> int:
        """Return the state from which the node leads to `after`."""
        match node:
            case Chars(ranges):
                return self.add(ranges, after)
            case Edge():
                return self.add(node, after)
            case Look():
                return self.add(self.around(node), after)
            case Group(body):
                return self.before(after, body)
            case Sequence(items):
                return self.before_all(after, items)
            case Alternation(branches):
                return self.add(None, *(self.before(after, branch) for branch in branches))
            case Repeat():
                return self.before_repeat(after, node)
            case Back():
                raise _CannotBuildError

    def around(self, look: Look) -> LookAround:
        inner = _build(look.body, is_forward=look.is_ahead, max_states=self.max_states - len(self.tests))
        self.max_states -= len(inner.tests)
        return LookAround(inner, look.is_negative)

    def before_all(self, after: int, items: tuple[Node, ...]) -> int:
        for item in reversed(items) if self.is_forward else items:
            after = self.before(after, item)
        return after

    def before_repeat(self, after: int, repeat: Repeat) -> int:
        entry = self.loop(after, repeat.body) if repeat.most is None else self.optional(after, repeat)
        for _ in range(repeat.least):
            known = len(self.tests)
            entry = self.before(entry, repeat.body)
            if len(self.tests) == known:
                break  # the body is empty
        return entry

    def loop(self, after: int, body: Node) -> int:
        fork = self.add(None)
        self.targets[fork] = (self.before(fork, body), after)
        return fork

    def optional(self, after: int, repeat: Repeat) -> int:
        entry = after
        for _ in range((repeat.most or 0) - repeat.least):
            entry = self.add(None, self.before(entry, repeat.body), after)
        return entry


class _StateSet:
    """The states after one character, the kind of that character, and the memoized transitions."""

    __slots__ = ("behind", "states", "steps")

    def __init__(self, states: frozenset[int], behind: _Side) -> None:
        self.states = states
        self.behind = behind
        self.steps: dict[str, _StateSet] = {}


# The character beside a position: none, a word character, or another one.
_Side: TypeAlias = bool | None

_WORD: Final = frozenset(chr(code) for first, last in WORD for code in range(first, last + 1))
_MATCHED: Final = _StateSet(frozenset(), None)
_FAILED: Final = _StateSet(frozenset(), None)


class _StateSearch:
    """One search: the text, the remaining steps and the memoized transitions."""

    def __init__(self, text: str, steps: int) -> None:
        self.text = text
        self.left = steps
        self.state_sets: dict[tuple[int, frozenset[int], _Side], _StateSet] = {}
        self.answers: dict[tuple[int, int], bool] = {}

    def finds(self, automaton: Automaton, at: int, *, restarts: bool) -> bool:
        """Whether a match begins at this position, or with `restarts` at any later one."""
        text = self.text
        current = self.state_set(automaton, {automaton.start}, self.side(at - 1 if automaton.is_forward else at))
        for index in range(at, len(text)) if automaton.is_forward else range(at - 1, -1, -1):
            self.left -= 1
            if self.left < 0:
                raise _OutOfStepsError
            character = text[index]
            following = current.steps.get(character)
            if following is None:
                following = self.step(automaton, current, index, restarts=restarts)
                if not automaton.has_lookaround:
                    current.steps[character] = following
            if following is _MATCHED or following is _FAILED:
                return following is _MATCHED
            current = following
        return _DONE in self.reach(automaton, current, len(text) if automaton.is_forward else 0, None)

    def step(self, automaton: Automaton, current: _StateSet, index: int, *, restarts: bool) -> _StateSet:
        """Compute the transition for the character at this index."""
        side = self.side(index)
        place = index if automaton.is_forward else index + 1
        reached = self.reach(automaton, current, place, side)
        if _DONE in reached:
            return _MATCHED
        code = ord(self.text[index])
        states = {
            automaton.targets[state][0]
            for state in reached
            if isinstance(ranges := automaton.tests[state], tuple) and contains(ranges, code)
        }
        if restarts:
            states.add(automaton.start)
        return self.state_set(automaton, states, side) if states else _FAILED

    def reach(self, automaton: Automaton, current: _StateSet, place: int, ahead: _Side) -> set[int]:
        """Return all states reachable without consuming a character."""
        tests, targets = automaton.tests, automaton.targets
        sides = (current.behind, ahead) if automaton.is_forward else (ahead, current.behind)
        reached: set[int] = set()
        waiting = list(current.states)
        while waiting:
            state = waiting.pop()
            if state in reached:
                continue
            reached.add(state)
            test = tests[state]
            if not isinstance(test, tuple) and (test is None or self.holds(test, place, *sides)):
                waiting += targets[state]
        self.left -= _STATE_COST * len(reached)
        return reached

    def holds(self, test: Edge | LookAround, place: int, left: _Side, right: _Side) -> bool:
        if isinstance(test, LookAround):
            return self.answer(test.automaton, place) is not test.is_negative
        if test.kind == "start":
            return left is None
        if test.kind == "end":
            return right is None
        return (bool(left) is not bool(right)) is (test.kind == "word")

    def answer(self, automaton: Automaton, place: int) -> bool:
        key = (id(automaton), place)
        if key not in self.answers:
            self.answers[key] = self.finds(automaton, place, restarts=False)
        return self.answers[key]

    def side(self, index: int) -> _Side:
        return self.text[index] in _WORD if 0 <= index < len(self.text) else None

    def state_set(self, automaton: Automaton, states: set[int], behind: _Side) -> _StateSet:
        key = (id(automaton), frozenset(states), behind)
        known = self.state_sets.get(key)
        if known is None:
            known = self.state_sets[key] = _StateSet(key[1], behind)
        return known


# A longer bounded repeat counts as unbounded.
_LONG_REPEAT: Final = 256
# The cost of one iteration of a loop with more than one node, in characters.
_LOOP_WEIGHT: Final = 8
# Larger sets are not compared, so that analyzing a hostile pattern stays fast; all Unicode letters are fewer.
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
        """Return the length of the longest text within the budget; negative where there is none."""
        if self.factor > budget:
            return -1
        return inf if self.degree == 0 else (budget / self.factor) ** (1 / self.degree) - 1


NOTHING: Final = Growth(0, 0)
ONCE: Final = Growth(1, 0)
LENGTH: Final = Growth(1, 1)
ENDLESS: Final = Growth(inf, 0)


class Effort(msgspec.Struct, frozen=True):
    """The worst-case cost of matching a node from one position, and the properties its neighbours need.

    A node is clear when the next character alone determines how to continue. A matcher then never backtracks, however
    the repeats are nested.
    """

    ways: Growth = ONCE  # the number of possible matches, each of which retries what follows
    cost: Growth = ONCE  # the work of trying all of them
    looks: Growth = NOTHING  # the share of lookarounds, which are evaluated at every position
    size: int = 1  # the number of nodes
    is_empty_possible: bool = True
    first: Ranges = characters.NONE  # the characters a match can begin with
    further: Ranges = characters.NONE  # the characters a complete match could continue with
    is_clear: bool = True
    has_back: bool = False


def effort(node: Node) -> Effort:
    match node:
        case Chars(ranges):
            return Effort(first=ranges, is_empty_possible=False)
        case Edge():
            return Effort()
        case Back():
            return Effort(cost=LENGTH, is_clear=False, has_back=True)
        case Group(body):
            return effort(body)
        case Look(body):
            inner = effort(body)
            cost = ONCE.plus(inner.cost)
            # Lookarounds are atomic: nothing that follows backtracks into them.
            return Effort(cost=cost, looks=cost, has_back=inner.has_back)
        case Sequence(items):
            return reduce(_then, map(effort, items), Effort())
        case Alternation(branches):
            return _choice([effort(branch) for branch in branches])
        case Repeat(_, _, 0):
            return Effort()
        case Repeat(body, least, most):
            return _repeat(effort(body), least, most)


def is_anchored(node: Node) -> bool:
    """Whether a match can begin only at the start of the text."""
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
        rounds = rounds.plus(Growth(least, 0))  # iterations that match the empty text
    weight = Growth(1 if body.size == 1 else _LOOP_WEIGHT, 0)
    once = rounds.times(body.cost).times(weight).plus(ONCE)
    return once if body.ways == ONCE else once.times(_ways_of_all_rounds(body, most))


def _ways_of_all_rounds(body: Effort, most: int | None) -> Growth:
    return ENDLESS if most is None else body.ways.power(most)


def _bounded(effort: Effort) -> Effort:
    """Lower the effort to the limit that holds for clear nodes."""
    if not effort.is_clear or len(effort.first) + len(effort.further) > _MANY_RANGES:
        # A node with an unclear part is unclear, so the characters are no longer needed.
        return msgspec.structs.replace(effort, is_clear=False, first=characters.NONE, further=characters.NONE)
    every_place = ONCE.plus(effort.looks)
    return msgspec.structs.replace(
        effort,
        ways=_lower(effort.ways, LENGTH),
        cost=_lower(effort.cost, Growth(effort.size * _LOOP_WEIGHT, 1).times(every_place)),
    )


def _lower(one: Growth, other: Growth) -> Growth:
    return max(one, other, key=lambda growth: growth.longest(_HUGE))
