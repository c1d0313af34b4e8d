"""What observing costs who does not observe: nothing. No function of it is entered, on any surface."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.observing.test_records import SURFACES, shop

import enfold.observing
from enfold import testing

ROOM = str(Path(enfold.observing.__file__).parent)


async def entered(call: Callable[[], Awaitable[Any]]) -> list[str]:
    """The functions of the room that a call enters, in this thread."""
    found: list[str] = []

    def look(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and (code.co_filename.startswith(ROOM) or "opentelemetry" in code.co_filename):
            found.append(f"{Path(code.co_filename).name}:{code.co_name}")

    sys.setprofile(look)
    try:
        await call()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("surface", [each for each in SURFACES if each not in ("cgi", "command_line")])
async def test_without_observers_and_an_sdk_a_call_enters_no_function_of_observing(surface: str) -> None:
    ops = shop()
    async with testing.open_client(surface, ops) as client:

        async def nested() -> None:
            await client.call("shop.outer", {})

        await nested()  # the first call looks for an SDK
        assert await entered(nested) == []
        end = ops.observe(lambda _: None)
        assert await entered(nested) != []  # so the measure can fail
        end()
        assert await entered(nested) == []
