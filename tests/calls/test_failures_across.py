"""A failure is the same failure whichever peer it came through."""

from __future__ import annotations

import pytest

from enfold import CallError, OperationRegistry
from enfold.calls import PendingRequestMap
from enfold.calls.memory import MemoryTransport
from enfold.surfaces.calls import serve_calls


async def test_the_category_of_a_failure_comes_through_a_peer() -> None:
    ops = OperationRegistry("files")

    @ops.query
    def read() -> int:
        raise PermissionError("not yours")

    bus = MemoryTransport()
    async with serve_calls(ops, bus), PendingRequestMap(bus.join("caller")) as caller:
        with pytest.raises(CallError) as refused:
            await caller.call("files.read", {})

    assert (refused.value.code, refused.value.row.category) == ("EXECUTION_ERROR", "authorization")
