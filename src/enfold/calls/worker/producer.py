"""A stream at its worker: numbered frames, sent within the caller's credit and kept until they are consumed."""

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
    """The frames of one stream: sent, waiting for credit, and kept to be sent again.

    A caller always grants `window` items more than they have consumed: so `limit - window` are consumed.
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
        self._unconsumed_bytes = 0  # bytes that are not consumed yet
        self._heard: deque[str] = deque(maxlen=REMEMBERED)
        self._final: bytes | None = None
        self._is_final_sent = False
        self._is_sending = False
        self._waiter: asyncio.Future[None] | None = None

    def is_new(self, event_id: str) -> bool:
        """Whether an event of the caller is no duplicate: a credit must not count twice."""
        if event_id in self._heard:
            return False
        self._heard.append(event_id)
        return True

    @property
    def has_credit(self) -> bool:
        return self.last < self._limit and self._unconsumed_bytes < self._window_bytes

    async def wait_for_credit(self) -> None:
        """Wait until one more item may be sent."""
        while not self.has_credit:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    async def put(self, frame: bytes) -> None:
        """Send the next item."""
        self.last += 1
        self._kept.append(frame)
        self._unconsumed_bytes += len(frame)
        await self.flush()

    async def finish(self, frame: bytes) -> None:
        """Send the last event of the stream, which needs no credit."""
        self._final, self._is_final_sent = frame, False
        await self.flush()

    def grant(self, n: int) -> None:
        """Add credit for `n` items."""
        self._move_limit(self._limit + n)

    def resume(self, from_seq: int, n: int) -> bool:
        """Send again from an item, with credit for `n` from there on; False where it is not kept any more."""
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
        self._unconsumed_bytes = sum(len(frame) for frame in islice(self._kept, first, None))
        if self._waiter is not None and not self._waiter.done() and self.has_credit:
            self._waiter.set_result(None)

    async def flush(self) -> None:
        """Send what the credit allows. A frame that gets lost is asked for again by the caller."""
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
