"""The quota of bytes of finished tasks, by owner, counted by the hour in which they expire. Pure.

Nothing is forgotten before the time that its caller was told. Who has too much is refused the next task instead. Each
store counts what has ended in its own way, and asks here before it accepts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from enfold.errors import CallError
from enfold.tasks.task import Order

BYTES_PER_IDENTITY: Final = 4_000_000_000
BYTES: Final = 16_000_000_000
HOUR: Final = 3_600_000  # milliseconds
OVERHEAD: Final = 500  # bytes that a task takes in a store beside its texts, about
SHARE: Final = 10  # the part of their bytes that each caller has where all together have too many


class TaskLimits(msgspec.Struct, frozen=True):
    """What callers may have in a store: unfinished tasks of each, and bytes of finished ones, of each and of all."""

    unfinished: int = 100
    bytes_per_identity: int = BYTES_PER_IDENTITY
    bytes: int = BYTES


def hour_of(order: Order) -> int:
    """The hour, counted from 1970, before whose beginning the task is forgotten."""
    return order.expires // HOUR + 1


def is_large_share(kept: Mapping[int, int], limits: TaskLimits, now: int) -> bool:
    """Whether an owner has so much that the total of all owners matters; `kept` are the owner's bytes by hour."""
    return sum(unexpired(kept, now).values()) >= limits.bytes_per_identity // SHARE


def check_kept_bytes(kept: Mapping[int, int], in_all: int, limits: TaskLimits, now: int) -> None:
    """RESOURCE_EXHAUSTED where an owner keeps too much; `retry_after` says when the oldest expire."""
    left, most = unexpired(kept, now), limits.bytes_per_identity
    if in_all >= limits.bytes:
        most = max(1, most // SHARE)
    size = sum(left.values())
    if size < most:
        return
    wait = max(1, (min(left, default=0) * HOUR - now) // 1000)
    whose = (
        "your finished tasks" if most == limits.bytes_per_identity else "your finished tasks while the store is full"
    )
    message = f"Of {whose} {most} bytes are kept, and there are {size}: the oldest are forgotten in {wait} seconds"
    details = {"reason": "task_bytes", "size": size, "limit": most, "retry_after": wait}
    raise CallError("RESOURCE_EXHAUSTED", message, details)


def unexpired(kept: Mapping[int, int], now: int) -> dict[int, int]:
    """The bytes of the hours that are still to come."""
    return {hour: size for hour, size in kept.items() if hour * HOUR > now}
