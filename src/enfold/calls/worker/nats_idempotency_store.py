"""The idempotency store in a NATS key-value bucket, shared by all workers and kept when a node dies.

The holder of an entry renews it while its call runs. A worker that has seen no renewal for the length of a lease
considers the holder dead. Clocks of other machines are never read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from enfold.calls.protocol.transport import KeepingTransport, TransportError
from enfold.calls.transports.nats_streams import (
    BUCKET,
    MISSING,
    SHARDS,
    ensure_stream,
    idempotency_buckets,
    reachable,
)
from enfold.errors import CallError
from enfold.middleware.idempotency_store import (
    DIED,
    KEEP,
    PAUSE,
    PER_IDENTITY,
    BaseIdempotencyStore,
    KeyQuota,
    Outcome,
    failure,
    refuse_other_input,
    settled,
)
from enfold.operations import new_request_id
from enfold.operations.idempotency import EntryKey, KeyedCall

if TYPE_CHECKING:
    from nats.js import JetStreamContext
    from nats.js.api import StreamConfig

T = TypeVar("T")

LEASE: Final = 5.0  # seconds without renewal after which a holder counts as dead
RENEWALS: Final = 4  # in the length of a lease
STEP: Final = 1.0  # seconds for a response of the server
PATIENCE: Final = 10.0  # seconds without a server after which a new call is refused
MAX_WATCHED: Final = 10_000
NO_JETSTREAM: Final = "the NATS server has no JetStream"
_NO_JETSTREAM_CODES: Final = (None, 10039, 10076)  # no responders; not enabled for the account, or not at all


class _BucketEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the bucket holds under a key."""

    holder: str
    digest: str
    lease: float = LEASE
    outcome: Outcome | None = None


class _BucketClaim(msgspec.Struct, eq=False):
    """A call that this worker runs: its entry and the revision in the bucket."""

    entry: _BucketEntry
    revision: int
    is_over: bool = False  # released, or taken over by another worker


class NATSIdempotencyStore(BaseIdempotencyStore[_BucketClaim]):
    """An idempotency store on the servers: the worker that creates an entry runs the call, others wait for its outcome.

    The entries are in one bucket, or divided among as many as the first one says, by a hash of their key.
    """

    def __init__(
        self,
        transport: KeepingTransport,
        *,
        keep: float = KEEP,
        per_identity: int = PER_IDENTITY,
        replicas: int | None = None,
        lease: float = LEASE,
    ) -> None:
        """`per_identity` is how many keys of one identity this worker writes within `keep` seconds.

        `replicas` is how many nodes keep the entries: one, or three of a cluster with as many, unless given.
        """
        super().__init__(KeyQuota(keep, per_identity))
        self._transport = transport
        self._seconds = keep
        self._replicas = replicas
        self._lease = lease
        self._buckets: list[Any] = []
        self._claims: dict[str, _BucketClaim] = {}  # calls that run here, by entry
        self._renewing: asyncio.Task[None] | None = None
        # Kept between calls, so that polling callers add up to a lease.
        self._watched: dict[str, tuple[int, float]] = {}  # revision of each entry, and since when it is unchanged

    async def check(self) -> None:
        """Check the buckets; raises UNAVAILABLE with the reason."""
        async with reachable():
            await self._open()

    async def unavailable_reason(self) -> str | None:
        """Why the bucket cannot be used; None if it can, or if the servers are only unreachable.

        Raises UNAVAILABLE for a bucket with a wrong configuration.
        """
        from nats.errors import Error
        from nats.js.errors import APIError

        try:
            await self._open()
        except APIError as error:
            return NO_JETSTREAM if error.err_code in _NO_JETSTREAM_CODES else None
        except CallError as error:
            if error.details.get("reason") != MISSING:
                raise
            return error.message
        except (Error, TransportError, OSError, TimeoutError):
            return None
        return None

    async def _claim(self, call: KeyedCall) -> Outcome | _BucketClaim | None:
        name = _name(call.key)
        entry = _BucketEntry(new_request_id(), call.digest, self._lease)
        tries_until = min(call.waits_until - STEP, time.monotonic() + PATIENCE)
        found = await self._retrying(lambda: self._take(name, entry, call.reruns), tries_until)
        if isinstance(found, _BucketClaim):
            self._claims[name] = found
            if self._renewing is None or self._renewing.done():
                self._renewing = asyncio.get_running_loop().create_task(self._renew())
        return found

    async def _keep(self, key: EntryKey, claim: _BucketClaim, outcome: Outcome) -> None:
        """Store an outcome as soon as the servers are reachable; until then the entry is renewed if possible."""
        name, entry = _name(key), msgspec.structs.replace(claim.entry, outcome=outcome)

        async def write() -> None:
            claim.entry = self._within_payload(entry)
            await self._write(name, claim)

        try:
            await self._retrying(write, time.monotonic() + self._seconds)
        finally:
            self._forget(name, claim)

    async def _release(self, key: EntryKey, claim: _BucketClaim) -> None:
        name, is_lost = _name(key), claim.is_over
        self._forget(name, claim)
        if not is_lost:
            with suppress(CallError):  # the lease expires, and the outcome is unknown
                await self._retrying(lambda: self._delete(name, claim), time.monotonic() + PATIENCE)

    def _forget(self, name: str, claim: _BucketClaim) -> None:
        claim.is_over = True
        if self._claims.get(name) is claim:
            del self._claims[name]

    def _within_payload(self, entry: _BucketEntry) -> _BucketEntry:
        """Fit the entry into the server's size limit: a result that is too large is replaced by an error."""
        size, limit = len(msgspec.json.encode(entry)), self._transport.client.max_payload
        if size <= limit:
            return entry
        message = f"The first call with this key has ended; its result has {size} bytes, more than the {limit} kept"
        error = CallError("PAYLOAD_TOO_LARGE", message, {"reason": "result", "size": size, "limit": limit})
        return msgspec.structs.replace(entry, outcome=failure(error))

    async def _renew(self) -> None:
        from nats.errors import Error

        while self._claims:
            await asyncio.sleep(self._lease / RENEWALS)
            for name, claim in list(self._claims.items()):
                if claim.entry.outcome is None and not claim.is_over:
                    with suppress(Error, TransportError, OSError, TimeoutError):
                        await self._write(name, claim)

    # single steps, which may fail during a failover

    async def _take(self, name: str, entry: _BucketEntry, reruns: bool) -> Outcome | _BucketClaim | None:
        """Claim the key, or return the outcome of its holder; None while the holder may still run the call."""
        from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError

        bucket, data = await self._bucket_of(name), msgspec.json.encode(entry)
        with suppress(KeyWrongLastSequenceError):
            return _BucketClaim(entry, int(await bucket.create(name, data)))
        with suppress(KeyNotFoundError, KeyWrongLastSequenceError):
            found = await bucket.get(name)
            held = msgspec.json.decode(found.value, type=_BucketEntry)
            if held.holder == entry.holder:
                return _BucketClaim(entry, int(found.revision))  # ours: the confirmation was lost
            refuse_other_input(held.digest, entry.digest)
            outcome = held.outcome or self._lost(name, held, int(found.revision))
            if outcome is None or settled(outcome, reruns=reruns) is not None:
                return outcome
            return _BucketClaim(entry, int(await bucket.update(name, data, last=found.revision)))
        return None

    def _lost(self, name: str, held: _BucketEntry, revision: int) -> Outcome | None:
        """Return the unknown outcome of an entry that was not renewed for a lease; None while its holder may be alive."""
        if name in self._claims:
            return None  # our own
        seen, since = self._watched.pop(name, (0, 0.0))
        now = time.monotonic()
        if seen != revision:
            since = now
        if len(self._watched) >= MAX_WATCHED:
            del self._watched[next(iter(self._watched))]
        self._watched[name] = revision, since
        return DIED if now - since > held.lease else None

    async def _write(self, name: str, claim: _BucketClaim) -> None:
        """Update our entry, unless another worker has taken it over."""
        from nats.js.errors import KeyWrongLastSequenceError

        while not claim.is_over:
            entry, bucket = claim.entry, await self._bucket_of(name)
            data = msgspec.json.encode(entry)
            with suppress(KeyWrongLastSequenceError):  # the confirmation was lost, or another worker took over
                claim.revision = int(await bucket.update(name, data, last=claim.revision))
                return
            with suppress(KeyWrongLastSequenceError):
                held = await self._own(name, claim)
                if held is None and not claim.is_over:  # the bucket was emptied
                    claim.revision = int(await bucket.create(name, data))
                if held is None or held == entry:
                    return
            await asyncio.sleep(PAUSE)

    async def _delete(self, name: str, claim: _BucketClaim) -> None:
        from nats.js.errors import KeyWrongLastSequenceError

        while True:
            with suppress(KeyWrongLastSequenceError):  # the confirmation was lost, or another worker took over
                await (await self._bucket_of(name)).delete(name, last=claim.revision)
                return
            if await self._own(name, claim) is None:
                return
            await asyncio.sleep(PAUSE)

    async def _own(self, name: str, claim: _BucketClaim) -> _BucketEntry | None:
        """Return our entry as stored, updating its revision; None if it is gone or taken over."""
        from nats.js.errors import KeyNotFoundError

        try:
            found = await (await self._bucket_of(name)).get(name)
        except KeyNotFoundError:
            return None
        held = msgspec.json.decode(found.value, type=_BucketEntry)
        if held.holder != claim.entry.holder:
            claim.is_over = True
            return None
        claim.revision = int(found.revision)
        return held

    async def _retrying(self, step: Callable[[], Awaitable[T]], tries_until: float) -> T:
        """Retry a step while servers fail over."""
        from nats.errors import Error

        while True:
            try:
                return await step()
            except (Error, TransportError, OSError, TimeoutError) as error:
                self._buckets = []
                self._watched.clear()  # holders could not renew either
                if time.monotonic() + PAUSE >= tries_until:
                    details = {"reason": "store", "started": False}
                    raise CallError("UNAVAILABLE", "The idempotency store is unreachable", details) from error
                await asyncio.sleep(PAUSE)

    async def _bucket_of(self, name: str) -> Any:
        """Return the bucket of an entry, whose name ends in a digest."""
        if not self._buckets:
            await self._open()
        return self._buckets[int(name[-8:], 16) % len(self._buckets)]

    async def _open(self) -> None:
        await self._transport.connect()
        client = self._transport.client
        context = client.jetstream(timeout=STEP)
        first = await ensure_stream(client, context, idempotency_stream(BUCKET, self._seconds, self._replicas))
        names = idempotency_buckets(shards_of(first))
        for name in names[1:]:
            await ensure_stream(client, context, idempotency_stream(name, self._seconds, self._replicas))
        self._buckets = [await context.key_value(name) for name in names]


def shards_of(first: StreamConfig) -> int:
    """Return among how many buckets the keys are divided; the first one says it, so that all workers agree."""
    return int((first.metadata or {}).get(SHARDS, 1))


def idempotency_stream(bucket: str = BUCKET, keep: float = KEEP, replicas: int | None = None) -> StreamConfig:
    """Return the configuration of a bucket."""
    from nats.js.api import DiscardPolicy, RetentionPolicy, StreamConfig

    return StreamConfig(
        name=f"KV_{bucket}",
        subjects=[f"$KV.{bucket}.>"],
        retention=RetentionPolicy.LIMITS,
        max_msgs_per_subject=1,
        max_age=keep,
        duplicate_window=min(120, keep),
        discard=DiscardPolicy.NEW,
        allow_direct=True,
        allow_msg_ttl=True,
        deny_delete=True,
        num_replicas=replicas,
    )


async def idempotency_streams(
    context: JetStreamContext, keep: float, replicas: int | None, shards: int | None
) -> list[StreamConfig]:
    """Return the buckets that an operator wants; `shards` is the number there is, unless given.

    The number cannot be changed while there are keys: a worker would look for them in another bucket, and start them again.
    """
    now, keys = await _stored(context)
    shards = shards or now
    if shards != now and keys:
        message = (
            f"There are {keys} idempotency keys in {now} buckets: stop the workers and wait until the keys have expired"
        )
        raise CallError("VALIDATION_ERROR", message)
    first, *others = (idempotency_stream(name, keep, replicas) for name in idempotency_buckets(shards))
    return [first.evolve(metadata={SHARDS: str(shards)}), *others]


async def _stored(context: JetStreamContext) -> tuple[int, int]:
    """Return the number of buckets, and of the keys in them."""
    from nats.js.errors import NotFoundError

    try:
        shards = shards_of((await context.stream_info(f"KV_{BUCKET}")).config)
        found = [await context.stream_info(f"KV_{name}") for name in idempotency_buckets(shards)]
    except NotFoundError:
        return 1, 0
    return shards, sum(each.state.messages for each in found)


def _name(key: EntryKey) -> str:
    """Return the key of an entry. It starts with the operation, so that permissions can restrict who uses it."""
    return f"{key.operation_id}.{key.digest()}"
