"""First results for idempotency keys in a NATS key-value bucket, shared by every worker and kept when a node dies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from enfold.calls.protocol.transport import KeepingTransport
from enfold.calls.transports.nats_permissions import BUCKET
from enfold.envelope import ResponseEnvelope
from enfold.errors import CallError
from enfold.idempotency.first_results import KEEP, PER_IDENTITY, KeyQuota, not_ended_yet, refuse_other_input
from enfold.idempotency.outcomes import Outcome, failure, outcome_of, result_of
from enfold.operation import new_request_id
from enfold.operation.repeats import EntryKey, Run

T = TypeVar("T")

PAUSE: Final = 0.05
PATIENCE: Final = 10.0  # seconds that a server may be away before a call is refused that has not begun
LEASE_MARGIN: Final = 1.0
MAX_WATCHED: Final = 10_000


class _FirstCall(msgspec.Struct, frozen=True, omit_defaults=True):
    owner: str
    digest: str
    lease: float  # seconds after which whoever has watched it all the while may take it over
    outcome: Outcome | None = None


class _Watched(msgspec.Struct):
    """An entry of somebody else, and since when we see it: no clock of another machine is looked at."""

    revision: int = 0
    since: float = 0.0

    def for_how_long(self, revision: int) -> float:
        if revision != self.revision:
            self.revision, self.since = revision, time.monotonic()
        return time.monotonic() - self.since


class NATSOnceStore:
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
        self._transport = transport
        self._keep = keep
        self._quota = KeyQuota(keep, per_identity)
        self._replicas = replicas
        self._opened: Any = None
        # Kept from call to call: who tries again and again has watched all the while.
        self._watched: dict[str, _Watched] = {}

    async def once(self, key: EntryKey, digest: str, ttl: float, run: Run) -> ResponseEnvelope[Any]:
        """The result of `run`, or of the first call with this key."""
        # The operation stands before the key: the server lets only those write there who serve it.
        name = f"{key.operation_id}.{key.digest()}"
        ends_at = time.monotonic() + ttl
        entry = _FirstCall(new_request_id(), digest, ttl + LEASE_MARGIN)
        while True:
            patience = min(ends_at, time.monotonic() + PATIENCE)
            revision = await self._patiently(lambda: self._take(name, entry), patience)
            if revision is not None:
                self._watched.pop(name, None)
                return await self._run_first(name, entry, revision, partial(self._run_within_quota, key, run), ends_at)
            outcome = await self._patiently(lambda: self._outcome(name, digest), ends_at)
            if outcome is not None:
                self._watched.pop(name, None)
                return result_of(outcome)
            await asyncio.sleep(PAUSE)
            if time.monotonic() >= ends_at:
                raise not_ended_yet()

    async def _run_within_quota(self, key: EntryKey, run: Run) -> ResponseEnvelope[Any]:
        """Run it, if its caller has not used too many keys."""
        self._quota.take(key.owner)
        try:
            return await run()
        except BaseException as error:
            if not isinstance(error, CallError) or error.retryable:
                self._quota.give_back(key.owner)
            raise

    async def _run_first(
        self, key: str, entry: _FirstCall, revision: int, run: Run, ends_at: float
    ) -> ResponseEnvelope[Any]:
        try:
            outcome = await outcome_of(run)
        except BaseException:
            await asyncio.shield(self._give_back(key))
            raise
        done = self._within_payload(msgspec.structs.replace(entry, outcome=outcome))
        await self._patiently(lambda: self._write(key, done, revision), ends_at)
        return result_of(outcome)

    def _within_payload(self, entry: _FirstCall) -> _FirstCall:
        """The entry as the server takes it: of a result that is too large, repeats hear that it was there."""
        size, limit = len(msgspec.json.encode(entry)), self._transport.client.max_payload
        if size <= limit:
            return entry
        message = f"The first call with this key has ended; its result has {size} bytes, more than the {limit} kept"
        told = CallError("PAYLOAD_TOO_LARGE", message, {"reason": "result", "size": size, "limit": limit})
        return msgspec.structs.replace(entry, outcome=failure(told))

    # one step each, which may fail while the servers change places

    async def _take(self, key: str, entry: _FirstCall) -> int | None:
        """The revision under which the entry is ours; None where it is another's, who may still be at it."""
        from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError

        bucket = await self._open()
        data = msgspec.json.encode(entry)
        with suppress(KeyWrongLastSequenceError):
            return int(await bucket.create(key, data))
        with suppress(KeyNotFoundError, KeyWrongLastSequenceError):
            found = await bucket.get(key)
            held = msgspec.json.decode(found.value, type=_FirstCall)
            if held.owner == entry.owner:
                return int(found.revision)  # our own, whose confirmation was lost
            if held.outcome is None and self._watching(key).for_how_long(found.revision) > held.lease:
                return int(await bucket.update(key, data, last=found.revision))
        return None

    def _watching(self, key: str) -> _Watched:
        watched = self._watched.get(key)
        if watched is None:
            if len(self._watched) >= MAX_WATCHED:
                del self._watched[next(iter(self._watched))]
            watched = self._watched[key] = _Watched()
        return watched

    async def _outcome(self, key: str, digest: str) -> Outcome | None:
        from nats.js.errors import KeyNotFoundError

        try:
            found = await (await self._open()).get(key)
        except KeyNotFoundError:
            return None
        held = msgspec.json.decode(found.value, type=_FirstCall)
        refuse_other_input(held.digest, digest)
        return held.outcome

    async def _write(self, key: str, entry: _FirstCall, revision: int) -> bool:
        from nats.js.errors import KeyWrongLastSequenceError

        with suppress(KeyWrongLastSequenceError):  # written already, and only the confirmation was lost
            await (await self._open()).update(key, msgspec.json.encode(entry), last=revision)
        return True

    async def _give_back(self, key: str) -> None:
        from nats.errors import Error

        try:
            await (await self._open()).purge(key)
        except (Error, OSError, TimeoutError, CallError):
            return  # the lease will end by itself

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
        """The bucket, made if it is not there yet."""
        from nats.js.api import KeyValueConfig
        from nats.js.errors import NotFoundError

        if self._opened is None:
            await self._transport.connect()
            stream = self._transport.client.jetstream(timeout=1)
            try:
                self._opened = await stream.key_value(BUCKET)
            except NotFoundError:
                config = KeyValueConfig(BUCKET, ttl=self._keep, replicas=self._replicas, direct=True)
                self._opened = await stream.create_key_value(config)
        return self._opened
