"""How many calls of a source run just now, so that it is not closed under them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from functools import wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any

__all__ = ["RunningCalls"]

Handler = Callable[..., Any]


class RunningCalls:
    """The calls of handlers that were made `counted`; threads of `def` handlers count here, too."""

    def __init__(self) -> None:
        self._running: set[object] = set()

    def __bool__(self) -> bool:
        return bool(self._running)

    def counted(self, handler: Handler) -> Handler:
        """The same handler, and of the same kind, whose calls are counted while they run."""
        if iscoroutinefunction(handler):
            return self._counted_coroutine(handler)
        if isasyncgenfunction(handler):
            return self._counted_stream(handler)
        if isgeneratorfunction(handler):
            return self._counted_generator(handler)
        return self._counted_function(handler)

    def _counted_coroutine(self, handler: Handler) -> Handler:
        @wraps(handler)
        async def run(*args: Any, **arguments: Any) -> Any:
            with _Mark(self._running):
                return await handler(*args, **arguments)

        return run

    def _counted_stream(self, handler: Handler) -> Handler:
        @wraps(handler)
        async def run(*args: Any, **arguments: Any) -> AsyncGenerator[Any]:
            with _Mark(self._running):
                items = handler(*args, **arguments)
                try:
                    async for item in items:
                        yield item
                finally:
                    await items.aclose()

        return run

    def _counted_generator(self, handler: Handler) -> Handler:
        @wraps(handler)
        def run(*args: Any, **arguments: Any) -> Generator[Any]:
            with _Mark(self._running):
                yield from handler(*args, **arguments)

        return run

    def _counted_function(self, handler: Handler) -> Handler:
        @wraps(handler)
        def run(*args: Any, **arguments: Any) -> Any:
            with _Mark(self._running):
                return handler(*args, **arguments)

        return run


class _Mark:
    """One call among those that run; adding to a set and discarding from it is safe in threads."""

    __slots__ = ("_running",)

    def __init__(self, running: set[object]) -> None:
        self._running = running

    def __enter__(self) -> None:
        self._running.add(self)

    def __exit__(self, *_: object) -> None:
        self._running.discard(self)
