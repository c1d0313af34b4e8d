"""Limits on the resources of a server that callers may use. `docs/limits.md` describes each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from enfold.errors import CallError


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one server, named as in `[limits]` and after `--limit`.

    Every field is a number that applies to the whole server. Limits per identity, operation or source belong in
    sub-tables beside them.
    """

    # before authentication
    header_bytes: int = 65_536  # of a request's first line and headers together
    headers: int = 100
    header_seconds: float = 10.0  # to send the complete head of a request
    pipelined: int = 16  # requests read while an earlier one on the connection is answered
    connections: int = 1_000
    connections_per_address: int = 250
    stalled_seconds: float = 60.0  # that a client may stop reading a response
    # per identity, or per address where authentication is off
    sessions: int = 10_000
    sessions_per_identity: int = 200
    resume_bytes: int = 64_000_000
    resume_bytes_per_identity: int = 8_000_000
    calls_at_once: int | None = None
    calls_per_second: float | None = None
    # per session or request
    subscriptions: int = 1_000
    batch_entries: int = 100
    batch_bytes: int = 8_000_000  # of the responses to a batch
    line_bytes: int = 67_108_864  # of a message on standard input


def read_limits(given: Mapping[str, object]) -> Limits:
    """Return the defaults with these values; raise VALIDATION_ERROR for an unknown name or a number not above zero."""
    for name, number in given.items():
        if name not in Limits.__struct_fields__:
            from enfold.errors import nearest  # for a mistake alone

            near = nearest(name, Limits.__struct_fields__)
            advice = f"did you mean {near}?" if near else f"use {', '.join(Limits.__struct_fields__)}"
            raise CallError("VALIDATION_ERROR", f"Unknown limit {name[:100]}: {advice}")
        if not _is_valid(name, number):
            kind = "a number" if name in FRACTIONS else "a whole number"
            raise CallError("VALIDATION_ERROR", f"The limit {name} must be {kind} above zero")
    return msgspec.structs.replace(Limits(), **given)


def divided(limits: Limits, count: int, number: int) -> Limits:
    """Return the limits of one of several worker processes: its share of limits that apply to all together."""
    whole = {name: max(1, (getattr(limits, name) + number) // count) for name in _set_among_shared(limits)}
    per_second = limits.calls_per_second
    return msgspec.structs.replace(limits, **whole, calls_per_second=None if per_second is None else per_second / count)


def check_divisible(limits: Limits, count: int) -> None:
    """Refuse a configured limit that is smaller than the number of processes it is divided among."""
    for name in _set_among_shared(limits):
        most = getattr(limits, name)
        if most < count and most != getattr(Limits(), name):
            message = f"The limit {name}={most} cannot be divided among {count} workers"
            raise CallError("VALIDATION_ERROR", f"{message}: raise it to at least {count} or lower --workers to {most}")


def _set_among_shared(limits: Limits) -> list[str]:
    return [name for name in _SHARED if getattr(limits, name) is not None]


# The others apply to one request, connection or session, which only one process serves.
_SHARED: Final = (
    "connections",
    "connections_per_address",
    "sessions",
    "sessions_per_identity",
    "resume_bytes",
    "resume_bytes_per_identity",
    "calls_at_once",
)
# Limits that may be fractions.
FRACTIONS: Final = ("header_seconds", "stalled_seconds", "calls_per_second")


def _is_valid(name: str, number: object) -> bool:
    kinds = int | float if name in FRACTIONS else int
    return isinstance(number, kinds) and not isinstance(number, bool) and 0 < number < float("inf")
