"""Compares what callers received with what workers did: lost, doubled, late and stuck calls."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from enfold import CallError


class Call(msgspec.Struct):
    """One call as its caller saw it."""

    id: str
    started: float
    ended: float
    code: str  # "" for a result
    reason: str = ""

    @property
    def seconds(self) -> float:
        return self.ended - self.started


class Run(msgspec.Struct):
    """One execution as its worker wrote it down."""

    id: str
    request_id: str
    started: float


class Verdict(msgspec.Struct):
    """What a row of the fault table counts."""

    calls: int
    failed: int
    codes: dict[str, int]
    twice: int  # ids that were run more than once
    after_ttl: int  # runs that began when their caller had given up
    lost: int  # answered, and yet never run
    slowest: float
    failures_within: Callable[[float], float]

    def __str__(self) -> str:
        fast = f"{self.failures_within(0.05):.1%} of failures within 50 ms"
        return (
            f"{self.calls} calls, {self.failed} failed {self.codes}, {self.twice} twice, {self.after_ttl} after ttl, "
            f"{self.lost} lost, slowest {self.slowest * 1000:.0f} ms, {fast}"
        )


async def paced(
    call: Callable[[str], Awaitable[Any]], count: int, rate: float, ttl: float, events: dict[int, Callable[[], Any]]
) -> list[Call]:
    """Make calls at a rate, whatever becomes of them; `events` happen before the call of their number."""
    history: list[Call] = []
    tasks: list[asyncio.Task[None]] = []
    began = time.monotonic()
    for number in range(count):
        if number in events:
            happened = events[number]()
            if asyncio.iscoroutine(happened):
                tasks.append(asyncio.create_task(happened))
        await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        tasks.append(asyncio.create_task(_observe(call, f"c{number}", history)))
    # A call that is still running long after its deadline hangs, which must never happen.
    async with asyncio.timeout(ttl + 30):
        await asyncio.gather(*tasks)
    return history


async def at_once(call: Callable[[str], Awaitable[Any]], count: int, ttl: float) -> list[Call]:
    """Make calls all in the same moment."""
    history: list[Call] = []
    async with asyncio.timeout(ttl + 30):
        await asyncio.gather(*(_observe(call, f"c{number}", history) for number in range(count)))
    return history


async def _observe(call: Callable[[str], Awaitable[Any]], id: str, history: list[Call]) -> None:
    started = time.monotonic()
    code = reason = ""
    try:
        answer = await call(id)
        assert answer.data == id
    except CallError as error:
        code, reason = error.code, str(error.details.get("reason", ""))
    history.append(Call(id, started, time.monotonic(), code, reason))


def judge(history: list[Call], log: Path, ttl: float) -> Verdict:
    called = {call.id: call for call in history}
    runs = [run for run in read_log(log) if run.id in called]
    times = Counter(run.id for run in runs)
    failed = [call for call in history if call.code]
    return Verdict(
        len(history),
        len(failed),
        dict(Counter(f"{call.code}/{call.reason}" for call in failed)),
        sum(1 for count in times.values() if count > 1),
        sum(1 for run in runs if run.started > called[run.id].started + ttl),
        sum(1 for call in history if not call.code and not times[call.id]),
        max((call.seconds for call in history), default=0.0),
        lambda limit: sum(call.seconds <= limit for call in failed) / max(1, len(failed)),
    )


def read_log(log: Path, wanted: str = "start") -> list[Run]:
    """The beginnings of what was run, or the ends."""
    runs = []
    for line in log.read_text().splitlines() if log.exists() else []:
        step, _, key, request_id, _, at = line.split("\t")
        if step == wanted:
            runs.append(Run(key, request_id, float(at)))
    return runs
