"""The operations that the workers of `python -m benchmarks scale` serve: one of each kind of call, and one that takes its time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from enfold import OperationRegistry

ITEMS: Final = 20  # of one stream
SLOW: Final = 0.1  # seconds that `slow` takes
IDLE: Final = 4.0  # seconds that a stream of `idle` is open before its only item
LEDGER: Final = "ENFOLD_SCALE_LEDGER"  # the variable with the file that `effect` appends to

ops = OperationRegistry("scale")


@ops.query
async def query(text: str) -> str:
    return text


@ops.mutation
async def mutation(text: str) -> str:
    return text


@ops.mutation
async def effect(name: str) -> str:
    """Append the name to the ledger, and return it after a while: the process may die between the two."""
    _append(name)
    await asyncio.sleep(SLOW)
    return name


def _append(name: str) -> None:
    with Path(os.environ[LEDGER]).open("a", encoding="utf-8") as ledger:
        ledger.write(f"{name}\n")


@ops.subscription
async def stream(text: str) -> AsyncIterator[str]:
    for _ in range(ITEMS):
        yield text


@ops.query(durable=True, on_crash="retry")
async def task(text: str) -> str:
    return text


@ops.query
async def slow(text: str) -> str:
    await asyncio.sleep(SLOW)
    return text


@ops.subscription
async def idle(text: str) -> AsyncIterator[str]:
    await asyncio.sleep(IDLE)
    yield text
