"""A NATS server with JetStream for the stories of tasks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.calls.networks import Server, nats_server_program


@pytest.fixture(scope="session")
def jetstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the stories that leave it alone; each has a store of its own name there."""
    folder = tmp_path_factory.mktemp("jetstream")
    server = Server(nats_server_program(), folder, f'jetstream {{ store_dir: "{folder / "store"}" }}\n')
    server.wait_until_ready()
    yield server
    server.close()
