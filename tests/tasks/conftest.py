"""The three stores, each new for every test, and a NATS server with JetStream."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.calls.networks import Server, nats_server_program

from enfold.calls.nats import NATSTransport
from enfold.tasks.memory import MemoryTasks
from enfold.tasks.nats import NATSTasks
from enfold.tasks.sqlite import SQLiteTasks
from enfold.tasks.store import TaskStore


@pytest.fixture(scope="session")
def jetstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the tests that do not restart it; each has its own store there."""
    folder = tmp_path_factory.mktemp("jetstream")
    server = Server(nats_server_program(), folder, f'jetstream {{ store_dir: "{folder / "store"}" }}\n')
    server.wait_until_ready()
    yield server
    server.close()


@pytest.fixture(params=["memory", "sqlite", "nats"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TaskStore]:
    if request.param == "memory":
        yield MemoryTasks()
    elif request.param == "sqlite":
        yield SQLiteTasks(tmp_path / "tasks.db")
    else:
        async with NATSTransport(request.getfixturevalue("jetstream").url) as transport:
            yield NATSTasks(transport, name=f"t{os.urandom(4).hex()}")
