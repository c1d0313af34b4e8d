"""Limits on what callers may use of a server, each with its name and default. The page on bounds explains them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from enfold.errors import CallError


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one server, under the names they have in a configuration and after `--bound`."""

    # before a token is looked at
    header_bytes: int = 65_536  # of a request's first line and headers together
    headers: int = 100
    header_seconds: float = 10.0  # until a connection has sent a whole head
    pipelined: int = 16  # requests that are read while an earlier one of the connection is answered
    connections: int = 1_000
    connections_per_address: int = 250
    stalled_seconds: float = 60.0  # a client may read nothing of an answer that waits for it
    # per identity, and per address where nobody has one
    sessions: int = 10_000
    sessions_per_identity: int = 200
    resume_bytes: int = 64_000_000
    resume_bytes_per_identity: int = 8_000_000
    calls_at_once: int | None = None
    calls_per_second: float | None = None
    # per session or request
    subscriptions: int = 1_000
    batch_entries: int = 100
    batch_bytes: int = 8_000_000  # of the answers to a batch
    line_bytes: int = 67_108_864  # of a message on the standard input


def read_bounds(given: Mapping[str, object]) -> Bounds:
    """Other bounds by their names; what is not a bound, or no number above zero, is a VALIDATION_ERROR."""
    for name, number in given.items():
        if name not in Bounds.__struct_fields__:
            from enfold.errors import nearest  # for a mistake alone

            near = nearest(name, Bounds.__struct_fields__)
            advice = f"did you mean {near}?" if near else f"use {', '.join(Bounds.__struct_fields__)}"
            raise CallError("VALIDATION_ERROR", f"There is no bound {name[:100]}: {advice}")
        if not _is_valid(name, number):
            kind = "a number" if name in FRACTIONS else "a whole number"
            raise CallError("VALIDATION_ERROR", f"The bound {name} must be {kind} above zero")
    return msgspec.structs.replace(Bounds(), **given)


def divided(bounds: Bounds, count: int, number: int) -> Bounds:
    """The bounds of one of several processes, by its number: its share of those that hold for all processes together."""
    whole = {name: max(1, (getattr(bounds, name) + number) // count) for name in _set_among_shared(bounds)}
    per_second = bounds.calls_per_second
    return msgspec.structs.replace(bounds, **whole, calls_per_second=None if per_second is None else per_second / count)


def check_divisible(bounds: Bounds, count: int) -> None:
    """Refuse a bound that somebody has set too low to be shared by so many processes."""
    for name in _set_among_shared(bounds):
        most = getattr(bounds, name)
        if most < count and most != getattr(Bounds(), name):
            told = f"The bound {name}={most} cannot be shared by {count} workers: let it be {count} or more, or take {most}"
            raise CallError("VALIDATION_ERROR", f"{told} {'worker' if most == 1 else 'workers'}")


def _set_among_shared(bounds: Bounds) -> list[str]:
    return [name for name in _SHARED if getattr(bounds, name) is not None]


# The others are of one request, connection or session, which only one process has.
_SHARED: Final = (
    "connections",
    "connections_per_address",
    "sessions",
    "sessions_per_identity",
    "resume_bytes",
    "resume_bytes_per_identity",
    "calls_at_once",
)
# Bounds that need not be whole numbers.
FRACTIONS: Final = ("header_seconds", "stalled_seconds", "calls_per_second")


def _is_valid(name: str, number: object) -> bool:
    kinds = int | float if name in FRACTIONS else int
    return isinstance(number, kinds) and not isinstance(number, bool) and 0 < number < float("inf")
