"""`python -m benchmarks.scale.discovery`: a seeded simulation of discovery and heartbeats, up to 10,000 peers and 100,000 operations.

It counts messages and bytes, which depend on the protocol alone and not on this machine: sizes are those of real encoded
messages, and times those that `enfold.calls` uses. In a round an edge asks, the broker delivers the question to every worker,
and every worker answers with the digest of its list. A worker that starts or changes announces it, and each edge asks it alone.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec

from benchmarks.report import print_table
from enfold import OperationRegistry
from enfold.calls.caller.peers import ANSWERS_PER_SECOND, LATE_ANSWERS, MAX_MISSED, Discovery
from enfold.calls.protocol.events import Announcement, DiscoveryRequest, WorkerListing, specs_digest
from enfold.calls.protocol.settings import CallSettings
from enfold.calls.worker.announcer import PART_BYTES

SEED: Final = 34
REFRESH: Final = Discovery().refresh
SPREAD: Final = 0.05  # seconds over which the answers to one question arrive
RESTART: Final = 2.0  # seconds between the end of a worker and the start of its successor
STEADY: Final = 120.0  # seconds that are simulated of a fleet in which nothing changes
ROLLOUT: Final = 600.0  # seconds in which every worker is replaced once


class FleetSize(msgspec.Struct, frozen=True):
    """One peer in a hundred is an edge; a service of `replicas` workers serves `operations` operations."""

    peers: int
    replicas: int = 10
    operations: int = 100

    @property
    def edges(self) -> int:
        return max(1, self.peers // 100)

    @property
    def workers(self) -> int:
        return self.peers - self.edges

    @property
    def services(self) -> int:
        return max(1, self.workers // self.replicas)


class Sizes(msgspec.Struct, frozen=True):
    """Bytes of the messages of discovery, encoded as peers encode them."""

    ask: int
    answer: int  # with the digest of a list
    listing: int  # the whole list of a service, in as many messages as `parts`
    parts: int
    announcement: int


class Traffic(msgspec.Struct):
    """What the brokers deliver."""

    messages: int = 0
    bytes: int = 0

    def add(self, messages: int, size: int) -> None:
        self.messages += messages
        self.bytes += messages * size


class Summary(msgspec.Struct, frozen=True):
    """Deliveries and megabytes per second, of all brokers together."""

    messages: float
    megabytes: float


def encoded_sizes(operations: int) -> Sizes:
    """The sizes for a service with so many operations of two arguments and a sentence of description."""
    ops = OperationRegistry("service")
    for number in range(operations):
        ops.query(name=f"operation_{number}")(_operation)
    specs = ops.list()
    wires = [spec.to_dict() for spec in specs]
    digest = specs_digest(specs)
    listing = len(_encoded(WorkerListing("worker-12345", "0" * 16, digest, part=0, parts=1, specs=wires)))
    return Sizes(
        len(_encoded(DiscoveryRequest(boot="0" * 16))),
        len(_encoded(WorkerListing("worker-12345", "0" * 16, digest))),
        listing,
        math.ceil(listing / PART_BYTES),
        len(_encoded(Announcement("worker-12345", "0" * 16, "down"))),
    )


async def _operation(item: str, count: int = 1) -> dict[str, int]:
    """Return how many of an item there are, and what they cost together."""
    return {item: count}


def _encoded(message: Any) -> bytes:
    return msgspec.json.encode(message, enc_hook=str)


class Simulation:
    """The edges and workers of a fleet, and what passes between them."""

    def __init__(self, size: FleetSize, seed: int = SEED) -> None:
        self.traffic = Traffic()
        self._size = size
        self._sizes = encoded_sizes(size.operations)
        self._dice = random.Random(seed)  # noqa: S311  # a simulation, the same each time

    def run(self, seconds: float, changes: Iterable[float] = ()) -> None:
        """So many seconds, in which a worker ends, and its successor starts, at each time of `changes`."""
        pause = SPREAD + LATE_ANSWERS + pause_between_rounds(self._size.workers)
        rounds = [(self._dice.uniform(0, pause), edge) for edge in range(self._size.edges)]
        heapq.heapify(rounds)
        while rounds[0][0] < seconds:
            at, edge = heapq.heappop(rounds)
            self._round()
            heapq.heappush(rounds, (at + pause, edge))
        for at in changes:
            if at < seconds:
                self._announce("down")
            if at + RESTART < seconds:
                self._announce("up")

    def _announce(self, state: Literal["up", "down"]) -> None:
        """Deliver a change to every edge; each asks a worker that has started, and has its list from another replica."""
        self.traffic.add(self._size.edges, self._sizes.announcement)
        if state == "up":
            self.traffic.add(self._size.edges, self._sizes.ask)
            self.traffic.add(self._size.edges, self._sizes.answer)

    def _round(self) -> None:
        """Deliver one question to all workers, and their answers."""
        self.traffic.add(self._size.workers, self._sizes.ask)
        self.traffic.add(self._size.workers, self._sizes.answer)

    def summary(self, seconds: float) -> Summary:
        return Summary(self.traffic.messages / seconds, self.traffic.bytes / seconds / 1e6)


def pause_between_rounds(workers: int) -> float:
    return max(REFRESH, workers / ANSWERS_PER_SECOND)


def steady(size: FleetSize) -> Summary:
    simulation = Simulation(size)
    simulation.run(STEADY)
    return simulation.summary(STEADY)


def rollout(size: FleetSize) -> Summary:
    """Every worker is replaced once, one after another."""
    simulation = Simulation(size)
    simulation.run(ROLLOUT, [(number + 0.5) * ROLLOUT / size.workers for number in range(size.workers)])
    return simulation.summary(ROLLOUT)


def first_question(size: FleetSize) -> float:
    """Megabytes that a new edge receives: a digest of every worker, and one list of every service."""
    sizes = encoded_sizes(size.operations)
    return (size.workers * sizes.answer + size.services * sizes.listing) / 1e6


def heartbeats(streams: int) -> float:
    """Messages per second of open streams in which nothing happens: both ends speak up."""
    return streams * 2 / CallSettings().heartbeat


def growth(before: float, after: float, factor: float) -> str:
    """The exponent by which a figure grows with the number of peers: 1 is linear."""
    return f"{math.log(after / before) / math.log(factor):.1f}" if before > 0 else ""


def main() -> None:
    print(
        f"seed {SEED}; an edge asks all workers every {REFRESH:g} s, and less often where more than {ANSWERS_PER_SECOND}"
    )
    print(f"would answer per second; a worker is gone after {MAX_MISSED} rounds without an answer.\n\n## Discovery\n")
    traffic = ("steady msg/s", "steady MB/s", "rollout msg/s", "rollout MB/s")
    print_table(("peers", "edges", "operations", *traffic, "new edge MB"), _growing())
    print("\n## Heartbeats of idle streams\n")
    counts = (1_000, 10_000, 100_000)
    print_table(("streams", "messages per second"), [(f"{each:,}", f"{heartbeats(each):,.0f}") for each in counts])


def _growing() -> Iterable[tuple[str, ...]]:
    before: tuple[FleetSize, list[float]] | None = None
    for peers in (100, 1_000, 10_000):
        size = FleetSize(peers)
        figures = [*_figures(size), first_question(size)]
        yield f"{peers:,}", str(size.edges), f"{size.services * size.operations:,}", *map(_shown, figures)
        if before is not None:
            factor = peers / before[0].peers
            powers = [growth(old, new, factor) for old, new in zip(before[1], figures, strict=True)]
            yield "power of peers", "", "", *powers
        before = size, figures


def _figures(size: FleetSize) -> list[float]:
    calm, rolling = steady(size), rollout(size)
    return [calm.messages, calm.megabytes, rolling.messages, rolling.megabytes]


def _shown(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 10 else f"{figure:.2g}"


if __name__ == "__main__":
    main()
