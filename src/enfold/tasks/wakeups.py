"""Who waits for a store to change: woken all together, from the loop they wait on or from another thread."""

from __future__ import annotations

import asyncio
from contextlib import suppress

__all__ = ["Wakeups"]


class Wakeups:
    """Waiters of one store; each has a moment of its own, so that several loops may wait."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def expect(self) -> asyncio.Future[None]:
        """A moment that is over after the next change: taken before looking, it misses none."""
        moment: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(moment)
        moment.add_done_callback(self._waiting.discard)
        return moment

    async def wait(self, moment: asyncio.Future[None], seconds: float | None) -> None:
        # Not `wait_for`: up to Python 3.11 it takes a cancellation for the end of the waiting.
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await moment

    def wake(self) -> None:
        """Wake everybody who waits; may be called from any thread."""
        for moment in list(self._waiting):
            with suppress(RuntimeError):  # its loop is closed
                moment.get_loop().call_soon_threadsafe(_end, moment)


def _end(moment: asyncio.Future[None]) -> None:
    if not moment.done():
        moment.set_result(None)
