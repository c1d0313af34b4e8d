"""`python -m benchmarks.scale.discovery`: a seeded simulation of discovery and heartbeats, up to 10,000 peers and 100,000 operations.

It counts messages and bytes, which depend on the protocol alone and not on this machine: sizes are those of real encoded
messages, and times those that `enfold.calls` uses. A round of discovery is: an edge asks, the broker hands the question to
every worker, and every worker answers that edge.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from benchmarks.report import print_table
from enfold import OperationRegistry
from enfold.calls.caller.peers import LATE_ANSWERS, MAX_MISSED, Discovery
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


class Rules(msgspec.Struct, frozen=True):
    """How edges ask; the defaults are the protocol as it is, the others are what a change of it would give."""

    least_pause: float = 0.0  # seconds between two questions of one edge
    lists_digests: bool = True  # a question names every list that the edge has; False: one digest of all of them
    asks_all: bool = True  # a change makes an edge ask every worker; False: only the one that announced it


VARIANTS: Final = {
    "as it is": Rules(),
    "an edge asks at most once per second": Rules(least_pause=1.0),
    "and a question has one digest": Rules(least_pause=1.0, lists_digests=False),
    "and a change is asked of its worker alone": Rules(lists_digests=False, asks_all=False),
}


class Sizes(msgspec.Struct, frozen=True):
    """Bytes of the messages of discovery, encoded as peers encode them."""

    empty_ask: int
    digest: int  # that each known list adds to a question
    answer: int  # where the list is known
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
    empty, one = (len(_encoded(DiscoveryRequest(known=known))) for known in ([], [digest]))
    return Sizes(
        empty,
        one - empty + 1,
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

    def __init__(self, size: FleetSize, rules: Rules = VARIANTS["as it is"], seed: int = SEED) -> None:
        self.traffic = Traffic()
        self._size = size
        self._rules = rules
        self._sizes = encoded_sizes(size.operations)
        self._ask_size = self._sizes.empty_ask + self._sizes.digest * (size.services if rules.lists_digests else 1)
        self._dice = random.Random(seed)  # noqa: S311  # a simulation, the same each time
        self._next_round: list[tuple[float, int]] = []
        self._free_at = [0.0] * size.edges  # when an edge may ask again

    def run(self, seconds: float, changes: Iterable[float] = ()) -> None:
        """So many seconds, in which a worker ends, and its successor starts, at each time of `changes`."""
        rounds = [(self._dice.uniform(0, REFRESH), edge) for edge in range(self._size.edges)]
        heapq.heapify(rounds)
        self._next_round = rounds
        wanted = sorted(moment for at in changes for moment in (at, at + RESTART))
        wanted.reverse()
        while rounds and min(rounds[0][0], wanted[-1] if wanted else math.inf) < seconds:
            if wanted and wanted[-1] <= rounds[0][0]:
                self._announce(wanted.pop())
            else:
                at, edge = heapq.heappop(rounds)
                heapq.heappush(rounds, (self._round(at, edge) + REFRESH, edge))

    def _announce(self, at: float) -> None:
        """All edges hear of a change, and ask again as soon as they may."""
        self.traffic.add(self._size.edges, self._sizes.announcement)
        if not self._rules.asks_all:
            self.traffic.add(self._size.edges, self._ask_size)
            self.traffic.add(self._size.edges, self._sizes.answer)
            return
        self._next_round[:] = [(min(due, max(at, self._free_at[edge])), edge) for due, edge in self._next_round]
        heapq.heapify(self._next_round)

    def _round(self, at: float, edge: int) -> float:
        """One question to all workers and their answers; when the round is over."""
        self.traffic.add(self._size.workers, self._ask_size)
        self.traffic.add(self._size.workers, self._sizes.answer)
        self._free_at[edge] = at + max(SPREAD + LATE_ANSWERS, self._rules.least_pause)
        return at + SPREAD + LATE_ANSWERS

    def summary(self, seconds: float) -> Summary:
        return Summary(self.traffic.messages / seconds, self.traffic.bytes / seconds / 1e6)


def steady(size: FleetSize, rules: Rules = VARIANTS["as it is"]) -> Summary:
    simulation = Simulation(size, rules)
    simulation.run(STEADY)
    return simulation.summary(STEADY)


def rollout(size: FleetSize, rules: Rules = VARIANTS["as it is"]) -> Summary:
    """Every worker is replaced once, one after another."""
    simulation = Simulation(size, rules)
    simulation.run(ROLLOUT, [(number + 0.5) * ROLLOUT / size.workers for number in range(size.workers)])
    return simulation.summary(ROLLOUT)


def first_question(size: FleetSize) -> float:
    """Megabytes that a new edge receives: every worker sends its whole list, because the edge knows none."""
    return size.workers * encoded_sizes(size.operations).listing / 1e6


def heartbeats(streams: int) -> float:
    """Messages per second of open streams in which nothing happens: both ends speak up."""
    return streams * 2 / CallSettings().heartbeat


def growth(before: float, after: float, factor: float) -> str:
    """The exponent by which a figure grows with the number of peers: 1 is linear."""
    return f"{math.log(after / before) / math.log(factor):.1f}" if before > 0 else ""


def main() -> None:
    print(
        f"seed {SEED}; an edge asks every {REFRESH:g} s and at each change; a worker is gone after {MAX_MISSED} rounds."
    )
    print("\n## Discovery as it is\n")
    traffic = ("steady msg/s", "steady MB/s", "rollout msg/s", "rollout MB/s")
    print_table(("peers", "edges", "operations", *traffic, "new edge MB"), _growing())
    print("\n## 10,000 peers, if the protocol were changed\n")
    size = FleetSize(10_000)
    print_table(
        ("edges ask", *traffic), [(name, *map(_shown, _figures(size, rules))) for name, rules in VARIANTS.items()]
    )
    print("\n## Heartbeats of idle streams\n")
    counts = (1_000, 10_000, 100_000)
    print_table(("streams", "messages per second"), [(f"{each:,}", f"{heartbeats(each):,.0f}") for each in counts])


def _growing() -> Iterable[tuple[str, ...]]:
    before: tuple[FleetSize, list[float]] | None = None
    for peers in (100, 1_000, 10_000):
        size = FleetSize(peers)
        figures = [*_figures(size, Rules()), first_question(size)]
        yield f"{peers:,}", str(size.edges), f"{size.services * size.operations:,}", *map(_shown, figures)
        if before is not None:
            factor = peers / before[0].peers
            powers = [growth(old, new, factor) for old, new in zip(before[1], figures, strict=True)]
            yield "power of peers", "", "", *powers
        before = size, figures


def _figures(size: FleetSize, rules: Rules) -> list[float]:
    calm, rolling = steady(size, rules), rollout(size, rules)
    return [calm.messages, calm.megabytes, rolling.messages, rolling.megabytes]


def _shown(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 10 else f"{figure:.2g}"


if __name__ == "__main__":
    main()
