"""Sends a worker's responses: at once, or after a reconnection while the caller still waits."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from enfold.calls.protocol import failures
from enfold.calls.protocol.connection import Background
from enfold.calls.protocol.events import (
    MAX_CREDITS,
    Failed,
    Payload,
    Responded,
    event_ids,
    write_event,
)
from enfold.calls.protocol.settings import CallSettings
from enfold.calls.protocol.transport import (
    DisconnectedError,
    OverloadedError,
    Signal,
    Transport,
    TransportError,
)
from enfold.errors import FormatError
from enfold.observability.log import Log
from enfold.schema.plain import unwritable

if TYPE_CHECKING:
    from enfold.calls.worker.admission import ServedCall

_log: Final = Log("enfold.calls")


class AnswerSender:
    """Publishes the events of a worker to its callers."""

    def __init__(self, transport: Transport, settings: CallSettings) -> None:
        self._transport = transport
        self._pause = settings.tick
        self._ids = event_ids()
        self._connected = asyncio.Event()
        self._connected.set()
        self._background = Background()

    async def send(self, call: ServedCall, event: bytes) -> None:
        """Send the response of a call, after a reconnection if its caller still waits."""
        while True:
            try:
                await self._transport.publish(call.reply, event)
            except (DisconnectedError, OverloadedError):
                if call.context is None or call.context.cancelled:
                    return
                await self._wait_for_connection(call.context.remaining())
            except TransportError as error:
                _log.warning("The response of %s could not be sent: %s", call.operation_id, error)
                return
            else:
                return

    async def try_send(self, subject: str, payload: Payload, control: str | None = None) -> None:
        """Publish an event on a best-effort basis."""
        try:
            await self._transport.publish(subject, self.written(payload), reply=control)
        except TransportError as error:
            _log.debug("An event was not sent: %s", error)

    def written(self, payload: Payload, operation_id: str = "") -> bytes:
        """Encode an event; raises the CallError of a result that is not JSON or too large. An error loses such details."""
        try:
            event = write_event(next(self._ids), payload)
        except FormatError as error:
            fault = unwritable(payload.output if isinstance(payload, Responded) else None, error)
        else:
            limit = self._transport.capabilities.max_payload
            if len(event) <= limit:
                return event
            fault = failures.payload_too_large(operation_id, len(event), limit, "result")
        if isinstance(payload, Failed) and payload.details:
            return self.written(msgspec.structs.replace(payload, details={}))
        raise fault

    def send_soon(self, subject: str, payload: Payload, control: str | None = None) -> None:
        """Publish an event in the background, on a best-effort basis."""
        self.begin(self.try_send(subject, payload, control))

    def begin(self, publishing: Coroutine[Any, Any, None]) -> None:
        """Publish in the background."""
        self._background.begin(publishing)

    def on_signal(self, signal: Signal) -> None:
        if signal is Signal.LOST:
            self._connected.clear()
        elif signal is Signal.RESTORED:
            self._connected.set()

    async def close(self) -> None:
        """Wait briefly for pending publishes."""
        await self._background.settle()

    async def _wait_for_connection(self, left: float | None) -> None:
        """Wait for the connection while the caller waits.

        The transport may not have noticed the loss yet: the pause prevents a busy loop.
        """
        with suppress(TimeoutError):
            await asyncio.wait_for(self._connected.wait(), left)
        await asyncio.sleep(self._pause)


REMEMBERED: Final = 64

Publish: TypeAlias = Callable[[bytes], Coroutine[Any, Any, None]]


class Producer:
    """The frames of one stream: sent, waiting for credit, and kept for resends.

    A caller always grants `window` items more than it has consumed, so `limit - window` items are consumed.
    """

    def __init__(self, window: int, settings: CallSettings, publish: Publish, now: float) -> None:
        self.last_event_at = now
        self.last = 0  # the number of the newest item
        self._window = window
        self._window_bytes = settings.window_bytes
        self._publish = publish
        self._limit = window
        self._next = 1  # the number to be sent next
        self._kept: deque[bytes] = deque()  # the newest items, sent or not, up to `last`
        self._unconsumed_bytes = 0  # bytes that are not consumed yet
        self._seen: deque[str] = deque(maxlen=REMEMBERED)
        self._final: bytes | None = None
        self._is_final_sent = False
        self._is_sending = False
        self._waiter: asyncio.Future[None] | None = None

    def is_new(self, event_id: str) -> bool:
        """Whether an event of the caller is no duplicate; credit must not count twice."""
        if event_id in self._seen:
            return False
        self._seen.append(event_id)
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
        """Resend from an item, with credit for `n` items; False if that item is no longer kept."""
        if from_seq > self.last + 1:
            return True  # never sent
        if from_seq < self._first:
            return False
        self._next = from_seq
        self._is_final_sent = False
        self._move_limit(from_seq - 1 + n)
        return True

    def _move_limit(self, limit: int) -> None:
        self._limit = min(limit, self.last + MAX_CREDITS)
        consumed = self._limit - self._window
        # Keep one window more than needed: a late credit that arrives after a `resume` counts too much.
        while self._kept and self._first <= consumed - self._window:
            self._kept.popleft()
        first = max(0, consumed - self._first + 1)
        self._unconsumed_bytes = sum(len(frame) for frame in islice(self._kept, first, None))
        if self._waiter is not None and not self._waiter.done() and self.has_credit:
            self._waiter.set_result(None)

    async def flush(self) -> None:
        """Send what the credit allows; the caller requests lost frames again."""
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
