"""Connections of several processes on one port: each knows at once how many the others have."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.waiting import PATIENCE, until

from enfold import OperationRegistry
from enfold.app.server import WorkerServer
from enfold.app.sockets import ServerSettings, bind, start_listening
from enfold.app.worker_processes import ConnectionCounts, Worker
from enfold.surfaces.http import to_http
from enfold.surfaces.limits import Limits

REQUEST = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@asynccontextmanager
async def one_of_two(folder: Path, counts: ConnectionCounts) -> AsyncIterator[int]:
    """The port of a server that is one of two processes."""
    worker = Worker(0, 2, str(folder), -1, counts, -1)
    server = WorkerServer(worker, to_http(OperationRegistry()), Limits(), lambda: None, ServerSettings(grace=0.0))
    with bind("127.0.0.1", 0) as listening:
        start_listening(listening)
        serving = asyncio.ensure_future(server.serve([listening]))
        await until(lambda: server.started)
        try:
            yield listening.getsockname()[1]
        finally:
            server.end()
            await serving


async def asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a request, and read the head of its answer."""
    writer.write(REQUEST)
    assert b" 200 " in await reader.readuntil(b"\r\n\r\n")


async def test_a_connection_that_has_ended_is_no_longer_counted_by_the_others(tmp_path: Path) -> None:
    counts = ConnectionCounts(2)
    async with asyncio.timeout(PATIENCE), one_of_two(tmp_path, counts) as port:
        stays = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(5):
            goes = await asyncio.open_connection("127.0.0.1", port)
            await asked(*goes)
            assert not counts.is_ahead(1, 2)  # two here, so a sibling with two may accept
            goes[1].close()
            await asked(*stays)
            assert counts.is_ahead(1, 2)  # one here: the sibling leaves the next one to us
        stays[1].close()
