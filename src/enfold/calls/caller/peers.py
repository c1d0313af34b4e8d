"""Discovers what running peers serve.

An edge asks all workers from time to time, and one worker as soon as that worker announces a change. Workers answer with the
digest of their list of operations; a list that is not known yet is fetched from one of the workers that have it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias

import msgspec

from enfold.calls.protocol.events import VERSION, Announcement, DiscoveryRequest, WorkerListing, read_as, specs_digest
from enfold.calls.protocol.settings import OFFER_REMEMBERED
from enfold.calls.protocol.transport import (
    SERVICES,
    Message,
    Signal,
    Subscription,
    Transport,
    TransportError,
    announcement_subject,
    discovery_subject,
    is_token,
    lies_in,
    new_boot,
)
from enfold.observability.log import Log
from enfold.operations import OperationSpec

_log: Final = Log("enfold.calls")

LATE_ANSWERS: Final = 0.1  # seconds to wait for further answers
ANSWERS_PER_SECOND: Final = 200  # of all workers at one edge, which asks a large fleet less often than `refresh`
LIST_ATTEMPTS: Final = 3  # workers that are asked in a row for a list that they have in common
MAX_ANNOUNCED: Final = 1_000  # workers that are asked one by one; where more have changed, all are asked
MAX_MISSED: Final = 2  # rounds without an answer after which a worker is dropped
MAX_GONE: Final = 10_000  # operations remembered without workers


class Discovery(msgspec.Struct, frozen=True):
    """How often peers are asked what they serve, and limits per peer; what exceeds them is dropped, counted and logged."""

    refresh: float = 5.0  # seconds between two rounds
    patience: float = 1.0  # seconds that a peer may take to answer
    workers: int = 64  # processes of one peer
    operations: int = 5_000  # of one process
    size: int = 16 * 1024 * 1024  # bytes of one process's list


class PeerListing(msgspec.Struct):
    """The operations of one worker that are visible to us."""

    worker: str
    boot: str
    digest: str
    may_offer: tuple[str, ...] | None = None  # from the transport; operations outside are ignored
    missed: int = 0


class _PartialList:
    """The parts of a worker's list received so far."""

    def __init__(self, digest: str) -> None:
        self.digest = digest
        self.specs: dict[int, list[dict[str, Any]]] = {}
        self._operations = 0
        self._size = 0

    def add(self, answer: WorkerListing, size: int, limits: Discovery) -> bool:
        """Add a part; False where the list exceeds the limits of one worker."""
        if answer.part not in self.specs:
            self._operations += len(answer.specs)
            self._size += size
        if self._operations > limits.operations or self._size > limits.size or answer.parts > limits.operations:
            return False
        self.specs[answer.part] = answer.specs
        return True

    def read(self) -> list[OperationSpec]:
        return [OperationSpec.from_dict(wire) for number in sorted(self.specs) for wire in self.specs[number]]


# The digest of each list and who may offer it, in the order in which the lists came, and the operations without workers.
_Offers: TypeAlias = tuple[list[tuple[str, set[tuple[str, ...] | None]]], set[str]]


class PeerDirectory:
    """The operations of running peers; `changed` is called when they change."""

    def __init__(
        self,
        transport: Transport,
        changed: Callable[[], None],
        on_connection: Callable[[], None] | None = None,
        discovery: Discovery = Discovery(),
    ) -> None:
        self.dropped = 0  # answers beyond the limits
        self.is_connected = True
        self._transport = transport
        self._changed = changed
        self._on_connection = on_connection
        self._limits = discovery
        self._inbox = ""
        self._workers: dict[str, PeerListing] = {}  # by their key: peer and boot
        self._processes: dict[str, set[str]] = {}  # the keys of each peer
        self._specs: dict[str, list[OperationSpec]] = {}  # complete lists by digest
        # Operations without workers, and until when they are kept.
        self._gone: dict[str, tuple[OperationSpec, float]] = {}
        self._offers: _Offers = ([], set())  # as `changed` was last called for
        self._announced: set[tuple[str, str]] = set()  # name and boot of workers to be asked
        self._unlisted: dict[str, PeerListing] = {}  # workers whose list is not known yet
        self._fetched: dict[str, _PartialList] = {}  # lists that are being fetched, by the key of their worker
        self._answered: set[str] = set()
        self._heard = asyncio.Event()
        self._woken = asyncio.Event()
        self._round_at = 0.0  # when all workers are asked next
        self._subscriptions: list[Subscription] = []
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Run one round, and continue in the background."""
        await self._transport.connect()
        self._inbox = f"{self._transport.inbox()}.d-{new_boot()}"
        self._subscriptions = [
            await self._transport.subscribe(self._inbox, self._receive),
            await self._transport.subscribe(announcement_subject("*"), self._take_announcement),
        ]
        await self._catch_up()
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for subscription in self._subscriptions:
            await subscription.close()

    @property
    def workers(self) -> list[PeerListing]:
        return list(self._workers.values())

    def specs(self) -> dict[str, OperationSpec]:
        """The operations by id; if lists differ, the first one received counts until no worker has it."""
        offered, _ = self._current_offers()
        found: dict[str, OperationSpec] = {}
        for digest, namespaces in offered:
            for spec in self._specs[digest]:
                if any(lies_in(spec.id, each) for each in namespaces):
                    found.setdefault(spec.id, spec)
        for operation_id, (spec, _) in self._gone.items():
            found.setdefault(operation_id, spec)
        return found

    # asking

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, self._round_at - time.monotonic())):
                    await self._woken.wait()
            self._woken.clear()
            await self._catch_up()

    async def _catch_up(self) -> None:
        """Ask all workers if it is time to, otherwise those that have announced a change; then fetch unknown lists."""
        if time.monotonic() >= self._round_at or len(self._announced) > MAX_ANNOUNCED:
            await self._ask_all()
        else:
            await self._ask_announced()
        await self._fetch_lists()
        self._forget()
        offers = self._current_offers()
        if offers != self._offers:
            self._offers = offers
            self._changed()

    async def _ask_all(self) -> None:
        """Ask all workers; drop those that miss two rounds."""
        self._announced.clear()
        self._answered.clear()
        if await self._ask(None, DiscoveryRequest()):
            await self._listen()
            for key, listing in list(self._workers.items()):
                listing.missed = 0 if key in self._answered else listing.missed + 1
                if listing.missed >= MAX_MISSED:
                    self._remove(key)
        self._round_at = time.monotonic() + max(self._limits.refresh, len(self._workers) / ANSWERS_PER_SECOND)

    async def _ask_announced(self) -> None:
        announced, self._announced = self._announced, set()
        expected = {_key(worker, boot) for worker, boot in announced}
        self._answered.clear()
        for worker, boot in announced:
            await self._ask(worker, DiscoveryRequest(boot=boot))
        await self._listen(lambda: expected <= self._answered)

    async def _fetch_lists(self) -> None:
        """Fetch each list that is not known yet from one of the workers that have it, and from another where that fails."""
        for _ in range(LIST_ATTEMPTS):
            same: dict[str, list[PeerListing]] = {}
            for listing in self._unlisted.values():
                same.setdefault(listing.digest, []).append(listing)
            chosen = [random.choice(each) for each in same.values()]  # noqa: S311  # not a secret
            self._fetched = {_key(each.worker, each.boot): _PartialList(each.digest) for each in chosen}
            for each in chosen:
                await self._ask(each.worker, DiscoveryRequest(boot=each.boot, wants_list=True))
            await self._listen(lambda: not self._fetched)
        self._fetched.clear()
        self._unlisted.clear()

    async def _ask(self, worker: str | None, request: DiscoveryRequest) -> bool:
        """Ask one worker, or all; False while there is no connection, when missing answers mean nothing."""
        subject = discovery_subject(self._transport.name, worker)
        self._heard.clear()
        try:
            await self._transport.publish(subject, msgspec.json.encode(request), reply=self._inbox)
        except TransportError:
            return False
        return True

    async def _listen(self, is_done: Callable[[], bool] | None = None) -> None:
        """Wait for answers for at most `patience` seconds: until `is_done`, or else until they cease."""
        ends_at = time.monotonic() + self._limits.patience
        pause = self._limits.patience
        while (left := ends_at - time.monotonic()) > 0 and not (is_done is not None and is_done()):
            try:
                async with asyncio.timeout(min(pause, left)):
                    await self._heard.wait()
            except TimeoutError:
                return
            self._heard.clear()
            pause = LATE_ANSWERS if is_done is None else pause

    # keeping

    def _keep(self, key: str, listing: PeerListing) -> None:
        self._unlisted.pop(key, None)
        self._workers[key] = listing

    def _remove(self, key: str) -> None:
        """Remove a worker; for an hour its operations are UNAVAILABLE, not OPERATION_NOT_FOUND."""
        listing = self._workers.pop(key)
        until = time.monotonic() + OFFER_REMEMBERED
        for spec in self._specs.get(listing.digest, ()):
            if len(self._gone) < MAX_GONE and lies_in(spec.id, listing.may_offer):
                self._gone[spec.id] = (spec, until)

    def _forget(self) -> None:
        """Forget lists without workers, operations that were remembered long enough, and peers that are gone."""
        used = {listing.digest for listing in self._workers.values()}
        self._specs = {digest: specs for digest, specs in self._specs.items() if digest in used}
        if self._gone:
            now, live = time.monotonic(), {spec.id for specs in self._specs.values() for spec in specs}
            self._gone = {key: gone for key, gone in self._gone.items() if gone[1] > now and key not in live}
        self._processes = {}
        for key, listing in self._workers.items():
            self._processes.setdefault(listing.worker, set()).add(key)

    def _current_offers(self) -> _Offers:
        offered: dict[str, set[tuple[str, ...] | None]] = {}
        for listing in self._workers.values():
            offered.setdefault(listing.digest, set()).add(listing.may_offer)
        return [(digest, offered[digest]) for digest in self._specs if digest in offered], set(self._gone)

    # answers

    def _receive(self, message: Message) -> None:
        if message.signal is not None:
            self._on_signal(message.signal)
            return
        try:
            self._take(msgspec.json.decode(message.data, type=WorkerListing), message)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, TypeError):
            return
        self._heard.set()

    def _on_signal(self, signal: Signal) -> None:
        if signal is Signal.RESTORED:
            self._round_at = 0.0
            self._woken.set()
        is_change = signal in (Signal.RESTORED, Signal.LOST) and self.is_connected != (signal is Signal.RESTORED)
        if is_change:
            self.is_connected = signal is Signal.RESTORED
        if (is_change or signal is Signal.REFUSED) and self._on_connection is not None:
            self._on_connection()

    def _take(self, answer: WorkerListing, message: Message) -> None:
        peer = message.peer or answer.worker  # the authenticated name, if there is one
        key = _key(peer, answer.boot)
        if not is_token(peer) or not self._is_within_limits(peer, key):
            return
        if answer.v > VERSION:
            self._drop(
                peer, f"version {answer.v} of the call protocol, which this process does not support: upgrade it"
            )
            return
        listing = PeerListing(peer, answer.boot, answer.digest, message.may_offer)
        if answer.parts:
            self._take_part(key, listing, answer, len(message.data))
            return
        self._answered.add(key)
        if answer.digest in self._specs:
            self._keep(key, listing)
        else:
            self._unlisted[key] = listing
            self._woken.set()

    def _take_part(self, key: str, listing: PeerListing, answer: WorkerListing, size: int) -> None:
        """Take a part of a list that was asked for, and with the last part the list."""
        fetched = self._fetched.get(key)
        if fetched is None:
            return
        if fetched.digest != answer.digest:  # the worker has changed its operations meanwhile
            fetched = self._fetched[key] = _PartialList(answer.digest)
        if not fetched.add(answer, size, self._limits):
            self._drop(listing.worker, f"more than {self._limits.operations} operations, or too large a list")
            del self._fetched[key]
            self._unlisted.pop(key, None)
        elif len(fetched.specs) == answer.parts:
            del self._fetched[key]
            self._take_list(key, listing, fetched.read())

    def _take_list(self, key: str, listing: PeerListing, specs: list[OperationSpec]) -> None:
        """Keep a list for all workers that have its digest; a list with a wrong digest only for the worker that sent it."""
        digest = listing.digest
        if digest != specs_digest(specs):
            listing.digest = f"{key} {digest}"
        self._specs[listing.digest] = specs
        self._keep(key, listing)
        for other, waiting in list(self._unlisted.items()):
            if waiting.digest == listing.digest:
                self._keep(other, waiting)

    def _is_within_limits(self, peer: str, key: str) -> bool:
        processes = self._processes.setdefault(peer, set())
        if key in processes or len(processes) < self._limits.workers:
            processes.add(key)
            return True
        self._drop(peer, f"more than {self._limits.workers} processes")
        return False

    def _drop(self, peer: str, reason: str) -> None:
        self.dropped += 1
        if self.dropped in (1, 10, 100, 1_000):  # and then no more, so that a peer cannot fill the log
            _log.warning("Operations of %s are ignored: it has %s", peer, reason)

    def _take_announcement(self, message: Message) -> None:
        """Ask a worker that has started or changed; forget one that stops."""
        news = read_as(message.data, Announcement)
        if news is None or message.subject != announcement_subject(news.worker) or not is_token(news.worker):
            return  # a signal, or malformed; servers permit a worker only announcements of its own
        if news.state != "down":
            self._announced.add((news.worker, news.boot))
        elif (key := _key(news.worker, news.boot)) in self._workers:
            self._remove(key)
        self._woken.set()


def _key(peer: str, boot: str) -> str:
    return f"{peer} {boot}"


PATIENCE: Final = 1.0


class PeerOperation(msgspec.Struct, frozen=True):
    """One operation of a peer, with its usage statistics."""

    id: str
    version: str
    requests: int
    errors: int
    average_ms: float


class RunningPeer(msgspec.Struct, frozen=True):
    """A running worker."""

    name: str
    boot: str
    service: str
    version: str
    started: str
    operations: tuple[PeerOperation, ...]


async def find_peers(transport: Transport, *, patience: float = PATIENCE) -> list[RunningPeer]:
    """Find all peers that answer within `patience` seconds."""
    await transport.connect()
    answers: dict[str, RunningPeer] = {}
    inbox = f"{transport.inbox()}.p-{new_boot()}"

    def receive(message: Message) -> None:
        peer = _peer(message.data)
        if peer is not None:
            answers[peer.boot] = peer

    subscription = await transport.subscribe(inbox, receive)
    try:
        await transport.publish(f"{SERVICES}.STATS", b"", reply=inbox)
        await asyncio.sleep(patience)
    finally:
        await subscription.close()
    return sorted(answers.values(), key=lambda peer: (peer.name, peer.boot))


class _EndpointStats(msgspec.Struct):
    metadata: dict[str, str] = {}
    num_requests: int = 0
    num_errors: int = 0
    average_processing_time: int = 0
    name: str = ""


class _ServiceStats(msgspec.Struct):
    name: str
    id: str
    version: str = ""
    started: str = ""
    metadata: dict[str, str] = {}
    endpoints: list[_EndpointStats] = []


def _peer(data: bytes) -> RunningPeer | None:
    """Read the peer that a response describes; other NATS services are included."""
    stats = read_as(data, _ServiceStats)
    if stats is None:
        return None
    operations = tuple(
        PeerOperation(
            endpoint.metadata.get("operation", endpoint.name),
            endpoint.metadata.get("version", ""),
            endpoint.num_requests,
            endpoint.num_errors,
            round(endpoint.average_processing_time / 1e6, 3),
        )
        for endpoint in stats.endpoints
    )
    name = stats.metadata.get("peer", stats.name)
    return RunningPeer(name, stats.id, stats.name, stats.version, stats.started, operations)
