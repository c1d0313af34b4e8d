"""Names of tasks on NATS: streams, subjects and keys, and the permissions that users need for them. Pure.

Every subject and every key names the operation in a place of its own, so that the server can bind a worker to the
operations that it serves. Keys hold digests: listing them reveals no task id.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from math import ceil
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from enfold.calls.protocol.transport import peer_name
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
from enfold.tasks.model import Order

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext
    from nats.js.api import StreamConfig

    from enfold.calls.protocol.transport import KeepingTransport


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
        """The subject of a key of the bucket."""
        return f"$KV.{self.name}.{key}"

    def queued(self, owner: str, operation: str) -> str:
        """The subject of the tasks of one owner and one operation."""
        return f"{self.name}.run.{owner}.{operation}"

    def rights(self, user: NATSUser, served: Sequence[OperationSpec], specs: Sequence[OperationSpec]) -> Rights:
        """What an operator, an edge or a worker of durable operations needs of the server; callers need nothing."""
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


def _token(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def owner_token(owner: str) -> str:
    """The owner as one word of a subject."""
    return _token(owner)


def operation_token(operation: str) -> str:
    """The operation as one word of a subject; also the consumer through which all its workers share its tasks."""
    return f"op_{_token(operation)}"


def _place(order: Order) -> str:
    return f"{operation_token(order.operation)}.{owner_token(order.owner)}.{_token(order.id)}"


def task_key(order: Order, what: str = "state") -> str:
    return f"task.{_place(order)}.{what}"


def task_pattern(owner: str | None, task_id: str | None) -> str:
    """The keys of states, of whatever operation; None stands for all owners, or all tasks."""
    return f"task.*.{'*' if owner is None else owner_token(owner)}.{'*' if task_id is None else _token(task_id)}.state"


def slot_key(order: Order) -> str:
    """The key that stands for an unfinished task."""
    return f"open.{_place(order)}"


def state_of_slot(key: str) -> str:
    """The key of the state of the task that a slot stands for."""
    return f"task.{key.removeprefix('open.')}.state"


def slot_pattern(owner: str) -> str:
    return f"open.*.{owner_token(owner)}.*"


def first_key(owner: str, operation: str, key: str) -> str:
    """Where the first task with an idempotency key is named."""
    return f"key.{operation_token(operation)}.{owner_token(owner)}.{_token(key)}"


def sum_key(order: Order, name: str, hour: int) -> str:
    """Where a process counts the bytes of an owner's finished tasks of an operation."""
    return f"bytes.{operation_token(order.operation)}.{owner_token(order.owner)}.{name}.{hour}"


def sum_pattern(owner: str) -> str:
    return f"bytes.*.{owner_token(owner)}.*.*"


def dead_key(operation: str, sequence: str) -> str:
    """Where a message is kept that is no task."""
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
        """After an error: check connection and streams again with the next step."""
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
            raise CallError("PAYLOAD_TOO_LARGE", f"A task has at most {most} bytes on this server", details)

    # the bucket

    async def read(self, key: str) -> Version | None:
        """The value of a key; None where there is none.

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
        """What one replica has; a value that was removed or has expired is empty."""
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

    async def write(self, key: str, value: bytes, follows: int | None, seconds: float) -> None:
        """Store a value for so long; Conflict where the key is not at the revision it follows (0: not there, None: any).

        The server counts in whole seconds: nothing is forgotten before its time.
        """
        from nats.js.errors import APIError

        context = await self.open()
        self.check_size(value)
        headers = {} if follows is None else {_LAST: str(follows)}
        try:
            await context.publish(
                self.names.key(key), value, headers=headers or None, msg_ttl=max(1, ceil(min(seconds, MAX_AGE_SECONDS)))
            )
        except APIError as error:
            if error.err_code in _WRONG_VERSION:
                raise Conflict from None
            raise

    async def remove(self, key: str) -> None:
        """Forget a key: an empty value stands there for a second. Purging would need the right to purge all keys."""
        await self.write(key, b"", None, 1)

    async def keys(self, pattern: str) -> list[str]:
        """The keys that fit a pattern."""
        context = await self.open()
        info = await context.stream_info(self.names.bucket, subjects_filter=self.names.key(pattern))
        return [subject.removeprefix(self.names.key("")) for subject in info.state.subjects or ()]

    async def held_bytes(self) -> int:
        """How many bytes the bucket holds for all owners."""
        return int((await (await self.open()).stream_info(self.names.bucket)).state.bytes)

    async def write_parts(self, key: str, value: bytes, seconds: float) -> str:
        """Keep a value that is too large for one message; the answer is its digest."""
        for number, start in enumerate(range(0, len(value), PART)):
            await self.write(f"{key}.{number}", value[start : start + PART], None, seconds)
        return hashlib.sha256(value).hexdigest()

    async def read_parts(self, key: str, size: int, digest: str) -> bytes | None:
        """What `write_parts` has kept; None where it is gone, or not the same any more."""
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
        """Hear of every change of these keys, after it is stored; the answer can be unsubscribed."""
        await self.open()
        return await self.client.subscribe(f"{self.names.changed}.{pattern}", cb=heard)


def task_streams(names: Names, replicas: int | None) -> tuple[StreamConfig, StreamConfig]:
    """The configuration of queue and bucket."""
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
        """At most `n` messages, as soon as there is one, or none after some seconds.

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
