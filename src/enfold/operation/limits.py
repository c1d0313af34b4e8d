"""How many calls one identity may make: at once, and per second. Every guarded call is counted here, on any surface."""

from __future__ import annotations

import time
from typing import Final

from enfold.errors import CallError
from enfold.operation.identity import Identity

_MAX_CALLERS: Final = 1_000  # whose rate is remembered before those that may call again are forgotten


class CallLimits:
    """The calls of each identity; callers without one are counted together. What is None is without limit."""

    def __init__(self, *, at_once: int | None = None, per_second: float | None = None) -> None:
        self._at_once = at_once
        self._per_second = per_second
        self._running: dict[str, int] = {}
        # When the next call would be due if an identity's calls were evenly spread: a second's calls may come at once.
        self._due: dict[str, float] = {}

    def acquire(self, identity: Identity | None) -> str:
        """Count a call until `release`, which takes the answer; one too many is RESOURCE_EXHAUSTED, with the time to wait."""
        caller = "" if identity is None else identity.id
        if self._at_once is not None and self._running.get(caller, 0) >= self._at_once:
            raise _exhausted(f"{self._at_once} calls at once", "calls_at_once", 1.0)
        if self._per_second is not None:
            self._check_rate(caller, self._per_second)
        self._running[caller] = self._running.get(caller, 0) + 1
        return caller

    def release(self, caller: str) -> None:
        self._running[caller] -= 1
        if not self._running[caller]:
            del self._running[caller]

    def _check_rate(self, caller: str, per_second: float) -> None:
        now = time.monotonic()
        due, ahead = max(self._due.get(caller, now), now), max(1.0, 1.0 / per_second)
        wait = due + 1.0 / per_second - now - ahead
        if wait > 1e-9:
            raise _exhausted(f"{per_second:g} calls a second", "calls_per_second", wait)
        if len(self._due) >= _MAX_CALLERS:
            self._due = {name: each for name, each in self._due.items() if each > now}
        self._due[caller] = due + 1.0 / per_second


def _exhausted(most: str, reason: str, wait: float) -> CallError:
    details = {"reason": reason, "retry_after": int(wait) + 1}
    return CallError("RESOURCE_EXHAUSTED", f"One caller may make {most}: try again later", details)
