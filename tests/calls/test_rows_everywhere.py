"""Rows of the fault table that hold on every transport. Around a hub and on NATS each peer is a separate process."""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import pytest
from tests.calls import fault_worker
from tests.calls.checker import Call, at_once, paced, read_log
from tests.calls.faulty import Faults, FaultyTransport
from tests.calls.networks import Server, nats_server_program
from tests.calls.noise import make_noise
from tests.calls.processes import (
    CALLS,
    IS_FULL,
    PATIENT_CALL,
    RATE,
    SCALE,
    SLACK,
    HubProcess,
    Workers,
    forget_peak_memory,
    memory,
    peak_memory,
    say,
    start_noise,
)
from tests.waiting import PATIENCE

from enfold import CallError, Context, ResponseEnvelope
from enfold.calls import PendingRequestMap
from enfold.calls.memory import MemoryTransport
from enfold.calls.protocol.settings import NEVER
from enfold.calls.protocol.transport import Transport
from enfold.calls.websocket import WebSocketTransport

NOISE_RATE = 2500.0


# --- where the rows take place ------------------------------------------------------------------------------------


class Place(Protocol):
    """A worker that can be started, and callers."""

    name: str
    log: Path

    async def start_worker(self, *options: str) -> None: ...

    def peer(self) -> Transport: ...

    async def noise(self, count: int, rate: float) -> None: ...

    async def close(self) -> None: ...


class InOneProcess:
    """Everybody on one bus; the one clock there is can be made to jump."""

    name = "memory"

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        self._bus = MemoryTransport("worker")
        self._running = AsyncExitStack()

    async def start_worker(self, *options: str) -> None:
        read = fault_worker.read_options(["memory", str(self.log), *options])
        if read.clock:
            self._running.enter_context(_jumping_clock(read.clock))
        await self._running.enter_async_context(fault_worker.serving(read, self._bus))

    def peer(self) -> Transport:
        return self._bus.join("caller")

    async def noise(self, count: int, rate: float) -> None:
        await make_noise(self._bus.join("noise"), count, rate)

    async def close(self) -> None:
        await self._running.aclose()


@contextmanager
def _jumping_clock(seconds: float) -> Iterator[None]:
    """A clock that is right and wrong in turns: no two who look at it agree."""
    right, turns = time.time, count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: right() + (next(turns) % 2) * seconds)
        yield


class Apart:
    """Server, workers and callers, each in a process."""

    def __init__(self, name: str, server: Server | HubProcess, folder: Path) -> None:
        self.name = name
        self.log = folder / "log"
        self._server = server
        self._workers = Workers(server.url, self.log)
        self._opened: list[Transport] = []

    async def start_worker(self, *options: str) -> None:
        await asyncio.to_thread(self._workers.start, *options)

    def peer(self) -> Transport:
        url = self._server.url
        opened = WebSocketTransport(url) if url.startswith("ws") else fault_worker.connect(url, "caller")
        self._opened.append(opened)
        return opened

    async def noise(self, count: int, rate: float) -> None:
        process = start_noise(self._server.url, str(count), str(rate))
        self._workers.processes.append(process)
        async with asyncio.timeout(count / rate + 60):
            assert await asyncio.to_thread(process.wait) == 0

    async def close(self) -> None:
        for transport in self._opened:
            await transport.close()
        await asyncio.to_thread(self._workers.close)
        self._server.close()


def _open(name: str, folder: Path) -> Place:
    folder.mkdir(exist_ok=True)
    if name == "memory":
        return InOneProcess(folder)
    if name == "websocket":
        return Apart(name, HubProcess(), folder)
    server = Server(nats_server_program(), folder)
    server.wait_until_ready()
    return Apart(name, server, folder)


NAMES = ["memory", "websocket", "nats"]


@pytest.fixture(params=NAMES)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    opened = _open(request.param, tmp_path)
    yield opened
    await opened.close()


# --- the rows -----------------------------------------------------------------------------------------------------


async def test_row_7_no_worker_serves_it(place: Place) -> None:
    async with PendingRequestMap(place.peer(), retry=NEVER) as caller:
        caller.remember("work.add")  # it was offered before
        history = await paced(lambda _: caller.call("work.add", {}, timeout=30), CALLS, RATE, 30, {})
    say(f"7 ({place.name})", f"{len(history)} calls, {_times(history)}")
    assert {(call.code, call.reason) for call in history} == {("UNAVAILABLE", "no_responders")}
    assert _share_within(history, 0.05 * SLACK) == 1


# How far beyond the limit the text of an input or result is, and how large the headers are beside it.
SIZES = [*((over, 0) for over in (-1000, -400, -1, 0, 1, 1000)), (-1000, 5000), (-10_000, 200_000)]


async def test_row_8_sizes_around_the_limit(place: Place) -> None:
    """Whatever the size, it is carried or refused, at once, and the connection lives on."""
    await place.start_worker()
    for over, header in SIZES:
        await _sizes(place, over, header)


async def _sizes(place: Place, over: int, header: int) -> None:
    sign = (lambda *_: {"Enfold-Test": "x" * header}) if header else None
    transport = place.peer()
    async with PendingRequestMap(transport, retry=NEVER, sign=sign) as caller:
        size = transport.capabilities.max_payload + over
        others = [asyncio.create_task(caller.call("work.read", {"id": "x", "ms": 200})) for _ in range(20)]
        await asyncio.sleep(0.05)
        for operation, argument in (("work.large", {"size": size}), ("work.echo", {"value": "x" * size})):
            started = time.monotonic()
            code = await _code(caller.call(operation, argument, Context(), timeout=10))
            seconds = time.monotonic() - started
            what = f"8 ({place.name}, {over:+}, {header} of headers)"
            say(what, f"{operation}: {code or 'carried'} in {seconds * 1000:.1f} ms")
            assert code in ({"PAYLOAD_TOO_LARGE"} if over >= 0 else {"", "PAYLOAD_TOO_LARGE"})
            assert not code or seconds < 0.05 * SLACK
        assert [answer.data for answer in await asyncio.gather(*others)] == ["x"] * 20
        assert (await caller.call("work.add", {"x": 1, "y": 2})).data == 3


async def test_row_9_a_burst_of_ten_times_the_capacity(place: Place) -> None:
    running = max(16, int(256 * SCALE))
    await place.start_worker("--running", str(running), "--waiting", "0")
    async with PendingRequestMap(place.peer(), retry=NEVER) as caller:
        before, held = await _state(caller, forget_peak=True), memory()
        forget_peak_memory()
        history = await at_once(
            lambda key: caller.call("work.write", {"id": key, "ms": 100}, timeout=20), running * 10, 20
        )
        after = await _state(caller)
    grown = max(peak_memory() - held, after["peak"] - before["memory"])
    codes = Counter(call.code for call in history)
    say(f"9 ({place.name})", f"{dict(codes)}, {_times(history)}, memory grew by {grown:.0f} MB")
    assert set(codes) == {"", "RESOURCE_EXHAUSTED"}
    assert codes[""] >= running
    assert _share_within(history, 1.0 * SLACK) == 1
    assert grown < 50


async def test_row_10_a_fast_producer_and_a_slow_consumer(tmp_path: Path) -> None:
    """On all transports at the same time, because a consumer of 500 items a second needs minutes for all of them."""
    items = int(100_000 * SCALE) // (1 if IS_FULL else 2)
    places = [_open(name, tmp_path / name) for name in NAMES]
    try:
        await asyncio.gather(*(_consume_slowly(place, items, 500.0) for place in places))
    finally:
        for place in places:
            await place.close()


async def _consume_slowly(place: Place, to: int, rate: float) -> None:
    await place.start_worker()
    consumed, ahead = 0, 0
    async with PendingRequestMap(place.peer()) as caller:
        await _state(caller, forget_peak=True)
        held = memory()
        began = time.monotonic()
        async for item in caller.subscribe("work.produce", {"to": to}):
            assert item.data == consumed
            consumed += 1
            ahead = max(ahead, _produced(place.log) - consumed)
            if consumed == to // 10:
                early, held = await _state(caller), memory()
            await asyncio.sleep(max(0.0, began + consumed / rate - time.monotonic()))
        late = await _state(caller)
    grown = max(memory() - held, late["memory"] - early["memory"])
    took = f"{consumed} items, {consumed / (time.monotonic() - began):.0f} a second"
    say(f"10 ({place.name})", f"{took}, at most {ahead} ahead, memory grew by {grown:.1f} MB")
    assert (consumed, ahead <= 64) == (to, True)
    assert grown < 5


async def test_row_12_calls_are_abandoned_at_random_points(place: Place) -> None:
    await place.start_worker()
    chance = random.Random(7)  # noqa: S311  # the same points each time
    given_up: dict[str, float] = {}
    async with PendingRequestMap(place.peer()) as caller:
        before = await _state(caller)
        tasks_before = len(asyncio.all_tasks())
        for group in range(max(10, int(1000 * SCALE)) // 10):
            keys = [f"{group}-{number}" for number in range(10)]
            await asyncio.gather(*(_give_up(caller, key, chance.uniform(0, 0.05), given_up) for key in keys))
        async with asyncio.timeout(PATIENCE):
            while (after := await _state(caller))["running"] > before["running"]:  # noqa: ASYNC110  # the worker says when
                await asyncio.sleep(0.02)
        assert len(caller) == 0
        gc.collect()
        leaked = (len(asyncio.all_tasks()) - tasks_before, after["tasks"] - before["tasks"])
    late = _stopped_after(place.log, given_up)
    worst = f"stopped after {max(late, default=0) * 1000:.0f} ms at most"
    say(f"12 ({place.name})", f"{len(given_up)} given up, {len(late)} had begun, {worst}, leaked tasks {leaked}")
    assert max(late) < 0.2 * SLACK
    assert max(leaked) <= 0


async def _give_up(caller: PendingRequestMap, key: str, after: float, given_up: dict[str, float]) -> None:
    """Give up a call, or a stream, after a while."""

    async def follow() -> None:
        async for _ in caller.subscribe("work.follow", {"id": key}):
            pass

    with suppress(TimeoutError):
        async with asyncio.timeout(after):
            await (follow() if key.endswith(("0", "2", "4", "6", "8")) else caller.call("work.hang", {"id": key}))
    given_up[key] = time.monotonic()


def _stopped_after(log: Path, given_up: dict[str, float]) -> list[float]:
    """How long each that had begun went on after it was given up; one without an end went on forever."""
    ended = {run.id: run.started for run in read_log(log, "end")}
    return [ended.get(run.id, float("inf")) - given_up[run.id] for run in read_log(log) if run.id in given_up]


async def test_row_15_noise_affects_no_call(place: Place) -> None:
    frames = int(100_000 * SCALE)
    await place.start_worker()
    async with PendingRequestMap(place.peer()) as caller:
        await _latencies(caller, count=200)
        quiet = await _latencies(caller, count=max(200, int(2000 * SCALE)))
        before, held = await _state(caller), memory()
        noise = asyncio.create_task(place.noise(frames, NOISE_RATE))
        loud = await _latencies(caller, noise.done)
        await noise
        async with asyncio.timeout(PATIENCE):
            while (after := await _state(caller))["received"] - before["received"] < frames * 0.85 + len(loud):  # noqa: ASYNC110  # the worker says when
                await asyncio.sleep(0.05)
        quiet += await _latencies(caller, count=len(quiet))  # a machine may be busy with something else by now
    p99 = (_p99(quiet), _p99(loud))
    grown = max(memory() - held, after["memory"] - before["memory"])
    dropped = after["dropped"] - before["dropped"]
    times = f"p99 of others {p99[0] * 1000:.2f} ms before and after, {p99[1] * 1000:.2f} ms meanwhile"
    say(f"15 ({place.name})", f"{frames} frames, {dropped:.0f} dropped, {times}, memory grew by {grown:.1f} MB")
    assert dropped >= frames * 0.8
    assert p99[1] < 2 * p99[0] * SLACK
    assert grown < 15


async def _latencies(
    caller: PendingRequestMap, is_over: Callable[[], bool] = lambda: False, count: int = 10**9
) -> list[float]:
    """How long calls take, one after the other, until it is over or there are enough."""
    taken: list[float] = []
    while len(taken) < count and not is_over():
        started = time.monotonic()
        number = len(taken)
        assert (await caller.call("work.add", {"x": number, "y": 1}, timeout=10)).data == number + 1
        taken.append(time.monotonic() - started)
        await asyncio.sleep(0.002)
    return taken


@pytest.mark.parametrize("hours", [-1, 1])
async def test_row_17_a_worker_s_clock_is_wrong(place: Place, hours: int) -> None:
    ttl = 2.0 * PATIENT_CALL
    await place.start_worker("--clock", str(hours * 3600))
    async with PendingRequestMap(place.peer(), retry=NEVER) as caller:
        history = await paced(
            lambda key: caller.call("work.write", {"id": key, "ms": 1}, timeout=ttl), CALLS, RATE, ttl, {}
        )
        code = await _code(caller.call("work.write", {"id": "slow", "ms": 5000}, timeout=1.0))
    say(f"17 ({place.name}, {hours:+} h)", f"{len(history)} calls, {_times(history)}")
    assert ({call.code for call in history}, code) == ({""}, "TIMEOUT")


async def test_row_18_a_call_delivered_twice_runs_once(place: Place) -> None:
    await place.start_worker("--twice")
    peer = FaultyTransport(place.peer(), Faults(duplicate=1.0), 2)
    async with PendingRequestMap(peer, retry=NEVER) as caller:
        history = await paced(
            lambda key: caller.call("work.write", {"id": key, "ms": 1}, timeout=30.0), CALLS, RATE, 30.0, {}
        )
        state = await _state(caller)
    runs = Counter(run.id for run in read_log(place.log))
    say(f"18 ({place.name})", f"{len(history)} calls, {state['dropped']:.0f} second deliveries, {_times(history)}")
    assert {call.code for call in history} == {""}
    assert (len(runs), set(runs.values())) == (len(history), {1})
    assert state["dropped"] >= len(history)


# --- what the rows share ------------------------------------------------------------------------------------------


async def _state(caller: PendingRequestMap, *, forget_peak: bool = False) -> dict[str, float]:
    answer = await caller.call("work.state", {"forget_peak": forget_peak}, timeout=10, idempotent=True)
    state: dict[str, float] = answer.data
    return state


async def _code(call: Any) -> str:
    """The code a call fails with; empty for a result."""
    try:
        assert isinstance(await call, ResponseEnvelope)
    except CallError as error:
        return error.code
    return ""


def _produced(log: Path) -> int:
    return int.from_bytes(log.with_suffix(fault_worker.PROGRESS).read_bytes()[:8], "little")


def _share_within(history: list[Call], limit: float) -> float:
    return sum(call.seconds < limit for call in history) / len(history)


def _times(history: list[Call]) -> str:
    seconds = sorted(call.seconds for call in history)
    return f"median {statistics.median(seconds) * 1000:.1f} ms, slowest {seconds[-1] * 1000:.1f} ms"


def _p99(taken: list[float]) -> float:
    return sorted(taken)[int(len(taken) * 0.99)]
