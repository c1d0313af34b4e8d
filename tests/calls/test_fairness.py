"""Callers who flood a worker on NATS do not affect a caller with few calls. `ENFOLD_FAULTS=1` makes more calls."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.calls.networks import Server
from tests.calls.processes import IS_FULL, say
from tests.waiting import until, wait_for

from enfold import CallError
from enfold.calls import PendingRequestMap
from enfold.calls.nats import NATSTransport
from enfold.calls.protocol.settings import NEVER

APP = """
import asyncio
from enfold import OperationRegistry
ops = OperationRegistry("shop")

@ops.query
async def work() -> str:
    await asyncio.sleep(0.02)
    return "done"
"""
SLOTS, LINE = 8, 16  # of the worker: 400 calls a second
DEMAND = 96  # calls that all flooders together have under way, all the time
POLITE = 600 if IS_FULL else 60  # calls, one after another
NAMES = ["polite", *(f"flooder{number}" for number in range(10))]

Peer = Callable[[str], NATSTransport]


@pytest.fixture(params=["identities", "names"])
def peer(request: pytest.FixtureRequest, nats_program: str, tmp_path: Path) -> Iterator[Peer]:
    """A worker on a server that says who calls, or on one where callers name themselves."""
    (tmp_path / "app.py").write_text(APP)
    has_users = request.param == "identities"
    rules, words = "", [sys.executable, "-m", "enfold"]
    if has_users:
        callers = [{"id": name, "password": "p"} for name in NAMES]
        users = [*callers, {"id": "worker", "password": "p", "serves": ["shop"]}]
        (tmp_path / "users.json").write_text(json.dumps(users))
        made = [*words, "nats", "permissions", "app.py", "--users", "users.json"]
        rules = subprocess.run(made, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60).stdout
    server = Server(nats_program, tmp_path, rules)
    server.wait_until_ready()
    url = server.url.replace("nats://", "nats://worker:p@") if has_users else server.url
    words += ["work", "app.py", "--nats", url, "--running", str(SLOTS), "--waiting", str(LINE)]
    log = tmp_path / "log"
    with log.open("w") as file:
        worker = subprocess.Popen(words, cwd=tmp_path, stderr=file)
    try:
        wait_for(lambda: "serves" in log.read_text())
        credentials: dict[str, Any] = {"password": "p"} if has_users else {}
        yield lambda name: NATSTransport(server.url, name=name, user=name if has_users else None, **credentials)
    finally:
        worker.kill()
        worker.wait()
        server.close()


async def outcome(calls: PendingRequestMap) -> str:
    try:
        await calls.call("shop.work", {}, timeout=20)
    except CallError as error:
        return error.code
    return "done"


@asynccontextmanager
async def flood(peer: Peer, flooders: int) -> AsyncIterator[Counter[str]]:
    """Callers who have more calls under way than the worker takes, as long as this is open."""
    told: Counter[str] = Counter()

    async def call_on(calls: PendingRequestMap) -> None:
        while True:
            found = await outcome(calls)
            told[found] += 1
            await asyncio.sleep(0.02 if found == "RESOURCE_EXHAUSTED" else 0)

    async with AsyncExitStack() as stack:
        tasks = []
        for number in range(flooders):
            transport = await stack.enter_async_context(peer(f"flooder{number}"))
            calls = await stack.enter_async_context(PendingRequestMap(transport, retry=NEVER))
            tasks += [asyncio.create_task(call_on(calls)) for _ in range(DEMAND // flooders)]
        try:
            yield told
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("flooders", [1, 3, 10])
async def test_a_caller_with_one_call_at_a_time_is_never_refused_beside_callers_with_many(
    peer: Peer, flooders: int
) -> None:
    async with (
        peer("polite") as transport,
        PendingRequestMap(transport, retry=NEVER) as polite,
        flood(peer, flooders) as flooded,
    ):
        await until(lambda: flooded["RESOURCE_EXHAUSTED"])
        told = Counter([await outcome(polite) for _ in range(POLITE)])
    theirs = flooded["RESOURCE_EXHAUSTED"] / flooded.total()
    say("fairness", f"{flooders} flooders: {theirs:.0%} of {flooded.total()} of their calls refused, no polite one")
    assert told == {"done": POLITE}, (told, flooded)
    assert flooded["done"] > POLITE  # what the polite caller does not use is theirs


async def test_slots_are_shared_equally_between_callers_who_want_more_than_there_is(peer: Peer) -> None:
    """No caller gets less than half of another's share, although one calls eight times as often."""
    done: Counter[str] = Counter()

    async def call_on(name: str, calls: PendingRequestMap) -> None:
        while True:
            found = await outcome(calls)
            done[name] += found == "done"
            await asyncio.sleep(0 if found == "done" else 0.02)

    async with (
        peer("flooder0") as one,
        peer("flooder1") as two,
        peer("polite") as three,
        PendingRequestMap(one, retry=NEVER) as a,
        PendingRequestMap(two, retry=NEVER) as b,
        PendingRequestMap(three, retry=NEVER) as c,
    ):
        wanted = {"a": (a, 64), "b": (b, 8), "c": (c, 8)}
        tasks = [
            asyncio.create_task(call_on(name, calls)) for name, (calls, count) in wanted.items() for _ in range(count)
        ]
        await until(lambda: done.total() >= 600)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    say("fairness", f"of 600 calls: {dict(done)}")
    assert min(done.values()) * 2 > max(done.values())
