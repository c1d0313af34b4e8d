"""What is kept of each owner's finished tasks on NATS: every process writes its own sums, by hour, and reads everybody's.

A process is the only one that writes its keys, so that nobody waits for another. What others have written is read again
after some seconds: until then a few tasks too many may be let in.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Final

from enfold.calls.protocol.transport import TransportError
from enfold.errors import CallError
from enfold.tasks.kept_bytes import OVERHEAD, TaskLimits, check_kept_bytes, hour_of, is_much, not_forgotten
from enfold.tasks.nats_bucket import Streams
from enfold.tasks.nats_names import owner_token
from enfold.tasks.store import now_ms
from enfold.tasks.task import Order, Task

READ_AGAIN: Final = 5.0  # seconds
MOST_REMEMBERED: Final = 10_000

_Sums = dict[int, int]  # bytes, by the hour in which they are forgotten


class Ledger:
    """The bytes of all owners; `name` is this process's own."""

    def __init__(self, streams: Streams, name: str) -> None:
        self._streams = streams
        self._name = name
        self._own: dict[str, _Sums] = {}
        self._read: dict[str, tuple[float, _Sums]] = {}  # what others had, and when

    async def add(self, task: Task, size: int, seconds: float) -> None:
        """Count a task that has ended, and is kept for so many seconds."""
        from nats.errors import Error

        owner, hour = owner_token(task.owner), hour_of(task.order)
        if owner not in self._own and len(self._own) >= MOST_REMEMBERED:
            self._own.clear()  # and with it the name under which they were written
            self._name = f"{self._name}a"
        sums = self._own[owner] = not_forgotten(self._own.get(owner, {}), now_ms())
        sums[hour] = sums.get(hour, 0) + size + OVERHEAD
        with suppress(Error, TransportError, CallError, OSError, TimeoutError):  # the next one writes the sum of both
            await self._streams.write(f"{owner}.bytes.{self._name}.{hour}", str(sums[hour]).encode(), None, seconds)

    async def check(self, order: Order, limits: TaskLimits) -> None:
        """RESOURCE_EXHAUSTED where too much is kept of the owner's tasks."""
        owner, now = owner_token(order.owner), now_ms()
        kept = await self._kept(owner)
        if is_much(kept, limits, now):
            check_kept_bytes(kept, await self._streams.held_bytes(), limits, now)

    async def _kept(self, owner: str) -> _Sums:
        read_at, others = self._read.get(owner, (-READ_AGAIN, {}))
        if time.monotonic() - read_at >= READ_AGAIN:
            if len(self._read) >= MOST_REMEMBERED:
                self._read.clear()
            others = await self._of_others(owner)
            self._read[owner] = time.monotonic(), others
        own = self._own.get(owner, {})
        return {hour: others.get(hour, 0) + own.get(hour, 0) for hour in others.keys() | own.keys()}

    async def _of_others(self, owner: str) -> _Sums:
        keys = await self._streams.keys(f"{owner}.bytes.*.*")
        keys = [key for key in keys if key.split(".")[2] != self._name]
        sums: _Sums = {}
        for key, version in zip(keys, await asyncio.gather(*map(self._streams.read, keys)), strict=True):
            hour = key.rpartition(".")[2]
            if version is not None and version.value.isdigit() and hour.isdigit():
                sums[int(hour)] = sums.get(int(hour), 0) + int(version.value)
        return sums
