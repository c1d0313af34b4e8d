"""Timeouts and limits of the call protocol, and when a call may be retried. Values and pure functions."""

from __future__ import annotations

import random
from typing import Final

import msgspec

from enfold.errors import CallError

DEFAULT_TTL: Final = 60.0
OFFER_REMEMBERED: Final = 3600.0  # seconds for which an operation without workers is UNAVAILABLE, not unknown
NESTED_MARGIN: Final = 0.005  # seconds that a nested call leaves its caller to respond


class CallSettings(msgspec.Struct, frozen=True):
    """Heartbeats, timeouts (in seconds) and stream windows; both ends should have the same."""

    accept_after: float = 0.05  # a call that runs longer is acknowledged
    heartbeat: float = 0.5  # between heartbeats of an acknowledged call
    silence: float = 2.0  # after which a peer counts as gone
    lost_grace: float = 0.025  # a connection restored within this time fails no call
    tick: float = 0.025  # interval of the timer
    window: int = 64  # items of a stream that may be in flight
    window_bytes: int = 1024 * 1024


class WorkerLimits(msgspec.Struct, frozen=True):
    """How many calls a worker accepts; more are refused at once with RESOURCE_EXHAUSTED."""

    running: int = 256
    waiting: int = 256
    per_peer: int = 128  # of one identity, running or waiting
    remembered: int = 65_536  # request ids kept to detect duplicates


class Retry(msgspec.Struct, frozen=True):
    """Attempts and backoff of retries, which are made only where that is safe."""

    attempts: int = 3
    delay: float = 0.005  # doubled each time, with jitter
    max_delay: float = 0.5


NEVER: Final = Retry(attempts=1)


def retry_delay(retry: Retry, attempt: int, error: CallError, *, idempotent: bool) -> float | None:
    """Seconds before the next attempt; None where the call must not be retried."""
    if attempt >= retry.attempts or not _is_safe(error, idempotent=idempotent):
        return None
    spread = 0.5 + random.random()  # noqa: S311  # jitter
    return float(min(retry.max_delay, retry.delay * 2 ** (attempt - 1)) * spread)


def _is_safe(error: CallError, *, idempotent: bool) -> bool:
    """Whether the call certainly did not start, or may run twice."""
    if error.details.get("started") is False:
        return True
    return idempotent and error.code in ("UNAVAILABLE", "RESOURCE_EXHAUSTED")
