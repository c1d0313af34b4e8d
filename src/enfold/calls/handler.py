"""The worker's end: requests that come in are run under limits and answered. It alone publishes answers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from enfold.access import check_access
from enfold.calls import outcomes
from enfold.calls.eager import start
from enfold.calls.events import (
    MAX_CREDITS,
    Aborted,
    Accepted,
    Completed,
    Credit,
    Failed,
    Heartbeat,
    Payload,
    Requested,
    Responded,
    Resume,
    event_ids,
    failed,
    read_event,
    responded,
    write_event,
)
from enfold.calls.gate import FROZEN, Gate, is_addressed
from enfold.calls.memory import MemoryTransport
from enfold.calls.pending import PendingRequestMap
from enfold.calls.producer import Producer
from enfold.calls.quick import Lane, Lanes
from enfold.calls.served import Counts, ServedCall, Tally, context_of
from enfold.calls.settings import CallSettings, Limits
from enfold.calls.transport import (
    WORKERS,
    DisconnectedError,
    Message,
    OverloadedError,
    PayloadTooLargeError,
    Signal,
    Subscription,
    Transport,
    TransportError,
    control_subject,
    new_boot,
    offer_subject,
)
from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError, FormatError
from enfold.operation import Context, Identity, Recording
from enfold.registry import Registry

__all__ = ["CallHandler", "OnceStore", "Run", "Verify"]

DRAIN: Final = 30.0

_log: Final = logging.getLogger("enfold.calls")

Run = Callable[[], Awaitable[ResponseEnvelope[Any]]]
Verify = Callable[[Message, Requested], Identity | None]  # who is behind a message, delegation included


class OnceStore(Protocol):
    """Remembers first results, so that a call with the same key has its effect once."""

    async def once(self, key: str, digest: str, ttl: float, run: Run) -> ResponseEnvelope[Any]:
        """The result of `run`, or of the first call with this key; another digest is a VALIDATION_ERROR."""


Record: TypeAlias = Callable[[dict[str, Any], Identity | None], Recording | None]


class CallHandler:
    """Serves a registry's operations to the peers of a transport."""

    def __init__(
        self,
        registry: Registry,
        transport: Transport,
        *,
        pending: PendingRequestMap | None = None,
        settings: CallSettings | None = None,
        limits: Limits | None = None,
        store: OnceStore | None = None,
        verify: Verify | None = None,
        record: Record | None = None,
    ) -> None:
        """`record` begins the recording of a request that asks for its provenance, where that is allowed."""
        self.registry = registry
        self.counts = Counts()
        self.operations = Tally()
        self.boot = new_boot()
        self._transport = transport
        self._settings = settings or CallSettings()
        self._gate = Gate(limits or Limits(), self.counts)
        self._lanes = Lanes(registry)
        self._pending = pending or PendingRequestMap(transport, settings=self._settings)
        self._store = store
        self._verify = verify
        self._record = record
        self._ids = event_ids()
        self._calls: dict[str, ServedCall] = {}
        self._running = 0
        self._queue: deque[ServedCall] = deque()
        self._offers: dict[str, Subscription] = {}
        self._shortcuts = transport.shortcuts if isinstance(transport, MemoryTransport) else None
        self._control: Subscription | None = None
        self._background: set[asyncio.Task[Any]] = set()
        self._connected = asyncio.Event()
        self._connected.set()
        self._timer: asyncio.TimerHandle | None = None

    # offering

    async def start(self) -> None:
        """Listen for what callers say about calls that run."""
        if self._control is None:
            await self._transport.connect()
            subject = control_subject(self._transport.name, self.boot, "*")
            self._control = await self._transport.subscribe(subject, self._hear)
            self._tick()

    async def offer(self, operation_id: str) -> None:
        """Take calls of an operation; raises a TransportError where the transport refuses."""
        await self.start()
        if operation_id not in self._offers:
            subject = offer_subject(operation_id)
            self._offers[operation_id] = await self._transport.subscribe(subject, self.receive, queue=WORKERS)
            if self._shortcuts is not None:
                self._shortcuts.setdefault(operation_id, []).append(self)

    async def withdraw(self, operation_id: str) -> None:
        """Take no more calls of an operation; those that have been sent to us are still served."""
        subscription = self._offers.pop(operation_id, None)
        if subscription is not None:
            self._end_shortcut(operation_id)
            await subscription.close(drain=True)

    def _end_shortcut(self, operation_id: str) -> None:
        if self._shortcuts is not None:
            self._shortcuts[operation_id].remove(self)

    @property
    def offered(self) -> list[str]:
        return list(self._offers)

    @property
    def running(self) -> int:
        return self._running

    async def close(self, *, drain: bool = True) -> None:
        """Take no more calls; with `drain` let those that run come to their end first."""
        offers, self._offers = self._offers, {}
        for operation_id, subscription in offers.items():
            self._end_shortcut(operation_id)
            await subscription.close(drain=drain)
        tasks = [call.task for call in self._calls.values() if call.task is not None]
        if drain and (tasks or self._queue):
            await self._drained()
        for call in list(self._calls.values()):
            call.give_up()
        if self._timer is not None:
            self._timer.cancel()
        if self._control is not None:
            await self._control.close()
            self._control = None
        unfinished = {*self._background, *(task for task in tasks if not task.done())}
        if unfinished:
            await asyncio.wait(unfinished, timeout=1.0)

    async def _drained(self) -> None:
        ends_at = time.monotonic() + DRAIN
        while self._running and time.monotonic() < ends_at:
            tasks = [call.task for call in self._calls.values() if call.task is not None and not call.task.done()]
            if not tasks:
                return
            await asyncio.wait(tasks, timeout=ends_at - time.monotonic(), return_when=asyncio.FIRST_COMPLETED)

    # a request comes in

    def receive(self, message: Message) -> None:
        """Take a request, or drop what is none: whoever sends such things gets no answer."""
        if message.signal is not None:
            self._heed(message.signal)
            return
        self.counts.received += 1
        try:
            request = read_event(message.data).payload
        except FormatError:
            self.counts.malformed += 1
            return
        rewritten = self._transport.capabilities.rewrites_replies
        if not isinstance(request, Requested) or not is_addressed(message, request, rewritten=rewritten):
            self.counts.refused += 1
        elif self._gate.is_new(message.peer, request.request_id):
            self._admit(message, request)

    def _admit(self, message: Message, request: Requested) -> None:
        now = time.monotonic()
        try:
            lane = self._lanes.of(request.operation_id)
            deadline = self._gate.deadline(message, request, lane.spec, now)
            identity = message.identity if self._verify is None else self._verify(message, request)
            if lane.is_quick and request.idempotency_key is None and request.provenance is None:
                left = None if deadline is None else deadline - now
                self._answer_on_the_spot(lane, message.reply or "", request, context_of(request, identity, left), now)
                return
            call = ServedCall(message, request, lane.spec, self._publish, now, deadline, identity)
            is_taken = request.request_id in self._calls
            self._gate.check_load(call, self._running, len(self._queue), is_taken=is_taken)
        except CallError as error:
            self._say(self._to(message.reply or "", failed(request.request_id, error)))
        else:
            self._take_on(call)

    def _take_on(self, call: ServedCall) -> None:
        self._gate.enter(call)
        self._calls[call.request.request_id] = call
        if self._running < self._gate.limits.running:
            self._launch(call)
        else:
            self._queue.append(call)

    # what never waits

    def _answer_on_the_spot(self, lane: Lane, reply: str, request: Requested, context: Context, now: float) -> None:
        error: CallError | None = None
        try:
            payload: Payload = responded(request.request_id, self._lanes.run(lane, request.input, context))
        except CallError as raised:
            error = raised
            payload = failed(request.request_id, _as_started(raised))
        self.operations.add(request.operation_id, now, error)
        self._say(self._reply(reply, request.operation_id, payload, context))

    async def _reply(self, subject: str, operation_id: str, payload: Payload, context: Context) -> None:
        """Send an answer; where the connection is gone, when it is back, as long as somebody waits."""
        while True:
            try:
                await self._transport.publish(subject, self._written(payload))
            except PayloadTooLargeError as error:
                payload = failed(payload.request_id, outcomes.too_large(operation_id, error, "result"))
            except CallError as error:
                payload = failed(payload.request_id, error)
            except (DisconnectedError, OverloadedError):
                if context.cancelled:
                    return
                await self._back_again(context.remaining())
            except TransportError as error:
                _log.warning("The answer of %s could not be sent: %s", operation_id, error)
                return
            else:
                return

    def answer_now(
        self, operation_id: str, input: Mapping[str, Any], sender: MemoryTransport, parent: str | None, ttl: float
    ) -> ResponseEnvelope[Any] | None:
        """Answer a caller of this process without a message; None where messages are needed after all."""
        lane = self._lanes.of(operation_id)
        if self._verify is not None or not lane.is_quick:
            return None
        started = time.monotonic()
        context = Context(parent_request_id=parent, identity=sender.identity, timeout=ttl)
        error: CallError | None = None
        try:
            return self._lanes.run_copied(lane, input, context, self._transport.capabilities.max_payload)
        except CallError as raised:
            error = _as_started(raised)
            raise error from raised.__cause__
        finally:
            self.counts.received += 1
            self.operations.add(operation_id, started, error)

    # a call runs

    def _launch(self, call: ServedCall) -> None:
        self._running += 1
        self._pending.expect_answer(call.request.request_id, call)
        call.task = asyncio.get_running_loop().create_task(self._run(call))

    async def _run(self, call: ServedCall) -> None:
        request_id = call.request.request_id
        error: CallError | None = None
        try:
            if call.is_stream:
                await self._stream(call)
            else:
                await self._publish(call, responded(request_id, await self._result(call)))
        except CallError as raised:
            error = raised
            await self._pending.emit_error(request_id, _as_started(raised))
        except asyncio.CancelledError:
            if not call.is_aborted:  # we are being stopped, and the caller should know
                error = CallError("UNAVAILABLE", f"The worker stopped before {call.spec.id} had ended")
                self._say(self._to(call.reply, failed(request_id, error)))
                raise
        except Exception:  # noqa: BLE001  # whatever went wrong in here, the caller gets an answer and no stack
            _log.exception("The answer of %s failed (request %s)", call.spec.id, request_id)
            error = CallError("UNKNOWN_ERROR", f"The worker failed to answer {call.spec.id}")
            await self._pending.emit_error(request_id, error)
        finally:
            self._finish(call, error)

    async def _result(self, call: ServedCall) -> ResponseEnvelope[Any]:
        request = call.request
        context = call.enter()
        if self._record is not None and request.provenance is not None:
            context.recording = self._record(request.provenance, call.identity)
        if request.idempotency_key is None or self._store is None:
            return await self.registry.call(request.operation_id, request.input, context)
        from enfold.calls.idempotency import input_digest, store_key

        check_access(call.spec, call.identity, request.input)  # a result that is kept is no less guarded
        return await self._store.once(
            store_key(call.identity, call.peer, request),
            input_digest(request.input),
            context.remaining() or 0.0,
            lambda: self.registry.execute(request.operation_id, request.input, context),
        )

    async def _stream(self, call: ServedCall) -> None:
        request = call.request
        window = min(MAX_CREDITS, self._settings.window if request.credits is None else request.credits)
        # A stream's worker is known by the address in each of its frames; a lost first one is no loss.
        control = self._control_of(call)
        send = partial(self._transport.publish, call.reply, reply=control)
        call.producer = Producer(window, self._settings, send, time.monotonic())
        await self._accept(call)
        context = call.enter()
        items = self.registry.follow(request.operation_id, request.input, context)
        try:
            await self._produce(call, call.producer, items, context)
        finally:
            await items.aclose()
        await self._pending.complete(request.request_id, call.producer.last)

    async def _produce(
        self, call: ServedCall, producer: Producer, items: AsyncGenerator[ResponseEnvelope[Any]], context: Context
    ) -> None:
        while not call.is_aborted:
            # Room first: a producer must never be further ahead than the window.
            await producer.room()
            context.event_id = None
            try:
                envelope = await anext(items)
            except StopAsyncIteration:
                return
            await self._pending.respond(call.request.request_id, envelope, producer.last + 1, context.event_id)
        raise asyncio.CancelledError

    def _finish(self, call: ServedCall, error: CallError | None) -> None:
        request_id = call.request.request_id
        self._pending.forget_answer(request_id)
        self._running -= 1
        self.operations.add(call.spec.id, call.arrived_at, error)
        if call.producer is not None and not call.is_aborted:
            # The last frames may be lost on their way: stay a while, for a caller who asks for them again.
            asyncio.get_running_loop().call_later(self._settings.silence, self._forget, call)
        else:
            self._forget(call)
        while self._queue and self._running < self._gate.limits.running:
            self._launch_if_due(self._queue.popleft())

    def _forget(self, call: ServedCall) -> None:
        if self._calls.pop(call.request.request_id, None) is not None:
            self._gate.leave(call)

    def _launch_if_due(self, call: ServedCall) -> None:
        if call.is_aborted:
            self._forget(call)
        elif call.deadline is not None and call.deadline <= time.monotonic():
            self._expire(call)
        else:
            self._launch(call)

    def _expire(self, call: ServedCall) -> None:
        self.counts.expired += 1
        self._forget(call)
        error = outcomes.timed_out(call.spec.id, idempotent=call.spec.idempotent)
        self._say(self._to(call.reply, failed(call.request.request_id, error)))

    # publishing

    async def _publish(self, call: ServedCall, payload: Payload) -> None:
        """Send an answer of a call that runs."""
        if call.producer is None:
            await self._reply(call.reply, call.spec.id, payload, call.context or Context())
        elif isinstance(payload, Completed | Failed):
            await call.producer.finish(self._written(payload))
        elif isinstance(payload, Responded):
            frame = self._written(payload)
            self._check_size(call.spec.id, len(frame))
            await call.producer.put(frame)

    def _written(self, payload: Payload) -> bytes:
        try:
            return write_event(next(self._ids), payload)
        except FormatError as error:
            if isinstance(payload, Failed):  # its details are no JSON data: the sentence must do
                bare = Failed(payload.request_id, payload.code, payload.message, {}, payload.retryable)
                return write_event(next(self._ids), bare)
            raise CallError("EXECUTION_ERROR", f"failed to marshal response: {error}") from error

    async def _back_again(self, left: float | None) -> None:
        """Wait for the connection, as long as the caller does.

        It may be gone before the transport has said so: the pause keeps us from trying without end.
        """
        with suppress(TimeoutError):
            await asyncio.wait_for(self._connected.wait(), left)
        await asyncio.sleep(self._settings.tick)

    def _check_size(self, operation_id: str, size: int) -> None:
        """Refuse an item here that the transport would not take: once numbered it would have to be sent."""
        limit = self._transport.capabilities.max_payload
        if size > limit:
            raise outcomes.too_large(operation_id, PayloadTooLargeError(size, limit), "result")

    async def _accept(self, call: ServedCall) -> None:
        call.is_accepted = True
        call.spoke_at = time.monotonic()
        control = self._control_of(call)
        said = control if self._transport.capabilities.rewrites_replies else None
        await self._to(call.reply, Accepted(call.request.request_id, self._transport.name, said), control)

    def _control_of(self, call: ServedCall) -> str:
        return control_subject(self._transport.name, self.boot, call.request.request_id)

    async def _to(self, subject: str, payload: Payload, control: str | None = None) -> None:
        """Publish an event that may get lost without harm."""
        try:
            await self._transport.publish(subject, write_event(next(self._ids), payload), reply=control)
        except (TransportError, FormatError) as error:
            _log.debug("An event was not sent: %s", error)

    def _say(self, publishing: Coroutine[Any, Any, None]) -> None:
        task = start(publishing)
        if task is not None:
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    # what callers say, and time

    def _hear(self, message: Message) -> None:
        """Take what a caller says of his call; the id in the subject is the secret that proves it is his."""
        if message.signal is not None:
            self._heed(message.signal)
            return
        try:
            event = read_event(message.data)
        except FormatError:
            self.counts.malformed += 1
            return
        payload = event.payload
        call = self._calls.get(payload.request_id)
        if call is None or not message.subject.endswith(f".{payload.request_id}"):
            return
        if message.peer is not None and message.peer != call.peer:
            self.counts.refused += 1
        else:
            self._obey(call, payload, event.id)

    def _obey(self, call: ServedCall, payload: Payload, event_id: str) -> None:
        producer = call.producer
        if isinstance(payload, Aborted):
            call.give_up()
        elif producer is not None and producer.is_new(event_id):
            producer.heard_at = time.monotonic()
            if isinstance(payload, Credit):
                producer.grant(payload.n)
            elif isinstance(payload, Resume) and not producer.resume(payload.from_seq, payload.n or 0):
                self._admit_loss(call, payload.from_seq)
            self._say(producer.flush())

    def _admit_loss(self, call: ServedCall, seq: int) -> None:
        call.give_up()
        error = CallError("DATA_LOSS", f"Items of {call.spec.id} are not kept any more", {"seq": seq})
        self._say(self._to(call.reply, failed(call.request.request_id, error), self._control_of(call)))

    def _heed(self, signal: Signal) -> None:
        if signal is Signal.LOST:
            self._connected.clear()
        elif signal is Signal.RESTORED:
            self._connected.set()

    def _tick(self) -> None:
        """One clock for everything; it also notices when it stood still itself."""
        now = time.monotonic()
        self._gate.wake(now)
        for call in list(self._calls.values()):
            self._look_after(call, now)
        pause = self._settings.tick if self._calls else FROZEN / 4
        self._timer = asyncio.get_running_loop().call_later(pause, self._tick)

    def _look_after(self, call: ServedCall, now: float) -> None:
        if call.task is None and call.deadline is not None and call.deadline <= now:
            self._queue.remove(call)
            self._expire(call)
        elif not call.is_accepted:
            if now - call.arrived_at >= self._settings.accept_after:
                self._say(self._accept(call))
        elif now - call.spoke_at >= self._settings.heartbeat:
            call.spoke_at = now
            self._say(self._to(call.reply, Heartbeat(call.request.request_id), self._control_of(call)))
        if call.producer is not None and now - call.producer.heard_at > self._settings.silence + FROZEN:
            call.give_up()


def _as_started(error: CallError) -> CallError:
    """An error from inside a call that ran: what a nested call says of itself is not true of this one."""
    if "started" not in error.details:
        return error
    details = {key: value for key, value in error.details.items() if key != "started"}
    return CallError(error.code, error.message, details, error.retryable)
