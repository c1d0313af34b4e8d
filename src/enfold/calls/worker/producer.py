"""A stream as its worker sends it: numbered frames within the room the caller gave, kept until they are taken."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from itertools import islice
from typing import Any, Final, TypeAlias

from enfold.calls.protocol.call_settings import CallSettings
from enfold.calls.protocol.events import MAX_CREDITS
from enfold.calls.protocol.transport import DisconnectedError, OverloadedError

REMEMBERED: Final = 64

Publish: TypeAlias = Callable[[bytes], Coroutine[Any, Any, None]]


class Producer:
    """What has been sent, what may be sent, and what would have to be sent again.

    The caller has always given room for `window` items more than they have consumed: so `limit - window` are consumed.
    """

    def __init__(self, window: int, settings: CallSettings, publish: Publish, now: float) -> None:
        self.heard_at = now
        self.last = 0  # the number of the newest item
        self._window = window
        self._window_bytes = settings.window_bytes
        self._publish = publish
        self._limit = window
        self._next = 1  # the number to be sent next
        self._kept: deque[bytes] = deque()  # the newest items, sent or not, up to `last`
        self._on_the_way = 0  # bytes that are not consumed yet
        self._heard: deque[str] = deque(maxlen=REMEMBERED)
        self._final: bytes | None = None
        self._is_final_sent = False
        self._is_sending = False
        self._waiter: asyncio.Future[None] | None = None

    def is_new(self, event_id: str) -> bool:
        """Whether an event of the caller is heard for the first time: a credit given once must not count twice."""
        if event_id in self._heard:
            return False
        self._heard.append(event_id)
        return True

    @property
    def has_room(self) -> bool:
        return self.last < self._limit and self._on_the_way < self._window_bytes

    async def room(self) -> None:
        """Wait until the caller has room for one more."""
        while not self.has_room:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    async def put(self, frame: bytes) -> None:
        """Send the next item."""
        self.last += 1
        self._kept.append(frame)
        self._on_the_way += len(frame)
        await self.flush()

    async def finish(self, frame: bytes) -> None:
        """Send what ends the stream, which needs no room."""
        self._final, self._is_final_sent = frame, False
        await self.flush()

    def grant(self, n: int) -> None:
        """There is room for so many more."""
        self._move_limit(self._limit + n)

    def resume(self, from_seq: int, n: int) -> bool:
        """Go back to an item, with so much room from there on; False where it is not kept any more."""
        if from_seq > self.last + 1:
            return True  # what was never sent cannot be missing
        if from_seq < self._first:
            return False
        self._next = from_seq
        self._is_final_sent = False
        self._move_limit(from_seq - 1 + n)
        return True

    def _move_limit(self, limit: int) -> None:
        self._limit = min(limit, self.last + MAX_CREDITS)
        consumed = self._limit - self._window
        # One window longer than needed: a credit that came late, after a `resume`, tells of too much.
        while self._kept and self._first <= consumed - self._window:
            self._kept.popleft()
        first = max(0, consumed - self._first + 1)
        self._on_the_way = sum(len(frame) for frame in islice(self._kept, first, None))
        if self._waiter is not None and not self._waiter.done() and self.has_room:
            self._waiter.set_result(None)

    async def flush(self) -> None:
        """Send whatever may be sent. One that is lost, or cannot leave, is asked for again by the caller."""
        if self._is_sending:
            return
        self._is_sending = True
        try:
            while (frame := self._next_frame()) is not None:
                await self._publish(frame)
        except (DisconnectedError, OverloadedError):
            return
        finally:
            self._is_sending = False

    @property
    def _first(self) -> int:
        return self.last - len(self._kept) + 1

    def _next_frame(self) -> bytes | None:
        if self._next <= min(self.last, self._limit):
            frame = self._kept[self._next - self._first]
            self._next += 1
            return frame
        if self._final is None or self._is_final_sent or self._next <= self.last:
            return None
        self._is_final_sent = True
        return self._final
