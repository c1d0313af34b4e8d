"""Provenance through a registry: calls composed inside handlers leave a linked lineage, and without it nothing runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from enfold.errors import CallError
from enfold.formats import mcp_envelope_v0_1
from enfold.operations import Context
from enfold.provenance import (
    CaptureOptions,
    Recorder,
    RecordStore,
    build_graph,
    generate_key,
    public_keys,
    verify_envelope,
    verify_lineage,
)
from enfold.runtime.registry import OperationRegistry

needs_recording = pytest.mark.skipif(not hasattr(Context, "recording"), reason="this Context carries no recording")


def shop() -> OperationRegistry:
    ops = OperationRegistry("shop")

    @ops.query
    async def order(item: str, context: Context) -> dict[str, Any]:
        found = await context.env.shop.price(item=item)
        return {"item": item, "total": found.data}

    @ops.query
    async def price(item: str, context: Context) -> float:
        net = await context.env.shop.lookup(item=item)
        return float(net.data * 2)

    @ops.query(inline=True)
    def lookup(item: str) -> int:
        if item == "nothing":
            raise CallError("OUT_OF_STOCK", "None left")
        return 21

    return ops


async def execute(store: RecordStore, item: str, key: Any = None, *, wraps: bool = False) -> Any:
    context: Any = Context()
    writer = mcp_envelope_v0_1 if wraps else None
    context.recording = Recorder(store=store, key=key).begin(CaptureOptions("full"), writer=writer)
    return await shop().execute("shop.order", {"item": item}, context)


def run(coroutine: Any) -> Any:
    import asyncio

    return asyncio.run(coroutine)


@needs_recording
def test_a_composed_call_leaves_a_lineage_that_verifies(tmp_path: Path) -> None:
    key = generate_key()
    with RecordStore(tmp_path / "r.db") as store:
        envelope = run(execute(store, "pen", key))
        records = store.lineage(envelope.provenance["run_id"])
    assert envelope.data == {"item": "pen", "total": 42.0}
    graph = build_graph(records)
    assert [record.tool.name for record in graph.records.values()] == ["shop.order", "shop.price", "shop.lookup"]
    assert graph.missing == ()
    assert all(verdict.ok for verdict in verify_lineage(records, public_keys([key.public_key])))


@needs_recording
def test_a_failure_deep_inside_is_recorded_at_every_step(tmp_path: Path) -> None:
    with RecordStore(tmp_path / "r.db") as store:
        with pytest.raises(CallError) as raised:
            run(execute(store, "nothing", wraps=True))
        assert len(store) == 3
    wire = mcp_envelope_v0_1.write_error(raised.value, "shop.order")
    assert wire["provenance"]["tool"]["name"] == "shop.order"
    assert verify_envelope(wire).ok


def test_without_being_asked_no_provenance_function_is_entered() -> None:
    ops = shop()
    run(ops.execute("shop.order", {"item": "pen"}, Context()))
    with entered_functions() as entered:
        envelope = run(ops.execute("shop.order", {"item": "pen"}, Context()))
        mcp_envelope_v0_1.write(envelope)
    assert entered
    assert [name for name in entered if f"{Path('enfold', 'provenance')}" in name] == []


@contextmanager
def entered_functions() -> Iterator[list[str]]:
    """The files of all Python functions entered meanwhile."""
    entered: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            entered.append(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        yield entered
    finally:
        sys.setprofile(None)
