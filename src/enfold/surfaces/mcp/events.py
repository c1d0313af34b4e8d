"""A stream of server-sent events between those who write it and the connection that carries it away."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from enfold.mcp.messages import encode

__all__ = ["EventStream", "Put", "event_place"]

Put: TypeAlias = Callable[[bytes], Awaitable[None]]

HEARTBEAT: Final = 15.0
RETRY_MS: Final = 500
# Notifications beyond this are dropped for a client that does not read; its answer never is.
MOST_WAITING: Final = 1_000

_COMMENT: Final = b":\n\n"


class EventStream:
    """Messages in their order; a stream that is kept can be taken up again after any of its events."""

    def __init__(self, *, is_kept: bool = False) -> None:
        self.id = os.urandom(8).hex()
        self._is_kept = is_kept
        self._events: deque[bytes] = deque()
        self._first = 0  # the number of the oldest event there is
        self.size = 0  # in bytes
        self._is_ended = False
        self._wake = asyncio.Event()
        self._carrier = 0  # each connection that takes over sends the one before it home
        if is_kept:
            # A first event without data, so that a client has an id to come back with before anything is said.
            self._append(b"retry: %d\ndata: \n\n" % RETRY_MS)

    def send(self, message: dict[str, Any], *, is_last: bool = False) -> None:
        if self._is_ended or (len(self._events) >= MOST_WAITING and not is_last and not self._make_room()):
            return
        self._append(b"data: %b\n\n" % encode(message))
        self._is_ended = is_last

    def end(self) -> None:
        """There is no more to say."""
        self._is_ended = True
        self._wake.set()

    def let_go(self) -> None:
        """Send the connection home; the client comes back with the last event it saw."""
        if self._is_kept:
            self._carrier += 1
            self._wake.set()

    async def carry(self, put: Put, after: int = -1) -> None:
        """Put every event after one on a connection, with signs of life in between, until all is said."""
        self._carrier += 1
        carrier, number = self._carrier, max(after + 1, self._first)
        while True:
            self._wake.clear()
            number = max(number, self._first)
            while number < self._first + len(self._events):
                await put(self._events[number - self._first])
                number += 1
                self._forget(number)
            if self._is_ended or carrier != self._carrier:
                return
            if not await self._is_woken():
                await put(_COMMENT)

    async def _is_woken(self) -> bool:
        try:
            async with asyncio.timeout(HEARTBEAT):
                await self._wake.wait()
        except TimeoutError:
            return False
        return True

    def _append(self, event: bytes) -> None:
        number = self._first + len(self._events)
        head = b"id: %b-%d\n" % (self.id.encode(), number) if self._is_kept else b""
        self._events.append(b"event: message\n" + head + event)
        self.size += len(self._events[-1])
        self._wake.set()

    def _forget(self, before: int) -> None:
        if not self._is_kept:
            while self._first < before and self._events:
                self._drop_first()

    def _make_room(self) -> bool:
        """A kept stream forgets its oldest event, which has most likely been read."""
        if self._is_kept:
            self._drop_first()
        return self._is_kept

    def _drop_first(self) -> None:
        self.size -= len(self._events.popleft())
        self._first += 1


def event_place(event_id: bytes) -> tuple[str, int] | None:
    """The stream and the number in the id of an event; None where it is not one of ours."""
    stream, _, number = event_id.decode("latin-1").rpartition("-")
    return (stream, int(number)) if number.isascii() and number.isdigit() and len(number) < 12 else None
