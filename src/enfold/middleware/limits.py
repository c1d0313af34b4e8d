"""Limits: how many calls one identity may run at once and per second."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from enfold.middleware.around import Around, Take

if TYPE_CHECKING:
    from enfold.operations.call import Call
    from enfold.operations.policy import CallLimits


class LimitCalls(Around):
    """Counts each call of its caller while it runs; one too many is RESOURCE_EXHAUSTED."""

    def __init__(self, limits: CallLimits) -> None:
        self._limits = limits

    @contextmanager
    def around(self, call: Call) -> Generator[Take]:
        caller = self._limits.acquire(call.identity)
        try:
            yield lambda _: None
        finally:
            running = call.context.first_call
            if running is None or running.done():
                self._limits.release(caller)
            else:  # its caller has left, and it runs on under its idempotency key
                running.add_done_callback(lambda _: self._limits.release(caller))
