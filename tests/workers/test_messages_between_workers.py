"""Calls that end in another process: a follower sees each once, however slowly the other answers."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import PATIENCE

from enfold import OperationRegistry
from enfold.app.siblings import SelfReport, Siblings, listen_to_siblings
from enfold.app.worker_processes import ConnectionCounts, Worker
from enfold.surfaces.introspection import keep_calls


def shop() -> OperationRegistry:
    ops = OperationRegistry("shop")

    @ops.query
    async def add(x: int) -> int:
        return x

    return ops


async def no_app(*_: object) -> None:
    """Nothing is passed on here."""


class Listened(Siblings):
    """Siblings who are listened to only after they have been asked; one that is slow is left out of what is asked."""

    def __init__(self, worker: Worker, *, is_slow: bool) -> None:
        super().__init__(worker)
        self._is_slow = is_slow
        self._are_asked = asyncio.Event()

    async def ask(self, name: str) -> list[Any]:
        told = [] if self._is_slow else await super().ask(name)
        self._are_asked.set()
        return told

    async def listen(self, name: str, hear: Callable[[Any], None]) -> None:
        await self._are_asked.wait()
        await super().listen(name, hear)


@pytest.mark.parametrize("is_slow", [True, False], ids=["a slow sibling", "a quick one"])
async def test_a_call_that_ended_before_a_sibling_was_listened_to_is_seen_once(tmp_path: Path, is_slow: bool) -> None:
    here, there = (Worker(number, 2, str(tmp_path), -1, ConnectionCounts(2), -1) for number in range(2))
    ours, theirs = shop(), shop()
    keep_calls(ours)
    log = keep_calls(theirs)
    ours.services.siblings = Listened(here, is_slow=is_slow)
    report = SelfReport({"calls": log.kept}, {"calls": log.watch})
    await theirs.execute("shop.add", {"x": 1})
    async with (
        asyncio.timeout(PATIENCE),
        listen_to_siblings(there, no_app, report),
        aclosing(ours.subscribe("enfold.calls")) as calls,
    ):
        first = (await anext(calls)).data
        await theirs.execute("shop.add", {"x": 2})
        second = (await anext(calls)).data
    assert [each["record"]["request_id"] for each in log.kept()] == [first["request_id"], second["request_id"]]
