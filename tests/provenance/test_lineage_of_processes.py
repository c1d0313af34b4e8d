"""A lineage across two processes: the worker's record names its caller's run, and both verify together."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from enfold import Context, OperationRegistry
from enfold.calls.transports.addresses import open_transport
from enfold.provenance import Recorder, RecordStore, options_from_mode, verify_lineage
from enfold.sources.calls import from_calls

WORKER = """
import asyncio, sys
from enfold import OperationRegistry
from enfold.calls.transports.addresses import open_transport
from enfold.provenance import Recorder
from enfold.surfaces.calls import serve_calls

ops = OperationRegistry("far")

@ops.query
async def double(x: int) -> int:
    await asyncio.sleep(0)
    return 2 * x

async def main() -> None:
    async with serve_calls(ops, open_transport(sys.argv[1]), recorder=Recorder()):
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def worker(tmp_path: Path, program: Callable[[str], str]) -> Iterator[str]:
    """A NATS server and a worker, each a process of its own; the address to reach them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"nats://127.0.0.1:{port}"
    (tmp_path / "worker.py").write_text(WORKER)
    server = subprocess.Popen([program("nats-server"), "-a", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL)
    working = subprocess.Popen(
        [sys.executable, str(tmp_path / "worker.py"), address], stdout=subprocess.PIPE, text=True
    )
    try:
        assert working.stdout is not None
        assert working.stdout.readline() == "ready\n"
        yield address
    finally:
        working.kill()
        working.communicate()
        server.terminate()
        server.wait()


async def compose(address: str, store: RecordStore) -> dict[str, Any]:
    ops = OperationRegistry("here")

    @ops.query
    async def twice(x: int, context: Context) -> Any:
        return (await context.env.far.double({"x": x})).data

    transport = open_transport(address)
    try:
        async with from_calls(transport) as operations:
            operations.keep(ops)
            context = Context()
            context.recording = Recorder(store=store).begin(options_from_mode("full"))
            envelope = await ops.execute("here.twice", {"x": 4}, context)
    finally:
        await transport.close()
    assert envelope.data == 8
    assert envelope.provenance is not None
    return envelope.provenance


def test_a_call_over_nats_links_the_records_of_both_processes(tmp_path: Path, worker: str) -> None:
    with RecordStore(tmp_path / "records.db") as store:
        record = asyncio.run(compose(worker, store))
        records = store.lineage(record["run_id"])
    assert all(verdict.ok for verdict in verify_lineage(records))
    assert {found["tool"]["adapter"] for found in records} >= {"calls"}
    changed = [dict(found, methods=[]) if found["run_id"] == record["run_id"] else found for found in records]
    assert not all(verdict.ok for verdict in verify_lineage(changed))
