"""The state of one pending call or stream at its caller. No I/O."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import msgspec

from enfold.calls.protocol import failures
from enfold.calls.protocol.events import (
    Accepted,
    Completed,
    Credit,
    Failed,
    Heartbeat,
    Payload,
    Requested,
    Responded,
    Resume,
    call_error,
    read_envelope,
)
from enfold.calls.protocol.settings import CallSettings
from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError, FormatError
from enfold.operations.idempotency import in_progress


class WaitingCall(msgspec.Struct, eq=False):
    """A pending call: its deadline, its worker's last event and control subject, and its outcome."""

    request: Requested
    changed: asyncio.Future[None]  # completes when the caller can continue
    deadline: float | None
    silence: float  # seconds without an event after which the worker counts as gone
    last_event_at: float
    idempotent: bool = False
    control: str | None = None
    result: ResponseEnvelope[Any] | None = None
    error: CallError | None = None
    is_over: bool = False
    is_aborted: bool = False  # on this side
    has_answered: bool = False  # a worker has sent an event
    has_begun: bool = False  # the caller can continue before the end: a worker has accepted the stream

    @property
    def operation_id(self) -> str:
        return self.request.operation_id

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def is_retryable(self) -> bool:
        """Whether the caller may retry it although it may have started."""
        return self.idempotent or self.request.idempotency_key is not None

    def timed_out(self) -> CallError:
        """Return the error at the deadline; with an idempotency key the worker continues."""
        if self.request.idempotency_key is not None:
            return in_progress()
        return failures.timed_out(self.operation_id, idempotent=self.idempotent)

    def on_event(self, payload: Payload, reply: str | None, now: float, size: int = 0) -> None:
        """Handle an event of the worker; events of another worker are ignored."""
        if (reply is not None or type(payload) is Accepted) and not self._is_from_worker(payload, reply):
            return
        if self.is_over:
            return
        self.last_event_at = now
        self.has_answered = True
        if type(payload) is Responded or type(payload) is Completed:
            self._take(payload, now, size)
        elif type(payload) is Failed:
            self.fail(call_error(payload))

    def _is_from_worker(self, payload: Payload, reply: str | None) -> bool:
        """Whether an event comes from the worker that answered first, by its control subject."""
        control = payload.control or reply if isinstance(payload, Accepted) else reply
        if control is None or not control.startswith("ctl."):
            return True
        if self.control is None:
            self.control = control
            self._begin()
        return control == self.control

    def _begin(self) -> None:
        """The worker is known."""

    def _take(self, payload: Responded | Completed, now: float, size: int) -> None:
        del now, size
        if type(payload) is not Responded:
            return
        if payload.seq is not None:
            self.fail(CallError("INVALID_OPERATION_TYPE", f"{self.operation_id} is a subscription: use subscribe()"))
            return
        try:
            self.result = read_envelope(payload)
        except FormatError as error:
            self.fail(CallError("UNKNOWN_ERROR", f"The response of {self.operation_id} is invalid: {error}"))
        else:
            self._end()

    def fail(self, error: CallError) -> None:
        """End with an error, unless it has ended."""
        if not self.is_over:
            self.error = error
            self._end()

    def excuse(self, seconds: float, now: float) -> None:
        """Leave out the time in which our own event loop was blocked: events of the worker could not be read."""
        self.last_event_at = min(now, self.last_event_at + seconds)

    def check(self, now: float) -> None:
        """End the call at its deadline, or when its worker no longer responds."""
        if self.deadline is not None and now >= self.deadline:
            self.fail(self.timed_out())
        elif now - self.last_event_at > self.silence:
            self.fail(failures.silent(self.operation_id, retryable=self.is_retryable))

    def _end(self) -> None:
        self.is_over = True
        if not self.changed.done():
            self.changed.set_result(None)


class WaitingStream(WaitingCall, eq=False, kw_only=True):
    """A pending stream: items in order and without gaps, or an error.

    Backpressure: the producer may be at most one window ahead of the consumer. Lost items and credits are recovered by a
    resume from the first missing item, which grants the credit anew.
    """

    window: int
    settings: CallSettings
    idle: float | None = None  # limit of seconds without an item
    event_id: str | None = None
    _items: deque[tuple[ResponseEnvelope[Any], str | None, int]] = msgspec.field(default_factory=deque)
    _expected: int = 1
    _consumed: int = 0
    _consumed_bytes: int = 0  # since credit was last granted
    _granted: int = 0  # consumed items that were granted again as credit
    _gap_since: float | None = None
    _took_at: float = 0.0
    _last_sent_at: float = 0.0
    _idle_since: float = 0.0

    def __post_init__(self) -> None:
        self._took_at = self._last_sent_at = self._idle_since = self.last_event_at

    def _begin(self) -> None:
        self.has_begun = True
        if not self.changed.done():
            self.changed.set_result(None)

    def change(self) -> asyncio.Future[None]:
        """Return a future that completes with the next item or the end."""
        self.changed = asyncio.get_running_loop().create_future()
        return self.changed

    @property
    def has_items(self) -> bool:
        return bool(self._items)

    def next_item(self) -> ResponseEnvelope[Any]:
        """Take the oldest item; consuming it frees credit for the producer."""
        envelope, self.event_id, size = self._items.popleft()
        self._consumed += 1
        self._consumed_bytes += size
        return envelope

    def credit_due(self) -> Credit | None:
        """Return the credit to grant, once half of the window is consumed, in items or bytes."""
        room = self._consumed - self._granted
        is_half = room >= self.window // 2 or self._consumed_bytes >= self.settings.window_bytes // 2
        if self.control is None or not room or not is_half or self._gap_since is not None:
            return None
        self._granted, self._consumed_bytes = self._consumed, 0
        return Credit(self.request_id, room)

    def _take(self, payload: Responded | Completed, now: float, size: int) -> None:
        if isinstance(payload, Responded) and payload.seq is not None:
            self._take_item(payload, payload.seq, now, size)
        elif isinstance(payload, Responded):
            self.fail(CallError("INVALID_OPERATION_TYPE", f"{self.operation_id} is not a subscription: use execute()"))
        elif isinstance(payload, Completed):
            if payload.seq == self._expected - 1:
                self._end()
            else:
                self._miss(now)

    def _take_item(self, payload: Responded, seq: int, now: float, size: int) -> None:
        if seq < self._expected:
            return
        if seq > self._expected or len(self._items) >= self.window:
            self._miss(now)
            return
        try:
            self._items.append((read_envelope(payload), payload.event_id, size))
        except FormatError as error:
            self.fail(CallError("UNKNOWN_ERROR", f"An item of {self.operation_id} is invalid: {error}"))
            return
        self._expected += 1
        self._gap_since = None
        self._took_at = self._idle_since = now
        self._begin()

    def _miss(self, now: float) -> None:
        if self._gap_since is None:
            self._gap_since = now
            self._last_sent_at = 0.0  # resume at the next tick

    def excuse(self, seconds: float, now: float) -> None:
        WaitingCall.excuse(self, seconds, now)
        self._idle_since = min(now, self._idle_since + seconds)
        if self._gap_since is not None:
            self._gap_since = min(now, self._gap_since + seconds)

    def check(self, now: float) -> None:
        if self._items:
            self._idle_since = now  # the consumer is slow, not the producer
        if self._gap_since is not None and now - self._gap_since > self.silence:
            message = f"Items of {self.operation_id} were lost after item {self._expected - 1}"
            self.fail(CallError("DATA_LOSS", message, {"seq": self._expected}))
        elif self.idle is not None and now - self._idle_since > self.idle:
            self.fail(failures.idle(self.operation_id, self.idle))
        else:
            WaitingCall.check(self, now)

    def due_control(self, now: float, *, at_once: bool = False) -> Payload | None:
        """Return the control event that is due: a heartbeat, or a resume if items are missing or late."""
        if self.control is None or (now - self._last_sent_at < self.settings.heartbeat and not at_once):
            return None
        self._last_sent_at = now
        room = self.window - len(self._items)
        if room and (at_once or self._gap_since is not None or now - self._took_at >= self.settings.heartbeat):
            self._granted, self._consumed_bytes = self._consumed, 0
            return Resume(self.request_id, self._expected, room)
        return Heartbeat(self.request_id)
