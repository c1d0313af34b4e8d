"""The stores as fixtures: a test that asks for `stores` runs on all of them, each with two processes' worth of stores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.calls.networks import Server, nats_server_program

from enfold.calls.nats import NATSIdempotencyStore, NATSTransport
from enfold.middleware.idempotency_store import MemoryIdempotencyStore
from enfold.middleware.sqlite_store import SQLiteIdempotencyStore
from enfold.operations.idempotency import IdempotencyStore


@pytest.fixture(scope="session")
def nats_program() -> str:
    return nats_server_program()


@pytest.fixture
def nats(nats_program: str, tmp_path: Path) -> Iterator[Server]:
    """A server with JetStream."""
    server = Server(nats_program, tmp_path, f'jetstream {{ store_dir: "{tmp_path / "jetstream"}" }}\n')
    server.wait_until_ready()
    yield server
    server.close()


@pytest.fixture(params=["memory", "sqlite", "nats"])
async def stores(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[IdempotencyStore, IdempotencyStore]]:
    """Two stores that share their entries; in memory they are the same one."""
    if request.param == "memory":
        store = MemoryIdempotencyStore()
        yield store, store
    elif request.param == "sqlite":
        yield SQLiteIdempotencyStore(tmp_path / "keys.db"), SQLiteIdempotencyStore(tmp_path / "keys.db")
    else:
        async with nats_stores(request.getfixturevalue("nats").url) as found:
            yield found


@asynccontextmanager
async def nats_stores(url: str) -> AsyncIterator[tuple[IdempotencyStore, IdempotencyStore]]:
    async with NATSTransport(url, name="w0") as first, NATSTransport(url, name="w1") as second:
        yield NATSIdempotencyStore(first), NATSIdempotencyStore(second)
