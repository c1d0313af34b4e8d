"""The worker: admits requests, runs them and responds. Only the CallHandler publishes responses."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from enfold.calls.protocol import failures
from enfold.calls.protocol.connection import Ticker
from enfold.calls.protocol.delegation import Verify
from enfold.calls.protocol.events import (
    MAX_CREDITS,
    Aborted,
    Accepted,
    Completed,
    Credit,
    Heartbeat,
    OtherVersionError,
    Payload,
    Requested,
    Responded,
    Resume,
    failed,
    read_event,
    responded,
)
from enfold.calls.protocol.settings import CallSettings, WorkerLimits
from enfold.calls.protocol.transport import (
    WORKERS,
    Message,
    Subscription,
    Transport,
    control_subject,
    keeps_state,
    new_boot,
    offer_subject,
    operation_of,
)
from enfold.calls.worker.admission import STALL, AdmissionControl, Counts, OperationCounts, ServedCall
from enfold.calls.worker.answers import AnswerSender, Producer
from enfold.calls.worker.nats_idempotency_store import NATSIdempotencyStore
from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError, FormatError
from enfold.observability.log import Log
from enfold.observability.observers import Watch
from enfold.observability.records import SpanStart
from enfold.operations import Context, Identity, OperationSpec, new_request_id
from enfold.operations.access import is_hidden
from enfold.operations.context import Invocation
from enfold.operations.idempotency import IdempotencyStore, checked_key
from enfold.operations.outcomes import envelope_of
from enfold.runtime.registry import Registry, not_found

if TYPE_CHECKING:
    from enfold.operations.operation import RecordedRun
    from enfold.runtime.prepared import PreparedOperation

DRAIN: Final = 30.0
MAX_ENDED: Final = 256  # ended streams kept for resends of their last frames

_log: Final = Log("enfold.calls")


Record: TypeAlias = "Callable[[OperationSpec, dict[str, Any] | None, Identity | None], RecordedRun | None]"


class CallHandler:
    """Serves a registry's operations to the peers of a transport."""

    def __init__(
        self,
        registry: Registry,
        transport: Transport,
        *,
        settings: CallSettings | None = None,
        limits: WorkerLimits | None = None,
        store: IdempotencyStore | None = None,
        verify: Verify | None = None,
        record: Record | None = None,
    ) -> None:
        """`record` starts the provenance recording of a request that asks for it, if allowed."""
        self.registry = registry
        self._guarded = registry.guarded(surface="calls")
        self._store = store
        self._observers = registry.services.observers
        self.counts = Counts()
        self.operations: dict[str, OperationCounts] = {}
        self.boot = new_boot()
        self._transport = transport
        self._settings = settings or CallSettings()
        self._admission = AdmissionControl(limits or WorkerLimits(), self.counts)
        self._answers = AnswerSender(transport, self._settings)
        self._verify = verify
        self._record = record
        self._offers: dict[str, Subscription] = {}
        self._prepared: dict[str, PreparedOperation] = {}  # emptied whenever the registry changes
        self._stop_watching: Callable[[], object] | None = None
        self._calls: dict[str, ServedCall] = {}
        self._running = 0
        self._queue = self._admission.queue
        self._ended: deque[str] = deque()
        self._control: Subscription | None = None
        self._ticker = Ticker(self._settings.tick, self._tick)  # runs while there are calls
        self._pulse = Ticker(STALL / 4, self._admission.wake)  # always runs, to detect a blocked event loop

    # offered operations

    async def start(self) -> None:
        """Connect, and subscribe to control events of callers: credits, heartbeats and aborts."""
        if self._control is None:
            await self._transport.connect()
            await self._install_store()
            subject = control_subject(self._transport.name, self.boot, "*")
            self._control = await self._transport.subscribe(subject, self._take_control)
            self._admission.authenticates = self._transport.capabilities.peer_identity
            if self._admission.authenticates:
                self.registry.require_authentication()
            self._admission.rewritten = self._transport.capabilities.rewrites_replies
            self._stop_watching = self.registry.watch(self._prepared.clear)
            self._admission.wake(monotonic())
            self._pulse.start()

    async def _install_store(self) -> None:
        """Use an idempotency store that all workers share, if the transport's servers have storage."""
        services, transport, store = self.registry.services, self._transport, self._store
        if store is None and services.idempotency_store is None and keeps_state(transport):
            store = NATSIdempotencyStore(transport)
        if isinstance(store, NATSIdempotencyStore) and (why := await store.unavailable_reason()) is not None:
            _log.warning("Idempotency keys are not shared between workers: %s", why)
            store = None
        if store is not None:
            self._store = services.idempotency_store = store

    async def _leave_store(self, grace: float) -> None:
        """Wait for calls that continue under an idempotency key, and close the store with the transport."""
        services = self.registry.services
        if services.idempotency_store is not None:
            await services.idempotency_store.close(grace)
            if services.idempotency_store is self._store:
                services.idempotency_store = None

    async def offer(self, operation_id: str) -> None:
        """Accept calls of an operation; raises a TransportError if the transport refuses."""
        await self.start()
        if operation_id not in self._offers:
            subject = offer_subject(operation_id)
            self._offers[operation_id] = await self._transport.subscribe(subject, self.receive, queue=WORKERS)

    async def withdraw(self, operation_id: str, *, drain: bool = True) -> None:
        """Accept no more calls of an operation; with `drain`, after those already sent to this worker."""
        subscription = self._offers.pop(operation_id, None)
        if subscription is not None:
            await subscription.close(drain=drain)

    @property
    def offered(self) -> list[str]:
        return list(self._offers)

    @property
    def running(self) -> int:
        return self._running

    async def close(self, *, drain: bool = True) -> None:
        """Accept no more calls; with `drain`, wait for in-flight calls."""
        ends_at = monotonic() + (DRAIN if drain else 0.0)
        # Concurrently, so that an unresponsive server is waited for only once.
        await asyncio.gather(*(self.withdraw(operation_id, drain=drain) for operation_id in self.offered))
        tasks = [call.task for call in self._calls.values() if call.task is not None]
        if drain and (tasks or self._queue.size):
            await self._wait_for_running(ends_at)
        for call in list(self._calls.values()):
            self._stop(call)
        self._ticker.stop()
        self._pulse.stop()
        if self._control is not None:
            await self._control.close()
            self._control = None
        if self._stop_watching is not None:
            self._stop_watching()
        unfinished = [task for task in tasks if not task.done()]
        if unfinished:
            await asyncio.wait(unfinished, timeout=1.0)
        await self._leave_store(max(0.0, ends_at - monotonic()))
        await self._answers.close()

    def _stop(self, call: ServedCall) -> None:
        """Give up a call because the worker stops; its caller gets an error."""
        if self._queue.remove(call):
            self._refuse_waiting(call, failures.stopped(call.operation_id, has_started=False, retryable=True))
        elif call.task is not None:
            call.cancel()

    async def _wait_for_running(self, ends_at: float) -> None:
        while self._running and monotonic() < ends_at:
            tasks = [call.task for call in self._calls.values() if call.task is not None and not call.task.done()]
            if not tasks:
                return
            await asyncio.wait(tasks, timeout=ends_at - monotonic(), return_when=asyncio.FIRST_COMPLETED)

    # requests

    def receive(self, message: Message) -> None:
        """Accept or refuse a request; anything else is counted and dropped without a response."""
        if message.signal is not None:
            self._answers.on_signal(message.signal)
            return
        self.counts.received += 1
        try:
            request = read_event(message.data).payload
        except FormatError as error:
            self.counts.malformed += 1
            if isinstance(error, OtherVersionError) and self._admission.accepts(message, error.request_id):
                self._answers.send_soon(message.reply or "", failed(error.request_id, failures.unread_request(error)))
            return
        if type(request) is not Requested:
            self.counts.refused += 1
        elif self._admission.accepts(message, request.request_id):
            self._admit(message, request)

    def _admit(self, message: Message, request: Requested) -> None:
        """Run a request, queue it, or answer with the reason why not."""
        try:
            call = self._new_call(message, request)
            displaced = self._admission.reserve(call, self._running)
        except CallError as error:
            self._refuse(request, message.reply, message.identity, error)
            return
        except Exception as fault:  # noqa: BLE001  # one bad request must not end the subscription
            facts = (request.operation_id, request.request_id)
            _log.error("Request of %s failed (request %s)", *facts, error=fault, request_id=request.request_id)
            refusal = CallError("UNKNOWN_ERROR", "The worker failed to accept the request")
            self._refuse(request, message.reply, message.identity, refusal)
            return
        self._calls[request.request_id] = call
        if displaced is not None:
            self._displace(displaced)
        if self._running >= self._admission.limits.running:
            self._queue.put(call)
        else:
            self._launch(call)
        self._ticker.start()

    def _new_call(self, message: Message, request: Requested) -> ServedCall:
        """Check a request; raises the CallError that refuses it."""
        now, operation_id = monotonic(), request.operation_id
        own_id = operation_of(message.subject)
        prepared = self._prepared.get(own_id)
        if prepared is None:
            prepared = self._prepared[own_id] = self._guarded.prepared(own_id)
        if prepared.id != operation_id:
            raise CallError("VALIDATION_ERROR", "The request does not match the subject it was sent to")
        deadline = self._admission.deadline(request, prepared.spec, now)
        identity = message.identity if self._verify is None else self._verify(message, request)
        if not prepared.is_open and is_hidden(prepared.spec.access_control, identity):
            raise not_found(operation_id)
        if request.request_id in self._calls:
            raise CallError("VALIDATION_ERROR", "This request id is already in use")
        owner = (None, message.peer) if identity is None else (identity.id, identity.on_behalf_of)
        counts = self.operations.get(operation_id) or self.operations.setdefault(operation_id, OperationCounts())
        reply, size = message.reply or "", len(message.data)
        return ServedCall(
            request, prepared, counts, identity, message.peer, owner, reply, message.headers, size, deadline, now, now
        )

    def _refuse(self, request: Requested, reply: str | None, identity: Identity | None, error: CallError) -> None:
        self._answers.send_soon(reply or "", failed(request.request_id, error))
        self._observers.refused(
            "calls",
            error.code,
            operation_id=request.operation_id if request.operation_id in self.operations else "",
            request_id=request.request_id,
            parent=request.parent_request_id,
            caller=None if identity is None else identity.id,
        )

    # running calls

    def _launch(self, call: ServedCall) -> None:
        self._running += 1
        call.task = asyncio.get_running_loop().create_task(self._run(call))

    async def _run(self, call: ServedCall) -> None:
        request, prepared = call.request, call.prepared
        request_id = request.request_id
        error: CallError | None = None
        observers = self._observers
        watch = observers.begin(partial(_span, call)) if observers.is_on else None
        try:
            if prepared.is_stream:
                await self._stream(call, watch)
            else:
                context = self._enter(call)
                envelope = envelope_of(await prepared.execute(request.input, context))
                if watch is not None:
                    watch.record_result(envelope)
                await self._publish(call, responded(request_id, envelope))
        except CallError as raised:
            error = raised
            await self._publish(call, failed(request_id, as_started(raised)))
        except asyncio.CancelledError:
            if watch is not None:
                watch.code = "ABORTED"
            if not call.is_aborted:  # the worker is stopping
                retryable = prepared.spec.idempotent or request.idempotency_key is not None
                error = failures.stopped(call.operation_id, has_started=True, retryable=retryable)
                self._answers.send_soon(call.reply, failed(request_id, error))
                raise
        except Exception as fault:  # noqa: BLE001  # the caller gets an error without a stack trace
            facts = (call.operation_id, request_id)
            _log.error("Responding to %s failed (request %s)", *facts, error=fault, request_id=request_id)
            error = CallError("UNKNOWN_ERROR", f"The worker failed to respond to {call.operation_id}")
            await self._publish(call, failed(request_id, error))
        finally:
            self._finish(call, error)
            if watch is not None:
                self._observe_end(watch, call, error)

    def _observe_end(self, watch: Watch, call: ServedCall, error: CallError | None) -> None:
        if error is not None:
            watch.fail(error)
        watch.request_bytes = call.size
        watch.end("calls", call.prepared.operation, call.context or self._enter(call))

    def _enter(self, call: ServedCall) -> Context:
        request = call.request
        call.context = context = Context(
            request_id=request.request_id,
            parent_request_id=request.parent_request_id,
            identity=call.identity,
            deadline=call.deadline,
            last_event_id=request.last_event_id,
        )
        if request.idempotency_key is not None:
            vouched = self._transport.capabilities.peer_identity
            context.unused_key = checked_key(request.idempotency_key, call.identity, vouched=vouched)
        if request.provenance is not None:
            context.invocation = Invocation(provenance=request.provenance)
        if self._record is not None and not call.prepared.is_stream:
            context.recording = self._record(call.prepared.spec, request.provenance, call.identity)
        return context

    async def _stream(self, call: ServedCall, watch: Watch | None) -> None:
        request = call.request
        if watch is not None:
            watch.stream()
        window = min(MAX_CREDITS, self._settings.window if request.credits is None else request.credits)
        # Every frame carries the control subject, so a lost acknowledgement does no harm.
        control = self._control_of(call)
        send = partial(self._transport.publish, call.reply, reply=control)
        call.producer = Producer(window, self._settings, send, monotonic())
        await self._accept(call)
        context = self._enter(call)
        items = call.prepared.subscribe(request.input, context)
        try:
            await self._produce(call, call.producer, items, context)
        finally:
            await items.aclose()
        if watch is not None:
            watch.items = call.producer.last
        await self._publish(call, Completed(request.request_id, call.producer.last))

    async def _produce(
        self, call: ServedCall, producer: Producer, items: AsyncGenerator[ResponseEnvelope[Any]], context: Context
    ) -> None:
        while not call.is_aborted:
            # Wait before producing: a producer must never be further ahead than the window.
            await producer.wait_for_credit()
            context.event_id = None
            try:
                envelope = await anext(items)
            except StopAsyncIteration:
                return
            await self._publish(call, responded(call.request.request_id, envelope, producer.last + 1, context.event_id))
        raise asyncio.CancelledError

    def _finish(self, call: ServedCall, error: CallError | None) -> None:
        counts = call.counts
        counts.requests += 1
        counts.seconds += monotonic() - call.arrived_at
        if error is not None:
            counts.errors += 1
            counts.last_error = error.code
        if call.producer is not None and not call.is_aborted:
            self._keep_ended_stream(call)
        else:
            self._calls.pop(call.request.request_id, None)
        running_on = None if call.context is None else call.context.first_call
        if running_on is None or running_on.done():
            self._free_slot(call)
        else:  # it continues under an idempotency key without its caller
            running_on.add_done_callback(lambda _: self._free_slot(call))

    def _free_slot(self, call: ServedCall) -> None:
        self._running -= 1
        self._admission.release(call)
        while self._queue.size and self._running < self._admission.limits.running:
            self._launch_if_due(self._queue.take())

    def _keep_ended_stream(self, call: ServedCall) -> None:
        """Keep an ended stream for a while: its caller may request its last frames again."""
        request_id = call.request.request_id
        asyncio.get_running_loop().call_later(self._settings.silence, self._calls.pop, request_id, None)
        self._ended.append(request_id)
        if len(self._ended) > MAX_ENDED:
            self._calls.pop(self._ended.popleft(), None)

    def _forget(self, call: ServedCall) -> None:
        """Release the slot of a call that did not run."""
        if self._calls.pop(call.request.request_id, None) is not None:
            self._admission.release(call)

    def _launch_if_due(self, call: ServedCall) -> None:
        if call.is_aborted:
            self._forget(call)
        elif call.deadline is not None and call.deadline <= monotonic():
            self._expire(call)
        else:
            self._launch(call)

    def _displace(self, call: ServedCall) -> None:
        """Refuse a queued call in favour of a caller with fewer slots."""
        self._queue.remove(call)
        self._refuse_waiting(call, self._admission.refusal(call, "of yours "))

    def _expire(self, call: ServedCall) -> None:
        self.counts.expired += 1
        error = failures.timed_out(call.operation_id, idempotent=call.prepared.spec.idempotent)
        self._refuse_waiting(call, error)

    def _refuse_waiting(self, call: ServedCall, error: CallError) -> None:
        self._forget(call)
        self._refuse(call.request, call.reply, call.identity, error)

    # publishing

    async def _publish(self, call: ServedCall, payload: Payload) -> None:
        event = self._answers.written(payload, call.request.operation_id)  # raises before an item is numbered
        if call.producer is None:
            await self._answers.send(call, event)
        elif isinstance(payload, Responded):
            await call.producer.put(event)
        else:
            await call.producer.finish(event)

    async def _accept(self, call: ServedCall) -> None:
        call.is_accepted = True
        call.last_sent_at = monotonic()
        control = self._control_of(call)
        said = control if self._transport.capabilities.rewrites_replies else None
        await self._answers.try_send(call.reply, Accepted(call.request.request_id, self._transport.name, said), control)

    def _control_of(self, call: ServedCall) -> str:
        call.secret = call.secret or new_request_id()
        return control_subject(self._transport.name, self.boot, call.secret)

    # control events and timers

    def _take_control(self, message: Message) -> None:
        """Handle a control event; the secret in its subject proves that it comes from the caller."""
        if message.signal is not None:
            self._answers.on_signal(message.signal)
            return
        try:
            event = read_event(message.data)
        except FormatError:
            self.counts.malformed += 1
            return
        payload = event.payload
        call = self._calls.get(payload.request_id)
        if call is None:
            return
        is_secret = message.subject.rpartition(".")[2] == call.secret
        if not is_secret or message.peer not in (None, call.peer):
            self.counts.refused += 1
        else:
            self._take_control_event(call, payload, event.id)

    def _take_control_event(self, call: ServedCall, payload: Payload, event_id: str) -> None:
        producer = call.producer
        if isinstance(payload, Aborted):
            call.abort()
            if self._queue.remove(call):  # it was still queued
                self._forget(call)
        elif producer is not None and producer.is_new(event_id):
            producer.last_event_at = monotonic()
            if isinstance(payload, Credit):
                producer.grant(payload.n)
            elif isinstance(payload, Resume) and not producer.resume(payload.from_seq, payload.n or 0):
                self._fail_for_lost_items(call, payload.from_seq)
            self._answers.begin(producer.flush())

    def _fail_for_lost_items(self, call: ServedCall, seq: int) -> None:
        call.abort()
        error = CallError("DATA_LOSS", f"Items of {call.operation_id} are no longer available", {"seq": seq})
        self._answers.send_soon(call.reply, failed(call.request.request_id, error), self._control_of(call))

    def _tick(self, now: float) -> bool:
        """Check all calls; returns whether there are any."""
        blocked_for = self._ticker.blocked_for
        for call in list(self._calls.values()):
            if blocked_for and call.producer is not None:  # what its consumer has sent could not be read
                call.producer.last_event_at = min(now, call.producer.last_event_at + blocked_for)
            self._check_call(call, now)
        return bool(self._calls)

    def _check_call(self, call: ServedCall, now: float) -> None:
        if call.task is None and call.deadline is not None and call.deadline <= now:
            self._queue.remove(call)
            self._expire(call)
        elif not call.is_accepted:
            if now - call.arrived_at >= self._settings.accept_after:
                self._answers.begin(self._accept(call))
        elif now - call.last_sent_at >= self._settings.heartbeat:
            call.last_sent_at = now
            self._answers.send_soon(call.reply, Heartbeat(call.request.request_id), self._control_of(call))
        if call.producer is not None and now - call.producer.last_event_at > self._settings.silence + STALL:
            call.abort()


def _span(call: ServedCall) -> SpanStart:
    return SpanStart(call.operation_id, "server", {"rpc.system.name": "enfold"}, call.headers or {})


def as_started(error: CallError) -> CallError:
    """Remove `started: false` of a nested call from the error of a call that has started."""
    if "started" not in error.details:
        return error
    details = {key: value for key, value in error.details.items() if key != "started"}
    started = CallError(error.code, error.message, details, error.retryable)
    started.row = error.row
    return started
