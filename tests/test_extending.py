"""The worked examples of docs/extending.md, with more cases than they show, and a newcomer's test."""

import asyncio
import json
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from examples.extending import meta_field, source, surface, transport
from tests import parity_app
from tests.parity_calls import ANN, CALLS, outcome

from enfold import OperationRegistry, testing
from enfold.sources.options import Selection
from enfold.testing.in_process import CallsClient

ROOT = Path(__file__).parent.parent


# --- a source -----------------------------------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE stock (item TEXT, price REAL)")
    connection.close()
    return path


async def test_a_query_of_the_source_is_an_operation_on_every_surface(database: Path) -> None:
    ops = OperationRegistry()
    ops.register_all(source.from_sql(database, source.SQL, namespace="stock"))
    for name in testing.SURFACES:
        async with testing.open_client(name, ops) as client:
            assert (await client.call("stock.restock", {"item": "'; DROP TABLE stock; --", "price": 9})).data == []
            assert (await client.call("stock.cheap", {"limit": 1})).data == []
            assert (await client.call("stock.cheap")).code == "VALIDATION_ERROR"
    assert len((await ops.execute("stock.cheap", {"limit": 10})).data) == len(testing.SURFACES)


def test_the_source_names_what_it_skips_and_takes_what_is_chosen(database: Path) -> None:
    imported = source.from_sql(database, source.SQL, namespace="stock", selection=Selection("che*"))
    assert imported.report.imported == ["stock.cheap"]
    assert [(each.where, each.why) for each in imported.report.skipped] == [("stock.broken", "no such table: nowhere")]


# --- a surface ----------------------------------------------------------------------------------------------------

LINES: dict[str, tuple[bytes, list[Any]]] = {
    "a call": (b'{"call": "shop.add", "input": {"x": 1, "y": "2"}, "format": "result"}', [{"result": 3}]),
    "a stream": (b'{"call": "count", "input": {"to": 2}, "format": "result"}', [{"result": 0}, {"result": 1}]),
    "no JSON": (b"hello", ["VALIDATION_ERROR"]),
    "no object": (b"[1]", ["VALIDATION_ERROR"]),
    "no call": (b"{}", ["VALIDATION_ERROR"]),
    "a strange input": (b'{"call": "shop.add", "input": 7}', ["VALIDATION_ERROR"]),
    "a strange format": (b'{"call": "shop.add", "format": {}}', ["VALIDATION_ERROR"]),
    "an unknown format": (b'{"call": "shop.add", "format": "xml"}', ["VALIDATION_ERROR"]),
    "an unknown operation": (b'{"call": "shop.none"}', ["OPERATION_NOT_FOUND"]),
    "endless depth": (b'{"call": ' + b"[" * 5000, ["VALIDATION_ERROR"]),
    "no UTF-8": (b'{"call": "\xff"}', ["VALIDATION_ERROR"]),
}


@pytest.mark.parametrize("name", LINES)
async def test_every_line_of_the_surface_is_answered(name: str) -> None:
    line, expected = LINES[name]
    async with _connected() as (reader, writer):
        writer.write(line + b'\n{"call": "shop.none"}\n')
        answers = [json.loads(await reader.readline()) for _ in range(len(expected) + 1)]
    assert [answer.get("error", {}).get("code", answer) for answer in answers] == [*expected, "OPERATION_NOT_FOUND"]


async def test_a_line_without_end_ends_the_connection() -> None:
    async with _connected() as (reader, writer):
        writer.write(b"x" * 200_000)
        with suppress(ConnectionResetError):
            assert await reader.read() == b""


@asynccontextmanager
async def _connected() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    server = await asyncio.start_server(lambda *streams: surface.to_lines(surface.ops, *streams), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        yield reader, writer
    finally:
        writer.close()
        server.close()


# --- a transport --------------------------------------------------------------------------------------------------


# The creator of the cable sets the caller's identity, and a peer cannot claim that there are no listeners.
CARRIED = [name for name, (call, _) in CALLS.items() if call.spec is not None and name not in ("large", "denied")]


@pytest.mark.parametrize("name", CARRIED)
async def test_the_transport_carries_every_call_of_the_parity_table(name: str) -> None:
    call, expected = CALLS[name]
    async with _cable() as client:
        assert await outcome(client, call, "envelope") == expected


async def test_a_message_too_large_for_the_transport_is_reported() -> None:
    async with _cable() as client:
        assert (await client.call("parity.echo", {"text": "x" * 40_000})).code == "PAYLOAD_TOO_LARGE"


@asynccontextmanager
async def _cable() -> AsyncIterator[CallsClient]:
    """A worker and one caller on a cable; the worker knows the caller as ann."""
    arrived: asyncio.Future[transport.Streams] = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda *streams: arrived.set_result(streams), "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    caller = transport.CableTransport("caller", lambda: asyncio.open_connection(*address))
    await caller.connect()
    worker = transport.CableTransport("worker", lambda: arrived, ANN)
    async with testing.calls(parity_app.ops, worker, lambda _: caller) as client:
        yield client
    server.close()


# --- a meta field -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in testing.SURFACES if name != "command_line"])
async def test_the_meta_field_reaches_callers(name: str) -> None:
    async with testing.open_client(name, meta_field.ops) as client:
        reply = await client.call("shop.quote", {"item": "tea"})
    assert reply.envelope is not None
    assert meta_field.cost_of(reply.envelope) == 0.002


# --- the newcomer's test ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["source", "surface", "format", "transport", "meta field", "middleware", "configuration key", "command"]
)
def test_a_newcomer_opens_at_most_four_files(kind: str) -> None:
    table = (ROOT / "docs/extending.md").read_text(encoding="utf-8").partition("## Add to Enfold itself")[2]
    row = next(line for line in table.splitlines() if line.startswith(f"| a {kind}"))
    files = re.findall(r"\]\(\.\./([^)]+)\)", row)
    assert 1 <= len(files) <= 4
    assert [file for file in files if not (ROOT / file).is_file()] == []
