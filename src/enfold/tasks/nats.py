"""Tasks on NATS JetStream, for many machines. They survive the failure of every process except the NATS servers.

The queue holds what is to be run until it is done; the bucket holds the state of every task under its owner. A worker
claims by writing the state over the version it has read, and records in the same way: a late write is refused. Callers
answer and cancel in the same way.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from re import match
from typing import TYPE_CHECKING, Any, Final

import msgspec

from enfold.calls.protocol.transport import TransportError
from enfold.calls.transports.nats_streams import reachable
from enfold.errors import CallError
from enfold.middleware.idempotency_store import failure, refuse_other_input
from enfold.observability.log import Log
from enfold.operations import Progress
from enfold.tasks import transitions
from enfold.tasks.model import EVERY_TASK, TASK_ID, Order, Status, Task, TaskFilter
from enfold.tasks.nats_streams import (
    DEFAULT_NAME,
    INLINE,
    PAUSE,
    Conflict,
    FoundTask,
    Ledger,
    Names,
    Queue,
    Seldom,
    SignOrder,
    Slots,
    States,
    Streams,
    VerifyOrder,
    dead_key,
    encoded,
    first_key,
    read_entry,
    seconds_kept,
    task_key,
    task_pattern,
    token_of,
)
from enfold.tasks.runner import cancel_all
from enfold.tasks.store import (
    DATA_LOSS,
    Abandoned,
    Answers,
    Claim,
    Claims,
    Ending,
    FencedError,
    Room,
    Served,
    Signal,
    TaskLimits,
    Wakeups,
    after_ending,
    after_signal,
    listed,
    now_ms,
    same_order,
    store_unavailable,
    task_not_found,
    unreadable,
)

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from enfold.calls.protocol.transport import KeepingTransport

__all__ = ["NATSTasks"]

ACK_WAIT: Final = 5.0  # seconds after which a task whose worker is silent is given to another
REQUEUE_AFTER: Final = 5.0
LOST_AFTER: Final = 6.0  # ack_waits without a change, after which it is looked whether a task is still in the queue
READ_AT_ONCE: Final = 100
LATEST: Final = 2**63 - 1  # milliseconds: the last moment that can be counted
# What a direct read answers with. NATS does not check where its asker wants the answer: it could be the queue.
_REFLECTED: Final = "Nats-Stream"
NAMING_ATTEMPTS: Final = 30  # of finding the first task with a key while the key changes or expires
POLL: Final = 1.0  # seconds after which a watcher looks although it has heard nothing


class _Named(msgspec.Struct, frozen=True):
    id: str
    digest: str


class _Hold(msgspec.Struct, eq=False):
    """What an attempt needs to go on: its message in the queue, and the state that it has last written or read."""

    message: Any
    task: Task
    revision: int


class NATSTasks:
    """Tasks on the servers of a transport. They need nats-server 2.11 or later, with JetStream."""

    def __init__(
        self,
        transport: KeepingTransport,
        *,
        ack_wait: float = ACK_WAIT,
        replicas: int | None = None,
        name: str = DEFAULT_NAME,
        sign: SignOrder | None = None,
        verify: VerifyOrder | None = None,
    ) -> None:
        """Create a store: a worker that is silent for `ack_wait` seconds loses its tasks; `replicas` servers keep them.

        `name` tells the stores of one server apart. `sign` signs what is accepted here; with `verify` only orders that
        it finds good are run.
        """
        self.beat = min(0.5, ack_wait / 3)
        self._ack_wait = ack_wait
        self._streams = Streams(transport, Names(name), replicas)
        self._queue = Queue(self._streams, ack_wait)
        self._transport = transport
        self._sign = sign
        self._verify = verify
        self._name = os.urandom(8).hex()
        self._running: dict[str, str] = {}  # the fence of each task that is run here
        self._requeued = Seldom(REQUEUE_AFTER)
        self._looked_for = Seldom(LOST_AFTER * ack_wait)  # in the queue, of tasks that may be lost
        self._living: asyncio.Future[None] | None = None
        self._left: set[asyncio.Future[None]] = set()  # claims that are being given back
        self._ledger = Ledger(self._streams, self._name)
        self._states = States(self._streams, self._ledger)
        self._slots = Slots(self._streams, self._is_unfinished)

    async def check(self) -> None:
        """Check the streams before anything is served; UNAVAILABLE says what is wrong with them."""
        async with reachable():
            await self._streams.open()

    async def close(self) -> None:
        """Do nothing: the owner of the transport closes it."""
        self._queue.close()
        if self._left:
            await asyncio.wait(self._left)
        if self._living is not None:
            await cancel_all((self._living,))
            self._living = None
            with suppress(CallError):
                async with self._reached():
                    await self._streams.remove(f"worker.{self._worker}")

    # what callers do

    async def accept(self, order: Order, limits: TaskLimits, *, claims: bool = False) -> Task:
        del claims  # the next consumer of the queue gets it
        async with self._reached():
            order = msgspec.json.decode(msgspec.json.encode(order), type=Order)
            await self._states.check_size(transitions.accept(order))
            named = await self._named(order)
            if named.id != order.id:
                order = msgspec.structs.replace(order, id=named.id)
                first = await self._states.find(order)
                if first is not None:
                    return same_order(first.task, order)
            # The first order with this key died before it was stored, or there was none.
            order = order if self._sign is None else self._sign(order)
            await self._ledger.check(order, limits)
            await self._slots.take(order, limits.limit)
            # Queued before it is named: a process that dies in between has not reported it as accepted.
            await self._streams.queue(token_of(order.owner), order.operation, msgspec.json.encode(order), order.id)
            with suppress(Conflict):  # a worker was faster
                return await self._states.create(order)
            found = await self._states.find(order)
            return transitions.accept(order) if found is None else found.task

    async def _named(self, order: Order) -> _Named:
        """Return the task id that the order's key stands for: its own, if it is the first with this key."""
        mine = _Named(order.id, order.digest)
        if order.key is None:
            return mine
        key = first_key(order.owner, order.operation, order.key)
        seconds, value = (order.expires - now_ms()) / 1000, msgspec.json.encode(mine)
        follows = 0
        for _ in range(NAMING_ATTEMPTS):
            with suppress(Conflict):
                await self._streams.write(key, value, follows, seconds)
                return mine
            found = await self._streams.read(key)
            if found is None:  # it has just expired, or this replica does not have it yet
                follows = 0
                await asyncio.sleep(PAUSE)
                continue
            named = read_entry(_Named, found.value)
            first = await self._states.find(msgspec.structs.replace(order, id=named.id))
            is_free = first is not None and (
                transitions.frees_key(first.task) or transitions.is_forgotten(first.task, now_ms())
            )
            if not is_free:
                refuse_other_input(named.digest, order.digest)
                return named
            follows = found.revision
        raise CallError("UNAVAILABLE", "The task store is still resolving this idempotency key: retry")

    async def get(self, owner: str | None, task_id: str) -> Task | None:
        async with self._reached():
            found = await self._seen(owner, task_id)
            return None if found is None else await self._states.whole(found)

    async def list(self, owner: str | None, limit: int = 100, wanted: TaskFilter = EVERY_TASK) -> list[Task]:
        async with self._reached():
            keys = await self._streams.keys(task_pattern(owner, None))
            newest: list[Task] = []
            for start in range(0, len(keys), READ_AT_ONCE):
                some = await asyncio.gather(*map(self._listed, keys[start : start + READ_AT_ONCE]))
                found = [*newest, *(task for task in some if task is not None and wanted.takes(task))]
                newest = sorted(found, key=lambda task: task.created, reverse=True)[:limit]
            return newest

    async def _listed(self, key: str) -> Task | None:
        """Return a task for a list, without large fields; None if it cannot be read."""
        try:
            found = await self._states.find_at(key)
        except CallError as error:
            Log("enfold.tasks").error("%s is not a task: %s", key, error.__cause__)
            return None
        if found is not None and found.task is not found.kept.task:  # it is over its deadline
            found = await self._seen(found.task.owner, found.task.id)
        return None if found is None or transitions.is_forgotten(found.task, now_ms()) else listed(found.task)

    async def signal(self, owner: str | None, task_id: str, signal: Signal) -> Task | None:
        async with self._reached():
            found = await self._seen(owner, task_id)
            if found is None:
                return None
            await self._tell(found.task, signal)
            return await self._states.whole(await self._seen(owner, task_id) or found)

    async def _tell(self, task: Task, signal: Signal) -> None:
        """Write a caller's signal into the state by compare-and-set; after a conflict the state is read again."""
        while (found := await self._states.find(task.order)) is not None:
            after = after_signal(found.task, signal, now_ms())
            if after is found.task:
                return
            if isinstance(signal, Answers):
                await self._states.check_size(after)
            with suppress(Conflict):
                await self._states.put(after, found.revision)
                if after.is_ended:
                    await self._slots.end(after.order)
                return

    async def watch(self, owner: str | None, task_id: str) -> AsyncGenerator[Task]:
        first = await self.get(owner, task_id)
        if first is None:
            raise task_not_found()
        wakeups = Wakeups()

        async def on_change(_: Msg) -> None:
            wakeups.wake()

        async with self._reached():
            subscription = await self._streams.listen(task_key(first.order, ">"), on_change)
        try:
            async with aclosing(wakeups.watch(owner, task_id, partial(self.get, owner, task_id), POLL)) as changes:
                async for task in changes:
                    yield task
        finally:
            with suppress(Exception):  # a connection that is gone has no subscriptions
                await subscription.unsubscribe()

    async def expire(self) -> None:
        """Do nothing: the server expires entries, and the next reader of an overdue task ends it."""

    # what workers do

    async def claim(self, served: Served, room: Room, wait: float, *, but: Collection[str] = ()) -> Claims:
        async with self._reached():
            if self._living is None or self._living.done():
                await self._streams.write(f"worker.{self._worker}", b"1", None, self._ack_wait / 2)
                self._living = asyncio.ensure_future(self._show_life())
            messages = await self._queue.next(served(), room(), wait, {token_of(owner) for owner in but})
            claiming = asyncio.ensure_future(self._claim_all(messages))
            try:
                return await asyncio.shield(claiming)
            except asyncio.CancelledError:  # before the tasks were claimed, or in the very turn in which they were
                self._left.add(given_back := asyncio.ensure_future(self._give_back(claiming)))
                given_back.add_done_callback(self._left.discard)
                raise

    async def _claim_all(self, messages: Sequence[Msg]) -> Claims:
        found = await asyncio.gather(*(self._claim(message) for message in messages), return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, CallError):
                Log("enfold.tasks").warning("A task could not be claimed and will be redelivered: %r", each)
        return [each for each in found if isinstance(each, Claim)]

    async def _give_back(self, claiming: asyncio.Future[Claims]) -> None:
        for claim in await claiming:
            with suppress(CallError, FencedError):  # it comes again in any case
                await self.record(claim, Abandoned(was_started=False))

    async def _claim(self, message: Msg) -> Claim | None:
        """Claim the task of a message; one whose state cannot be read or written ends as failed."""
        order = await self._order(message)
        if order is None:
            return None
        try:
            return await self._claim_ordered(message, order)
        except CallError as error:
            if error.code == "UNAVAILABLE":
                raise
            await self._give_up(message, order, error)
            return None

    async def _claim_ordered(self, message: Msg, order: Order) -> Claim | None:
        """Claim a task, unless it has ended, waits for answers, or is run by a worker that lives."""
        while True:
            found = await self._states.find(order)
            if found is not None and not self._is_same_task(found.task.order, order):
                raise unreadable(ValueError("its state belongs to another order"))
            task = transitions.end_if_overdue(transitions.accept(order) if found is None else found.task, now_ms())
            if task.is_ended or task.status is Status.INPUT_REQUIRED:
                await self._drop(message, task, found)
                return None
            if task.fence and not await self._may_take_over(message, task):
                return None
            task = transitions.worker_died(task, now_ms()) if task.fence else task
            is_over = task.is_ended
            if not is_over:
                fence = f"{self._worker}.{os.urandom(8).hex()}.{_sequence(message)}"
                task = transitions.claim(task, fence, now_ms())
            # A conflict is read again at once: most often the accepter has just stored the task.
            with suppress(Conflict):
                revision = await self._states.put(task, 0 if found is None else found.revision)
                if is_over:
                    await self._slots.end(task.order)
                    await message.ack()
                    return None
                self._running[task.id] = task.fence
                return Claim(task, _Hold(message, task, revision))

    def _is_same_task(self, kept: Order, order: Order) -> bool:
        """Whether a state belongs to an order: the edge that queued one of the two may have died before it stored the task."""
        if kept == order:
            return True
        names, others = [(each.id, each.owner, each.operation, each.key, each.digest) for each in (kept, order)]
        return order.key is not None and names == others and (self._verify is None or self._verify(kept))

    async def _order(self, message: Msg) -> Order | None:
        """Read the order of a message; an invalid one is stored under `dead.` and acknowledged."""
        try:
            return _order(message, self._streams.names, self._verify)
        except (msgspec.MsgspecError, ValueError, OverflowError) as error:
            Log("enfold.tasks").error("Message %s in the queue is not a task: %s", _sequence(message), error)
            key = dead_key(message.subject.split(".", 3)[3], _sequence(message))
            await self._streams.write(key, message.data[:INLINE] or b"-", None, 86_400)
            await message.ack()
            return None

    async def _drop(self, message: Msg, task: Task, found: FoundTask | None) -> None:
        """Drop a message with nothing to run; an outcome that arrived meanwhile is stored first."""
        if task.is_ended:
            is_stored = found is not None and found.kept.task.is_ended
            if not is_stored and not transitions.is_forgotten(task, now_ms()):
                with suppress(Conflict):
                    await self._states.put(task, 0 if found is None else found.revision)
            await self._slots.end(task.order)
        await message.ack()

    async def _give_up(self, message: Msg, order: Order, error: CallError) -> None:
        """End a task that cannot go on."""
        Log("enfold.tasks").error("task %s ends: %s", order.id, error)
        task = transitions.end(transitions.accept(order), failure(error), now_ms())
        await self._streams.write(task_key(order), encoded(task), None, seconds_kept(task))
        await self._slots.end(task.order)
        await message.ack()

    async def _may_take_over(self, message: Msg, task: Task) -> bool:
        """Whether the worker that holds the task is dead. What the server gives us again may only have been late."""
        is_ours = self._running.get(task.id) == task.fence
        if not is_ours and not await self._holder_lives(task):
            # After an outage no worker has sent heartbeats, and those that reconnect later than we do need time.
            patience = self._ack_wait - self._streams.up_for
            if patience > 0:
                await message.nak(delay=patience)
            return patience <= 0
        if task.fence.rpartition(".")[2] != _sequence(message):
            await message.ack()  # a second copy of what is running
        elif is_ours:
            await message.in_progress()  # the server took it for lost
        else:
            await message.nak(delay=self._ack_wait / 4)
        return False

    async def _holder_lives(self, task: Task) -> bool:
        holder = ".".join(task.fence.split(".")[:2])
        return holder != self._worker and await self._streams.read(f"worker.{holder}") is not None

    @property
    def _worker(self) -> str:
        """Under which key this process shows life; the server binds the first part to our user."""
        return f"{self._transport.name}.{self._name}"

    async def _show_life(self) -> None:
        """Renew the key that shows that this worker lives; it expires soon after the last time."""
        while True:
            pause = PAUSE
            with suppress(CallError):
                async with self._reached(), asyncio.timeout(self._ack_wait / 4):
                    await self._streams.write(f"worker.{self._worker}", b"1", None, self._ack_wait / 2)
                    pause = self._ack_wait / 4
            await asyncio.sleep(pause)

    async def take(self, task_id: str) -> Claim | None:
        """Return None: the queue delivers to the next consumer, so a single task cannot be chosen."""
        del task_id
        return None

    async def has_worker(self) -> bool | None:
        async with self._reached():
            return bool(await self._streams.keys("worker.*.*"))

    async def hold(
        self, claim: Claim, progress: Progress | None = None, notes: Mapping[str, Any] | None = None
    ) -> bool:
        async with self._reached():
            await claim.token.message.in_progress()
            if progress is not None or notes:
                task = await self._change_held(claim, partial(transitions.note, progress=progress, notes=notes))
                return task.is_cancelling
            return (await self._held(claim)).task.is_cancelling

    async def record(self, claim: Claim, ending: Ending) -> Task:
        async with self._reached():
            task = await self._change_held(claim, partial(after_ending, ending=ending))
            self._running.pop(claim.id, None)
            if isinstance(ending, Abandoned) and not task.is_ended:
                await claim.token.message.nak()
                return task
            if task.is_ended:
                await self._slots.end(task.order)
            await claim.token.message.ack()
            return task

    async def _change_held(self, claim: Claim, step: Any) -> Task:
        """Write the next state of a task that this attempt holds; the state is read again only after a conflict."""
        hold: _Hold = claim.token
        task = transitions.end_if_overdue(hold.task, now_ms())
        while True:
            wanted: Task = step(task, now=now_ms())
            if wanted is task:
                return task
            with suppress(Conflict):
                hold.revision = await self._states.put(wanted, hold.revision, claim.task.fence)
                hold.task = wanted
                return wanted
            found = await self._held(claim, wanted)
            if found.task == wanted:
                return wanted  # written already, and only the confirmation was lost
            task = found.task

    async def _held(self, claim: Claim, written: Task | None = None) -> FoundTask:
        try:
            found = await self._states.find(claim.task.order)
        except CallError as error:
            if error.code != DATA_LOSS:
                raise
            found = None  # a corrupt entry: the next worker that gets its message ends it
        if found is not None and (found.kept.task.fence == claim.task.fence or found.task == written):
            claim.token.task, claim.token.revision = found.kept.task, found.revision
            return found
        self._running.pop(claim.id, None)
        raise FencedError

    # reading and writing the state

    async def _seen(self, owner: str | None, task_id: str) -> FoundTask | None:
        """Return a task as its caller sees it; end an overdue one, and requeue one without a message in the queue."""
        found = await self._states.search(owner, task_id)
        if found is None or transitions.is_forgotten(found.task, now_ms()):
            return None
        task = found.task
        if task.is_ended and not found.kept.task.is_ended:
            return await self._settle(found)
        if task.is_ended:
            self._slots.note_end(task.order)
            return found
        is_answered = task.is_queued and task.attempt > 0
        if is_answered or await self._is_lost(task):
            await self._queue_again(task)
        return found

    async def _is_lost(self, task: Task) -> bool:
        """Whether no worker has it and the queue has no message of it: the queue was purged. Checked seldom."""
        is_quiet = now_ms() - task.updated >= LOST_AFTER * self._ack_wait * 1000
        if task.status is not Status.WORKING or not is_quiet or not self._looked_for.is_due(task.id):
            return False
        if await self._streams.is_queued(token_of(task.owner), task.operation):
            return False
        return not (task.fence and (task.id in self._running or await self._holder_lives(task)))

    async def _is_unfinished(self, key: str) -> bool:
        """Whether the task of a key is there, and has not ended."""
        with suppress(CallError):
            found = await self._states.find_at(key)
            return found is not None and not found.task.is_ended
        return True

    async def _settle(self, found: FoundTask) -> FoundTask | None:
        with suppress(Conflict):
            await self._states.put(found.task, found.revision)
            await self._slots.end(found.task.order)
            return found
        return await self._seen(found.task.owner, found.task.id)

    async def _queue_again(self, task: Task) -> None:
        """Queue a task once more: the process that answered it may have died before. Copies do no harm."""
        order, message_id = task.order, f"{task.id}.{task.attempt}"
        if self._requeued.is_due(message_id):
            await self._streams.queue(token_of(order.owner), order.operation, msgspec.json.encode(order), message_id)

    @asynccontextmanager
    async def _reached(self) -> AsyncIterator[None]:
        """Turn errors of the connection and the servers into UNAVAILABLE."""
        from nats.errors import Error

        try:
            yield
        except (Error, TransportError, OSError, TimeoutError) as error:
            self._streams.forget()
            raise store_unavailable(error) from error
        except CallError as error:
            if error.code == "UNAVAILABLE" and error.details.get("reason") != "store":
                raise store_unavailable(error) from error
            raise


def _order(message: Msg, names: Names, verify: VerifyOrder | None) -> Order:
    """Read the order of a message; raise ValueError if no edge can have queued it: wrong subject, id, end or signature."""
    if _REFLECTED in (message.headers or {}):
        raise ValueError("it was copied from a stream by a user without permission to submit tasks")
    order = msgspec.json.decode(message.data, type=Order)
    if message.subject != names.queued(token_of(order.owner), order.operation):
        raise ValueError("its subject is that of another operation or owner")
    if not match(TASK_ID, order.id) or order.expires > LATEST:
        raise ValueError("it has no id or no deadline")
    if verify is not None and not verify(order):
        raise ValueError("it is not signed by a user with permission to submit it")
    return order


def _sequence(message: Msg) -> str:
    return str(message.metadata.sequence.stream)
