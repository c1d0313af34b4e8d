"""Who waits for a store to change: woken from the loop they wait on or from another thread."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

__all__ = ["WORK", "Wakeups"]

WORK = ""  # what workers wait for; others wait for the id of a task


class Wakeups:
    """Waiters of one store, by what they wait for; each has a moment of its own, so that several loops may wait."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], str] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def expect(self, subject: str) -> asyncio.Future[None]:
        """A moment that is over after the next change: taken before looking, it misses none."""
        moment: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[moment] = subject
        moment.add_done_callback(self._forget)
        return moment

    def _forget(self, moment: asyncio.Future[None]) -> None:
        self._waiting.pop(moment, None)

    async def wait(self, moment: asyncio.Future[None], seconds: float | None) -> None:
        # Not `wait_for`: up to Python 3.11 it takes a cancellation for the end of the waiting.
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await moment

    def wake(self, subjects: Iterable[str] | None = None) -> None:
        """Wake those who wait for one of the subjects, or everybody; may be called from any thread."""
        wanted = None if subjects is None else {WORK, *subjects}
        for moment, subject in list(self._waiting.items()):
            if wanted is None or subject in wanted:
                with suppress(RuntimeError):  # its loop is closed
                    moment.get_loop().call_soon_threadsafe(_end, moment)


def _end(moment: asyncio.Future[None]) -> None:
    if not moment.done():
        moment.set_result(None)
