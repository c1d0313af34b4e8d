"""How each source is: told to whoever watches, as sources are opened, lost and found again; and what `/readyz` makes of it."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.serving import serve

from enfold import Identity, OperationRegistry
from enfold.calls.memory import MemoryTransport
from enfold.calls.transports.faulty import Faults, FaultyTransport
from enfold.config import open_config
from enfold.identities.tokens import Tokens
from enfold.source_states import SourceState, SourceTable
from enfold.sources.calls import from_calls
from enfold.sources.mcp import from_mcp
from enfold.sources.openapi import from_openapi
from enfold.surfaces.http import to_http

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
            await asyncio.wait_for(self._next.wait(), 20)


async def test_a_process_that_dies_is_told_at_once_and_a_call_brings_it_back() -> None:
    registry = OperationRegistry()
    changes = Changes(registry.sources)
    async with from_mcp(LITTLE, namespace="little") as operations:
        registry.register_all(operations)
        up = registry.sources["little"]
        pid = (await registry.execute("little.told")).data["pid"]
        os.kill(pid, signal.SIGKILL)
        await changes.until("down")
        down = registry.sources["little"]
        await registry.execute("little.add", {"x": 1, "y": 2})
        back = registry.sources["little"]
    assert (up.kind, up.operations > 3, up.required) == ("mcp", True, False)
    assert "little" in down.why
    assert down.since >= up.since
    assert back.why == ""
    assert changes.states == ["up", "down", "up", "down"]  # the last because it was closed


async def test_peers_are_down_while_their_transport_is_cut_and_sources_of_one_name_are_told_apart() -> None:
    registry = OperationRegistry()
    changes = Changes(registry.sources)
    wire = FaultyTransport(MemoryTransport("edge"), Faults(), 1)
    async with from_calls(wire, patience=0.01) as one, from_calls(MemoryTransport("b"), patience=0.01) as other:
        one.keep(registry)
        other.keep(registry)
        await changes.until("up")
        wire.cut()
        await changes.until("down")
        wire.mend()
        await changes.until("up")
        assert [source.name for source in registry.sources] == ["peers", "peers 2"]
    assert registry.sources["peers"].why == "it has been closed"


def test_a_document_shows_what_was_left_out_of_it() -> None:
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Shop", "version": "1"},
        "servers": [{"url": "https://shop.test"}],
        "paths": {"/a": {"get": {"responses": {"200": {}}}, "post": {"parameters": 7, "responses": {}}}},
    }
    registry = OperationRegistry()
    registry.register_all(from_openapi(document))
    shown = registry.sources["Shop"]
    assert (shown.kind, shown.state, shown.operations, len(shown.skipped)) == ("openapi", "up", 1, 1)


# --- readiness ----------------------------------------------------------------------------------------------------


def test_a_word_for_everybody_and_the_reasons_for_readers() -> None:
    ops = OperationRegistry()
    ops.sources.enter("shop.py", "functions", "down", why="There is no file shop.py")
    ops.sources.enter("tickets", "mcp", "down", why="it is not required")
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
        stranger = client.get("/readyz")
        alive = client.get("/healthz")
        ops.sources.enter("shop.py", "functions", "up")
        ready = client.get("/readyz")
    assert [{**each, "since": 0} for each in told["reader"]["missing"]] == [{**reason, "since": 0}]
    assert told["owner"] == told["reader"]
    assert told["other"] == stranger.json == {"status": "waiting"}
    assert (stranger.status, alive.status, ready.status, ready.json) == (503, 200, 200, {"status": "ready"})


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
        missing: Any = [source.name for source in registry.sources.missing]
    assert missing == expected
