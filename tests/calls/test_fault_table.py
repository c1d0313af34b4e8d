"""The fault table on real servers and real processes: `make faults` in full, `make test` at a twentieth.

Counts are asserted: what is lost, runs twice, comes late or hangs. Times are printed, and fail only far off their goal.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.calls.checker import judge, paced
from tests.calls.networks import Server, free_port
from tests.calls.processes import CALLS, IS_FULL, PATIENT_CALL, RATE, SCALE, SLACK, Line, Workers, say
from tests.waiting import PATIENCE

from enfold import CallError
from enfold.calls import PendingRequestMap
from enfold.calls.nats import NATSTransport
from enfold.calls.protocol.settings import NEVER, CallSettings, Retry

PATIENT = Retry(attempts=50, delay=0.02, max_delay=0.25)


@pytest.fixture
def cluster(nats_program: str, tmp_path: Path) -> Iterator[list[Server]]:
    with _clustered(nats_program, tmp_path) as servers:
        yield servers


@contextmanager
def _clustered(nats_program: str, folder: Path, more: str = "") -> Iterator[list[Server]]:
    """Three nodes that know each other, each with a store."""
    routes = [free_port() for _ in range(3)]
    addresses = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in routes)
    servers = []
    for number, port in enumerate(routes):
        store = folder / f"store{number}"
        config = (
            f'server_name: "n{number}"\njetstream {{ store_dir: "{store}" }}\n{more}'
            f'cluster {{ name: "c", listen: "127.0.0.1:{port}", routes: [{addresses}] }}\n'
        )
        servers.append(Server(nats_program, folder, config, name=f"n{number}"))
    for server in servers:
        server.wait_until_ready()
    try:
        yield servers
    finally:
        for server in servers:
            server.close()


@pytest.fixture
def start_workers(tmp_path: Path) -> Iterator[Callable[[str], Workers]]:
    made: list[Workers] = []

    def make(address: str) -> Workers:
        made.append(Workers(address, tmp_path / "log"))
        return made[-1]

    yield make
    for workers in made:
        workers.close()


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., PendingRequestMap]]:
    transports: list[NATSTransport] = []
    maps: list[PendingRequestMap] = []

    def make(
        servers: str | list[str],
        retry: Retry = NEVER,
        silence: float = 2.0,
        opened: Callable[[NATSTransport], object] = lambda _: None,
        **options: Any,
    ) -> PendingRequestMap:
        transports.append(NATSTransport(servers, name="caller", **options))
        opened(transports[-1])
        maps.append(PendingRequestMap(transports[-1], retry=retry, settings=CallSettings(silence=silence)))
        return maps[-1]

    yield make
    for pending in maps:
        await pending.close()
    for transport in transports:
        await transport.close()


async def test_row_1_a_worker_is_killed(
    server: Server, start_workers: Callable[[str], Workers], connect: Callable[..., PendingRequestMap]
) -> None:
    workers = start_workers(server.url)
    victims = [workers.start("--name", f"w{number}") for number in range(4)]
    caller = connect(server.url)
    await caller.call("work.write", {"id": "warm", "ms": 0})
    history = await paced(
        lambda key: caller.call("work.write", {"id": key, "ms": 20}, timeout=1.0 * PATIENT_CALL),
        CALLS,
        RATE,
        1.0 * PATIENT_CALL,
        {CALLS // 2: victims[0].kill},
    )
    verdict = judge(history, workers.log, 1.0 * PATIENT_CALL)
    say("1", verdict)
    assert (verdict.failed <= 16, verdict.twice, verdict.lost) == (True, 0, 0)
    assert set(verdict.codes) <= {"TIMEOUT/", "UNAVAILABLE/silence"}


async def test_row_2_the_caller_s_node_is_killed(
    cluster: list[Server], start_workers: Callable[[str], Workers], connect: Callable[..., PendingRequestMap]
) -> None:
    workers = start_workers(",".join(server.url for server in cluster[1:]))
    for number in range(4):
        workers.start("--name", f"w{number}")
    caller = connect([server.url for server in cluster], PATIENT, silence=1.0, dont_randomize=True)
    await _until_served(caller)
    history = await paced(
        lambda key: caller.call("work.read", {"id": key, "ms": 20}, timeout=5.0 * PATIENT_CALL, idempotent=True),
        CALLS,
        RATE,
        5.0 * PATIENT_CALL,
        {CALLS // 2: cluster[0].kill},
    )
    verdict = judge(history, workers.log, 5.0 * PATIENT_CALL)
    say("2", verdict)
    assert (verdict.failed, verdict.lost) == (0, 0)
    assert verdict.slowest < 1.3 * SLACK


async def test_row_2_with_a_key_each_effect_is_had_once(
    cluster: list[Server], start_workers: Callable[[str], Workers], connect: Callable[..., PendingRequestMap]
) -> None:
    workers = start_workers(",".join(server.url for server in cluster[1:]))
    for number in range(2):
        workers.start("--name", f"w{number}", "--store", "3")
    caller = connect([server.url for server in cluster], PATIENT, silence=2.0, dont_randomize=True)
    await _until_served(caller)
    count = max(40, int(1200 * SCALE))
    async with asyncio.timeout(PATIENCE):
        await caller.call("work.write", {"id": "warm", "ms": 0}, timeout=20, idempotent=True, idempotency_key="warm")
    history = await paced(
        # The workers share their store: the caller knows that a repeat does no harm.
        lambda key: caller.call(
            "work.write", {"id": key, "ms": 20}, timeout=20.0, idempotent=True, idempotency_key=key
        ),
        count,
        100.0 if IS_FULL else 40.0,
        20.0,
        {count // 2: cluster[0].kill},
    )
    verdict = judge(history, workers.log, 20.0)
    say("2, with a key", verdict)
    assert (verdict.failed, verdict.twice, verdict.lost) == (0, 0, 0)


async def test_row_3_another_node_is_killed(
    cluster: list[Server], start_workers: Callable[[str], Workers], connect: Callable[..., PendingRequestMap]
) -> None:
    workers = start_workers(",".join(server.url for server in cluster))
    for number in range(3):
        workers.start("--name", f"w{number}")
    caller = connect([server.url for server in cluster], PATIENT, silence=1.0, dont_randomize=True)
    await _until_served(caller)
    history = await paced(
        lambda key: caller.call("work.read", {"id": key, "ms": 20}, timeout=5.0 * PATIENT_CALL, idempotent=True),
        CALLS,
        RATE,
        5.0 * PATIENT_CALL,
        {CALLS // 3: cluster[1].kill, CALLS // 3 + CALLS // 4: cluster[1].restart, 2 * CALLS // 3: cluster[2].kill},
    )
    verdict = judge(history, workers.log, 5.0 * PATIENT_CALL)
    away = [seconds for process in workers.processes for seconds in _times_away(process)]
    say("3", f"{verdict}; workers were away for {', '.join(f'{seconds * 1000:.0f} ms' for seconds in away)}")
    assert (verdict.failed, verdict.lost) == (0, 0)
    assert max(away, default=0) < 0.5 * SLACK


def _times_away(worker: subprocess.Popen[str]) -> list[float]:
    """How long a worker was without a connection, each time: it says so at its end."""
    worker.terminate()
    said, _ = worker.communicate(timeout=30)
    return [float(line.rpartition(" ")[2]) for line in said.splitlines() if line.startswith("away")]


async def test_row_4_the_whole_server_is_down_for_a_while(
    server: Server, start_workers: Callable[[str], Workers], connect: Callable[..., PendingRequestMap]
) -> None:
    workers = start_workers(server.url)
    workers.start("--name", "w0")
    caller = connect(server.url)
    await caller.call("work.write", {"id": "warm", "ms": 0})
    rate = 300.0 if IS_FULL else 150.0
    ttl = 0.5 * PATIENT_CALL
    count = max(int(3000 * SCALE), int(rate * 4))

    async def down() -> None:
        server.kill()
        await asyncio.sleep(2.0 if IS_FULL else 1.0)
        await asyncio.to_thread(server.restart)

    history = await paced(
        lambda key: caller.call("work.write", {"id": key, "ms": 20}, timeout=ttl), count, rate, ttl, {count // 4: down}
    )
    verdict = judge(history, workers.log, ttl)
    say("4", verdict)
    assert (verdict.after_ttl, verdict.twice, verdict.lost) == (0, 0, 0)
    assert verdict.failed < count * 0.9
    assert verdict.failures_within(0.05 * SLACK) >= 0.99


async def test_row_5_a_worker_is_frozen(
    server: Server, start_workers: Callable[[str], Workers], connect: Callable[..., PendingRequestMap]
) -> None:
    workers = start_workers(server.url)
    frozen, *_ = [workers.start("--name", f"w{number}") for number in range(4)]
    caller = connect(server.url, PATIENT, silence=1.0)
    await _until_served(caller)
    history = await paced(
        lambda key: caller.call("work.read", {"id": key, "ms": 20}, timeout=5.0, idempotent=True),
        CALLS,
        RATE,
        5.0,
        {CALLS // 2: lambda: frozen.send_signal(signal.SIGSTOP)},
    )
    await asyncio.sleep(5.5)  # The deadline of every call that the frozen worker holds passes.
    frozen.send_signal(signal.SIGCONT)
    await _until_served(caller)
    verdict = judge(history, workers.log, 5.0)
    say("5", verdict)
    assert (verdict.failed, verdict.lost, verdict.after_ttl) == (0, 0, 0)


async def test_row_6_a_node_is_frozen(
    cluster: list[Server], start_workers: Callable[[str], Workers], connect: Callable[..., PendingRequestMap]
) -> None:
    workers = start_workers(cluster[1].url)
    workers.start("--name", "w0")
    options = {} if IS_FULL else {"ping_interval": 0.5}
    opened: list[NATSTransport] = []
    urls = [server.url for server in cluster]
    caller = connect(urls, silence=1.0, opened=opened.append, dont_randomize=True, **options)
    await _until_served(caller)
    line = Line()
    await line.watch(opened[0])
    cluster[0].freeze()
    frozen = time.monotonic()
    async with asyncio.timeout(60):
        while await _fails(caller):  # noqa: ASYNC110  # a call says when
            await asyncio.sleep(0.05)
    served = time.monotonic()
    say("6", f"a frozen node was noticed after {line.lost[0] - frozen:.2f} s, and left after {served - frozen:.2f} s")
    assert line.lost[0] - frozen <= (15.0 if IS_FULL else 1.5 * SLACK)


async def _fails(caller: PendingRequestMap) -> bool:
    try:
        await caller.call("work.read", {"id": "x", "ms": 0}, timeout=0.5)
    except CallError:
        return True
    return False


@pytest.mark.parametrize("killed", [0, 1], ids=["the caller's node", "the worker's node"])
async def test_row_11_a_stream_survives_its_node(
    cluster: list[Server],
    start_workers: Callable[[str], Workers],
    connect: Callable[..., PendingRequestMap],
    killed: int,
) -> None:
    addresses = [server.url for server in cluster]
    workers = start_workers(",".join([addresses[1], addresses[2], addresses[0]]))
    workers.start("--name", "w0")
    caller = connect(addresses, silence=5.0, dont_randomize=True)
    await _until_served(caller)
    outcomes: list[str] = []
    for _ in range(max(2, int(25 * SCALE))):
        items: list[int] = []
        try:
            async for item in caller.subscribe("work.count", {"to": 400, "pause": 0.002}):
                items.append(item.data)
                if len(items) == 100:
                    cluster[killed].kill()
                if len(items) == 300:
                    await asyncio.to_thread(cluster[killed].restart)
            outcomes.append("complete")
            assert items == list(range(400))
        except CallError as error:
            outcomes.append(error.code)
            assert items == list(range(len(items)))
        if cluster[killed].process.poll() is not None:
            await asyncio.to_thread(cluster[killed].restart)
        await _until_served(caller)
    say("11", dict(Counter(outcomes)))
    assert set(outcomes) == {"complete"}


async def test_row_13_a_rolling_restart_loses_nothing(
    server: Server, start_workers: Callable[[str], Workers], connect: Callable[..., PendingRequestMap]
) -> None:
    workers = start_workers(server.url)
    old = [workers.start("--name", f"w{number}") for number in range(2)]
    caller = connect(server.url, PATIENT)
    await _until_served(caller)

    async def replace(worker: subprocess.Popen[str]) -> None:
        await asyncio.to_thread(workers.start, "--name", f"n{worker.pid}")
        worker.terminate()
        await asyncio.to_thread(worker.wait)

    history = await paced(
        lambda key: caller.call("work.write", {"id": key, "ms": 20}, timeout=5.0 * PATIENT_CALL),
        CALLS,
        RATE,
        5.0 * PATIENT_CALL,
        {CALLS // 4: lambda: replace(old[0]), CALLS // 2: lambda: replace(old[1])},
    )
    verdict = judge(history, workers.log, 5.0 * PATIENT_CALL)
    say("13", verdict)
    assert (verdict.failed, verdict.twice, verdict.lost) == (0, 0, 0)


@pytest.mark.skipif(not IS_FULL, reason="a server takes half a minute to send its clients away")
async def test_row_13_a_server_sends_its_clients_away(
    nats_program: str,
    tmp_path: Path,
    start_workers: Callable[[str], Workers],
    connect: Callable[..., PendingRequestMap],
) -> None:
    slowly = 'lame_duck_duration: "30s"\nlame_duck_grace_period: "1s"\n'
    with _clustered(nats_program, tmp_path, slowly) as cluster:
        addresses = [server.url for server in cluster]
        workers = start_workers(",".join(addresses))
        for number in range(3):
            workers.start("--name", f"w{number}")
        caller = connect(addresses, PATIENT, dont_randomize=True)
        await _until_served(caller)
        history = await paced(
            lambda key: caller.call("work.read", {"id": key, "ms": 20}, timeout=5.0, idempotent=True),
            7600,
            200.0,
            5.0,
            {200: lambda: cluster[0].send_signal(signal.SIGUSR2)},
        )
        verdict = judge(history, workers.log, 5.0)
    say("13, lame duck", verdict)
    assert (verdict.failed, verdict.lost) == (0, 0)


async def _until_served(caller: PendingRequestMap) -> None:
    """Wait until a cluster has told its nodes who listens where."""
    async with asyncio.timeout(PATIENCE):
        for _ in range(20):
            while True:
                try:
                    await caller.call("work.read", {"id": "warm", "ms": 0}, timeout=2.0, idempotent=True)
                    break
                except CallError:
                    await asyncio.sleep(0.05)
