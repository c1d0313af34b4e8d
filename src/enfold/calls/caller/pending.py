"""The caller: pending requests, each of which ends exactly once, by its deadline at the latest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import partial
from time import monotonic, time
from typing import Any, Final, Self, TypeAlias, TypeVar

import msgspec

from enfold.calls.caller.waiting import WaitingCall, WaitingStream
from enfold.calls.protocol import failures
from enfold.calls.protocol.connection import Background, ConnectOnce, Ticker
from enfold.calls.protocol.delegation import Sign
from enfold.calls.protocol.events import (
    MAX_CREDITS,
    Aborted,
    Completed,
    OtherVersionError,
    Payload,
    Requested,
    Responded,
    event_ids,
    failed,
    read_event,
    responded,
    write_event,
)
from enfold.calls.protocol.settings import (
    DEFAULT_TTL,
    NESTED_MARGIN,
    OFFER_REMEMBERED,
    CallSettings,
    Retry,
    retry_delay,
)
from enfold.calls.protocol.transport import (
    Message,
    ReplyAddresses,
    Signal,
    Subscription,
    Transport,
    TransportError,
    is_token,
    request_subject,
    try_publish,
)
from enfold.envelope import ResponseEnvelope, from_wire, is_response_envelope
from enfold.errors import CallError, FormatError
from enfold.observability import spans
from enfold.operations import Context, OperationSpec, OperationType, new_request_id

W = TypeVar("W", bound=WaitingCall)

MAX_SUBJECTS: Final = 10_000
MAX_ID: Final = 200  # NATS closes the connection if a line is longer


class PendingRequestMap:
    """Calls peers over a transport, and tracks the requests that have no response yet."""

    def __init__(
        self,
        transport: Transport,
        *,
        settings: CallSettings | None = None,
        retry: Retry | None = None,
        sign: Sign | None = None,
    ) -> None:
        self._transport = transport
        self._settings = settings or CallSettings()
        self._retry = retry or Retry()
        self._sign = sign
        self._ids = event_ids()
        self._prefix = ""
        self._waiting: dict[str, WaitingCall] = {}
        self._replies: ReplyAddresses | None = getattr(transport, "replies", None)
        if self._replies is not None:
            self._replies.are_wanted = True  # `respond` needs them
        self._aborted = AbortedCalls(self._send_to, self._settings.heartbeat)
        self._subjects: dict[str, str] = {}
        self._offered: dict[str, float] = {}  # until when an operation counts as offered
        self._background = Background()
        self._subscription: Subscription | None = None
        self._listening = ConnectOnce(self._listen)
        self._ticker = Ticker(self._settings.tick, self._tick)
        self._lost_timer: asyncio.TimerHandle | None = None
        self.malformed = 0

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __len__(self) -> int:
        return len(self._waiting)

    # calling

    async def call(
        self,
        operation_id: str,
        input: Mapping[str, Any],
        context: Context | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  # it travels with the call
        deadline: float | None = None,
        idempotent: bool = False,
        idempotency_key: str | None = None,
        provenance: dict[str, Any] | None = None,
    ) -> ResponseEnvelope[Any]:
        """Call a query or mutation; raises the CallError it ends with. `deadline` is in Unix milliseconds.

        A failed call is retried only if it certainly did not start or is `idempotent`. An `idempotency_key` does not cause a
        retry: the caller does not know whether the workers share a store.
        """
        ends_at = _end_of(context, timeout, deadline)
        if ends_at is None:
            ends_at = monotonic() + DEFAULT_TTL
        if self._subscription is None:
            await self._open(ends_at)
        request = Requested(
            new_request_id(),
            operation_id,
            input,
            _milliseconds_until(ends_at),
            parent_request_id=None if context is None else context.request_id,
            idempotency_key=idempotency_key,
            provenance=provenance,
        )
        attempt = partial(WaitingCall, deadline=ends_at, idempotent=idempotent)
        waiting = await self._request(attempt, request, context)
        if waiting.result is None:
            raise waiting.error or failures.aborted(operation_id)
        return waiting.result

    async def subscribe(
        self,
        operation_id: str,
        input: Mapping[str, Any],
        context: Context | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  # between items, which asyncio.timeout cannot count
        deadline: float | None = None,
        window: int | None = None,
        provenance: dict[str, Any] | None = None,
    ) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """Subscribe to an operation. Items arrive in order and without gaps; raises a CallError otherwise.

        `timeout` limits the seconds without an item. The stream ends without an error when it is aborted on this side.
        """
        ends_at, settings = _end_of(context, None, deadline), self._settings
        window = min(MAX_CREDITS, settings.window if window is None else window)
        if window < 1:
            raise CallError("VALIDATION_ERROR", "A stream needs a window of at least one item")
        if self._subscription is None:
            await self._open(ends_at)
        request = Requested(
            new_request_id(),
            operation_id,
            input,
            _milliseconds_until(ends_at),
            parent_request_id=None if context is None else context.request_id,
            credits=window,
            provenance=provenance,
            last_event_id=None if context is None else context.last_event_id,
        )
        attempt = partial(WaitingStream, deadline=ends_at, window=window, settings=settings, idle=timeout)
        waiting = await self._request(attempt, request, context)
        try:
            while True:
                while waiting.has_items and not waiting.is_aborted:
                    envelope = waiting.next_item()
                    if context is not None:
                        context.event_id = waiting.event_id
                    self._send_control(waiting, waiting.credit_due())
                    yield envelope
                if waiting.is_over:
                    break
                await waiting.change()
        finally:
            self._end(waiting)
        if waiting.error is not None and not waiting.is_aborted:
            raise waiting.error

    async def _request(self, new_attempt: Callable[..., W], request: Requested, context: Context | None) -> W:
        """Send a request until a call is over or a stream has begun; retry if that is safe. Failures become its error."""
        attempt, silence = 1, self._settings.silence
        subject = self._subjects.get(request.operation_id) or self._new_subject(request.operation_id)
        loop = asyncio.get_running_loop()
        while True:
            changed = loop.create_future()
            waiting = new_attempt(request=request, changed=changed, silence=silence, last_event_at=monotonic())
            self._waiting[request.request_id] = waiting
            try:
                if request.ttl_ms == 0:
                    waiting.fail(waiting.timed_out())
                else:
                    is_signed_or_traced = self._sign is not None or spans.inject is not None
                    headers = self._headers(request, context) if is_signed_or_traced else None
                    reply, data = self._prefix + request.request_id, write_event(next(self._ids), request)
                    await self._transport.send(subject, data, reply=reply, headers=headers)
                self._ticker.start()
                await waiting.changed
            except FormatError as error:
                waiting.fail(CallError("VALIDATION_ERROR", f"The input cannot be sent: {error}"))
            except TransportError as error:
                waiting.fail(failures.from_transport(waiting.operation_id, error))
            except BaseException:
                waiting.fail(failures.aborted(waiting.operation_id))
                raise
            finally:
                if waiting.is_over:
                    self._end(waiting)
            if waiting.error is None or waiting.has_begun:
                return waiting
            delay = retry_delay(self._retry, attempt, waiting.error, idempotent=waiting.idempotent)
            if delay is None or (waiting.deadline is not None and monotonic() + delay >= waiting.deadline):
                return waiting
            await asyncio.sleep(delay)
            attempt += 1
            ttl_ms = _milliseconds_until(waiting.deadline)
            request = msgspec.structs.replace(request, request_id=new_request_id(), ttl_ms=ttl_ms)
            if waiting.deadline is not None:  # a live worker acknowledges at once: further attempts wait less
                silence = self._settings.silence / 4

    def _headers(self, request: Requested, context: Context | None) -> Mapping[str, str] | None:
        headers = None if self._sign is None or context is None else self._sign(request, context, self._transport.name)
        trace = None if spans.inject is None else spans.inject()
        return {**(headers or {}), **trace} if trace else headers

    def remember(self, operation_id: str) -> None:
        """Note that an operation is offered: without workers it is UNAVAILABLE, not OPERATION_NOT_FOUND, for an hour."""
        self._offered[operation_id] = monotonic() + OFFER_REMEMBERED

    # answering

    def respond(
        self, request_id: str, output: Any, seq: int | None = None, event_id: str | None = None
    ) -> Awaitable[None]:
        """Respond to a request with an envelope: publishes `call.responded` to its caller.

        The request is one that this peer's transport has received, or a call of our own. An unknown id is ignored.
        """
        if not is_response_envelope(output):
            raise TypeError(f"The output must be a ResponseEnvelope, not {type(output).__name__}")
        return self._answer(responded(request_id, from_wire(output), seq, event_id))

    def emit_error(self, request_id: str, error: CallError) -> Awaitable[None]:
        """Respond with an error: publishes `call.error` to the caller."""
        return self._answer(failed(request_id, error))

    def complete(self, request_id: str, seq: int) -> Awaitable[None]:
        """End a stream after `seq` items: publishes `call.completed` to the caller."""
        return self._answer(Completed(request_id, seq))

    async def _answer(self, payload: Payload) -> None:
        request_id = payload.request_id
        replies = self._replies
        reply = None if replies is None else replies.find(request_id)
        if replies is None or reply is None:
            waiting = self._waiting.get(request_id)
            if waiting is not None:
                waiting.on_event(payload, None, monotonic())
            return
        try:
            await self._transport.publish(reply, write_event(next(self._ids), payload))
        except (FormatError, TransportError) as error:
            raise failures.unsent_answer(error) from error
        if not (isinstance(payload, Responded) and payload.seq is not None):
            replies.forget(request_id)

    # giving up

    def abort(self, request_id: str) -> None:
        """Abort a call: it ends immediately, and its worker receives an abort as soon as it is known."""
        waiting = self._waiting.get(request_id)
        if waiting is not None:
            waiting.is_aborted = True
            waiting.fail(failures.aborted(waiting.operation_id))

    async def close(self) -> None:
        """Abort all pending requests and unsubscribe."""
        for waiting in list(self._waiting.values()):
            waiting.fail(failures.aborted(waiting.operation_id))
        await self._wait_for_workers_of_aborted()
        self._ticker.stop()
        if self._lost_timer is not None:
            self._lost_timer.cancel()
            self._lost_timer = None
        subscription, self._subscription = self._subscription, None
        await self._listening.forget()
        await self._background.settle()
        if subscription is not None:
            await subscription.close()

    async def _wait_for_workers_of_aborted(self) -> None:
        """Wait briefly for unknown workers of aborted calls to acknowledge, so that they receive the abort."""
        ends_at = monotonic() + 2 * self._settings.accept_after + 2 * self._settings.tick
        await asyncio.sleep(0)  # let aborted callers finish
        while self._aborted.has_unknown_worker and monotonic() < ends_at:  # noqa: ASYNC110  # it is bounded and rare
            await asyncio.sleep(self._settings.tick)

    # one request

    def _new_subject(self, operation_id: str) -> str:
        """Return the subject for requests of an operation; raise OPERATION_NOT_FOUND if the id is malformed."""
        if len(operation_id) > MAX_ID or not all(is_token(token) for token in operation_id.split(".")):
            raise CallError("OPERATION_NOT_FOUND", f"Operation not found: {operation_id[:200]}")
        if len(self._subjects) >= MAX_SUBJECTS:
            self._subjects.clear()
        subject = self._subjects[operation_id] = request_subject(self._transport.name, operation_id)
        return subject

    def _end(self, waiting: WaitingCall) -> None:
        """Remove a request; abort it at a worker that may still run it."""
        if self._waiting.pop(waiting.request.request_id, None) is None:
            return
        if waiting.has_answered:
            self._offered[waiting.request.operation_id] = waiting.last_event_at + OFFER_REMEMBERED
        if waiting.is_over and (waiting.error is None or not may_still_run(waiting.error)):
            return
        self._aborted.add(waiting, monotonic())
        self._ticker.start()

    def _send_control(self, waiting: WaitingCall, payload: Payload | None) -> None:
        """Send a control event to the worker of a call in the background, best effort."""
        if waiting.control is not None and payload is not None:
            self._send_to(waiting.control, payload)

    def _send_to(self, control: str, payload: Payload) -> None:
        self._background.begin(try_publish(self._transport, control, write_event(next(self._ids), payload)))

    # listening

    async def _open(self, ends_at: float | None = None) -> None:
        """Connect, for a call only until it ends; raises UNAVAILABLE or TIMEOUT."""
        try:
            async with asyncio.timeout(None if ends_at is None else ends_at - monotonic()):
                await self._listening()
        except TransportError as error:
            raise CallError("UNAVAILABLE", f"Not connected: {error}", {"started": False}) from error
        except TimeoutError:
            raise CallError("TIMEOUT", "There was no connection before the timeout", {"started": False}) from None

    async def _listen(self) -> None:
        await self._transport.connect()
        self._prefix = f"{self._transport.inbox()}."
        self._subscription = await self._transport.subscribe(f"{self._prefix}*", self._receive)

    def _receive(self, message: Message) -> None:
        if message.signal is not None:
            self._on_signal(message.signal, message.subject)
            return
        request_id = message.subject[len(self._prefix) :]
        waiting = self._waiting.get(request_id)
        if waiting is None:
            self._aborted.on_event(request_id, message)
            return
        try:
            payload: Payload = read_event(message.data).payload
        except OtherVersionError as error:
            payload = failed(request_id, failures.unread_answer(error))
        except FormatError:
            self.malformed += 1
            return
        if payload.request_id == request_id:
            waiting.on_event(payload, message.reply, monotonic(), len(message.data))

    def _on_signal(self, signal: Signal, subject: str) -> None:
        if signal is Signal.NO_RESPONDERS or signal is Signal.GONE:
            waiting = self._waiting.get(subject[len(self._prefix) :])
            if waiting is not None:
                was_offered = signal is Signal.GONE or self._offered.get(waiting.operation_id, 0.0) > monotonic()
                name = waiting.operation_id
                waiting.fail(failures.no_worker(name) if was_offered else failures.unknown(name, self._offered))
        elif signal is Signal.DENIED:
            name = self._transport.name
            for waiting in list(self._waiting.values()):
                if request_subject(name, waiting.operation_id) == subject:
                    waiting.fail(failures.denied(waiting.operation_id))
        elif signal is Signal.LOST:
            self._on_lost()
        else:
            self._on_restored()

    def _on_lost(self) -> None:
        if self._lost_timer is None:
            under_way = [waiting for waiting in self._waiting.values() if not isinstance(waiting, WaitingStream)]
            grace = self._settings.lost_grace
            self._lost_timer = asyncio.get_running_loop().call_later(grace, self._fail_lost, under_way)

    def _fail_lost(self, under_way: list[WaitingCall]) -> None:
        self._lost_timer = None
        for waiting in under_way:
            waiting.fail(failures.lost(waiting.operation_id, retryable=waiting.is_retryable))

    def _on_restored(self) -> None:
        if self._lost_timer is not None:
            self._lost_timer.cancel()
            self._lost_timer = None
        now = monotonic()
        self._aborted.resend_all()
        for waiting in self._waiting.values():
            if isinstance(waiting, WaitingStream):
                self._send_control(waiting, waiting.due_control(now, at_once=True))

    # time

    def _tick(self, now: float) -> bool:
        """Check all pending requests; returns whether there are any."""
        blocked_for = self._ticker.blocked_for
        for waiting in list(self._waiting.values()):
            if blocked_for:
                waiting.excuse(blocked_for, now)
            waiting.check(now)
            if isinstance(waiting, WaitingStream) and not waiting.is_over:
                self._send_control(waiting, waiting.due_control(now))
        self._aborted.check(now)
        return bool(self._waiting or self._aborted)


class RemoteHandler(msgspec.Struct, frozen=True, eq=False):
    """The handler of an operation that another process runs: calls it by the spec that its workers have.

    `idle` limits the pauses of a stream.
    """

    spec: OperationSpec
    calls: PendingRequestMap
    transport: Transport
    idle: float | None = None

    async def __call__(
        self, input: Mapping[str, Any], context: Context
    ) -> ResponseEnvelope[Any] | AsyncGenerator[ResponseEnvelope[Any]]:
        # The record of our run is the parent of the worker's.
        asked: Any = context.recording.request() if context.recording is not None else context.invocation.provenance
        spec = self.spec
        if spec.type is OperationType.SUBSCRIPTION:
            return self.calls.subscribe(spec.id, input, context, timeout=self.idle, provenance=asked)
        return await self.calls.call(
            spec.id,
            input,
            context,
            idempotent=spec.idempotent,
            idempotency_key=context.idempotency_key,
            provenance=asked,
        )


def _milliseconds_until(moment: float | None) -> int | None:
    return None if moment is None else max(0, int((moment - monotonic()) * 1000))


def _end_of(context: Context | None, timeout: float | None, deadline: float | None) -> float | None:
    """Return when a call ends: at the first of timeout, deadline (Unix ms) and that of the context, less a margin."""
    ends = None if context is None else context.deadline
    if ends is not None:
        ends -= NESTED_MARGIN
    if timeout is not None:
        ends = monotonic() + timeout if ends is None else min(ends, monotonic() + timeout)
    if deadline is not None:
        until = monotonic() + deadline / 1000 - time()
        ends = until if ends is None else min(ends, until)
    return ends


REMEMBERED_FOR: Final = 5.0  # seconds for which a late worker still receives the abort
_UNREACHED: Final = ("connection_lost", "silence")

SendControl: TypeAlias = Callable[[str, Payload], None]


class _Call(msgspec.Struct):
    until: float
    sent_at: float
    control: str | None


class AbortedCalls:
    """Aborted calls whose worker is unknown or may not have received the abort."""

    def __init__(self, send: SendControl, heartbeat: float) -> None:
        self._send = send
        self._heartbeat = heartbeat
        self._calls: dict[str, _Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def has_unknown_worker(self) -> bool:
        """Whether the worker of a call is unknown; a worker acknowledges a call within `accept_after`."""
        return any(call.control is None for call in self._calls.values())

    def add(self, waiting: WaitingCall, now: float) -> None:
        """Abort a call at its worker; remember the call unless the worker certainly received the abort."""
        if waiting.control is not None:
            self._send(waiting.control, Aborted(waiting.request_id))
        if waiting.control is None or waiting.error is None or waiting.error.details.get("reason") in _UNREACHED:
            self._calls[waiting.request_id] = _Call(now + REMEMBERED_FOR, now, waiting.control)

    def on_event(self, request_id: str, message: Message) -> None:
        """Abort a call when the first message of its worker arrives after the caller aborted it."""
        if request_id in self._calls and message.reply is not None and message.reply.startswith("ctl."):
            del self._calls[request_id]
            self._send(message.reply, Aborted(request_id))

    def resend_all(self) -> None:
        """Let the next `check` resend every abort: earlier ones may be lost with the connection."""
        for call in self._calls.values():
            call.sent_at = 0.0

    def check(self, now: float) -> None:
        """Resend aborts older than a heartbeat, and forget calls after `REMEMBERED_FOR` seconds."""
        self._calls = {key: call for key, call in self._calls.items() if call.until > now}
        for request_id, call in self._calls.items():
            if call.control is not None and now - call.sent_at >= self._heartbeat:
                call.sent_at = now
                self._send(call.control, Aborted(request_id))


def may_still_run(error: CallError) -> bool:
    """Whether a worker may still run a call that ended here with this error."""
    return error.code in ("ABORTED", "TIMEOUT", "INVALID_OPERATION_TYPE") or error.details.get("reason") in _UNREACHED
