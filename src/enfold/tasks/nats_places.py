"""How many unfinished tasks each owner has on NATS: a key for every one of them, which the task's end takes away.

Edges count by themselves: together they may let in a few too many. Whoever dies between taking a place and storing its
task leaves the place behind; it is given up when somebody misses it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final
from weakref import WeakValueDictionary

from enfold.tasks.nats_bucket import Streams
from enfold.tasks.nats_names import owner_token
from enfold.tasks.store import limit_reached, now_ms
from enfold.tasks.task import Order

LEFT_AFTER: Final = 60.0  # seconds after which a place without a task is nobody's
MOST_REMEMBERED: Final = 10_000

IsOpen = Callable[[str, str], Awaitable[bool]]  # whether a task (by the token of its owner, and its id) is unfinished


class Places:
    """The places of all owners; `is_open` looks at one task."""

    def __init__(self, streams: Streams, is_open: IsOpen) -> None:
        self._streams = streams
        self._is_open = is_open
        self._counting: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._looked: dict[str, float] = {}  # when the places of an owner were last looked through

    async def take(self, order: Order, limit: int) -> None:
        """A place for a new task; RESOURCE_EXHAUSTED where its owner has no more."""
        owner = owner_token(order.owner)
        lock = self._counting.setdefault(owner, asyncio.Lock())
        async with lock:
            taken = await self._streams.keys(f"{owner}.*.open")
            if len(taken) >= limit and not await self._give_up_left(owner, taken):
                raise limit_reached(limit)
            seconds = (order.deadline - now_ms()) / 1000
            await self._streams.write(f"{owner}.{order.id}.open", str(now_ms()).encode(), None, seconds)

    async def end(self, owner: str, task_id: str) -> None:
        await self._streams.remove(f"{owner_token(owner)}.{task_id}.open")

    async def _give_up_left(self, owner: str, taken: list[str]) -> bool:
        """Take away the places that nobody has any more; whether there were such. Seldom: it costs two reads for each."""
        now, before, found = time.monotonic(), now_ms() - LEFT_AFTER * 1000, False
        if now - self._looked.get(owner, -LEFT_AFTER) < LEFT_AFTER:
            return False
        if len(self._looked) > MOST_REMEMBERED:
            self._looked.clear()
        self._looked[owner] = now
        for key in taken:
            place = await self._streams.read(key)
            is_old = place is not None and (not place.value.isdigit() or int(place.value) < before)
            if is_old and not await self._is_open(owner, key.split(".")[1]):
                await self._streams.remove(key)
                found = True
        return found
