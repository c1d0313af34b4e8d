"""The budget of all pattern searches in one call: both patterns and texts may be hostile."""

from __future__ import annotations

from _thread import _local  # importing `threading` would slow down a cold start
from collections.abc import Callable
from typing import Any, Final

# Steps of an automaton: a few tenths of a second.
STEPS: Final = 500_000
# Work units of `re`, which take about as long.
WORK: Final = 10_000_000


class PatternBudget(_local):
    """The remaining budget of this thread, shared by all searches while a call is running."""

    is_shared: bool = False
    steps: int = STEPS
    work: float = WORK


remaining: Final = PatternBudget()


class shared_budget:  # noqa: N801  # reads like the function it is used as
    """Let all searches inside share the budget of one; nested uses share the outermost budget."""

    __slots__ = ("_is_outermost",)

    def __enter__(self) -> None:
        self._is_outermost = not remaining.is_shared
        if self._is_outermost:
            remaining.is_shared, remaining.steps, remaining.work = True, STEPS, WORK

    def __exit__(self, *_: object) -> None:
        if self._is_outermost:
            remaining.is_shared = False


def with_shared_budget(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return the test with a shared budget for its searches."""

    def shared(value: Any) -> bool:
        with shared_budget():
            return test(value)

    return shared
