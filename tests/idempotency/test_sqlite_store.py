"""The idempotency store in a SQLite file: several processes, limits, clocks, and a file that is locked or removed."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

from enfold.envelope import ResponseEnvelope, local_envelope
from enfold.errors import CallError
from enfold.middleware.sqlite_store import SQLiteIdempotencyStore
from enfold.operations.idempotency import EntryKey, KeyedCall, Run
from enfold.operations.outcomes import Outcome, envelope_of


def keyed(key: EntryKey, run: Run, seconds: float, digest: str = "digest", *, reruns: bool = False) -> KeyedCall:
    return KeyedCall(key, digest, run, time.monotonic() + seconds, reruns=reruns)


async def test_processes_share_first_results_in_a_file(tmp_path: Path) -> None:
    ran, go_on = 0, asyncio.Event()
    one, two = (SQLiteIdempotencyStore(tmp_path / "results.db", per_identity=2) for _ in range(2))

    async def run() -> ResponseEnvelope[Any]:
        nonlocal ran
        ran += 1
        await go_on.wait()
        return local_envelope(ran, "shop.pay")

    def key(owner: str, name: str) -> EntryKey:
        return EntryKey((owner, None), "shop.pay", name)

    first = asyncio.create_task(one.run_once(keyed(key("ann", "k"), run, 30)))
    await until(lambda: ran)
    first.cancel()  # its caller has gone; the call goes on
    with pytest.raises(CallError, match="is still running"):
        await two.run_once(keyed(key("ann", "k"), run, 0.1))
    with pytest.raises(CallError, match="another input"):
        await two.run_once(keyed(key("ann", "k"), run, 1, "other"))
    again = asyncio.create_task(two.run_once(keyed(key("ann", "k"), run, 30)))
    go_on.set()
    assert (envelope_of(await again).data, ran) == (1, 1)
    assert envelope_of(await two.run_once(keyed(key("bob", "k"), run, 1))).data == 2
    await two.run_once(keyed(key("ann", "k2"), run, 1))
    with pytest.raises(CallError) as full:
        await one.run_once(keyed(key("ann", "k3"), run, 1))
    assert (full.value.code, ran) == ("RESOURCE_EXHAUSTED", 3)
    assert envelope_of(await one.run_once(keyed(key("bob", "k"), run, 1))).data == 2


async def test_first_results_have_limits_of_bytes_and_outlive_processes_and_clocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, ran = tmp_path / "results.db", []
    store = SQLiteIdempotencyStore(path, bytes_per_identity=3_000)

    async def result() -> ResponseEnvelope[Any]:
        ran.append(1)
        return local_envelope("x" * 1_000, "shop.pay")

    def key(owner: str, name: str) -> EntryKey:
        return EntryKey((owner, None), "shop.pay", name)

    for owner, name in (("bob", "b"), ("ann", "0"), ("ann", "1"), ("ann", "2"), ("ann", "3")):
        await store.run_once(keyed(key(owner, name), result, 1))
    for owner, name in (("bob", "b"), ("ann", "3"), ("ann", "2")):
        await store.run_once(keyed(key(owner, name), result, 1))
    assert len(ran) == 5  # the newest are kept, and no other caller's were removed
    await store.run_once(keyed(key("ann", "0"), result, 1))
    assert len(ran) == 6
    # A process that was killed in the middle leaves an unknown outcome; the clock has nothing to do with it.
    program = (
        "import asyncio, sys, time; from enfold.middleware.sqlite_store import *; from enfold.operations.idempotency import *\n"
        "async def run(): print('runs', flush=True); await asyncio.sleep(3600)\n"
        "key = EntryKey(('ann', None), 'shop.pay', 'k')\n"
        "asyncio.run(SQLiteIdempotencyStore(sys.argv[1]).run_once(KeyedCall(key, 'digest', run, time.monotonic() + 3600)))"
    )
    words = (sys.executable, "-c", program, str(path))
    other = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert await other.stdout.readline() == b"runs\n"
    later = time.time() + 9 * 3600
    monkeypatch.setattr("enfold.middleware.sqlite_store.time.time", lambda: later)
    with pytest.raises(CallError, match="is still running"):
        await store.run_once(keyed(key("ann", "k"), result, 0.2))
    other.kill()
    await other.wait()
    with pytest.raises(CallError) as raised:
        await store.run_once(keyed(key("ann", "k"), result, 5))
    assert (raised.value.code, len(ran)) == ("OUTCOME_UNKNOWN", 6)
    await store.run_once(keyed(key("ann", "k"), result, 5, reruns=True))
    assert len(ran) == 7


async def test_a_result_that_cannot_be_written_for_a_while_is_kept_when_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enfold.middleware.sqlite_store.BUSY_SECONDS", 0.001)
    path, ran = tmp_path / "results.db", []
    store, key = SQLiteIdempotencyStore(path), EntryKey(("ann", None), "shop.pay", "away")
    go_on, begun = asyncio.Event(), asyncio.Event()

    async def slow() -> ResponseEnvelope[Any]:
        begun.set()
        await go_on.wait()
        ran.append(1)
        return local_envelope("paid", "shop.pay")

    first = asyncio.create_task(store.run_once(keyed(key, slow, 30)))
    await begun.wait()
    with closing(sqlite3.connect(path, isolation_level=None)) as blocking, blocking:
        blocking.execute("PRAGMA busy_timeout = 5000")
        blocking.execute("BEGIN IMMEDIATE")
        go_on.set()
        await first
    assert envelope_of(await store.run_once(keyed(key, slow, 20))).data == "paid"
    assert len(ran) == 1


async def test_outcomes_are_written_to_the_file_that_other_processes_use(tmp_path: Path) -> None:
    """The file is removed or replaced under those who use it: what one has done from then on, none does again."""
    path, ran = tmp_path / "results.db", 0
    go_on, begun = asyncio.Event(), asyncio.Event()
    one, two = SQLiteIdempotencyStore(path), SQLiteIdempotencyStore(path)

    async def run() -> ResponseEnvelope[Any]:
        nonlocal ran
        ran += 1
        begun.set()
        await go_on.wait()
        return local_envelope(ran, "shop.pay")

    def call(store: SQLiteIdempotencyStore, name: str) -> asyncio.Task[Outcome]:
        return asyncio.create_task(store.run_once(keyed(EntryKey(("ann", None), "shop.pay", name), run, 30)))

    running = call(one, "under way")
    await begun.wait()
    _remove(path)
    go_on.set()
    await running
    for n, name in enumerate(("under way", "new")):
        assert [envelope_of(await call(store, name)).data for store in (two, one, two)] == [n + 1] * 3


async def test_a_caller_who_leaves_as_their_key_is_taken_does_not_block_it(tmp_path: Path) -> None:
    store, ran = SQLiteIdempotencyStore(tmp_path / "results.db"), []

    async def run() -> ResponseEnvelope[Any]:
        ran.append(1)
        return local_envelope(len(ran), "shop.pay")

    key = EntryKey(("ann", None), "shop.pay", "k")
    leaving = asyncio.create_task(store.run_once(keyed(key, run, 5)))
    await asyncio.sleep(0)  # it has asked for the key, and not heard yet that it has it
    leaving.cancel()
    assert envelope_of(await store.run_once(keyed(key, run, 5))).data == 1
    assert len(ran) == 1


async def test_entries_of_a_dead_process_expire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, ran = tmp_path / "results.db", []

    async def result() -> ResponseEnvelope[Any]:
        ran.append(1)
        return local_envelope(1, "shop.pay")

    program = (
        "import asyncio, os, sys, time; from enfold.middleware.sqlite_store import *; from enfold.operations.idempotency import *\n"
        "async def run(): os._exit(0)\n"
        "key = EntryKey(('ann', None), 'shop.pay', 'k')\n"
        "asyncio.run(SQLiteIdempotencyStore(sys.argv[1]).run_once(KeyedCall(key, 'digest', run, time.monotonic() + 60)))"
    )
    await asyncio.to_thread(subprocess.run, (sys.executable, "-c", program, str(path)), check=True)
    key = EntryKey(("ann", None), "shop.pay", "k")
    store = SQLiteIdempotencyStore(path)
    with pytest.raises(CallError) as raised:
        await store.run_once(keyed(key, result, 30))
    assert raised.value.code == "OUTCOME_UNKNOWN"
    later = time.time() + 2 * 3600
    monkeypatch.setattr("enfold.middleware.sqlite_store.time.time", lambda: later)
    await store.run_once(keyed(key, result, 30))
    assert len(ran) == 1


def _remove(database: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{database}{suffix}").unlink()
