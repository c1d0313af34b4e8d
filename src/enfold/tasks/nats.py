"""Tasks kept on NATS JetStream: for many machines. They survive the death of everybody but the servers.

The queue holds what is to be run until it is done; the bucket holds the state of every task under its owner. A worker
claims by writing the state over the version it has read, and records in the same way: who comes late is refused. What
callers say has keys of its own, so that they are never in a worker's way.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from enfold.calls.protocol.transport import TransportError
from enfold.errors import CallError
from enfold.log import Log
from enfold.operation import Progress
from enfold.tasks.ending import end_all
from enfold.tasks.nats_bucket import Conflict, Streams
from enfold.tasks.nats_names import DEFAULT_NAME, Names, answer_key, first_key, owner_token, task_key
from enfold.tasks.nats_queue import Queue
from enfold.tasks.store import (
    Abandoned,
    Cancel,
    Claim,
    Claims,
    Ending,
    FencedError,
    Served,
    Signal,
    after_ending,
    limit_reached,
    now_ms,
    same_order,
    store_away,
)
from enfold.tasks.task import Order, Outcome, Status, Task
from enfold.tasks.transitions import accepted, answered, cancelled, claimed, died, noted, overdue

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from enfold.calls.transports.nats_peer import NATSTransport

__all__ = ["NATSTasks"]

ACK_WAIT: Final = 5.0  # seconds after which a task whose worker is silent is given to another
INLINE: Final = 64 * 1024  # bytes of a result that is kept beside the state
REQUEUE_AFTER: Final = 5.0
MOST_REMEMBERED: Final = 10_000
UNSURE_FOR: Final = 10.0  # seconds for which a write that was not confirmed is tried again
PAUSE: Final = 0.1
POLL: Final = 1.0  # seconds after which a watcher looks although it has heard nothing


class _Kept(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task as the bucket has it; a large outcome is kept in parts."""

    task: Task
    parts: str = ""  # the key of the parts
    size: int = 0
    digest: str = ""


class _Found(msgspec.Struct, frozen=True):
    """A task with the answers and the cancel that its caller has given, and the revision of its state."""

    task: Task
    kept: _Kept
    revision: int


class _Named(msgspec.Struct, frozen=True):
    id: str
    digest: str


class _Given(msgspec.Struct, frozen=True):
    key: str
    answer: Any


class _Token(msgspec.Struct, eq=False):
    """What an attempt needs to go on: its message, and the revision that it has written last."""

    message: Any
    revision: int


_read_kept: Final = msgspec.json.Decoder(_Kept).decode


class NATSTasks:
    """Tasks on the servers of a transport. They need nats-server 2.11 or later, with JetStream."""

    def __init__(
        self, transport: NATSTransport, *, ack_wait: float = ACK_WAIT, replicas: int = 1, name: str = DEFAULT_NAME
    ) -> None:
        """A worker that is silent for `ack_wait` seconds has lost its tasks; `replicas` is how many servers keep them.

        `name` tells the stores of one server apart.
        """
        self.beat = min(0.5, ack_wait / 3)
        self._ack_wait = ack_wait
        self._streams = Streams(transport, Names(name), replicas)
        self._queue = Queue(self._streams, ack_wait)
        self._name = os.urandom(8).hex()
        self._running: dict[str, str] = {}  # the fence of each task that is run here
        self._requeued: dict[str, float] = {}
        self._living: asyncio.Future[None] | None = None
        self._counting: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def close(self) -> None:
        """The transport stays open: it belongs to who opened it."""
        self._queue.close()
        if self._living is not None:
            await end_all((self._living,))
            self._living = None
            with suppress(CallError):
                async with self._reached():
                    await self._streams.remove(f"worker.{self._name}")

    # what callers do

    async def accept(self, order: Order, limit: int) -> Task:
        async with self._reached():
            order = msgspec.json.decode(msgspec.json.encode(order), type=Order)
            named = await self._named(order)
            if named.id != order.id:
                first = await self._find(order.owner, named.id)
                if first is not None:
                    return same_order(first.task, order)
                order = msgspec.structs.replace(order, id=named.id)  # whoever was first died before it was stored
            await self._take_place(order, limit)
            # Queued before it is known: who dies between the two has told nobody that it was accepted.
            await self._streams.queue(owner_token(order.owner), order.operation, msgspec.json.encode(order), order.id)
            with suppress(Conflict):  # a worker was faster
                task = accepted(order)
                await self._streams.write(task_key(task), _encoded(task), 0, _seconds(task))
                return task
            found = await self._find(order.owner, order.id)
            return accepted(order) if found is None else found.task

    async def _named(self, order: Order) -> _Named:
        """The id that the order's key stands for: its own, if it is the first with this key."""
        mine = _Named(order.id, order.digest)
        if order.key is None:
            return mine
        key = first_key(order.owner, order.operation, order.key)
        with suppress(Conflict):
            await self._streams.write(key, msgspec.json.encode(mine), 0, (order.expires - now_ms()) / 1000)
            return mine
        found = await self._streams.read(key)
        if found is None:
            return mine
        named = msgspec.json.decode(found.value, type=_Named)
        if named.digest != order.digest:
            same_order(accepted(msgspec.structs.replace(order, digest=named.digest)), order)
        return named

    async def _take_place(self, order: Order, limit: int) -> None:
        """Count the task among the unfinished of its owner. Edges count by themselves: together they may be a few over."""
        owner = owner_token(order.owner)
        async with self._counting[owner]:
            if len(await self._streams.keys(f"{owner}.*.open")) >= limit:
                raise limit_reached(limit)
            seconds = (order.deadline - now_ms()) / 1000
            await self._streams.write(f"{owner}.{order.id}.open", b"1", None, seconds)

    async def get(self, owner: str | None, task_id: str) -> Task | None:
        async with self._reached():
            found = await self._seen(owner, task_id)
            return None if found is None else await self._whole(found)

    async def list(self, owner: str | None, limit: int = 100) -> list[Task]:
        async with self._reached():
            pattern = "*" if owner is None else owner_token(owner)
            keys = await self._streams.keys(f"{pattern}.*.state")
            read = await asyncio.gather(*(self._streams.read(key) for key in keys))
            tasks = [_read_kept(version.value).task for version in read if version is not None]
            newest = sorted(tasks, key=lambda task: task.created, reverse=True)[:limit]
            return [msgspec.structs.replace(task, outcome=None) for task in newest]

    async def signal(self, owner: str | None, task_id: str, signal: Signal) -> Task | None:
        async with self._reached():
            found = await self._seen(owner, task_id)
            if found is None:
                return None
            task = found.task
            if not task.is_ended:
                await self._tell(task, signal)
                found = await self._seen(task.owner, task_id) or found
            return await self._whole(found)

    async def _tell(self, task: Task, signal: Signal) -> None:
        if isinstance(signal, Cancel):
            await self._streams.write(task_key(task, "cancel"), b"1", None, _seconds(task))
            return
        for key, answer in signal.given.items():
            if key in task.questions:
                given = msgspec.json.encode(_Given(key, answer))
                with suppress(Conflict):  # answered already
                    await self._streams.write(answer_key(task, key), given, 0, _seconds(task))

    async def watch(self, owner: str | None, task_id: str) -> AsyncGenerator[Task]:
        seen: Task | None = None
        while True:
            task = await self.get(owner, task_id)
            if task is None:
                return
            if task != seen:
                yield task
                seen = task
                if task.is_ended:
                    return
                continue
            await self._change(task)

    async def _change(self, task: Task) -> None:
        """Wait until something of the task has been stored, or for a second."""
        heard = asyncio.Event()

        async def hear(_: Msg) -> None:
            heard.set()

        async with self._reached():
            subscription = await self._streams.listen(owner_token(task.owner), task.id, hear)
        try:
            found = await self.get(task.owner, task.id)  # what was stored before we listened
            if found == task:
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL):
                        await heard.wait()
        finally:
            with suppress(Exception):  # a connection that is gone has no subscriptions
                await subscription.unsubscribe()

    async def expire(self) -> None:
        """The server forgets by itself; what is over its deadline is ended by whoever reads it next."""

    # what workers do

    async def claim(self, served: Served, n: int, wait: float) -> Claims:
        async with self._reached():
            if self._living is None or self._living.done():
                await self._streams.write(f"worker.{self._name}", b"1", None, self._ack_wait / 2)
                self._living = asyncio.ensure_future(self._show_life())
            messages = await self._queue.next(served(), n, wait)
            found = await asyncio.gather(*(self._claim(message) for message in messages), return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, CallError):
                Log("enfold.tasks").warning("a task could not be claimed, and will come again: %r", each)
        return [each for each in found if isinstance(each, Claim)]

    async def _claim(self, message: Msg) -> Claim | None:
        """Take a task, unless it is done, waits, or is run by somebody who lives."""
        order = await self._order(message)
        if order is None:
            return None
        while True:
            found = await self._find(order.owner, order.id)
            task = accepted(order) if found is None else found.task
            task = overdue(task, now_ms())
            if task.is_ended or task.status is Status.INPUT_REQUIRED:
                await self._drop(message, task, found)
                return None
            if task.fence and not await self._may_take_over(message, task):
                return None
            task = died(task, now_ms()) if task.fence else task
            is_over = task.is_ended
            if not is_over:
                fence = f"{self._name}.{os.urandom(8).hex()}.{_sequence(message)}"
                task = claimed(task, fence, now_ms())
            # A conflict is read again at once: most often it is the accepter, who has just stored the task.
            with suppress(Conflict):
                revision = await self._put(task, 0 if found is None else found.revision)
                if is_over:
                    await self._end_place(task)
                    await message.ack()
                    return None
                self._running[task.id] = task.fence
                return Claim(task, _Token(message, revision))

    async def _order(self, message: Msg) -> Order | None:
        """What a message asks for; one that is no order is kept aside, and comes no more."""
        try:
            return msgspec.json.decode(message.data, type=Order)
        except msgspec.MsgspecError as error:
            Log("enfold.tasks").error("message %s of the queue is no task: %s", _sequence(message), error)
            await self._streams.write(f"dead.{_sequence(message)}", message.data[:INLINE] or b"-", None, 86_400)
            await message.ack()
            return None

    async def _drop(self, message: Msg, task: Task, found: _Found | None) -> None:
        """There is nothing to run; what has ended on the way here is stored first."""
        if task.is_ended:
            if found is None or not found.kept.task.is_ended:
                with suppress(Conflict):
                    await self._put(task, 0 if found is None else found.revision)
            await self._end_place(task)
        await message.ack()

    async def _may_take_over(self, message: Msg, task: Task) -> bool:
        """Whether the worker that holds the task is dead. What the server gives us again may only have been late."""
        holder, _, sequence = task.fence.split(".")
        if sequence != _sequence(message):
            await message.ack()  # a second copy of what is running
            return False
        if self._running.get(task.id) == task.fence:
            await message.in_progress()  # our own, that the server took for lost
            return False
        if holder != self._name and await self._streams.read(f"worker.{holder}") is not None:
            await message.nak(delay=self._ack_wait / 4)
            return False
        return True

    async def _show_life(self) -> None:
        """Say that this worker lives, for as long as it does; the server forgets it soon after."""
        while True:
            with suppress(CallError):
                async with self._reached():
                    await self._streams.write(f"worker.{self._name}", b"1", None, self._ack_wait / 2)
            await asyncio.sleep(self._ack_wait / 4)

    async def hold(
        self, claim: Claim, progress: Progress | None = None, notes: Mapping[str, Any] | None = None
    ) -> bool:
        async with self._reached():
            await claim.token.message.in_progress()
            if progress is not None or notes:
                await self._change_held(claim, partial(noted, progress=progress, notes=notes))
            else:
                await self._held(claim)
            return await self._streams.read(task_key(claim.task, "cancel")) is not None

    async def record(self, claim: Claim, ending: Ending) -> Task:
        async with self._reached():
            task = await self._change_held(claim, lambda task, now: after_ending(task, ending, now))
            self._running.pop(claim.id, None)
            if isinstance(ending, Abandoned) and not task.is_ended:
                await claim.token.message.nak()
                return task
            if task.is_ended:
                await self._end_place(task)
            await claim.token.message.ack()
            return task

    async def _change_held(self, claim: Claim, step: Any) -> Task:
        """Write the next state of a task that is ours; what came between is read again."""
        wanted: Task | None = None
        while True:
            found = await self._held(claim, wanted)
            if found.task == wanted:
                return found.task  # written already, and only the confirmation was lost
            wanted = step(found.task, now=now_ms())
            if wanted is found.task:
                return wanted
            with suppress(Conflict):
                claim.token.revision = await self._put(wanted, found.revision, claim.task.fence)
                return wanted

    async def _held(self, claim: Claim, written: Task | None = None) -> _Found:
        found = await self._find(claim.task.owner, claim.id)
        if found is not None and (found.kept.task.fence == claim.task.fence or found.task == written):
            return found
        self._running.pop(claim.id, None)
        raise FencedError

    # reading and writing the state

    async def _seen(self, owner: str | None, task_id: str) -> _Found | None:
        """A task as its caller should see it; what is to be done about it, and nobody else does, is done here."""
        if owner is None:
            keys = await self._streams.keys(f"*.{task_id}.state")
            found = await self._find_at(keys[0]) if keys else None
        else:
            found = await self._find(owner, task_id)
        if found is None:
            return None
        task = found.task
        if task.is_ended and not found.kept.task.is_ended:
            return await self._settle(found)
        if task.is_queued and found.kept.task.status is Status.INPUT_REQUIRED:
            await self._queue_again(task)
        return found

    async def _settle(self, found: _Found) -> _Found | None:
        """Store an end that has come without a worker: cancelled while nobody ran it, or overdue."""
        with suppress(Conflict):
            await self._put(found.task, found.revision)
            await self._end_place(found.task)
            return found
        return await self._seen(found.task.owner, found.task.id)

    async def _queue_again(self, task: Task) -> None:
        """A task with all its answers is queued by whoever reads it; copies do no harm."""
        now, order = time.monotonic(), task.order
        message_id = f"{order.id}.{task.attempt}"
        if now - self._requeued.get(message_id, -REQUEUE_AFTER) < REQUEUE_AFTER:
            return
        if len(self._requeued) > MOST_REMEMBERED:
            self._requeued.clear()
        await self._streams.queue(owner_token(order.owner), order.operation, msgspec.json.encode(order), message_id)
        self._requeued[message_id] = now

    async def _find(self, owner: str, task_id: str) -> _Found | None:
        return await self._find_at(f"{owner_token(owner)}.{task_id}.state")

    async def _find_at(self, key: str) -> _Found | None:
        """A task with what its caller has said since it was written."""
        version = await self._streams.read(key)
        if version is None:
            return None
        kept = _read_kept(version.value)
        task = kept.task
        if task.is_ended:
            return _Found(task, kept, version.revision)
        if task.status is Status.INPUT_REQUIRED:
            task = answered(task, await self._answers(task), task.updated)
        if not task.fence and await self._streams.read(task_key(task, "cancel")) is not None:
            task = cancelled(task, now_ms())
        return _Found(overdue(task, now_ms()), kept, version.revision)

    async def _answers(self, task: Task) -> dict[str, Any]:
        keys = [answer_key(task, key) for key in task.questions]
        read = await asyncio.gather(*(self._streams.read(key) for key in keys))
        given = [msgspec.json.decode(version.value, type=_Given) for version in read if version is not None]
        return {each.key: each.answer for each in given}

    async def _put(self, task: Task, follows: int, fence: str = "") -> int:
        outcome = b"" if task.outcome is None else msgspec.json.encode(task.outcome)
        if len(outcome) <= INLINE:
            return await self._write_surely(task, _encoded(task), follows)
        # Under the name of the attempt: one that is fenced writes over nobody's parts.
        parts = task_key(task, f"part.{fence.replace('.', '_')}")
        digest = await self._streams.write_parts(parts, outcome, _seconds(task))
        kept = _Kept(msgspec.structs.replace(task, outcome=None), parts, len(outcome), digest)
        return await self._write_surely(task, msgspec.json.encode(kept), follows)

    async def _write_surely(self, task: Task, value: bytes, follows: int) -> int:
        """Write a state; where the server does not confirm it in time, look whether it has it, and try again."""
        from nats.errors import Error

        ends_at = time.monotonic() + UNSURE_FOR
        while True:
            try:
                return await self._streams.write(task_key(task), value, follows, _seconds(task))
            except Conflict:
                found = await self._streams.read(task_key(task))
                if found is not None and found.value == value:
                    return found.revision  # ours: only the confirmation was lost
                raise
            except (Error, OSError, TimeoutError):
                if time.monotonic() > ends_at:
                    raise
                self._streams.forget()
                await asyncio.sleep(PAUSE)

    async def _whole(self, found: _Found) -> Task:
        """The task with its outcome, however large."""
        kept = found.kept
        if not kept.parts or found.task.outcome is not None:
            return found.task
        text = await self._streams.read_parts(kept.parts, kept.size, kept.digest)
        if text is None:
            raise CallError("DATA_LOSS", "The result of the task is not complete any more")
        return msgspec.structs.replace(found.task, outcome=msgspec.json.decode(text, type=Outcome))

    async def _end_place(self, task: Task) -> None:
        await self._streams.remove(task_key(task, "open"))

    @asynccontextmanager
    async def _reached(self) -> AsyncIterator[None]:
        """What the connection and the servers say against it is UNAVAILABLE."""
        from nats.errors import Error

        try:
            yield
        except (Error, TransportError, OSError, TimeoutError) as error:
            self._streams.forget()
            raise store_away(error) from error
        except CallError as error:
            if error.code == "UNAVAILABLE" and "reason" not in error.details:
                raise store_away(error) from error
            raise


def _encoded(task: Task) -> bytes:
    return msgspec.json.encode(_Kept(task))


def _seconds(task: Task) -> float:
    """How long what belongs to a task is kept."""
    return (task.order.expires - now_ms()) / 1000


def _sequence(message: Msg) -> str:
    return str(message.metadata.sequence.stream)
