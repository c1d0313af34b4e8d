"""First results for idempotency keys in a NATS key-value bucket, shared by every worker and kept when a node dies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from enfold.calls.protocol.transport import KeepingTransport
from enfold.calls.transports.nats_permissions import BUCKET
from enfold.calls.transports.nats_streams import ensure_stream, reachable
from enfold.errors import CallError
from enfold.idempotency.first_results import KEEP, PAUSE, PER_IDENTITY, FirstResults, KeyQuota, refuse_other_input
from enfold.idempotency.outcomes import Outcome, failure
from enfold.operation import new_request_id
from enfold.operation.repeats import EntryKey

if TYPE_CHECKING:
    from nats.js.api import StreamConfig

T = TypeVar("T")

PATIENCE: Final = 10.0  # seconds that a server may be away before a call is refused that has not begun
LEASE_MARGIN: Final = 1.0
MAX_WATCHED: Final = 10_000


class _FirstCall(msgspec.Struct, frozen=True, omit_defaults=True):
    owner: str
    digest: str
    lease: float  # seconds after which whoever has watched it all the while may take it over
    outcome: Outcome | None = None


class _OwnFirstCall(msgspec.Struct, frozen=True):
    """A first call of ours: its entry, the revision it has in the bucket, and until when the call has time."""

    entry: _FirstCall
    revision: int
    ends_at: float


class NATSOnceStore(FirstResults[_OwnFirstCall]):
    """One bucket; the first to create an entry runs the call, the others wait for its outcome."""

    def __init__(
        self,
        transport: KeepingTransport,
        *,
        keep: float = KEEP,
        per_identity: int = PER_IDENTITY,
        replicas: int = 1,
    ) -> None:
        """`per_identity` is how many keys of one identity this worker writes within `keep` seconds."""
        super().__init__(KeyQuota(keep, per_identity))
        self._transport = transport
        self._seconds = keep
        self._replicas = replicas
        self._opened: Any = None
        # Kept from call to call: who tries again and again has watched all the while.
        self._watched: dict[str, tuple[int, float]] = {}  # the revision of each entry, and since when we see it

    async def check(self) -> None:
        """Check the bucket before anything is served; UNAVAILABLE says what is wrong with it."""
        async with reachable():
            await self._open()

    async def _to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Let the call end with its caller: a worker that is stopped releases the key, and another runs the call."""
        return await work

    async def _begin(self, key: EntryKey, digest: str, ends_at: float) -> Outcome | _OwnFirstCall | None:
        now = time.monotonic()
        entry = _FirstCall(new_request_id(), digest, ends_at - now + LEASE_MARGIN)
        name = _name(key)
        found = await self._patiently(lambda: self._take(name, entry, ends_at), min(ends_at, now + PATIENCE))
        if found is not None:
            self._watched.pop(name, None)
        return found

    async def _keep(self, key: EntryKey, begun: _OwnFirstCall, outcome: Outcome) -> None:
        done = self._within_payload(msgspec.structs.replace(begun.entry, outcome=outcome))
        await self._patiently(lambda: self._write(_name(key), done, begun.revision), begun.ends_at)

    async def _give_up(self, key: EntryKey, begun: _OwnFirstCall, error: BaseException) -> None:
        from nats.errors import Error

        del error
        try:
            await (await self._open()).delete(_name(key), last=begun.revision)
        except (Error, OSError, TimeoutError, CallError):
            return  # the lease will end by itself

    def _within_payload(self, entry: _FirstCall) -> _FirstCall:
        """The entry as the server accepts it: a result that is too large is replaced by an error that says so."""
        size, limit = len(msgspec.json.encode(entry)), self._transport.client.max_payload
        if size <= limit:
            return entry
        message = f"The first call with this key has ended; its result has {size} bytes, more than the {limit} kept"
        told = CallError("PAYLOAD_TOO_LARGE", message, {"reason": "result", "size": size, "limit": limit})
        return msgspec.structs.replace(entry, outcome=failure(told))

    # one step each, which may fail while the servers change places

    async def _take(self, name: str, entry: _FirstCall, ends_at: float) -> Outcome | _OwnFirstCall | None:
        """Claim the key, or give the outcome of whoever has it; None while they may still run the call."""
        from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError

        bucket = await self._open()
        data = msgspec.json.encode(entry)
        with suppress(KeyWrongLastSequenceError):
            return _OwnFirstCall(entry, int(await bucket.create(name, data)), ends_at)
        with suppress(KeyNotFoundError, KeyWrongLastSequenceError):
            found = await bucket.get(name)
            held = msgspec.json.decode(found.value, type=_FirstCall)
            if held.owner == entry.owner:
                return _OwnFirstCall(entry, int(found.revision), ends_at)  # our own, whose confirmation was lost
            refuse_other_input(held.digest, entry.digest)
            if held.outcome is not None:
                return held.outcome
            if self._watched_for(name, found.revision) > held.lease:
                return _OwnFirstCall(entry, int(await bucket.update(name, data, last=found.revision)), ends_at)
        return None

    def _watched_for(self, name: str, revision: int) -> float:
        """How many seconds we have seen this entry of somebody else: no clock of another machine is looked at."""
        seen, since = self._watched.pop(name, (0, 0.0))
        if seen != revision:
            since = time.monotonic()
        if len(self._watched) >= MAX_WATCHED:
            del self._watched[next(iter(self._watched))]
        self._watched[name] = revision, since
        return time.monotonic() - since

    async def _write(self, name: str, entry: _FirstCall, revision: int) -> bool:
        from nats.js.errors import KeyWrongLastSequenceError

        with suppress(KeyWrongLastSequenceError):  # written already, and only the confirmation was lost
            await (await self._open()).update(name, msgspec.json.encode(entry), last=revision)
        return True

    async def _patiently(self, step: Callable[[], Awaitable[T]], ends_at: float) -> T:
        """Try a step again while servers fail over, as long as the call has time."""
        from nats.errors import Error

        while True:
            try:
                return await step()
            except (Error, OSError, TimeoutError) as error:
                if time.monotonic() + PAUSE >= ends_at:
                    details = {"reason": "store"}
                    raise CallError("UNAVAILABLE", "The store of first results cannot be reached", details) from error
                self._opened = None
                await asyncio.sleep(PAUSE)

    async def _open(self) -> Any:
        """The bucket, checked when it is opened."""
        if self._opened is None:
            await self._transport.connect()
            client = self._transport.client
            context = client.jetstream(timeout=1)
            await ensure_stream(client, context, idempotency_stream(self._seconds, self._replicas))
            self._opened = await context.key_value(BUCKET)
        return self._opened


def idempotency_stream(keep: float = KEEP, replicas: int = 1) -> StreamConfig:
    """The configuration of the bucket."""
    from nats.js.api import DiscardPolicy, RetentionPolicy, StreamConfig

    return StreamConfig(
        name=f"KV_{BUCKET}",
        subjects=[f"$KV.{BUCKET}.>"],
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


def _name(key: EntryKey) -> str:
    """Where an entry lies. The operation stands before the key: the server lets only those write there who serve it."""
    return f"{key.operation_id}.{key.digest()}"
