"""The two streams of tasks on JetStream: the queue of what is to be run, and the bucket of what is known.

Everything that is written has the moment at which the server forgets it. A write says which version it follows; the
server refuses it if there is another. Nothing here knows what a task is, but that it has an owner and an id.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from enfold.errors import CallError
from enfold.tasks.nats_names import Names

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js import JetStreamContext

    from enfold.calls.transports.nats_peer import NATSTransport

__all__ = ["Conflict", "Streams", "Version"]

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
    """The queue and the bucket, made when first needed, on the connection of the moment."""

    def __init__(self, transport: NATSTransport, names: Names, replicas: int) -> None:
        self._transport = transport
        self.names = names
        self._replicas = replicas
        self._client: Client | None = None
        self._context: JetStreamContext | None = None

    async def open(self) -> JetStreamContext:
        """JetStream, with both streams there; a connection that was built anew is looked at anew."""
        await self._transport.connect()
        client = self._transport.client
        if self._context is None or self._client is not client:
            context = client.jetstream(timeout=API_TIMEOUT)
            await _make(context, self.names, self._replicas)
            self._client, self._context = client, context
        return self._context

    def forget(self) -> None:
        """Look at everything anew with the next step, because one has failed."""
        self._context = None

    @property
    def client(self) -> Client:
        return self._transport.client

    @property
    def most(self) -> int:
        """The bytes that one message may have, with room for headers."""
        return self._transport.client.max_payload - 4096

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

    async def write(self, key: str, value: bytes, follows: int | None, seconds: float) -> int:
        """The new revision; Conflict where the key is not at the revision it follows (0: not there, None: any)."""
        from nats.js.errors import APIError

        context = await self.open()
        if len(value) > self.most:
            details = {"reason": "task", "size": len(value), "limit": self.most}
            raise CallError("PAYLOAD_TOO_LARGE", f"A task has at most {self.most} bytes on this server", details)
        headers = {} if follows is None else {_LAST: str(follows)}
        try:
            acknowledged = await context.publish(
                self.names.key(key), value, headers=headers or None, msg_ttl=max(1.0, seconds)
            )
        except APIError as error:
            if error.err_code in _WRONG_VERSION:
                raise Conflict from None
            raise
        return int(acknowledged.seq)

    async def remove(self, key: str) -> None:
        """Leave no trace of a key."""
        await (await self.open()).purge_stream(self.names.bucket, subject=self.names.key(key))

    async def keys(self, pattern: str) -> list[str]:
        """The keys that fit a pattern."""
        context = await self.open()
        info = await context.stream_info(self.names.bucket, subjects_filter=self.names.key(pattern))
        return [subject.removeprefix(self.names.key("")) for subject in info.state.subjects or ()]

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
        """Have it run; a second message with the same id is dropped by the server for a while, which only saves work."""
        context = await self.open()
        await context.publish(self.names.queued(owner, operation), value, headers={"Nats-Msg-Id": message_id})

    async def listen(self, owner: str, task_id: str, heard: Any) -> Any:
        """Hear of every change of a task, after it is stored; the answer can be unsubscribed."""
        await self.open()
        return await self.client.subscribe(f"{self.names.changed}.{owner}.{task_id}.>", cb=heard)


async def _make(context: JetStreamContext, names: Names, replicas: int) -> None:
    from nats.js.api import DiscardPolicy, RePublish, RetentionPolicy, StreamConfig
    from nats.js.errors import NotFoundError

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
        max_msgs_per_subject=1,
        discard=DiscardPolicy.NEW,
        allow_rollup_hdrs=True,
        allow_direct=True,
        allow_msg_ttl=True,
        num_replicas=replicas,
        republish=RePublish(src=names.key(">"), dest=f"{names.changed}.>", headers_only=True),
    )
    for config in (queue, bucket):
        try:
            await context.stream_info(str(config.name))
        except NotFoundError:
            await context.add_stream(config)
