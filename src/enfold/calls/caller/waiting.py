"""The state of one pending call or stream at its caller: what was received, what is missing, when it is over. No I/O."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Self

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
    envelope_of,
)
from enfold.calls.protocol.settings import CallSettings
from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError, FormatError
from enfold.operations.idempotency import in_progress


class WaitingCall(msgspec.Struct, eq=False):
    """A pending call: its deadline, when its worker was last heard, that worker's control subject, and how it ended."""

    request: Requested
    subject: str
    deadline: float | None
    silence: float  # how long is too long
    heard_at: float
    idempotent: bool = False
    control: str | None = None
    result: ResponseEnvelope[Any] | None = None
    error: CallError | None = None
    is_over: bool = False
    is_aborted: bool = False  # by our own side
    has_answered: bool = False  # a worker was heard
    waiter: asyncio.Future[None] | None = None

    @property
    def has_begun(self) -> bool:
        """Whether its caller can go on before the end: true of a stream that a worker has accepted."""
        return False

    @property
    def operation_id(self) -> str:
        return self.request.operation_id

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def is_retryable(self) -> bool:
        """Whether its caller may make it again although it may have started."""
        return self.idempotent or self.request.idempotency_key is not None

    def timed_out(self) -> CallError:
        """The error at its deadline; with an idempotency key its worker goes on."""
        if self.request.idempotency_key is not None:
            return in_progress()
        return failures.timed_out(self.operation_id, idempotent=self.idempotent)

    def again(self, request: Requested, silence: float, now: float) -> Self:
        """The state of another attempt at the same request."""
        return type(self)(request, self.subject, self.deadline, silence, now, self.idempotent)

    def hear(self, payload: Payload, reply: str | None, now: float, size: int = 0) -> None:
        """Take an event of the worker; one that comes from another worker (another control subject) is ignored."""
        if (reply is not None or type(payload) is Accepted) and not self._is_from_worker(payload, reply):
            return
        if self.is_over:
            return
        self.heard_at = now
        self.has_answered = True
        if type(payload) is Responded or type(payload) is Completed:
            self._take(payload, now, size)
        elif type(payload) is Failed:
            self.fail(call_error(payload))

    def _is_from_worker(self, payload: Payload, reply: str | None) -> bool:
        """Whether an event comes from the worker that answered first, whose control subject is remembered."""
        control = payload.control or reply if isinstance(payload, Accepted) else reply
        if control is None or not control.startswith("ctl."):
            return True
        if self.control is None:
            self.control = control
            self._wake()
        return control == self.control

    def _take(self, payload: Responded | Completed, now: float, size: int) -> None:
        del size
        if type(payload) is not Responded:
            return
        if payload.seq is not None:
            self.fail(CallError("INVALID_OPERATION_TYPE", f"{self.operation_id} is a subscription: subscribe to it"))
            return
        try:
            self.take_result(envelope_of(payload), now)
        except FormatError as error:
            self.fail(CallError("UNKNOWN_ERROR", f"The answer of {self.operation_id} cannot be read: {error}"))

    def take_result(self, result: ResponseEnvelope[Any], now: float) -> None:
        """End with a result, unless it has ended; a worker of the same process gives it as a value."""
        if not self.is_over:
            self.heard_at = now
            self.has_answered = True
            self.result = result
            self.is_over = True
            if self.waiter is not None:
                self._wake()

    def fail(self, error: CallError) -> None:
        """End it with an error, unless it has ended: the first end counts."""
        if not self.is_over:
            self.error = error
            self._end()

    def check(self, now: float) -> None:
        """End it when its time is over, or when nobody has been heard for too long."""
        if self.deadline is not None and now >= self.deadline:
            self.fail(self.timed_out())
        elif now - self.heard_at > self.silence:
            self.fail(failures.silent(self.operation_id, retryable=self.is_retryable))

    def change(self) -> asyncio.Future[None]:
        """A future that is done with the next change: an event of the worker, or the end."""
        self.waiter = asyncio.get_running_loop().create_future()
        return self.waiter

    def _end(self) -> None:
        self.is_over = True
        if self.waiter is not None:
            self._wake()

    def _wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class WaitingStream(WaitingCall, eq=False, kw_only=True):
    """A stream: items in order, without a gap, or an error that says so.

    The producer may be at most a window ahead of what has been consumed. Whatever is lost on the way, items or
    credits, is made good by asking again from the first missing item, and granting anew the room there is.
    """

    window: int
    settings: CallSettings
    idle: float | None = None  # seconds that may pass without an item
    event_id: str | None = None
    _items: deque[tuple[ResponseEnvelope[Any], str | None, int]] = msgspec.field(default_factory=deque)
    _expected: int = 1
    _consumed: int = 0
    _consumed_bytes: int = 0  # since room was last given back
    _granted: int = 0  # how much of what was consumed has been given back as credit
    _gap_since: float | None = None
    _took_at: float = 0.0
    _spoke_at: float = 0.0
    _idle_since: float = 0.0

    def __post_init__(self) -> None:
        self._took_at = self._spoke_at = self._idle_since = self.heard_at

    def again(self, request: Requested, silence: float, now: float) -> Self:
        return type(self)(
            request,
            self.subject,
            self.deadline,
            silence,
            now,
            self.idempotent,
            window=self.window,
            settings=self.settings,
            idle=self.idle,
        )

    @property
    def has_begun(self) -> bool:
        return self.control is not None or bool(self._items)

    @property
    def has_items(self) -> bool:
        return bool(self._items)

    def next_item(self) -> ResponseEnvelope[Any]:
        """The oldest item; to consume it is what earns the producer new credit."""
        envelope, self.event_id, size = self._items.popleft()
        self._consumed += 1
        self._consumed_bytes += size
        return envelope

    def credit_due(self) -> Credit | None:
        """The credit to grant, once half the window is consumed, in items or in bytes."""
        room = self._consumed - self._granted
        is_half = room >= self.window // 2 or self._consumed_bytes >= self.settings.window_bytes // 2
        if self.control is None or not room or not is_half or self._gap_since is not None:
            return None
        self._granted, self._consumed_bytes = self._consumed, 0
        return Credit(self.request_id, room)

    def take_result(self, result: ResponseEnvelope[Any], now: float) -> None:
        del result, now
        self.fail(CallError("INVALID_OPERATION_TYPE", f"{self.operation_id} is no subscription: call it"))

    def _take(self, payload: Responded | Completed, now: float, size: int) -> None:
        if isinstance(payload, Responded) and payload.seq is not None:
            self._take_item(payload, payload.seq, now, size)
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
            self._items.append((envelope_of(payload), payload.event_id, size))
        except FormatError as error:
            self.fail(CallError("UNKNOWN_ERROR", f"An item of {self.operation_id} cannot be read: {error}"))
            return
        self._expected += 1
        self._gap_since = None
        self._took_at = self._idle_since = now
        self._wake()

    def _miss(self, now: float) -> None:
        if self._gap_since is None:
            self._gap_since = now
            self._spoke_at = 0.0  # ask at the next tick

    def check(self, now: float) -> None:
        if self._items:
            self._idle_since = now  # it is the consumer who takes their time
        if self._gap_since is not None and now - self._gap_since > self.silence:
            message = f"Items of {self.operation_id} were lost after item {self._expected - 1}"
            self.fail(CallError("DATA_LOSS", message, {"seq": self._expected}))
        elif self.idle is not None and now - self._idle_since > self.idle:
            self.fail(failures.idle(self.operation_id, self.idle))
        else:
            WaitingCall.check(self, now)

    def speak(self, now: float, *, at_once: bool = False) -> Payload | None:
        """The control event that is due now: a heartbeat, or, where items are missing or late, a resume."""
        if self.control is None or (now - self._spoke_at < self.settings.heartbeat and not at_once):
            return None
        self._spoke_at = now
        room = self.window - len(self._items)
        if room and (at_once or self._gap_since is not None or now - self._took_at >= self.settings.heartbeat):
            self._granted, self._consumed_bytes = self._consumed, 0
            return Resume(self.request_id, self._expected, room)
        return Heartbeat(self.request_id)
