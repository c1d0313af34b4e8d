"""`python -m benchmarks scale [--quick]`: CPU per call by part, overload and losses of a fleet on this machine.

Latencies on shared cores say little; CPU per call does. Every number is that of one run: compare columns of one run only.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, TypeVar

import msgspec

from benchmarks import report
from benchmarks.environments import ROOT
from benchmarks.scale import floors
from benchmarks.scale.fleet import PATIENCE, Fleet, MissingProgramError, Process, fleet, outcomes, wait_until
from benchmarks.scale.load import OK, CallOutcome, Job, Kind
from benchmarks.scale.operations import IDLE, SLOW

KINDS: Final[tuple[Kind, ...]] = ("query", "mutation", "stream", "task")
Found = TypeVar("Found")
SLOTS: Final = 8  # calls that each worker of the overload runs at once
STREAMS: Final = 100  # open at once
DISTURBED: Final = 0.5  # seconds that no undisturbed call takes


class Plan(msgspec.Struct, frozen=True):
    """How much is measured."""

    workers: tuple[int, ...] = (1, 2, 4)
    edges: int = 2
    sizes: tuple[int, ...] = (100, 10_000, 500_000)
    seconds: float = 3.0
    overload: tuple[float, ...] = (0.8, 2.0, 10.0)
    overload_seconds: float = 6.0
    losses: tuple[str, ...] = ()  # all of them
    window: float = 12.0


QUICK: Final = Plan((1,), 1, (100,), 1.0, (2.0,), 2.0, ("a worker is killed",), 4.0)


class Cost(msgspec.Struct, frozen=True):
    """Microseconds of CPU per call, by part."""

    kind: str
    workers: int
    size: int
    calls: int
    rate: float
    edge: float
    broker: float
    worker: float
    failed: dict[str, int] = {}

    @property
    def total(self) -> float:
        return self.edge + self.broker + self.worker


class Overload(msgspec.Struct, frozen=True):
    times: float
    offered: float  # calls per second that were started
    capacity: float  # calls per second that the slots of the workers allow
    goodput: float
    slowest: float  # seconds of the slowest success
    failed: dict[str, int]


class Loss(msgspec.Struct, frozen=True):
    what: str
    calls: int
    failed: dict[str, int]
    slowest: float
    recovered: float  # seconds from the loss until the last call that failed or took long


class Findings(msgspec.Struct):
    costs: list[Cost] = []
    floors: list[Cost] = []
    idle: tuple[float, float, float] = (0.0, 0.0, 0.0)  # seconds of CPU per second of an edge, a broker, a worker
    open_streams: tuple[float, float, float] = (0.0, 0.0, 0.0)  # the same, of one stream in which nothing happens
    overload: list[Overload] = []
    losses: list[Loss] = []


# --- CPU per call -------------------------------------------------------------------------------------------------


def measure_costs(made: Fleet, plan: Plan) -> Iterator[Cost]:
    for count in plan.workers:
        while len(made.workers) < count:
            made.add_worker()
        while len(made.edges) < plan.edges:
            made.add_edge()
        for size in plan.sizes:
            for kind in KINDS:
                yield _cost(made, Job(kind, made.ports, size, plan.seconds))


def _cost(made: Fleet, job: Job) -> Cost:
    made.run(msgspec.structs.replace(job, seconds=0.2))  # connections, caches, streams
    before = made.cpu()
    ended = made.run(job)
    used = made.cpu() - before
    calls = max(1, sum(each.code == OK for each in ended))
    parts = _each(calls, used.edge, used.broker, used.worker)
    return Cost(job.kind, len(made.workers), job.size, calls, calls / job.seconds, *parts, _failures(ended))


def _each(calls: int, edge: float, broker: float, worker: float) -> tuple[float, float, float]:
    """Seconds of CPU as microseconds per call."""
    return edge / calls * 1e6, broker / calls * 1e6, worker / calls * 1e6


def _failures(ended: list[CallOutcome]) -> dict[str, int]:
    return dict(Counter(each.code for each in ended if each.code != OK))


def measure_floors(made: Fleet, plan: Plan) -> Iterator[Cost]:
    """The same cluster without edges, by size; a call of Enfold is answered by the fleet's own workers."""
    for name in floors.floors():
        own = made.start("benchmarks.scale.floors", "respond", name, made.nats) if name in floors.RESPONDERS else None
        try:
            for size in plan.sizes:
                yield _floor(made, own, name, size, plan.seconds)
        finally:
            if own is not None:
                own.close()


def _floor(made: Fleet, own: Process | None, name: str, size: int, seconds: float) -> Cost:
    responders = made.workers if own is None else [own]
    before = made.cpu().broker, sum(each.cpu for each in responders)
    command = [sys.executable, "-m", "benchmarks.scale.floors", "ask", name, made.nats, str(size), str(seconds)]
    asked = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, timeout=seconds + PATIENCE)
    calls, caller = msgspec.json.decode(asked.stdout, type=tuple[int, float])
    broker, worker = made.cpu().broker - before[0], sum(each.cpu for each in responders) - before[1]
    return Cost(name, len(responders), size, calls, calls / seconds, *_each(calls, caller, broker, worker))


def measure_idle(made: Fleet, plan: Plan) -> tuple[float, float, float]:
    """What each process of the fleet uses while idle."""
    before, seconds = made.cpu(), plan.seconds * 2
    time.sleep(seconds)
    used = made.cpu() - before
    return (
        used.edge / len(made.edges) / seconds,
        used.broker / len(made.nodes) / seconds,
        used.worker / len(made.workers) / seconds,
    )


def measure_open_streams(made: Fleet, idle: tuple[float, float, float]) -> tuple[float, float, float]:
    """What a stream costs in which nothing happens, beside what the fleet uses anyway."""
    job = Job("idle", made.ports, 100, IDLE / 2, in_flight=STREAMS, timeout=IDLE + 10)
    before = made.cpu()
    ended = made.run(job)
    used, streams = made.cpu() - before, sum(each.code == OK for each in ended)
    parts = zip((used.edge, used.broker, used.worker), idle, (made.edges, made.nodes, made.workers), strict=True)
    edge, broker, worker = ((part / IDLE - each * len(group)) / max(1, streams) for part, each, group in parts)
    return edge, broker, worker


# --- overload -----------------------------------------------------------------------------------------------------


def measure_overload(made: Fleet, plan: Plan) -> Iterator[Overload]:
    """Workers whose slots are the limit, and not the cores that load and servers share here."""
    made.stop_workers()
    for _ in range(2):
        made.add_worker("--running", str(SLOTS), "--waiting", str(SLOTS))
    capacity = 2 * SLOTS / SLOW
    wait_until(lambda: _succeeds(made, "slow"), "the workers to be found")
    for times in plan.overload:
        job = Job("slow", made.ports, 100, plan.overload_seconds, rate=capacity * times, timeout=5.0)
        ended = made.run(job)
        good = [each for each in ended if each.code == OK]
        slowest = max((each.seconds for each in good), default=0.0)
        offered, goodput = (len(found) / job.seconds for found in (ended, good))
        yield Overload(times, offered, capacity, goodput, slowest, _failures(ended))


def _succeeds(made: Fleet, kind: Kind) -> bool:
    ended = made.run(Job(kind, made.ports, 100, 0.2, in_flight=4))
    return all(each.code == OK for each in ended)


# --- losses -------------------------------------------------------------------------------------------------------


def _kill_worker(made: Fleet) -> None:
    made.workers[0].kill()


def _freeze_worker(made: Fleet) -> None:
    made.workers[0].freeze()
    time.sleep(4.0)
    made.workers[0].thaw()


def _kill_node(made: Fleet) -> None:
    made.nodes[0].kill()


def _kill_all_nodes(made: Fleet) -> None:
    for node in made.nodes:
        node.kill()
    time.sleep(1.0)
    for node in made.nodes:
        node.restart()


def _kill_edge(made: Fleet) -> None:
    made.edges[0].kill()
    made.edges[0].restart()


LOSSES: Final[dict[str, Callable[[Fleet], None]]] = {
    "a worker is killed": _kill_worker,
    "a worker is frozen for 4 s": _freeze_worker,
    "a NATS node is killed": _kill_node,
    "all NATS nodes are down for 1 s": _kill_all_nodes,
    "an edge is killed and started again": _kill_edge,
}


def measure_losses(plan: Plan) -> Iterator[Loss]:
    """Each on a fleet of its own."""
    for what in plan.losses or LOSSES:
        with fleet() as made:
            for _ in range(2):
                made.add_worker()
            for _ in range(plan.edges):
                made.add_edge()
            wait_until(partial(_succeeds, made, "query"), "the workers to be found")
            yield _loss(made, what, plan.window)


def _loss(made: Fleet, what: str, window: float) -> Loss:
    job = Job("query", made.ports, 100, window, rate=100.0, timeout=8.0)
    load = made.begin(job)
    time.sleep(window / 4)
    lost_at = time.monotonic()
    LOSSES[what](made)
    ended = outcomes(load, job)
    after = [each for each in ended if each.started + each.seconds > lost_at]
    disturbed = [each.started + each.seconds for each in after if each.code != OK or each.seconds > DISTURBED]
    slowest = max(each.seconds for each in after)
    return Loss(what, len(ended), _failures(ended), slowest, max(disturbed, default=lost_at) - lost_at)


# --- the report ---------------------------------------------------------------------------------------------------


def show(found: Findings) -> None:
    raw = {each.size: each for each in found.floors if each.kind == floors.RAW}
    publish = {each.size: each for each in found.floors if each.kind == floors.PUBLISH}
    print("\n## CPU per call, by part (microseconds)\n")
    report.print_table(
        ("call", "bytes", "workers", "edge", "broker", "worker", "total", "x floor", "calls/s", "failed"),
        [_cost_row(each, (publish if each.kind == "task" else raw).get(each.size)) for each in found.costs],
    )
    print("\nThe floor of a task is a JetStream publish, that of other calls a request and reply of nats-py.")
    print("\n## Floors and peers, without an edge (microseconds of CPU)\n")
    report.print_table(
        ("what", "bytes", "workers", "caller", "broker", "responder", "total", "x nats-py", "calls/s", "failed"),
        [_cost_row(each, raw.get(each.size)) for each in found.floors],
    )
    print("\n## A fleet without calls (milliseconds of CPU per second, of one process)\n")
    report.print_table(("edge", "broker", "worker"), [tuple(f"{part * 1e3:.1f}" for part in found.idle)])
    print("\n## An open stream in which nothing happens (milliseconds of CPU per second, opening it included)\n")
    report.print_table(("edge", "broker", "worker"), [tuple(f"{part * 1e3:.2f}" for part in found.open_streams)])
    print("\n## Overload\n")
    report.print_table(
        ("load", "offered/s", "capacity/s", "goodput/s", "slowest success", "refused or failed"),
        map(_overload_row, found.overload),
    )
    print("\n## Losses, at 100 queries per second\n")
    report.print_table(("loss", "calls", "failed", "slowest", "recovered after"), map(_loss_row, found.losses))


def _cost_row(cost: Cost, floor: Cost | None) -> tuple[str, ...]:
    parts = (f"{part:,.0f}" for part in (cost.edge, cost.broker, cost.worker, cost.total))
    ratio = "" if floor is None else f"{cost.total / floor.total:.2f}"
    return cost.kind, f"{cost.size:,}", str(cost.workers), *parts, ratio, f"{cost.rate:,.0f}", _counted(cost.failed)


def _overload_row(each: Overload) -> tuple[str, ...]:
    rates = (f"{rate:,.0f}" for rate in (each.offered, each.capacity, each.goodput))
    return f"{each.times:g}x", *rates, f"{each.slowest:.2f} s", _counted(each.failed)


def _loss_row(each: Loss) -> tuple[str, ...]:
    return each.what, str(each.calls), _counted(each.failed), f"{each.slowest:.2f} s", f"{each.recovered:.1f} s"


def _counted(failed: dict[str, int]) -> str:
    return ", ".join(f"{number} {code}" for code, number in sorted(failed.items())) or "0"


def measure(plan: Plan) -> Findings:
    found = Findings()
    with fleet() as made:
        _collect(found.costs, measure_costs(made, plan))
        _collect(found.floors, measure_floors(made, plan))
        found.idle = measure_idle(made, plan)
        found.open_streams = measure_open_streams(made, found.idle)
        _collect(found.overload, measure_overload(made, plan))
    _collect(found.losses, measure_losses(plan))
    return found


def _collect(into: list[Found], found: Iterator[Found]) -> None:
    """Take what is found, and show on stderr that something happens."""
    for each in found:
        into.append(each)
        print(".", end="", file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks scale", description=__doc__)
    parser.add_argument("rounds", nargs="?", help=argparse.SUPPRESS)  # of the other benchmarks
    parser.add_argument("--quick", action="store_true", help="a smaller fleet for about a minute")
    chosen = parser.parse_args(arguments)
    plan, load = QUICK if chosen.quick else Plan(), os.getloadavg()[0]
    try:
        found = measure(plan)
    except MissingProgramError as error:
        print(f"scale: {error}", file=sys.stderr)
        return 1
    show(found)
    print(f"\n{os.cpu_count()} cores, load {load:.1f} before and {os.getloadavg()[0]:.1f} after")
    report.write("scale", msgspec.to_builtins(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
