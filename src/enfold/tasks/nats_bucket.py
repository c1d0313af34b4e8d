"""The two streams of tasks on JetStream: the queue of tasks to run, and the bucket of their states.

Everything that is written has the moment at which the server forgets it. A write says which version it follows; the
server refuses it if there is another. Nothing here knows what a task is, but that it has an owner and an id.
"""

from __future__ import annotations

import hashlib
import time
from math import ceil
from typing import TYPE_CHECKING, Any, Final

import msgspec

from enfold.calls.transports.nats_streams import ensure_stream
from enfold.errors import CallError
from enfold.tasks.nats_names import Names

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js import JetStreamContext
    from nats.js.api import StreamConfig

    from enfold.calls.protocol.transport import KeepingTransport

MAX_AGE_SECONDS: Final = 1_000_000_000.0  # seconds that the server is asked to keep anything: thirty years
API_TIMEOUT: Final = 2.0  # seconds; a refusal by the server's permissions looks like silence, too
PART: Final = 256 * 1024  # bytes of one piece of a large result
_WRONG_VERSION: Final = (10071, 10164)
_LAST: Final = "Nats-Expected-Last-Subject-Sequence"


class Conflict(Exception):  # noqa: N818  # somebody else was first, which is no fault
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
        from nats.js.errors import NotFoundError

        context = await self.open()
        try:
            message = await context.get_msg(self.names.bucket, subject=self.names.key(key), direct=True)
        except NotFoundError:
            return None
        if not message.data or message.seq is None:  # what the server leaves where a value has expired
            return None
        return Version(message.data, message.seq)

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
        """How much the bucket holds, of everybody."""
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
