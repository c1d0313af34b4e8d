"""A worker records the calls that its recorder records by default, as every other surface does."""

from __future__ import annotations

from pathlib import Path

from enfold import OperationRegistry
from enfold.calls import PendingRequestMap
from enfold.calls.memory import MemoryTransport
from enfold.provenance import Recorder, RecordStore
from enfold.surfaces.calls import serve_calls


async def test_calls_are_recorded_by_default(tmp_path: Path) -> None:
    ops = OperationRegistry("shop")

    @ops.query
    def price() -> int:
        return 1

    @ops.mutation
    def order() -> int:
        return 2

    bus = MemoryTransport("bus")
    with RecordStore(tmp_path / "r.db") as store:
        recorder = Recorder(store=store, record="mutations")
        async with serve_calls(ops, bus, recorder=recorder), PendingRequestMap(bus.join("caller")) as caller:
            assert [(await caller.call(name, {})).data for name in ("shop.price", "shop.order")] == [1, 2]
        assert len(store) == 1
