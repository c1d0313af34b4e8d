"""Cancels tasks of the event loop, again and again until they end: a library below may lose a cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

ASK_AGAIN: Final = 0.25


async def cancel_all(running: Iterable[asyncio.Future[Any] | None]) -> None:
    """Cancel them, and wait until all have ended, however they do."""
    left = {each for each in running if each is not None}
    while left:
        for each in left:
            each.cancel()
        over, left = await asyncio.wait(left, timeout=ASK_AGAIN)
        for each in over:
            if not each.cancelled():
                each.exception()  # looked at, so that nobody complains that it was not
