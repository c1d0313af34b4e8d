"""Resources of operations: opened once before the first call, closed once after the last."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from enfold.operations import is_coroutine_function

if TYPE_CHECKING:
    import asyncio

Hook: TypeAlias = Callable[[], Any]  # a `def` or an `async def`
T = TypeVar("T")


class Lifetime:
    """The hooks of `on_start` and `on_stop`, and whether the `on_start` hooks have run.

    A server calls `start` and `stop`; several may share one registry. Without a server the first call runs the `on_start`
    hooks, and `during` runs the `on_stop` hooks after a piece of work.
    """

    __slots__ = (
        "_after_stop",
        "_before_stop",
        "_is_open",
        "_on_start",
        "_on_stop",
        "_opening",
        "_stop_watching",
        "_users",
        "is_ready",
    )

    def __init__(
        self,
        before_stop: Callable[[float | None], Awaitable[None]] | None = None,
        after_stop: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`before_stop` is awaited with the grace period when the last user has gone, `after_stop` after the hooks."""
        self._before_stop = before_stop
        self._after_stop = after_stop
        self._on_start: list[Hook] = []
        self._on_stop: list[Hook] = []
        self._users = 0
        self._is_open = False
        self._opening: asyncio.Future[None] | None = None
        self._stop_watching: Callable[[], None] | None = None
        self.is_ready = True  # as long as there is nothing to run

    def add(self, start: Hook | None = None, stop: Hook | None = None) -> None:
        if self._is_open:
            raise RuntimeError(
                "The registry is already in use: register on_start and on_stop functions before the first call"
            )
        self._on_start += [] if start is None else [start]
        self._on_stop += [] if stop is None else [stop]
        self.is_ready = False

    @property
    def needs_loop(self) -> bool:
        """Whether a hook is an `async def`."""
        return any(is_coroutine_function(hook) for hook in (*self._on_start, *self._on_stop))

    @property
    def needs_stop(self) -> bool:
        """Whether there is anything to close after the last call."""
        return bool(self._on_stop)

    async def start(self) -> None:
        """Add a user; the first one runs the `on_start` hooks. Warns of operations that block the event loop."""
        from enfold.observability.loop_watch import watch_running_loop  # for servers alone

        self._users += 1
        if self._stop_watching is None:
            self._stop_watching = watch_running_loop()
        try:
            await self.make_ready()
        except BaseException:
            self._leave()
            raise

    async def make_ready(self) -> None:
        """Run the `on_start` hooks unless they have run; callers at the same time wait for one run."""
        if self.is_ready:
            return
        if not self.needs_loop:
            await self._open()
            return
        import asyncio  # slow to import: without hooks that wait no loop is needed

        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open())
        await asyncio.shield(self._opening)

    async def stop(self, grace: float | None = None) -> None:
        """Remove a user; the last one runs the `on_stop` hooks in reverse order.

        Calls with an idempotency key that run on after their callers have left get `grace` seconds to end first.
        """
        self._leave()
        if self._users:
            return
        if self._before_stop is not None:
            await self._before_stop(grace)
        try:
            if self._is_open:
                self._is_open = self.is_ready = False
                for hook in reversed(self._on_stop):
                    await _run(hook)
        finally:
            if self._after_stop is not None:
                await self._after_stop()

    def _leave(self) -> None:
        self._users = max(0, self._users - 1)
        if not self._users and self._stop_watching is not None:
            self._stop_watching()
            self._stop_watching = None

    async def during(self, work: Awaitable[T]) -> T:
        """Await some work, then run the `on_stop` hooks if it caused the `on_start` hooks to run."""
        try:
            return await work
        finally:
            await self.stop()

    async def _open(self) -> None:
        try:
            for hook in self._on_start:
                await _run(hook)
            self._is_open = self.is_ready = True
        finally:
            self._opening = None


async def _run(hook: Hook) -> None:
    result = hook()
    if hasattr(result, "__await__"):
        await result
