"""The state of each source: reported to observers as sources are opened, lost and found again, and by `/readyz`."""

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.calls.faulty import Faults, FaultyTransport
from tests.calls.networks import free_port
from tests.serving import serve
from tests.waiting import PATIENCE

from enfold import CallError, Identity, OperationRegistry
from enfold.app.reconciler import open_config
from enfold.auth.tokens import Tokens
from enfold.calls.memory import MemoryTransport
from enfold.runtime.source_states import SourceState, SourceTable
from enfold.sources.calls import Discovery, from_calls
from enfold.sources.mcp import from_mcp
from enfold.sources.openapi import from_openapi
from enfold.surfaces.http import to_http
from enfold.surfaces.mcp import to_mcp

LITTLE = [sys.executable, str(Path(__file__).parent / "sources" / "mcp" / "little_server.py")]


class Changes:
    """The states that a source went through, as they were told."""

    def __init__(self, sources: SourceTable) -> None:
        self.states: list[str] = []
        self._next = asyncio.Event()
        sources.watch(self._hear)

    def _hear(self, before: SourceState | None, after: SourceState | None) -> None:
        word = "gone" if after is None else after.state
        if before is None or word != before.state:
            self.states.append(word)
            self._next.set()

    async def until(self, word: str) -> None:
        while not self.states or self.states[-1] != word:
            self._next.clear()
            await asyncio.wait_for(self._next.wait(), PATIENCE)


async def test_a_process_that_dies_is_reported_at_once_and_a_call_restarts_it() -> None:
    registry = OperationRegistry()
    changes = Changes(registry.services.sources)
    async with from_mcp(LITTLE, namespace="little") as operations:
        registry.register_all(operations)
        up = registry.services.sources["little"]
        pid = (await registry.execute("little.told")).data["pid"]
        os.kill(pid, signal.SIGKILL)
        await changes.until("down")
        down = registry.services.sources["little"]
        await registry.execute("little.add", {"x": 1, "y": 2})
        back = registry.services.sources["little"]
    assert (up.kind, up.operations > 3, up.required) == ("mcp", True, False)
    assert "little" in down.why
    assert down.since >= up.since
    assert back.why == ""
    assert changes.states == ["up", "down", "up", "down"]  # the last because it was closed


async def test_peers_are_down_while_their_transport_is_cut_and_sources_of_one_name_are_distinguished() -> None:
    registry = OperationRegistry()
    changes = Changes(registry.services.sources)
    wire = FaultyTransport(MemoryTransport("edge"), Faults(), 1)
    async with (
        from_calls(wire, discovery=Discovery(patience=0.01)) as one,
        from_calls(MemoryTransport("b"), discovery=Discovery(patience=0.01)) as other,
    ):
        one.keep(registry)
        other.keep(registry)
        await changes.until("up")
        wire.cut()
        await changes.until("down")
        wire.mend()
        await changes.until("up")
        assert [source.name for source in registry.services.sources] == ["peers", "peers 2"]
    assert registry.services.sources["peers"].why == "it has been closed"


def test_a_document_shows_what_was_left_out_of_it() -> None:
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Shop", "version": "1"},
        "servers": [{"url": "https://shop.test"}],
        "paths": {"/a": {"get": {"responses": {"200": {}}}, "post": {"parameters": 7, "responses": {}}}},
    }
    registry = OperationRegistry()
    registry.register_all(from_openapi(document))
    shown = registry.services.sources["Shop"]
    assert (shown.kind, shown.state, shown.operations, len(shown.skipped)) == ("openapi", "up", 1, 1)


class Answering(BaseHTTPRequestHandler):
    """A service that has one answer."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(b"1")

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Nothing is written."""


@contextmanager
def service(port: int) -> Iterator[int]:
    """A service on a port, 0 for any, as long as the block runs."""
    with ThreadingHTTPServer(("127.0.0.1", port), Answering) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


async def test_a_service_that_cannot_be_reached_is_down_until_it_answers_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Shop", "version": "1"},
        "paths": {"/a": {"get": {"operationId": "a", "responses": {"200": {"content": {"application/json": {}}}}}}},
    }
    with service(0) as port:
        document["servers"] = [{"url": f"http://127.0.0.1:{port}"}]
        (tmp_path / "shop.json").write_text(json.dumps(document))
        config = tmp_path / "enfold.toml"
        config.write_text('[sources.api]\nopenapi = "shop.json"\nrequired = true\n')
        opening = open_config(config, {})
        registry = await opening.__aenter__()
        assert (await registry.execute("api.a")).data == 1
    try:
        changes = Changes(registry.services.sources)
        for _ in range(2):
            with pytest.raises(CallError, match="cannot be reached"):
                await registry.execute("api.a")
        (missing,) = registry.services.sources.missing
        assert (missing.name, missing.state) == ("api", "down")
        assert "cannot be reached" in missing.why
        with service(port):
            await changes.until("up")  # although it is not called
            assert registry.services.sources.missing == []
        assert [each.state for each in registry.services.sources.history("api")][-3:] == ["up", "down", "up"]
    finally:
        await opening.__aexit__(None, None, None)
    lines = [each for each in caplog.messages if each.startswith("api is")]
    assert lines == [f"api is down: {missing.why}", "api is up: 1 operation"]


async def test_the_loss_and_return_of_a_process_is_a_line_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "enfold.toml"
    config.write_text(f"[sources.little]\ncommand = {json.dumps(LITTLE)}\n")
    async with open_config(config, {}) as registry:
        changes = Changes(registry.services.sources)
        for number in (1, 2):
            os.kill((await registry.execute("little.told")).data["pid"], signal.SIGKILL)
            await changes.until("down")
            await changes.until("up")
            lines = [each for each in caplog.messages if each.startswith("little is")]
            assert len(lines) == 2 * number
            assert lines[-2].startswith("little is down: little ")
            assert lines[-1] == f"little is up: {registry.services.sources['little'].operations} operations"


async def test_the_loss_and_return_of_a_server_at_an_address_is_a_line_each(caplog: pytest.LogCaptureFixture) -> None:
    ops, registry = OperationRegistry("shop"), OperationRegistry()
    ops.register(lambda: 1, name="one", type="query")
    port = free_port()
    with serve(to_mcp(ops), port=port):
        operations = await from_mcp(f"http://127.0.0.1:{port}/mcp", namespace="far").__aenter__()
        registry.register_all(operations)
    try:
        for _ in range(2):
            with pytest.raises(CallError):
                await registry.execute("far.shop_one")
        with serve(to_mcp(ops), port=port):
            await operations.wake()
    finally:
        await operations.aclose()
    lines = [each for each in caplog.messages if each.startswith("far is")]
    assert [line.partition(":")[0] for line in lines] == ["far is down", "far is up"]


# --- readiness ----------------------------------------------------------------------------------------------------


def test_a_status_for_everyone_and_reasons_for_authorized_readers() -> None:
    ops = OperationRegistry()
    ops.services.sources.enter("shop.py", "functions", "down", why="There is no file shop.py")
    ops.services.sources.enter("tickets", "mcp", "down", why="it is not required")
    tokens = Tokens(
        {
            "reader": Identity("ann", frozenset({"enfold:read"})),
            "owner": Identity("own", frozenset({"*"})),
            "other": Identity("bob"),
        }
    )
    reason = {"source": "shop.py", "kind": "functions", "state": "down", "why": "There is no file shop.py"}
    with serve(to_http(ops, tokens=tokens)) as client:
        told = {
            name: client.get("/readyz", Authorization=f"Bearer {name}").json for name in ("reader", "owner", "other")
        }
        anonymous = client.get("/readyz")
        alive = client.get("/healthz")
        ops.services.sources.enter("shop.py", "functions", "up")
        ready = client.get("/readyz")
    assert [{**each, "since": 0} for each in told["reader"]["missing"]] == [{**reason, "since": 0}]
    assert told["owner"] == told["reader"]
    assert told["other"] == anonymous.json == {"status": "waiting"}
    assert (anonymous.status, alive.status, ready.status, ready.json) == (503, 200, 200, {"status": "ready"})


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ('functions = "gone.py"', ["a"]),
        ('functions = "gone.py"\nrequired = false', []),
        ('command = "no-such-program"', []),
        ('command = "no-such-program"\nrequired = true', ["a"]),
    ],
)
async def test_functions_are_required_and_other_sources_where_the_file_says_so(
    tmp_path: Path, lines: str, expected: list[str]
) -> None:
    (tmp_path / "enfold.toml").write_text(f"[sources.a]\n{lines}\n")
    async with open_config(tmp_path / "enfold.toml", {}) as registry:
        missing: Any = [source.name for source in registry.services.sources.missing]
    assert missing == expected
