"""How much the pattern searches of one call may do together: strangers write both the patterns and the texts."""

from __future__ import annotations

from _thread import _local  # `threading` itself would make a cold start slower
from collections.abc import Callable
from typing import Any, Final

# Steps of an automaton; these take a few tenths of a second.
STEPS: Final = 500_000
# As much work of `re` takes about as long.
WORK: Final = 10_000_000


class PatternBudget(_local):
    """What the searches of this thread may still do; it is shared while a call is under way."""

    is_shared: bool = False
    steps: int = STEPS
    work: float = WORK


remaining: Final = PatternBudget()


class shared_budget:  # noqa: N801  # reads like the function it is used as
    """All searches inside share the effort that one alone may take; an outer call shares it with the inner ones."""

    __slots__ = ("_is_outermost",)

    def __enter__(self) -> None:
        self._is_outermost = not remaining.is_shared
        if self._is_outermost:
            remaining.is_shared, remaining.steps, remaining.work = True, STEPS, WORK

    def __exit__(self, *_: object) -> None:
        if self._is_outermost:
            remaining.is_shared = False


def with_shared_budget(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A test whose searches share their effort."""

    def shared(value: Any) -> bool:
        with shared_budget():
            return test(value)

    return shared
