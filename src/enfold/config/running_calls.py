"""How many calls of a source run just now, so that it is not closed under them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from enfold.operation import is_coroutine_function


class RunningCalls:
    """The calls of handlers that were made `counted`; threads of `def` handlers count here, too."""

    def __init__(self) -> None:
        self._running: set[object] = set()

    def __bool__(self) -> bool:
        return bool(self._running)

    def counted(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """The same handler; each call counts until it, and the stream or the future that it returns, has ended."""

        @wraps(handler)
        async def call(*args: Any, **arguments: Any) -> Any:
            with self._marked():
                return self._with_stream_counted(await handler(*args, **arguments))

        @wraps(handler)
        def start(*args: Any, **arguments: Any) -> Any:
            with self._marked():
                return self._with_stream_counted(handler(*args, **arguments))

        return call if is_coroutine_function(handler) else start

    @contextmanager
    def _marked(self) -> Iterator[None]:
        """One call among those that run; adding to a set and discarding from it is safe in threads."""
        mark = object()
        self._running.add(mark)
        try:
            yield
        finally:
            self._running.discard(mark)

    def _with_stream_counted(self, given: Any) -> Any:
        """What a handler returns; a stream or a future counts until it has ended."""
        if hasattr(given, "__aiter__"):
            return self._items(given)
        if hasattr(given, "__next__"):
            return self._blocking_items(given)
        return self._await_counted(given) if hasattr(given, "__await__") else given

    async def _await_counted(self, given: Awaitable[Any]) -> Any:
        with self._marked():
            return await given

    async def _items(self, stream: AsyncIterator[Any]) -> AsyncGenerator[Any]:
        with self._marked():
            try:
                async for item in stream:
                    yield item
            finally:
                if isinstance(stream, AsyncGenerator):
                    await stream.aclose()

    def _blocking_items(self, stream: Iterator[Any]) -> Generator[Any]:
        with self._marked():
            yield from stream
