"""The worker's end: requests that come in are run under limits and answered. It alone publishes answers."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any, Final, TypeAlias

from enfold.access import check_access
from enfold.calls.caller.pending import PendingRequestMap
from enfold.calls.protocol import outcomes
from enfold.calls.protocol.call_settings import CallSettings, WorkerLimits
from enfold.calls.protocol.delegation import Verify
from enfold.calls.protocol.events import (
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
    departing,
    failed,
    input_digest,
    read_event,
)
from enfold.calls.protocol.subjects import control_subject, new_boot
from enfold.calls.protocol.transport import Message, PayloadTooLargeError, Subscription, Transport
from enfold.calls.worker.answers import Answers
from enfold.calls.worker.gate import FROZEN, Gate, is_addressed
from enfold.calls.worker.offered import OfferedOperations
from enfold.calls.worker.once_store import OnceStore, store_key
from enfold.calls.worker.producer import Producer
from enfold.calls.worker.quick import Lanes, Quick, as_started
from enfold.calls.worker.served import Counts, ServedCall, Tally, context_of
from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError, FormatError
from enfold.log import Log
from enfold.operation import Context, Identity, Recording
from enfold.registry import Registry

__all__ = ["CallHandler"]

DRAIN: Final = 30.0

_log: Final = Log("enfold.calls")


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
        limits: WorkerLimits | None = None,
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
        self._gate = Gate(limits or WorkerLimits(), self.counts)
        self._answers = Answers(transport, self._settings)
        self._lanes = Lanes(registry)
        self._quick = Quick(self._lanes, self._answers, self.counts, self.operations, verifies=verify is not None)
        self._pending = pending or PendingRequestMap(transport, settings=self._settings)
        self._store = store
        self._verify = verify
        self._record = record
        self._offers = OfferedOperations(transport, self.receive, self._quick)
        self._calls: dict[str, ServedCall] = {}
        self._running = 0
        self._queue: deque[ServedCall] = deque()
        self._control: Subscription | None = None
        self._clock: asyncio.TimerHandle | None = None  # runs as long as there are calls
        self._pulse: asyncio.TimerHandle | None = None  # runs always, to notice that the loop stood still

    # offering

    async def start(self) -> None:
        """Listen for what callers say about calls that run."""
        if self._control is None:
            await self._transport.connect()
            subject = control_subject(self._transport.name, self.boot, "*")
            self._control = await self._transport.subscribe(subject, self._hear)
            self._beat()

    async def offer(self, operation_id: str) -> None:
        """Take calls of an operation; raises a TransportError where the transport refuses."""
        await self.start()
        await self._offers.add(operation_id)

    async def withdraw(self, operation_id: str) -> None:
        """Take no more calls of an operation; those that have been sent to us are still served."""
        await self._offers.remove(operation_id)

    @property
    def offered(self) -> list[str]:
        return list(self._offers)

    @property
    def running(self) -> int:
        return self._running

    async def close(self, *, drain: bool = True) -> None:
        """Take no more calls; with `drain` let those that run come to their end first."""
        await self._offers.close(drain=drain)
        tasks = [call.task for call in self._calls.values() if call.task is not None]
        if drain and (tasks or self._queue):
            await self._drained()
        for call in list(self._calls.values()):
            call.give_up()
        for timer in (self._clock, self._pulse):
            if timer is not None:
                timer.cancel()
        if self._control is not None:
            await self._control.close()
            self._control = None
        unfinished = [task for task in tasks if not task.done()]
        if unfinished:
            await asyncio.wait(unfinished, timeout=1.0)
        await self._answers.close()

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
            self._answers.heed(message.signal)
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
                self._quick.answer(lane, message.reply or "", request, context_of(request, identity, left))
                return
            call = ServedCall(message, request, lane.spec, self._publish, now, deadline, identity)
            is_taken = request.request_id in self._calls
            self._gate.check_load(call, self._running, len(self._queue), is_taken=is_taken)
        except CallError as error:
            self._refuse(message, request, error)
        except Exception as fault:  # noqa: BLE001  # whoever carries messages to us must not suffer from one of them
            facts = (request.operation_id, request.request_id)
            _log.error("A request of %s could not be taken (request %s)", *facts, error=fault)
            self._refuse(message, request, CallError("UNKNOWN_ERROR", "The worker failed to take the request"))
        else:
            self._take_on(call)

    def _refuse(self, message: Message, request: Requested, error: CallError) -> None:
        self._answers.say(self._answers.tell(message.reply or "", failed(request.request_id, error)))

    def _take_on(self, call: ServedCall) -> None:
        self._gate.enter(call)
        self._calls[call.request.request_id] = call
        if self._clock is None:
            self._tick_soon()
        if self._running < self._gate.limits.running:
            self._launch(call)
        else:
            self._queue.append(call)

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
                await self._publish(call, departing(request_id, await self._result(call)))
        except CallError as raised:
            error = raised
            await self._pending.emit_error(request_id, as_started(raised))
        except asyncio.CancelledError:
            if not call.is_aborted:  # we are being stopped, and the caller should know
                error = CallError("UNAVAILABLE", f"The worker stopped before {call.spec.id} had ended")
                self._answers.say(self._answers.tell(call.reply, failed(request_id, error)))
                raise
        except Exception as fault:  # noqa: BLE001  # whatever went wrong in here, the caller gets an answer and no stack
            _log.error("The answer of %s failed (request %s)", call.spec.id, request_id, error=fault)
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
            lane = self._lanes.of(request.operation_id)
            check_access(lane.spec, call.identity, request.input)
            return await lane.execute(request.input, context)
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
        items = self.registry.guarded().subscribe(request.operation_id, request.input, context)
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
        self._answers.say(self._answers.tell(call.reply, failed(call.request.request_id, error)))

    # publishing

    async def _publish(self, call: ServedCall, payload: Payload) -> None:
        """Send an answer of a call that runs."""
        if call.producer is None:
            await self._answers.reply(call.reply, call.spec.id, payload, call.context)
        elif isinstance(payload, Completed | Failed):
            await call.producer.finish(self._answers.written_end(payload))
        elif isinstance(payload, Responded):
            frame = self._answers.written(payload)
            self._check_size(call.spec.id, len(frame))
            await call.producer.put(frame)

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
        await self._answers.tell(call.reply, Accepted(call.request.request_id, self._transport.name, said), control)

    def _control_of(self, call: ServedCall) -> str:
        return control_subject(self._transport.name, self.boot, call.request.request_id)

    # what callers say, and time

    def _hear(self, message: Message) -> None:
        """Take what a caller says of his call; the id in the subject is the secret that proves it is his."""
        if message.signal is not None:
            self._answers.heed(message.signal)
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
            self._answers.say(producer.flush())

    def _admit_loss(self, call: ServedCall, seq: int) -> None:
        call.give_up()
        error = CallError("DATA_LOSS", f"Items of {call.spec.id} are not kept any more", {"seq": seq})
        self._answers.say(
            self._answers.tell(call.reply, failed(call.request.request_id, error), self._control_of(call))
        )

    def _beat(self) -> None:
        self._gate.wake(time.monotonic())
        self._pulse = asyncio.get_running_loop().call_later(FROZEN / 4, self._beat)

    def _tick(self) -> None:
        """One clock for all calls; it stands still when there are none."""
        self._clock = None
        now = time.monotonic()
        for call in list(self._calls.values()):
            self._look_after(call, now)
        if self._calls:
            self._tick_soon()

    def _tick_soon(self) -> None:
        self._clock = asyncio.get_running_loop().call_later(self._settings.tick, self._tick)

    def _look_after(self, call: ServedCall, now: float) -> None:
        if call.task is None and call.deadline is not None and call.deadline <= now:
            self._queue.remove(call)
            self._expire(call)
        elif not call.is_accepted:
            if now - call.arrived_at >= self._settings.accept_after:
                self._answers.say(self._accept(call))
        elif now - call.spoke_at >= self._settings.heartbeat:
            call.spoke_at = now
            self._answers.say(
                self._answers.tell(call.reply, Heartbeat(call.request.request_id), self._control_of(call))
            )
        if call.producer is not None and now - call.producer.heard_at > self._settings.silence + FROZEN:
            call.give_up()
