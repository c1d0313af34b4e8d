"""Runs tasks: claims them from a store, sends heartbeats, and records how they end.

A handler that fails has an outcome, and is not run again; only the death of its worker starts it again.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from enfold.errors import CallError, error_from
from enfold.middleware.idempotency_store import failure, success, with_headers
from enfold.observability.log import Log
from enfold.operations import Context, Identity, LogMessage, OperationSpec, Origin, Progress
from enfold.operations.access import may_call, narrower
from enfold.operations.context import Invocation
from enfold.operations.idempotency import EntryKey, owned_by
from enfold.operations.outcomes import NeedsInput, envelope_of
from enfold.operations.outcomes import Outcome as CallOutcome
from enfold.operations.questions import EVERY_QUESTION, Question
from enfold.runtime.registry import Registry
from enfold.tasks.model import Order, Task
from enfold.tasks.store import (
    MAX_RESULT,
    Abandoned,
    Asking,
    Claim,
    Claims,
    Ending,
    FencedError,
    TaskLimits,
    TaskStore,
    now_ms,
)

if TYPE_CHECKING:
    from enfold.operations.operation import RecordedRun
    from enfold.provenance import Recorder


AT_ONCE: Final = 64
RESERVED_SHARE: Final = 8  # one slot in this many is reserved for owners without a running task here
WAIT: Final = 1.0  # seconds that one claim waits for work
SHORT_WAIT: Final = 0.05  # seconds that a claim for reserved slots waits
EXPIRE_EVERY: Final = 30.0
PAUSE: Final = 0.5  # seconds before an unavailable store is tried again
UNSTORED: Final = 5.0  # seconds to store outcomes once the worker stops
LAST_WAIT: Final = 2.0  # seconds for everything that is left after the grace period

Current = Callable[[Identity], Identity | None]  # the current identity; None if it is unknown


class Runner:
    """A worker for the tasks of one registry. It runs until `stop`, or as long as its `async with`."""

    def __init__(
        self,
        registry: Registry,
        store: TaskStore,
        *,
        at_once: int = AT_ONCE,
        max_result: int = MAX_RESULT,
        current: Current | None = None,
        recorder: Recorder | None = None,
        elsewhere: str | None = None,
    ) -> None:
        """`current` returns the current scopes of an identity; `recorder` records runs whose caller asked for it.

        Operations of the source `elsewhere` are run by its own workers.
        """
        self._registry = registry
        self._store = store
        self._at_once = at_once
        self._max_result = max_result
        self._current = current
        self._recorder = recorder
        self._elsewhere = elsewhere
        self._attempts: dict[asyncio.Task[None], AttemptPulse] = {}
        self._records: set[asyncio.Task[None]] = set()  # ends that are being recorded
        self._record_limits: set[asyncio.Timeout] = set()
        self._record_within: float | None = None  # seconds; None until the worker stops
        self._reserved = at_once // RESERVED_SHARE
        self._reserved_claim_at = 0.0
        self._being_stored = 0  # tasks that are being stored, to be started here
        self._being_claimed = 0
        self._free = asyncio.Event()
        self._claiming: asyncio.Task[None] | None = None
        self._expiring: asyncio.Task[None] | None = None
        self._last_error = ""
        self._durable: frozenset[str] = frozenset()
        self._durable_version = -1  # of the registry
        self.started = 0  # attempts
        self.fenced = 0  # attempts whose outcome did not count

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def start(self) -> None:
        """Start to claim tasks, on the running event loop."""
        if self._claiming is None or self._claiming.done():
            loop = asyncio.get_running_loop()
            self._record_within = None
            self._claiming = loop.create_task(self._claim_loop())
            self._expiring = loop.create_task(self._expire_loop())

    @property
    def is_running(self) -> bool:
        """Whether it claims tasks on the running event loop."""
        claiming = self._claiming
        return claiming is not None and not claiming.done() and claiming.get_loop() is asyncio.get_running_loop()

    @property
    def working(self) -> int:
        """The number of tasks that run here now."""
        return len(self._attempts)

    async def stop(self, grace: float = 0.0) -> None:
        """Claim no more tasks, let running ones end within `grace` seconds, and abandon the rest for other workers.

        An outcome that cannot be stored is retried for some seconds; then other workers take the task over.
        """
        await cancel_all((self._claiming, self._expiring))
        self._claiming = self._expiring = None
        self._limit_records(UNSTORED)
        if self._attempts and grace > 0:
            await asyncio.wait(self._attempts, timeout=grace)
        self._limit_records(LAST_WAIT)
        ends_at = time.monotonic() + LAST_WAIT
        while left := {*self._attempts, *self._records}:
            for attempt, pulse in self._attempts.items():
                if pulse.is_running:  # one that records its end is not disturbed
                    pulse.is_left = True
                    attempt.cancel()
            if (await asyncio.wait(left, timeout=ASK_AGAIN))[0]:
                ends_at = time.monotonic() + LAST_WAIT
            elif time.monotonic() >= ends_at:
                return  # a handler that does not let itself be cancelled

    def _limit_records(self, seconds: float) -> None:
        """Give outcomes so long to be stored, from now on."""
        self._record_within = seconds
        ends_at = asyncio.get_running_loop().time() + seconds
        for limit in self._record_limits:
            before = limit.when()
            if not limit.expired() and (before is None or before > ends_at):
                limit.reschedule(ends_at)

    # finding work

    async def _claim_loop(self) -> None:
        while True:
            if not self._served():
                await asyncio.sleep(WAIT)  # nothing is durable: the store is not even opened
                continue
            try:
                claims = await self._claim()
            except CallError as error:
                self._log_once(error)
                await asyncio.sleep(PAUSE)
                continue
            self._last_error = ""
            for claim in claims:
                self._begin(claim)

    async def _claim(self) -> Claims:
        """Claim tasks of all owners; if only reserved slots are free, once a second those of owners without a running task here."""
        try:
            if self._room > self._reserved:
                return await self._store.claim(self._served, partial(self._reserve, self._reserved), WAIT)
            self._free.clear()
            if self._room > 0 and time.monotonic() >= self._reserved_claim_at:
                self._reserved_claim_at = time.monotonic() + WAIT
                return await self._store.claim(self._served, partial(self._reserve, 0), SHORT_WAIT, but=self._owners)
        finally:
            self._being_claimed = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT):
                await self._free.wait()
        return []

    def _reserve(self, but: int) -> int:
        """Reserve all free slots but so many for a claim: others may have been taken while it waited for work."""
        self._being_claimed = max(0, self._room - but)
        return self._being_claimed

    @property
    def _room(self) -> int:
        return self._at_once - len(self._attempts) - self._being_stored - self._being_claimed

    @property
    def _owners(self) -> set[str]:
        """The owners of running tasks; without identities there is one owner, which may use all slots."""
        return {pulse.claim.task.owner for pulse in self._attempts.values()} - {""}

    def _has_room_for(self, owner: str) -> bool:
        room = self._room
        return room > self._reserved or (room > 0 and owner not in self._owners)

    async def accept(self, order: Order, limits: TaskLimits) -> Task:
        """Store a task, and start it if there is a free slot: storing and claiming together saves a write."""
        begins = self.is_running and order.operation in self._served() and self._has_room_for(order.owner)
        self._being_stored += begins
        try:
            stored = await self._store.accept(order, limits, claims=begins)
        finally:
            self._being_stored -= begins
            self._free.set()
        if isinstance(stored, Task):
            return stored
        if self.is_running:
            self._begin(stored)
        else:  # it was stopped meanwhile
            with suppress(CallError, FencedError):  # other workers take it over in any case
                await self._store.record(stored, Abandoned(was_started=False))
        return stored.task

    async def take(self, task_id: str) -> None:
        """Run this one task here, if it can be claimed."""
        claim = await self._store.take(task_id)
        if claim is not None:
            self._begin(claim)

    def _log_once(self, error: CallError) -> None:
        """Log why no task can be claimed, and again only when the reason changes."""
        reason = f"{error}: {error.__cause__!r}"
        if reason != self._last_error:
            Log("enfold.tasks").warning("Cannot claim tasks: %s", reason)
        self._last_error = reason

    def _served(self) -> Collection[str]:
        version = self._registry.version
        if version != self._durable_version:
            elsewhere = Origin("calls", self._elsewhere or "")
            durable = [
                each.spec.id for each in self._registry if each.spec.durable != "never" and each.origin != elsewhere
            ]
            self._durable, self._durable_version = frozenset(durable), version
        return self._durable

    def _begin(self, claim: Claim) -> None:
        self.started += 1
        pulse = AttemptPulse(self._store, claim)
        pulse.attempt = attempt = asyncio.get_running_loop().create_task(self._attempt(claim, pulse))
        self._attempts[attempt] = pulse
        attempt.add_done_callback(self._is_over)

    def _is_over(self, attempt: asyncio.Task[None]) -> None:
        del self._attempts[attempt]
        self._free.set()
        if not attempt.cancelled() and (error := attempt.exception()) is not None:
            Log("enfold.tasks").error("an attempt could not be recorded", error=error)

    async def _expire_loop(self) -> None:
        while True:
            if self._served():
                with suppress(CallError):
                    await self._store.expire()
            await asyncio.sleep(EXPIRE_EVERY)

    # one attempt

    async def _attempt(self, claim: Claim, pulse: AttemptPulse) -> None:
        """Run the handler beside its heartbeat, and record its outcome unless another attempt has taken the task."""
        ending: Ending = Abandoned()
        pulse.start()
        try:
            ending = await self._run(claim.task, pulse)
        except asyncio.CancelledError:
            if pulse.is_fenced:
                self.fenced += 1
                return
            if pulse.is_cancelling:
                ending = failure(CallError("ABORTED", f"{claim.task.operation} was cancelled"))
        finally:
            pulse.stop()
            if not pulse.is_fenced:
                await asyncio.shield(self._recorded(claim, ending, pulse))

    async def _run(self, task: Task, pulse: AttemptPulse) -> Ending:
        caller = AbsentCaller(task)
        context = Context(
            timeout=(task.order.deadline - now_ms()) / 1000,
            parent_request_id=task.order.request_id,
            notify=pulse.hear,
            invocation=Invocation(caller, CurrentTask(task, pulse)),
        )
        try:
            outcome = await self._execute(task, context)
            if isinstance(outcome, NeedsInput):
                pulse.is_left = True
                return Asking(dict(outcome.questions), caller.memory)
            return with_headers(success(envelope_of(outcome), self._max_result), context.reply_headers)
        except CallError as error:
            return with_headers(failure(error, self._max_result), context.reply_headers)
        except Exception as error:  # noqa: BLE001  # a result that cannot be written down is this task's failure alone
            Log("enfold.tasks").error("task %s failed", task.id, error=error)
            return failure(error_from(error, f"Operation {task.operation} failed"))

    async def _execute(self, task: Task, context: Context) -> CallOutcome:
        order = task.order
        if context.remaining() == 0:
            raise CallError("TIMEOUT", f"{order.operation} did not finish by its deadline")
        identity = self._identity(order.identity)
        prepared = self._registry.prepared(order.operation)
        given = order.input
        _check(prepared.spec, identity, given)
        context.identity = identity
        context.select = order.select
        context.idempotency_key = _key_of(order)
        if self._recorder is not None:
            context.recording = self._recording(self._recorder, task, prepared.spec)
        return await prepared.execute(given, context)

    def _recording(self, recorder: Recorder, task: Task, spec: OperationSpec) -> RecordedRun | None:
        """Begin the record of this attempt, which lists the task among its inputs."""
        from enfold.provenance import options_from_call  # with the first run that is recorded
        from enfold.provenance.artifacts import task_artifact

        order = task.order
        return recorder.begin(
            options_from_call(order.provenance),
            operation=spec,
            adapter="tasks",
            identity="" if order.identity is None else order.identity.id,
            artifacts=[task_artifact(task.id)],
        )

    def _identity(self, ordered: Identity | None) -> Identity | None:
        """Return the caller with only the rights they had at the start and still have."""
        if ordered is None or self._current is None:
            return ordered
        known = self._current(ordered)
        return ordered if known is None else narrower(ordered, known)

    def _recorded(self, claim: Claim, ending: Ending, pulse: AttemptPulse) -> asyncio.Task[None]:
        """Record the end beside its attempt, which may be cancelled."""
        recording = asyncio.get_running_loop().create_task(self._record_in_time(claim, ending, pulse))
        self._records.add(recording)
        recording.add_done_callback(self._records.discard)
        return recording

    async def _record_in_time(self, claim: Claim, ending: Ending, pulse: AttemptPulse) -> None:
        try:
            async with asyncio.timeout(self._record_within) as limit:
                self._record_limits.add(limit)
                try:
                    await self._record(claim, ending, pulse)
                finally:
                    self._record_limits.discard(limit)
        except TimeoutError:
            message = "Task %s has finished, but its outcome could not be stored before this worker had to stop"
            Log("enfold.tasks").error(message, claim.id)

    async def _record(self, claim: Claim, ending: Ending, pulse: AttemptPulse) -> None:
        """Record the end, retrying while the store is unavailable; FencedError says that another attempt has the task."""
        with suppress(CallError, FencedError):
            if pulse.progress is not None:  # the last that the handler has said, however soon after the one before
                await self._store.hold(claim, pulse.progress)
        is_told = False
        while True:
            try:
                await self._store.record(claim, ending)
            except FencedError:
                self.fenced += 1
            except CallError as error:
                if error.code != "UNAVAILABLE":
                    ending = failure(error)  # the store refuses this outcome: it is too large for it
                    continue
                if not is_told:
                    Log("enfold.tasks").warning("task %s cannot be recorded yet: %s", claim.id, error)
                is_told = True
                await asyncio.sleep(PAUSE)
                continue
            return


def _key_of(order: Order) -> str:
    """Return the idempotency key for upstreams: the same in every attempt, and for every task with the caller's key."""
    if order.key is None:
        return order.id
    return EntryKey(owned_by(order.identity), order.operation, order.key).digest()


def _check(spec: OperationSpec, identity: Identity | None, input: Mapping[str, Any]) -> None:
    """Whether the caller may still do what they ordered."""
    if not may_call(spec.access_control, identity, input):
        raise CallError(
            "ACCESS_DENIED",
            f"{spec.id} is no longer permitted for the caller who started the task",
            {"reason": "not_allowed"},
        )


MAX_NOTES: Final = 64 * 1024
PROGRESS_EVERY: Final = 1.0  # seconds


class AttemptPulse(msgspec.Struct, eq=False):
    """The heartbeat of one attempt, which carries its handler's progress to the store."""

    store: TaskStore
    claim: Claim
    attempt: asyncio.Task[None] | None = None
    progress: Progress | None = None
    told_at: float = 0.0
    timer: asyncio.TimerHandle | None = None
    beating: asyncio.Task[None] | None = None
    is_running: bool = False  # whether its handler runs
    is_left: bool = False  # whether the task goes on without this attempt
    is_fenced: bool = False
    is_cancelling: bool = False

    def hear(self, message: Progress | LogMessage) -> None:
        """Take the handler's progress; it is stored with the next heartbeat, at most once a second."""
        if isinstance(message, Progress):
            self.progress = message

    async def keep(self, notes: dict[str, Any]) -> None:
        """Store what the handler wants later attempts to know."""
        await self.store.hold(self.claim, None, notes)

    def start(self) -> None:
        """Begin to send heartbeats; most tasks end before the first one."""
        self.timer = asyncio.get_running_loop().call_later(self.store.beat, self._begin)
        self.is_running = True

    def stop(self) -> None:
        self.is_running = False
        for each in (self.timer, self.beating):
            if each is not None:
                each.cancel()

    def _begin(self) -> None:
        self.beating = asyncio.get_running_loop().create_task(self._beat())

    async def _beat(self) -> None:
        """Send heartbeats until the handler must stop: the task is cancelled, or another attempt has it."""
        while True:
            try:
                self.is_cancelling = await self._hold()
            except FencedError:
                self.is_fenced = self.is_left = True
            except CallError:
                pass  # a store that is unreachable; the handler goes on meanwhile
            if self.is_fenced or self.is_cancelling:
                if self.attempt is not None:
                    self.attempt.cancel()
                return
            await asyncio.sleep(self.store.beat)

    async def _hold(self) -> bool:
        told, now = None, time.monotonic()
        if now - self.told_at >= PROGRESS_EVERY:
            told, self.progress = self.progress, None
        if told is not None:
            self.told_at = now
        return await self.store.hold(self.claim, told)


class CurrentTask:
    """`context.task` of a handler."""

    def __init__(self, task: Task, pulse: AttemptPulse) -> None:
        self.id = task.id
        self.attempt = task.attempt
        self._notes = dict(task.notes)
        self._pulse = pulse

    @property
    def is_left(self) -> bool:
        return self._pulse.is_left

    @property
    def notes(self) -> Mapping[str, Any]:
        return self._notes

    async def note(self, key: str, value: Any) -> None:
        noted = {**self._notes, key: value}
        if len(msgspec.json.encode(noted)) > MAX_NOTES:
            raise ValueError(f"The notes of a task exceed the limit of {MAX_NOTES} bytes")
        await self._pulse.keep({key: value})
        self._notes = noted


class AbsentCaller:
    """The peer of a handler inside a task: it has the answers given so far; other questions end the attempt."""

    def __init__(self, task: Task) -> None:
        self.capabilities: Mapping[str, Any] = (
            EVERY_QUESTION if task.order.capabilities is None else task.order.capabilities
        )
        self.client: object = self
        self.session = None
        self.meta: Mapping[str, Any] = {}
        self.memory = dict(task.memory)
        self.answers: Mapping[str, Any] = task.order.answers
        self._in_task = task.answers
        self.asked: dict[str, int] = {}

    async def ask(self, questions: Mapping[str, Question]) -> dict[str, Any] | NeedsInput:
        keys = {key: question_key(key, question) for key, question in questions.items()}
        answers = {key: self.answers[key] for key in questions if key in self.answers}
        answers |= {key: self._in_task[bound] for key, bound in keys.items() if bound in self._in_task}
        missing = {keys[key]: question for key, question in questions.items() if key not in answers}
        if missing:
            return NeedsInput(missing)
        return answers

    def resource_updated(self, uri: str) -> None:
        """Ignored: a task has no subscribers of resources."""

    def close_stream(self) -> None:
        """Do nothing: there is no connection to close."""


def question_key(key: str, question: Question) -> str:
    """Return the key under which callers see a question: the handler's own, and a digest of the question."""
    text = msgspec.json.encode([question.method, question.params], order="deterministic")
    return f"{key}-{hashlib.sha256(text).hexdigest()[:12]}"


ASK_AGAIN: Final = 0.25


async def cancel_all(running: Iterable[asyncio.Future[Any] | None]) -> None:
    """Cancel them, and wait until all have ended, however they do."""
    left = {each for each in running if each is not None}
    while left:
        for each in left:
            each.cancel()
        over, left = await asyncio.wait(left, timeout=ASK_AGAIN)
        for each in over:
            if not each.cancelled():
                each.exception()  # retrieved, so that the loop does not log it
