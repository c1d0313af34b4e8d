"""Tasks in JetStream: names and permissions, states, slots and sums in the bucket, the queue, and signed orders.

Every subject and every key names the operation in a place of its own, so that the server can bind a worker to the
operations that it serves. Keys hold digests: listing them reveals no task id. A large outcome is kept in parts. An entry
that cannot be read is DATA_LOSS, for its own task alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from math import ceil
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar
from weakref import WeakValueDictionary

import msgspec

from enfold.calls.protocol.transport import TransportError, peer_name
from enfold.calls.transports.nats_streams import (
    JETSTREAM,
    NATSUser,
    Rights,
    accepts_for_all,
    creation_subjects,
    ensure_stream,
)
from enfold.errors import CallError
from enfold.operations import OperationSpec
from enfold.tasks import transitions
from enfold.tasks.model import Order, Outcome, Task
from enfold.tasks.store import (
    DATA_LOSS,
    OVERHEAD,
    TaskLimits,
    check_kept_bytes,
    hour_of,
    is_large_share,
    limit_reached,
    now_ms,
    unexpired,
    unreadable,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext
    from nats.js.api import StreamConfig

    from enfold.calls.protocol.transport import KeepingTransport


T = TypeVar("T")

DEFAULT_NAME: Final = "enfold_tasks"


class Names(msgspec.Struct, frozen=True):
    """The names of one store: several may be on one server."""

    name: str = DEFAULT_NAME

    @property
    def queue(self) -> str:
        """The stream of what is to be run."""
        return f"{self.name}_queue"

    @property
    def bucket(self) -> str:
        """The stream of what is known."""
        return f"KV_{self.name}"

    @property
    def changed(self) -> str:
        """The subject below which the bucket publishes what it has stored."""
        return f"{self.name}.changed"

    def key(self, key: str) -> str:
        """Return the subject of a key of the bucket."""
        return f"$KV.{self.name}.{key}"

    def queued(self, owner: str, operation: str) -> str:
        """Return the subject of the tasks of one owner and one operation."""
        return f"{self.name}.run.{owner}.{operation}"

    def rights(self, user: NATSUser, served: Sequence[OperationSpec], specs: Sequence[OperationSpec]) -> Rights:
        """Return the server permissions of an operator, an edge or a worker of durable operations; callers need none."""
        runs = [spec.id for spec in served if spec.durable != "never"]
        accepts = [spec.id for spec in specs if spec.durable != "never"] if accepts_for_all(user) else runs
        creates = [each for stream in (self.queue, self.bucket) for each in creation_subjects(stream)]
        publish = [
            *(creates if user.is_operator else []),
            *(self._accepting(accepts) if accepts else []),
            *(self._running(user, runs) if runs else []),
        ]
        return Rights(publish, [f"{self.changed}.task.{operation_token(each)}.>" for each in accepts])

    def _accepting(self, operations: Sequence[str]) -> list[str]:
        """Queue tasks of these operations, and write and read their states; read how much all owners have."""
        reads = f"{JETSTREAM}.DIRECT.GET.{self.bucket}"
        return [
            *(f"{JETSTREAM}.STREAM.INFO.{each}" for each in (self.queue, self.bucket)),
            *(f"{reads}.{self.key(kind)}.>" for kind in ("open", "bytes", "worker")),
            *(
                subject
                for operation in operations
                for keys in [self.key(f"*.{operation_token(operation)}.>")]
                for subject in (self.queued("*", operation), keys, f"{reads}.{keys}")
            ),
        ]

    def _running(self, user: NATSUser, operations: Sequence[str]) -> list[str]:
        """Take tasks of these operations from the queue, and show life under one's own name."""
        consumers = [
            subject
            for operation in operations
            for name in [operation_token(operation)]
            for subject in (
                # With the filter: a consumer under our name could else read another operation's orders.
                f"{JETSTREAM}.CONSUMER.CREATE.{self.queue}.{name}.{self.queued('*', operation)}",
                f"{JETSTREAM}.CONSUMER.INFO.{self.queue}.{name}",
                f"{JETSTREAM}.CONSUMER.MSG.NEXT.{self.queue}.{name}",
                f"$JS.ACK.{self.queue}.{name}.>",
            )
        ]
        return [*consumers, self.key(f"worker.{peer_name(user.identity.id)}.*")]


def token_of(text: str) -> str:
    """Return an owner, a task's id or a key as one token of a subject, which does not reveal it."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def operation_token(operation: str) -> str:
    """Return the operation as one token of a subject; it also names the consumer that its workers share."""
    return f"op_{token_of(operation)}"


def _place(order: Order) -> str:
    return f"{operation_token(order.operation)}.{token_of(order.owner)}.{token_of(order.id)}"


def task_key(order: Order, what: str = "state") -> str:
    return f"task.{_place(order)}.{what}"


def task_pattern(owner: str | None, task_id: str | None) -> str:
    """Return the key pattern of states, for any operation; None stands for all owners or all tasks."""
    return f"task.*.{'*' if owner is None else token_of(owner)}.{'*' if task_id is None else token_of(task_id)}.state"


def slot_key(order: Order) -> str:
    """Return the key that stands for an unfinished task."""
    return f"open.{_place(order)}"


def state_of_slot(key: str) -> str:
    """Return the key of the state of the task that a slot stands for."""
    return f"task.{key.removeprefix('open.')}.state"


def slot_pattern(owner: str) -> str:
    return f"open.*.{token_of(owner)}.*"


def first_key(owner: str, operation: str, key: str) -> str:
    """Return the key that names the first task with an idempotency key."""
    return f"key.{operation_token(operation)}.{token_of(owner)}.{token_of(key)}"


def sum_key(order: Order, name: str, hour: int) -> str:
    """Return the key under which a process counts the bytes of an owner's finished tasks of an operation."""
    return f"bytes.{operation_token(order.operation)}.{token_of(order.owner)}.{name}.{hour}"


def sum_pattern(owner: str) -> str:
    return f"bytes.*.{token_of(owner)}.*.*"


def dead_key(operation: str, sequence: str) -> str:
    """Return the key under which a dead letter is stored."""
    return f"dead.{operation_token(operation)}.{sequence}"


MAX_AGE_SECONDS: Final = 1_000_000_000.0  # seconds that the server is asked to keep anything: thirty years
API_TIMEOUT: Final = 2.0  # seconds; a refusal by the server's permissions looks like silence, too
REPLICA_LAG: Final = (0.02, 0.05, 0.1, 0.3, 0.5)  # seconds before a key that is not found is read again
PART: Final = 256 * 1024  # bytes of one piece of a large result
_WRONG_VERSION: Final = (10071, 10164)
_LAST: Final = "Nats-Expected-Last-Subject-Sequence"


class Conflict(Exception):  # noqa: N818  # another process was first, which is no error
    """The key has another version than the one that was to be replaced."""


class Version(msgspec.Struct, frozen=True):
    """A value as it was read, and the revision to name when it is replaced."""

    value: bytes
    revision: int


class Streams:
    """The queue and the bucket on the current connection; both are checked when they are opened."""

    def __init__(self, transport: KeepingTransport, names: Names, replicas: int | None) -> None:
        self._transport = transport
        self.names = names
        self._replicas = replicas
        self._client: Client | None = None
        self._context: JetStreamContext | None = None
        self._reconnects = -1  # of the client, when it was last used
        self._up_since = time.monotonic()

    async def open(self) -> JetStreamContext:
        """JetStream with both streams; checked again for each new connection."""
        await self._transport.connect()
        client = self._transport.client
        if self._context is None or self._client is not client:
            context = client.jetstream(timeout=API_TIMEOUT)
            for config in task_streams(self.names, self._replicas):
                await ensure_stream(client, context, config)
            self._client, self._context, self._reconnects = client, context, -1
        if self._reconnects != client.stats["reconnects"]:
            self._reconnects, self._up_since = client.stats["reconnects"], time.monotonic()
        return self._context

    @property
    def up_for(self) -> float:
        """The seconds for which this process has had the streams without a break."""
        return time.monotonic() - self._up_since

    def forget(self) -> None:
        """Check connection and streams again with the next step, after an error."""
        self._context = None

    @property
    def client(self) -> Client:
        client: Client = self._transport.client
        return client

    @property
    def most(self) -> int:
        """The bytes that one message may have, with room for headers."""
        return self.client.max_payload - 4096

    def check_size(self, value: bytes, room: int = 0) -> None:
        """PAYLOAD_TOO_LARGE where one message cannot hold a value, and as much besides as there should be room for."""
        most = self.most - room
        if len(value) > most:
            details = {"reason": "task", "size": len(value), "limit": most}
            raise CallError("PAYLOAD_TOO_LARGE", f"The task exceeds the limit of {most} bytes on this server", details)

    # the bucket

    async def read(self, key: str) -> Version | None:
        """Return the value of a key; None if there is none.

        In a cluster any replica answers, and one may not have yet what the leader has confirmed: a key that is not
        found is read again.
        """
        found = await self._read(key)
        for pause in REPLICA_LAG if found is None and len(self.client.servers) > 1 else ():
            await asyncio.sleep(pause)
            found = await self._read(key)
            if found is not None:
                break
        return None if found is None or not found.value else found

    async def _read(self, key: str) -> Version | None:
        """Read from one replica; a removed or expired value is empty."""
        from nats.js.errors import NotFoundError

        context = await self.open()
        try:
            message = await context.get_msg(self.names.bucket, subject=self.names.key(key), direct=True)
        except NotFoundError:
            return None
        return None if message.seq is None else Version(message.data or b"", message.seq)

    async def is_removed(self, key: str) -> bool:
        """Whether a key is known to be removed. One that is not found may only be missing on this replica."""
        found = await self._read(key)
        return found is not None and not found.value

    async def write(self, key: str, value: bytes, follows: int | None, seconds: float) -> int:
        """Store a value for so long; returns its revision.

        Conflict where the key is not at the revision it follows (0: not there, None: any). The server counts in whole
        seconds: nothing is forgotten before its time.
        """
        from nats.js.errors import APIError

        context = await self.open()
        self.check_size(value)
        headers = {} if follows is None else {_LAST: str(follows)}
        try:
            stored = await context.publish(
                self.names.key(key), value, headers=headers or None, msg_ttl=max(1, ceil(min(seconds, MAX_AGE_SECONDS)))
            )
        except APIError as error:
            if error.err_code in _WRONG_VERSION:
                raise Conflict from None
            raise
        return stored.seq

    async def remove(self, key: str) -> None:
        """Remove a key by writing an empty value for a second. Purging would need permission to purge all keys."""
        await self.write(key, b"", None, 1)

    async def keys(self, pattern: str) -> list[str]:
        """Return the keys that match a pattern."""
        context = await self.open()
        info = await context.stream_info(self.names.bucket, subjects_filter=self.names.key(pattern))
        return [subject.removeprefix(self.names.key("")) for subject in info.state.subjects or ()]

    async def held_bytes(self) -> int:
        """Return how many bytes the bucket holds for all owners."""
        return int((await (await self.open()).stream_info(self.names.bucket)).state.bytes)

    async def write_parts(self, key: str, value: bytes, seconds: float) -> str:
        """Keep a value that is too large for one message; the answer is its digest."""
        for number, start in enumerate(range(0, len(value), PART)):
            await self.write(f"{key}.{number}", value[start : start + PART], None, seconds)
        return hashlib.sha256(value).hexdigest()

    async def read_parts(self, key: str, size: int, digest: str) -> bytes | None:
        """Read what `write_parts` has stored; None if it is gone or has changed."""
        parts = [await self.read(f"{key}.{number}") for number in range(-(-size // PART))]
        value = b"".join(part.value for part in parts if part is not None)
        return value if hashlib.sha256(value).hexdigest() == digest else None

    # the queue

    async def queue(self, owner: str, operation: str, value: bytes, message_id: str) -> None:
        """Queue a message; the server drops duplicates of its id for two minutes, which only saves work."""
        context = await self.open()
        await context.publish(self.names.queued(owner, operation), value, headers={"Nats-Msg-Id": message_id})

    async def is_queued(self, owner: str, operation: str) -> bool:
        """Whether the queue has a message of an owner for an operation, waiting or running."""
        context = await self.open()
        info = await context.stream_info(self.names.queue, subjects_filter=self.names.queued(owner, operation))
        return bool(info.state.subjects)

    async def listen(self, pattern: str, heard: Any) -> Any:
        """Subscribe to changes of these keys, after they are stored. Returns a subscription."""
        await self.open()
        return await self.client.subscribe(f"{self.names.changed}.{pattern}", cb=heard)


def task_streams(names: Names, replicas: int | None) -> tuple[StreamConfig, StreamConfig]:
    """Return the configuration of queue and bucket."""
    from nats.js.api import DiscardPolicy, RePublish, RetentionPolicy, StreamConfig

    queue = StreamConfig(
        name=names.queue,
        subjects=[names.queued("*", ">")],
        retention=RetentionPolicy.WORK_QUEUE,
        discard=DiscardPolicy.NEW,
        duplicate_window=120,
        num_replicas=replicas,
    )
    bucket = StreamConfig(
        name=names.bucket,
        subjects=[names.key(">")],
        retention=RetentionPolicy.LIMITS,
        max_msgs_per_subject=1,
        discard=DiscardPolicy.NEW,
        allow_direct=True,
        allow_msg_ttl=True,
        num_replicas=replicas,
        republish=RePublish(src=names.key(">"), dest=f"{names.changed}.>", headers_only=True),
    )
    return queue, bucket


INLINE: Final = 64 * 1024  # bytes of a result that is kept beside the state
ROOM: Final = 8 * 1024  # bytes that are left in a state for what its attempts write there
UNSURE_FOR: Final = 10.0  # seconds for which a write that was not confirmed is tried again
PAUSE: Final = 0.1  # seconds before a step is tried again


class _StateEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task as the bucket has it; a large outcome is kept in parts."""

    task: Task
    parts: str = ""  # the key of the parts
    size: int = 0
    digest: str = ""


class FoundTask(msgspec.Struct, frozen=True):
    """A task as the clock has it, as the bucket has it, and the revision that the bucket has."""

    task: Task
    kept: _StateEntry
    revision: int


class States:
    """The states of all tasks of a store."""

    def __init__(self, streams: Streams, ledger: Ledger) -> None:
        self._streams = streams
        self._ledger = ledger
        self._known: dict[tuple[str | None, str], str] = {}  # the keys of tasks that were accepted or asked for

    async def find(self, order: Order) -> FoundTask | None:
        return await self.find_at(task_key(order))

    async def search(self, owner: str | None, task_id: str) -> FoundTask | None:
        """A task by its id: its operation is looked up once."""
        place = (owner, task_id)
        if place not in self._known:
            keys = await self._streams.keys(task_pattern(owner, task_id))
            if not keys:
                return None
            self._remember(place, keys[0])
        return await self.find_at(self._known[place])

    async def create(self, order: Order) -> Task:
        """Store a new task; Conflict where there is one with this id."""
        task = transitions.accept(order)
        self._remember((order.owner, order.id), task_key(order))
        await self._streams.write(task_key(order), encoded(task), 0, seconds_kept(task))
        return task

    def _remember(self, place: tuple[str | None, str], key: str) -> None:
        if len(self._known) >= MAX_REMEMBERED:
            self._known.clear()
        self._known[place] = key

    async def find_at(self, key: str) -> FoundTask | None:
        version = await self._streams.read(key)
        if version is None:
            return None
        kept = read_entry(_StateEntry, version.value)
        return FoundTask(transitions.end_if_overdue(kept.task, now_ms()), kept, version.revision)

    async def put(self, task: Task, follows: int, fence: str = "") -> int:
        """Write a state over the revision that it follows; returns its own. What has ended with it is counted."""
        outcome = b"" if task.outcome is None else msgspec.json.encode(task.outcome)
        text = encoded(task)
        size = len(text)
        if outcome and (len(outcome) > INLINE or size > self._streams.most):
            # Under the name of the attempt: a fenced one cannot overwrite the parts of another.
            parts = task_key(task.order, f"part.{fence.replace('.', '_')}")
            digest = await self._streams.write_parts(parts, outcome, seconds_kept(task))
            kept = _StateEntry(msgspec.structs.replace(task, outcome=None), parts, len(outcome), digest)
            text, size = msgspec.json.encode(kept), len(outcome)
        revision = await self._write_surely(task, text, follows)
        if task.is_ended:
            await self._ledger.add(task, size, seconds_kept(task))
        return revision

    async def check_size(self, task: Task) -> None:
        """PAYLOAD_TOO_LARGE where the server cannot hold the task with what a worker writes beside it."""
        await self._streams.open()
        self._streams.check_size(encoded(task), ROOM)

    async def _write_surely(self, task: Task, value: bytes, follows: int) -> int:
        """Write a state; where the server does not confirm it in time, look whether it has it, and try again."""
        from nats.errors import Error

        ends_at = time.monotonic() + UNSURE_FOR
        while True:
            try:
                return await self._streams.write(task_key(task.order), value, follows, seconds_kept(task))
            except Conflict:
                found = await self._streams.read(task_key(task.order))
                if found is None or found.value != value:
                    raise
                return found.revision  # only the confirmation of an earlier write was lost
            except (Error, OSError, TimeoutError):
                if time.monotonic() > ends_at:
                    raise
                self._streams.forget()
                await asyncio.sleep(PAUSE)

    async def whole(self, found: FoundTask) -> Task:
        """The task with its outcome, however large."""
        kept = found.kept
        if not kept.parts or found.task.outcome is not None:
            return found.task
        text = await self._streams.read_parts(kept.parts, kept.size, kept.digest)
        if text is None:
            raise CallError(DATA_LOSS, "Part of the task's result has been lost")
        return msgspec.structs.replace(found.task, outcome=msgspec.json.decode(text, type=Outcome))


def encoded(task: Task) -> bytes:
    return msgspec.json.encode(_StateEntry(task))


def read_entry(kind: type[T], value: bytes) -> T:
    """What an entry of the bucket holds; DATA_LOSS if it cannot be read."""
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.MsgspecError as error:
        raise unreadable(error) from error


def seconds_kept(task: Task) -> float:
    """How long what belongs to a task is kept: for some time after its end even where our clock is ahead of the edge's."""
    return max((task.order.expires - now_ms()) / 1000, task.order.keep)


ABANDONED_AFTER: Final = 60.0  # seconds after which a slot without a task is free
LOOK_AGAIN: Final = 0.25  # seconds after which a taken slot of an owner who has none left is read again
READ_AGAIN: Final = 5.0  # seconds after which the sums of other processes are read again
MAX_REMEMBERED: Final = 10_000

IsUnfinished = Callable[[str], Awaitable[bool]]  # whether the task of a state's key is unfinished
_Sums = Counter[int]  # bytes, by the hour in which they expire


class Seldom:
    """Limits how often something is done for each key: `is_due` is true at most once in so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last: dict[str, float] = {}

    def is_due(self, key: str) -> bool:
        now = time.monotonic()
        if now - self._last.get(key, -self._seconds) < self._seconds:
            return False
        if len(self._last) >= MAX_REMEMBERED:
            self._last.clear()
        self._last[key] = now
        return True


class Slots:
    """The slots of all owners' unfinished tasks; `is_unfinished` looks at one task."""

    def __init__(self, streams: Streams, is_unfinished: IsUnfinished) -> None:
        self._streams = streams
        self._is_unfinished = is_unfinished
        self._counting: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._ended: dict[str, None] = {}  # freed here, the oldest first: the server lists them for another second
        self._looked = Seldom(LOOK_AGAIN)
        self._cleaned = Seldom(ABANDONED_AFTER)

    async def take(self, order: Order, limit: int) -> None:
        """Reserve a slot for a new task; RESOURCE_EXHAUSTED where its owner has none left."""
        owner = order.owner
        lock = self._counting.setdefault(owner, asyncio.Lock())
        async with lock:
            taken = await self._streams.keys(slot_pattern(owner))
            taken = [key for key in taken if key not in self._ended]
            if len(taken) >= limit and not await self._has_freed(owner, taken, limit):
                raise limit_reached(limit)
            seconds = (order.deadline - now_ms()) / 1000
            await self._streams.write(slot_key(order), str(now_ms()).encode(), None, seconds)

    async def end(self, order: Order) -> None:
        await self._free(slot_key(order))

    def note_end(self, order: Order) -> None:
        """Count a task no longer: it has ended, and its worker is about to free its slot."""
        self._note_free(slot_key(order))

    async def _free(self, key: str) -> None:
        await self._streams.remove(key)
        self._note_free(key)

    def _note_free(self, key: str) -> None:
        self._ended[key] = None
        if len(self._ended) > MAX_REMEMBERED:
            del self._ended[next(iter(self._ended))]

    async def _has_freed(self, owner: str, taken: list[str], limit: int) -> bool:
        """Whether one of these slots is free: its task has ended in another process, or was never stored.

        A slot that was found taken is read again only after `LOOK_AGAIN` seconds, however often its owner is refused.
        """
        unsure = [key for key in taken if self._looked.is_due(key)]
        for key, is_freed in zip(unsure, await asyncio.gather(*map(self._streams.is_removed, unsure)), strict=True):
            if is_freed:
                self._note_free(key)
        taken = [key for key in taken if key not in self._ended]
        if len(taken) >= limit and self._cleaned.is_due(owner):
            await self._free_abandoned(taken)
        return sum(key not in self._ended for key in taken) < limit

    async def _free_abandoned(self, taken: list[str]) -> None:
        """Free slots of tasks that were never stored or have ended."""
        before = now_ms() - ABANDONED_AFTER * 1000
        for key, slot in zip(taken, await asyncio.gather(*map(self._streams.read, taken)), strict=True):
            is_old = slot is not None and (not slot.value.isdigit() or int(slot.value) < before)
            if is_old and not await self._is_unfinished(state_of_slot(key)):
                await self._free(key)


class Ledger:
    """The bytes of all owners' finished tasks. Every process writes its own sums, under its `name`, and reads those of all."""

    def __init__(self, streams: Streams, name: str) -> None:
        self._streams = streams
        self._name = name
        self._own: dict[str, dict[str, _Sums]] = {}  # by owner and operation
        self._read: dict[str, tuple[float, _Sums]] = {}  # what others had, and when

    async def add(self, task: Task, size: int, seconds: float) -> None:
        """Count a task that has ended, and is kept for so many seconds."""
        from nats.errors import Error

        hour = hour_of(task.order)
        if task.owner not in self._own and len(self._own) >= MAX_REMEMBERED:
            self._own.clear()  # and with it the name under which they were written
            self._name = f"{self._name}a"
        own = self._own.setdefault(task.owner, {})
        sums = own[task.operation] = unexpired(own.get(task.operation, {}), now_ms())
        sums[hour] += size + OVERHEAD
        with suppress(Error, TransportError, CallError, OSError, TimeoutError):  # the next one writes the sum of both
            await self._streams.write(sum_key(task.order, self._name, hour), str(sums[hour]).encode(), None, seconds)

    async def check(self, order: Order, limits: TaskLimits) -> None:
        """RESOURCE_EXHAUSTED where too much is kept of the owner's tasks."""
        now = now_ms()
        kept = await self._kept(order.owner)
        if is_large_share(kept, limits, now):
            check_kept_bytes(kept, await self._streams.held_bytes(), limits, now)

    async def _kept(self, owner: str) -> _Sums:
        read_at, others = self._read.get(owner, (-READ_AGAIN, _Sums()))
        if time.monotonic() - read_at >= READ_AGAIN:
            if len(self._read) >= MAX_REMEMBERED:
                self._read.clear()
            others = await self._of_others(owner)
            self._read[owner] = time.monotonic(), others
        return sum(self._own.get(owner, {}).values(), others)

    async def _of_others(self, owner: str) -> _Sums:
        keys = await self._streams.keys(sum_pattern(owner))
        keys = [key for key in keys if key.split(".")[3] != self._name]
        sums = _Sums()
        for key, version in zip(keys, await asyncio.gather(*map(self._streams.read, keys)), strict=True):
            hour = key.rpartition(".")[2]
            if version is not None and version.value.isdigit() and hour.isdigit():
                sums[int(hour)] += int(version.value)
        return sums


LOOK_AHEAD: Final = 256  # messages of each operation that are looked at for one of another owner
COLLECTING: Final = 0.2  # seconds that a fetch may take to end after its time


class Queue:
    """The consumers of one worker. Messages beyond the free slots wait here; after `ack_wait` the server gives them to others."""

    def __init__(self, streams: Streams, ack_wait: float) -> None:
        self._streams = streams
        self._ack_wait = ack_wait
        self._subscriptions: dict[str, Any] = {}
        self._fetching: dict[str, asyncio.Future[list[Msg]]] = {}
        self._arrived: list[Msg] = []
        self._context: Any = None

    async def next(self, operations: Collection[str], n: int, wait: float, but: Collection[str] = ()) -> list[Msg]:
        """Return up to `n` messages as soon as there is one, or none after some seconds.

        With `but` the queue is looked through for messages of other owners than these (by their tokens), and the rest
        goes back at once.
        """
        if not operations:
            await asyncio.sleep(wait)
            return []
        await self._open(operations)
        if but or not self._arrived:
            self._fetch(operations, LOOK_AHEAD if but else max(1, n // len(operations)), wait)
            until = asyncio.ALL_COMPLETED if but else asyncio.FIRST_COMPLETED
            await asyncio.wait(self._fetching.values(), timeout=wait + COLLECTING, return_when=until)
        self._collect()
        if but:
            return await self._of_others(n, but)
        found, self._arrived = self._arrived[:n], self._arrived[n:]
        return found

    async def _of_others(self, n: int, but: Collection[str]) -> list[Msg]:
        arrived, self._arrived = self._arrived, []
        found = [message for message in arrived if message.subject.split(".")[2] not in but][:n]
        kept = {id(message) for message in found}
        await asyncio.gather(*(message.nak() for message in arrived if id(message) not in kept))
        return found

    def close(self) -> None:
        for fetching in self._fetching.values():
            fetching.cancel()
        self._fetching.clear()
        self._subscriptions.clear()

    def _fetch(self, operations: Collection[str], n: int, wait: float) -> None:
        """Start fetches. They are never cancelled: messages that had arrived would be lost until `ack_wait`."""
        for operation in operations:
            if operation not in self._fetching:
                self._fetching[operation] = asyncio.ensure_future(_fetch(self._subscriptions[operation], n, wait))

    def _collect(self) -> None:
        over = [operation for operation, fetching in self._fetching.items() if fetching.done()]
        failures = []
        for fetching in [self._fetching.pop(operation) for operation in over]:
            if (error := fetching.exception()) is None:
                self._arrived += fetching.result()
            else:
                failures.append(error)
        if failures and not self._arrived:
            raise failures[0]

    async def _open(self, operations: Collection[str]) -> None:
        context = await self._streams.open()
        if context is not self._context:
            self.close()
            self._context = context
        for operation in operations:
            if operation not in self._subscriptions:
                self._subscriptions[operation] = await self._subscribe(context, operation)

    async def _subscribe(self, context: Any, operation: str) -> Any:
        from nats.js.api import AckPolicy, ConsumerConfig

        name, queue = operation_token(operation), self._streams.names.queue
        config = ConsumerConfig(
            name=name,
            durable_name=name,
            filter_subject=self._streams.names.queued("*", operation),
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=self._ack_wait,  # never `backoff`, which would replace it
            max_deliver=-1,  # how often a task was tried is counted in its state
            max_ack_pending=100_000,
        )
        await context.add_consumer(queue, config)
        return await context.pull_subscribe_bind(name, stream=queue)


async def _fetch(subscription: Any, n: int, wait: float) -> list[Msg]:
    with suppress(TimeoutError):
        found: list[Msg] = await subscription.fetch(n, timeout=wait)
        return found
    return []


SignOrder: TypeAlias = Callable[[Order], Order]
VerifyOrder: TypeAlias = Callable[[Order], bool]
MayOrder: TypeAlias = Callable[[str, str], bool]  # whether an issuer may accept orders of an operation

_PURPOSE: Final = b"enfold order\n"  # a signature made for something else is none


def order_signer(key: Ed25519PrivateKey, issuer: str) -> SignOrder:
    """Signs orders as `issuer`: the name of this user on the server."""

    def sign(order: Order) -> Order:
        signature = urlsafe_b64encode(key.sign(_signed(order))).decode()
        return msgspec.structs.replace(order, signature=f"{issuer}:{signature}")

    return sign


def order_verifier(keys: Mapping[str, Ed25519PublicKey], may_order: MayOrder = lambda *_: True) -> VerifyOrder:
    """Whether an order is signed, as a whole, by an issuer who may accept orders of its operation."""

    def verify(order: Order) -> bool:
        from cryptography.exceptions import InvalidSignature

        issuer, _, signature = order.signature.partition(":")
        if issuer not in keys or not may_order(issuer, order.operation):
            return False
        try:
            keys[issuer].verify(urlsafe_b64decode(signature), _signed(order))
        except (ValueError, InvalidSignature):
            return False
        return True

    return verify


def _signed(order: Order) -> bytes:
    return _PURPOSE + msgspec.json.encode(msgspec.structs.replace(order, signature=""), order="deterministic")
