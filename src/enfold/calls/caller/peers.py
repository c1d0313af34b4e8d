"""Discovers what running peers serve: queries all of them every `refresh` seconds and when one announces a change.

A worker whose list is already known answers with its digest alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import msgspec

from enfold.calls.protocol.events import Announcement, DiscoveryRequest, WorkerListing, specs_digest
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
    lies_in,
    new_boot,
)
from enfold.log import Log
from enfold.operations import OperationSpec

_log: Final = Log("enfold.calls")

LATE_ANSWERS: Final = 0.1  # seconds to wait for further answers
MAX_MISSED: Final = 2  # rounds without an answer after which a worker is dropped
MAX_GONE: Final = 10_000  # operations remembered without workers


class Discovery(msgspec.Struct, frozen=True):
    """How often peers are asked what they serve, and how much is kept of one peer; more is dropped, counted and logged."""

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
        self._limits = discovery
        self._gone: dict[
            str, tuple[OperationSpec, float]
        ] = {}  # operations without workers, and until when they are remembered
        self._transport = transport
        self._changed = changed
        self._on_connection = on_connection
        self.is_connected = True
        self._refresh = discovery.refresh
        self._patience = discovery.patience
        self._prefix = ""
        self._workers: dict[str, PeerListing] = {}
        self._specs: dict[str, list[OperationSpec]] = {}  # complete lists by digest
        self._parts: dict[str, _PartialList] = {}
        self._answered: set[str] = set()
        self._heard = asyncio.Event()
        self._subscriptions: list[Subscription] = []
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()

    async def start(self) -> None:
        """Run one round, waiting at most `patience` seconds, and continue in the background."""
        await self._transport.connect()
        self._prefix = f"{self._transport.inbox()}.d-{new_boot()}"
        self._subscriptions = [
            await self._transport.subscribe(self._prefix, self._receive),
            await self._transport.subscribe(announcement_subject("*"), self._take_announcement),
        ]
        await self._run_round()
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
        """The operations by id; if workers differ, the first one seen counts until it is gone."""
        found: dict[str, OperationSpec] = {}
        for listing in self._workers.values():
            for spec in self._specs.get(listing.digest, ()):
                if lies_in(spec.id, listing.may_offer):
                    found.setdefault(spec.id, spec)
        for operation_id, (spec, _) in self._gone.items():
            found.setdefault(operation_id, spec)
        return found

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), self._refresh)
            self._wanted.clear()
            await self._run_round()

    async def _run_round(self) -> None:
        """Query all peers; drop workers that miss two rounds."""
        self._answered.clear()
        self._parts.clear()
        self._heard.clear()
        data = msgspec.json.encode(DiscoveryRequest(known=list(self._specs)))
        before = self._digests()
        try:
            await self._transport.publish(discovery_subject(self._transport.name), data, reply=self._prefix)
        except TransportError:
            return  # not connected: missing answers mean nothing
        await self._listen()
        self._miss()
        if self._digests() != before:
            self._changed()

    async def _listen(self) -> None:
        """Wait for answers until none arrives for `LATE_ANSWERS` seconds, at most for `patience`."""
        ends_at = time.monotonic() + self._patience
        pause = self._patience
        while (left := ends_at - time.monotonic()) > 0:
            try:
                await asyncio.wait_for(self._heard.wait(), min(pause, left))
            except TimeoutError:
                return
            self._heard.clear()
            pause = LATE_ANSWERS

    def _miss(self) -> None:
        for key, listing in list(self._workers.items()):
            listing.missed = 0 if key in self._answered else listing.missed + 1
            if listing.missed >= MAX_MISSED:
                del self._workers[key]
                self._remember(listing)
        self._forget_gone()
        used = {listing.digest for listing in self._workers.values()}
        self._specs = {digest: specs for digest, specs in self._specs.items() if digest in used}

    def _remember(self, listing: PeerListing) -> None:
        """Remember the operations of a worker that is gone: for an hour they are UNAVAILABLE, not OPERATION_NOT_FOUND."""
        until = time.monotonic() + OFFER_REMEMBERED
        for spec in self._specs.get(listing.digest, ()):
            if len(self._gone) < MAX_GONE and lies_in(spec.id, listing.may_offer):
                self._gone[spec.id] = (spec, until)

    def _forget_gone(self) -> None:
        now = time.monotonic()
        live = {spec.id for listing in self._workers.values() for spec in self._specs.get(listing.digest, ())}
        self._gone = {key: gone for key, gone in self._gone.items() if gone[1] > now and key not in live}

    def _digests(self) -> list[tuple[str, str]]:
        """The state to compare before and after a round."""
        served = [(key, listing.digest) for key, listing in self._workers.items()]
        return sorted([*served, *(("gone", operation_id) for operation_id in self._gone)])

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
            self._wanted.set()
        is_change = signal in (Signal.RESTORED, Signal.LOST) and self.is_connected != (signal is Signal.RESTORED)
        if is_change:
            self.is_connected = signal is Signal.RESTORED
        if (is_change or signal is Signal.REFUSED) and self._on_connection is not None:
            self._on_connection()

    def _take(self, answer: WorkerListing, message: Message) -> None:
        peer = message.peer or answer.worker  # the authenticated name, if there is one
        key = f"{peer} {answer.boot}"
        name = answer.digest
        if not self._is_within_limits(peer, key):
            return
        if answer.parts:
            part = self._parts.setdefault(key, _PartialList(answer.digest))
            if part.digest != answer.digest:
                part = self._parts[key] = _PartialList(answer.digest)
            if not part.add(answer, len(message.data), self._limits):
                self._drop(peer, f"more than {self._limits.operations} operations, or too large a list")
                return
            if len(part.specs) < answer.parts:
                return
            wires = [wire for number in sorted(part.specs) for wire in part.specs[number]]
            specs = [OperationSpec.from_dict(wire) for wire in wires]
            # Workers with the same digest share a list, so the digest is verified; a list with a wrong one is not shared.
            name = answer.digest if answer.digest == specs_digest(specs) else f"{key} {answer.digest}"
            self._specs[name] = specs
        if name in self._specs:
            self._answered.add(key)
            self._workers[key] = PeerListing(answer.worker, answer.boot, name, message.may_offer)

    def _is_within_limits(self, peer: str, key: str) -> bool:
        if key in self._workers or key in self._parts:
            return True
        known = self._workers.keys() | self._parts.keys()
        if sum(other.rpartition(" ")[0] == peer for other in known) < self._limits.workers:
            return True
        self._drop(peer, f"more than {self._limits.workers} processes")
        return False

    def _drop(self, peer: str, reason: str) -> None:
        self.dropped += 1
        if self.dropped in (1, 10, 100, 1_000):  # and then no more, so that a peer cannot fill the log
            _log.warning("Operations of %s are ignored: it has %s", peer, reason)

    def _take_announcement(self, message: Message) -> None:
        """Start a round at once when a worker starts, stops or changes its operations."""
        if message.signal is not None:
            return
        try:
            news = msgspec.json.decode(message.data, type=Announcement)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        for listing in self._workers.values():
            if news.state == "down" and listing.boot == news.boot and listing.worker == news.worker:
                listing.missed = MAX_MISSED  # announced: one round without an answer is enough
        self._wanted.set()


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
        peer = None if message.signal is not None else _peer(message.data)
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
    """The peer that an answer describes; other NATS services are included."""
    try:
        stats = msgspec.json.decode(data, type=_ServiceStats)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
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
