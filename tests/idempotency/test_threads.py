"""Idempotency keys of programs without an event loop, such as a WSGI application: each call runs on its own loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import PATIENCE, wait_for

from enfold import Context, OperationRegistry
from enfold.middleware.idempotency_store import MemoryIdempotencyStore
from enfold.middleware.sqlite_store import SQLiteIdempotencyStore
from enfold.operations.idempotency import IdempotencyStore

CALLERS = 6

STORES: dict[str, Callable[[Path], IdempotencyStore]] = {
    "memory": lambda _: MemoryIdempotencyStore(),
    "SQLite": lambda folder: SQLiteIdempotencyStore(folder / "keys.db"),
}


class Till:
    """Two operations that wait until they may pay."""

    def __init__(self) -> None:
        self.ops = ops = OperationRegistry("shop")
        self.runs: list[int] = []
        self.may_pay = threading.Event()

        @ops.mutation
        def pay(amount: int) -> int:
            self.runs.append(amount)
            assert self.may_pay.wait(PATIENCE)
            return len(self.runs)

        @ops.mutation
        async def pay_later(amount: int) -> int:
            return pay(amount)

    def pay_from_threads(self, name: str) -> list[Any]:
        def call() -> Any:
            context = Context(idempotency_key="k", timeout=PATIENCE * 10)  # longer than this test waits
            return self.ops.execute_now(f"shop.{name}", {"amount": 1}, context).data

        with ThreadPoolExecutor(CALLERS) as pool:
            calls = [pool.submit(call) for _ in range(CALLERS)]
            wait_for(lambda: self.runs)
            self.may_pay.set()
            return [call.result(PATIENCE) for call in calls]


@pytest.mark.parametrize("name", ["pay", "pay_later"])
@pytest.mark.parametrize("store", STORES)
def test_a_key_runs_once_and_every_thread_gets_the_outcome_at_once(name: str, store: str, tmp_path: Path) -> None:
    till = Till()
    till.ops.services.new_idempotency_store = lambda: STORES[store](tmp_path)
    assert till.pay_from_threads(name) == [1] * CALLERS
    assert till.runs == [1]


def test_a_def_with_a_key_needs_no_running_loop() -> None:
    till = Till()
    till.may_pay.set()
    for _ in range(2):
        assert till.ops.execute_now("shop.pay", {"amount": 1}, Context(idempotency_key="k")).data == 1
