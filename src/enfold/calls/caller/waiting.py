"""Calls and streams as their caller waits for them: what has been heard, what is missing, when it is over. No I/O."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from enfold.calls.protocol import outcomes
from enfold.calls.protocol.call_settings import CallSettings
from enfold.calls.protocol.events import (
    Accepted,
    Completed,
    Credit,
    Failed,
    Heartbeat,
    Payload,
    Responded,
    Resume,
    call_error,
    envelope_of,
)
from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError, FormatError

__all__ = ["Waiting", "WaitingCall", "WaitingStream"]

Tell: TypeAlias = Callable[[str, Payload], None]  # an event to the worker, at its control subject


class Waiting:
    """What a call and a stream have in common: until when, since when silent, and where the worker listens."""

    __slots__ = (
        "control",
        "deadline",
        "error",
        "heard_at",
        "idempotent",
        "operation_id",
        "request_id",
        "result",
        "silence",
        "subject",
        "waiter",
    )

    def __init__(
        self,
        request_id: str,
        operation_id: str,
        subject: str,
        now: float,
        ttl: float | None,
        silence: float,
        idempotent: bool,
    ) -> None:
        self.request_id = request_id
        self.operation_id = operation_id
        self.subject = subject
        self.deadline = None if ttl is None else now + ttl
        self.idempotent = idempotent
        self.heard_at = now
        self.silence = silence  # how long is too long
        self.control: str | None = None
        self.result: ResponseEnvelope[Any] | None = None  # of a call
        self.error: CallError | None = None
        self.waiter: asyncio.Future[None] | None = None

    @property
    def is_over(self) -> bool:
        return self.error is not None

    def hear(self, payload: Payload, reply: str | None, now: float, size: int = 0) -> None:
        """Take an event of the worker; whether it is the right worker is seen at its control subject."""
        control = payload.control or reply if isinstance(payload, Accepted) else reply
        if control is not None and control.startswith("ctl."):
            if self.control is None:
                self.control = control
                self._wake()
            elif control != self.control:
                return
        if self.is_over:
            return
        self.heard_at = now
        if isinstance(payload, Failed):
            self.fail(call_error(payload))
        elif not isinstance(payload, Accepted | Heartbeat):
            self._take(payload, now, size)

    def _take(self, payload: Payload, now: float, size: int) -> None:
        raise NotImplementedError

    def fail(self, error: CallError) -> None:
        """End it with an error, unless it has ended: the first end counts."""
        if not self.is_over:
            self.error = error
            self._wake()

    def check(self, now: float) -> None:
        """End it when its time is over, or when nobody has been heard for too long."""
        if self.deadline is not None and now >= self.deadline:
            self.fail(outcomes.timed_out(self.operation_id, idempotent=self.idempotent))
        elif now - self.heard_at > self.silence:
            self.fail(outcomes.silent(self.operation_id, idempotent=self.idempotent))

    def change(self) -> asyncio.Future[None]:
        """What is done when something changes."""
        self.waiter = asyncio.get_running_loop().create_future()
        return self.waiter

    def _wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class WaitingCall(Waiting):
    """A call: it ends with the first result or error."""

    __slots__ = ()

    @property
    def is_over(self) -> bool:
        return self.result is not None or self.error is not None

    def _take(self, payload: Payload, now: float, size: int) -> None:
        del now, size
        if isinstance(payload, Responded) and payload.seq is not None:
            message = f"{self.operation_id} is a subscription: subscribe to it"
            self.fail(CallError("INVALID_OPERATION_TYPE", message))
        elif isinstance(payload, Responded):
            try:
                self.result = envelope_of(payload)
            except FormatError as error:
                self.error = CallError("UNKNOWN_ERROR", f"The answer of {self.operation_id} cannot be read: {error}")
            self._wake()


class WaitingStream(Waiting):
    """A stream: items in order, without a gap, or an error that says so.

    The producer may be at most a window ahead of what has been consumed. Whatever is lost on the way, items or
    credits, is made good by asking again from the first missing item, and granting anew the room there is.
    """

    __slots__ = (
        "_consumed",
        "_consumed_bytes",
        "_expected",
        "_gap_since",
        "_granted",
        "_items",
        "_settings",
        "_spoke_at",
        "_took_at",
        "event_id",
        "is_complete",
        "window",
    )

    def __init__(self, *args: Any, window: int, settings: CallSettings, **options: Any) -> None:
        super().__init__(*args, **options)
        self.window = window
        self.is_complete = False
        self.event_id: str | None = None
        self._settings = settings
        self._items: deque[tuple[ResponseEnvelope[Any], str | None, int]] = deque()
        self._expected = 1
        self._consumed = 0
        self._consumed_bytes = 0  # since room was last given back
        self._granted = 0  # how much of what was consumed has been given back as credit
        self._gap_since: float | None = None
        self._took_at = self._spoke_at = self.heard_at

    @property
    def is_over(self) -> bool:
        return self.is_complete or self.error is not None

    @property
    def has_items(self) -> bool:
        return bool(self._items)

    @property
    def has_begun(self) -> bool:
        return self._expected > 1

    def next_item(self) -> ResponseEnvelope[Any]:
        """The oldest item; taking it is what gives the producer room again."""
        envelope, self.event_id, size = self._items.popleft()
        self._consumed += 1
        self._consumed_bytes += size
        return envelope

    def credit_due(self) -> Credit | None:
        """The room to give back, once it is half the window, in items or in bytes."""
        room = self._consumed - self._granted
        is_half = room >= self.window // 2 or self._consumed_bytes >= self._settings.window_bytes // 2
        if self.control is None or not room or not is_half or self._gap_since is not None:
            return None
        self._granted, self._consumed_bytes = self._consumed, 0
        return Credit(self.request_id, room)

    def _take(self, payload: Payload, now: float, size: int) -> None:
        if isinstance(payload, Responded) and payload.seq is not None:
            self._take_item(payload, payload.seq, now, size)
        elif isinstance(payload, Completed):
            if payload.seq == self._expected - 1:
                self.is_complete = True
                self._wake()
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
        self._took_at = now
        self._wake()

    def _miss(self, now: float) -> None:
        if self._gap_since is None:
            self._gap_since = now
            self._spoke_at = 0.0  # ask at the next tick

    def check(self, now: float) -> None:
        if self._gap_since is not None and now - self._gap_since > self.silence:
            message = f"Items of {self.operation_id} were lost after item {self._expected - 1}"
            self.fail(CallError("DATA_LOSS", message, {"seq": self._expected}))
        else:
            super().check(now)

    def speak(self, now: float, *, at_once: bool = False) -> Payload | None:
        """What to tell the worker now: that we live, and, where nothing came, what we wait for."""
        if self.control is None or (now - self._spoke_at < self._settings.heartbeat and not at_once):
            return None
        self._spoke_at = now
        room = self.window - len(self._items)
        if room and (at_once or self._gap_since is not None or now - self._took_at >= self._settings.heartbeat):
            self._granted, self._consumed_bytes = self._consumed, 0
            return Resume(self.request_id, self._expected, room)
        return Heartbeat(self.request_id)
