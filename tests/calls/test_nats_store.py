"""First results in a bucket of NATS: one worker runs a key, the others wait for it, and one takes over when it dies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.calls.checker import read_log
from tests.calls.networks import Server
from tests.calls.processes import Workers
from tests.waiting import PATIENCE

from enfold import CallError, ResponseEnvelope, local_envelope
from enfold.calls import PendingRequestMap
from enfold.calls.nats import NATSTransport
from enfold.calls.protocol.call_settings import NEVER
from enfold.calls.worker.nats_once_store import LEASE_MARGIN, NATSOnceStore
from enfold.operation.repeats import EntryKey

TTL = 2.0
KEY = {"idempotency_key": "order-7", "timeout": TTL}
INPUT = {"id": "order", "ms": 300}


@pytest.fixture
def server(nats_program: str, tmp_path: Path) -> Iterator[Server]:
    server = Server(nats_program, tmp_path, f'jetstream {{ store_dir: "{tmp_path / "store"}" }}\n')
    server.wait_until_ready()
    yield server
    server.close()


@pytest.fixture
def workers(server: Server, tmp_path: Path) -> Iterator[Workers]:
    workers = Workers(server.url, tmp_path / "log")
    yield workers
    workers.close()


@pytest.fixture
async def caller(server: Server) -> AsyncIterator[PendingRequestMap]:
    async with (
        NATSTransport(server.url, name="caller") as transport,
        PendingRequestMap(transport, retry=NEVER) as caller,
    ):
        yield caller


async def test_another_worker_takes_over_after_the_lease_and_not_before(
    workers: Workers, caller: PendingRequestMap
) -> None:
    first = workers.start("--name", "w0", "--store", "1")
    dying = asyncio.create_task(_outcome(caller))
    await _until_begun(workers.log)
    first.kill()
    first.wait()
    for name in ("w1", "w2"):
        workers.start("--name", name, "--store", "1")
    seen_at = time.monotonic()
    assert set(await _asked_by_many(caller)) == {"TIMEOUT"}
    assert len(read_log(workers.log)) == 1
    await dying
    await asyncio.sleep(TTL + LEASE_MARGIN)  # both have watched the entry, which nobody can be at any more
    assert set(await _asked_by_many(caller)) == {"order"}
    died, taken_over = read_log(workers.log)
    assert taken_over.started - seen_at > TTL + LEASE_MARGIN
    assert [run.request_id for run in read_log(workers.log, "end")] == [taken_over.request_id]
    assert died.request_id != taken_over.request_id


async def test_a_call_that_its_caller_leaves_and_repeats_has_its_effect_once(
    workers: Workers, caller: PendingRequestMap
) -> None:
    workers.start("--name", "w0", "--store", "1")
    leaving = asyncio.create_task(_outcome(caller))
    await _until_begun(workers.log)
    leaving.cancel()
    await asyncio.wait({leaving})
    assert await _outcome(caller) == "order"
    assert len(read_log(workers.log)) == 1


async def _asked_by_many(caller: PendingRequestMap) -> list[str]:
    return await asyncio.gather(*(_outcome(caller) for _ in range(8)))


async def _outcome(caller: PendingRequestMap) -> str:
    try:
        answer: str = (await caller.call("work.write", INPUT, **KEY)).data  # type: ignore[arg-type]  # two named arguments
    except CallError as error:
        return error.code
    return answer


async def _until_begun(log: Path) -> None:
    async with asyncio.timeout(PATIENCE):
        while not read_log(log):  # noqa: ASYNC110  # the worker says so in a file
            await asyncio.sleep(0.01)


# --- two clients of one bucket ------------------------------------------------------------------------------------


def _key(key: str = "key") -> EntryKey:
    return EntryKey(("ann", None), "shop.pay", key)


@pytest.fixture
async def stores(server: Server) -> AsyncIterator[list[NATSOnceStore]]:
    transports = [NATSTransport(server.url, name=f"w{number}") for number in range(2)]
    yield [NATSOnceStore(transport) for transport in transports]
    for transport in transports:
        await transport.close()


async def test_many_calls_with_one_key_on_two_workers_run_once(stores: list[NATSOnceStore]) -> None:
    runs = 0

    async def run() -> ResponseEnvelope[Any]:
        nonlocal runs
        runs += 1
        await asyncio.sleep(0.1)
        return local_envelope(runs, "shop.pay")

    calls = [stores[number % 2].once(_key(), "digest", 10.0, run) for number in range(20)]
    answers = await asyncio.gather(*calls)
    assert ({answer.data for answer in answers}, runs) == ({1}, 1)


async def test_the_same_key_with_another_input_is_refused(stores: list[NATSOnceStore]) -> None:
    async def run() -> ResponseEnvelope[Any]:
        return local_envelope(1, "shop.pay")

    await stores[0].once(_key(), "digest", 10.0, run)
    with pytest.raises(CallError) as raised:
        await stores[1].once(_key(), "another", 10.0, run)
    assert raised.value.code == "VALIDATION_ERROR"


@pytest.mark.parametrize(("code", "runs"), [("SOLD_OUT", 1), ("UNAVAILABLE", 2)], ids=["final", "for now"])
async def test_a_failure_is_kept_unless_the_call_may_be_tried_again(
    stores: list[NATSOnceStore], code: str, runs: int
) -> None:
    tried = 0

    async def run() -> ResponseEnvelope[Any]:
        nonlocal tried
        tried += 1
        raise CallError(code, "not today")

    for store in stores:
        with pytest.raises(CallError, match="not today"):
            await store.once(_key(), "digest", 10.0, run)
    assert tried == runs


async def test_a_late_end_does_not_replace_the_outcome_of_who_took_over(stores: list[NATSOnceStore]) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def stand_still() -> ResponseEnvelope[Any]:
        begun.set()
        await release.wait()
        return local_envelope("late", "shop.pay")

    async def run() -> ResponseEnvelope[Any]:
        return local_envelope("second", "shop.pay")

    first = asyncio.create_task(stores[0].once(_key(), "digest", 0.2, stand_still))
    await asyncio.wait_for(begun.wait(), PATIENCE)
    with pytest.raises(CallError) as raised:
        await stores[1].once(_key(), "digest", 0.2, run)
    assert raised.value.code == "TIMEOUT"
    await asyncio.sleep(0.2 + LEASE_MARGIN)
    assert (await stores[1].once(_key(), "digest", PATIENCE, run)).data == "second"
    release.set()
    await first
    assert (await stores[0].once(_key(), "digest", PATIENCE, stand_still)).data == "second"
