"""The networks as fixtures: a test that requests one runs on all of them."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.calls.networks import Around, Memory, Network, OnNATS, Server, nats_server_program, permissions_of_the_shop


@pytest.fixture(autouse=True)
def no_pauses() -> Iterator[None]:
    """Leave the objects of pytest alone: to look through all of them takes longer than a call may."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(params=["memory", "websocket", "nats"])
async def network(request: pytest.FixtureRequest) -> AsyncIterator[Network]:
    """Run each test on every network."""
    async with opened(request) as network:
        yield network


@pytest.fixture(params=["websocket", "nats"])
async def wide_network(request: pytest.FixtureRequest) -> AsyncIterator[Network]:
    """Networks whose peers do not trust each other, unlike those of one process."""
    async with opened(request) as network:
        yield network


@asynccontextmanager
async def opened(request: pytest.FixtureRequest) -> AsyncIterator[Network]:
    if request.param == "memory":
        yield Memory()
    elif request.param == "websocket":
        around = Around()
        await around.hub.listen()
        yield around
        for spoke in around.opened:
            await spoke.close()
        await around.hub.close()
    else:
        on_nats = OnNATS(request.getfixturevalue("nats_url"))
        yield on_nats
        for transport in on_nats.opened:
            await transport.close()


@pytest.fixture(scope="session")
def nats_program() -> str:
    return nats_server_program()


@pytest.fixture(scope="session")
def nats_url(nats_program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with the permissions that the shop's operations and the peers lead to."""
    server = Server(nats_program, tmp_path_factory.mktemp("nats"), permissions_of_the_shop())
    server.wait_until_ready()
    yield server.url
    server.close()


@pytest.fixture
def server(nats_program: str, tmp_path: Path) -> Iterator[Server]:
    """A server of the test's own, which it may kill or freeze."""
    made = Server(nats_program, tmp_path)
    made.wait_until_ready()
    yield made
    made.close()
