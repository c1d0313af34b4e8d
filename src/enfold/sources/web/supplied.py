"""What a user supplies as a value, or as a function that gives it anew each time it is needed, such as a token."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Supplied: TypeAlias = T | Callable[[], T | Awaitable[T]]


async def current(supplied: Supplied[T]) -> T:
    """The value as it is now."""
    given = supplied() if callable(supplied) else supplied
    return await given if isawaitable(given) else given
