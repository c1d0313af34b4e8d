"""Comparisons between contenders: answers checked first, then interleaved shuffled rounds; no printing, no files."""

from __future__ import annotations

import gc
import os
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, TypeAlias

import msgspec

DEFAULT_ROUNDS: Final = 11
MIN_ROUNDS: Final = 9
BATCH_US: Final = 40_000.0


class Sample(msgspec.Struct, frozen=True):
    """What one call took, in microseconds, on average over a batch."""

    cpu: float
    wall: float


Batch: TypeAlias = Callable[[int], Awaitable[Sample]]
Measure: TypeAlias = Literal["cpu", "wall"]


class Contender(msgspec.Struct, frozen=True):
    """A contender: how to run a batch of calls, and the check that a call does the work."""

    name: str
    batch: Batch
    answer: Callable[[], Awaitable[Any]]
    expected: Any


class Goal(msgspec.Struct, frozen=True):
    """How the median of one contender should stand to that of another."""

    over: str
    under: str
    bound: Literal["at most", "at least"]
    limit: float


class Comparison(msgspec.Struct, frozen=True):
    """Contenders with the same work; `baselines` are those whose times the others are divided by."""

    title: str
    contenders: tuple[Contender, ...]
    baselines: tuple[str, ...]
    goals: tuple[Goal, ...] = ()
    measure: Measure = "cpu"
    batch_us: float = BATCH_US


class Outcome(msgspec.Struct, frozen=True):
    """The samples of each contender, one for each round, and how busy the machine was before and after."""

    comparison: Comparison
    samples: dict[str, list[Sample]]
    load: tuple[float, float]


class WrongAnswerError(Exception):
    def __init__(self, name: str, answer: Any, expected: Any) -> None:
        got, wanted = repr(answer), repr(expected)
        # Large answers differ in a small place: begin shortly before it.
        place = _first_difference(got, wanted)
        part = slice(max(0, place - 40), place + 160)
        super().__init__(f"{name} gives …{got[part]}… instead of …{wanted[part]}…")


async def run(comparison: Comparison, rounds: int = DEFAULT_ROUNDS) -> Outcome:
    """Every round runs every contender once, in a new order, so that noise falls on all alike."""
    for contender in comparison.contenders:
        await _check(contender)
    sizes = {contender.name: await _batch_size(contender, comparison.batch_us) for contender in comparison.contenders}
    samples: dict[str, list[Sample]] = {contender.name: [] for contender in comparison.contenders}
    load = os.getloadavg()[0]
    for contender in _in_turns(comparison.contenders, max(rounds, MIN_ROUNDS)):
        gc.collect()
        gc.freeze()  # exclude modules loaded by all contenders from collections during a measurement
        samples[contender.name].append(await contender.batch(sizes[contender.name]))
    return Outcome(comparison, samples, (load, os.getloadavg()[0]))


def of_function(
    name: str, call: Callable[[], Any], expected: Any, read: Callable[[Any], Any] = lambda x: x
) -> Contender:
    """A contender that is called; `read` takes the plain data out of its answer."""

    async def answer() -> Any:
        return read(call())

    async def batch(count: int) -> Sample:
        cpu, wall = time.process_time_ns(), time.perf_counter_ns()
        for _ in range(count):
            call()
        return _since(cpu, wall, count)

    return Contender(name, batch, answer, expected)


def of_coroutine(
    name: str, call: Callable[[], Awaitable[Any]], expected: Any, read: Callable[[Any], Any] = lambda x: x
) -> Contender:
    """A contender that is awaited, on the loop the comparison runs on."""

    async def answer() -> Any:
        return read(await call())

    async def batch(count: int) -> Sample:
        cpu, wall = time.process_time_ns(), time.perf_counter_ns()
        for _ in range(count):
            await call()
        return _since(cpu, wall, count)

    return Contender(name, batch, answer, expected)


def _first_difference(left: str, right: str) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(left), len(right)))


def _since(cpu: int, wall: int, count: int) -> Sample:
    # CPU time counts all our threads and the kernel's work for us, but not the time in which others had the processor.
    cpu, wall = time.process_time_ns() - cpu, time.perf_counter_ns() - wall
    return Sample(cpu / count / 1_000, wall / count / 1_000)


async def _check(contender: Contender) -> None:
    answer = await contender.answer()
    if answer != contender.expected:
        raise WrongAnswerError(contender.name, answer, contender.expected)


async def _batch_size(contender: Contender, batch_us: float) -> int:
    """How many calls fill a batch; finding out is the warm-up, with one full batch more for compilers to finish."""
    count = 1
    while (wall := (await contender.batch(count)).wall) * count < batch_us / 3:
        count *= 3
    size = max(1, int(batch_us / wall))
    await contender.batch(size)
    return size


def _in_turns(contenders: tuple[Contender, ...], rounds: int) -> list[Contender]:
    shuffle = random.Random(rounds).shuffle  # noqa: S311  # the order of a comparison is no secret, and the same each time
    turns: list[Contender] = []
    for _ in range(rounds):
        order = list(contenders)
        shuffle(order)
        turns += order
    return turns
