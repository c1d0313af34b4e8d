"""Workers replaced, under load, by those of a newer program: every call succeeds, and every effect happens once."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.calls.networks import Server
from tests.waiting import PATIENCE, Said, until

from enfold import CallError, OperationRegistry
from enfold.calls.nats import NATSTransport
from enfold.sources.calls import from_calls

OLD = """
import asyncio, os
from enfold import OperationRegistry
ops = OperationRegistry("shop", version="1.0")
effects = os.open(os.environ["EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@ops.mutation
async def pay(id: str) -> dict[str, str]:
    os.write(effects, f"{id}\\n".encode())
    await asyncio.sleep(0.02)
    return {"id": id, "by": "old"}
"""
# An argument and a field more, and an operation that did not exist.
NEW = """
import asyncio, os
from enfold import OperationRegistry
ops = OperationRegistry("shop", version="2.0")
effects = os.open(os.environ["EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@ops.mutation
async def pay(id: str, currency: str = "EUR") -> dict[str, str]:
    os.write(effects, f"{id}\\n".encode())
    await asyncio.sleep(0.02)
    return {"id": id, "by": "new", "currency": currency}

@ops.query
async def currencies() -> list[str]:
    return ["EUR"]
"""
# The same in a later version of the call protocol, which no longer reads ours.
NEXT = f"""
from enfold.calls.protocol import events
events.VERSION = 2
{NEW}"""


class Workers:
    """`enfold work` of one of the programs."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self.effects = folder / "effects"
        self.running: list[subprocess.Popen[str]] = []
        for name, program in (("old.py", OLD), ("new.py", NEW), ("next.py", NEXT)):
            (folder / name).write_text(program)

    def start(self, program: str) -> None:
        command = [sys.executable, "-m", "enfold", "work", program, "--nats", self._url, "--no-access-log"]
        environ = {**os.environ, "EFFECTS": str(self.effects)}
        worker = subprocess.Popen(command, cwd=self._folder, env=environ, stderr=subprocess.PIPE, text=True)
        self.running.append(worker)
        Said(worker.stderr).until("Press Ctrl-C")

    def replace_oldest(self, program: str) -> None:
        """Start the new one first; the old one ends when its calls have."""
        self.start(program)
        old = self.running.pop(0)
        old.terminate()
        old.communicate(timeout=PATIENCE)
        assert old.returncode == 0

    def close(self) -> None:
        for worker in self.running:
            worker.kill()
            worker.communicate()


@pytest.fixture
def server(nats_program: str, tmp_path: Path) -> Iterator[Server]:
    server = Server(nats_program, tmp_path, f'jetstream {{ store_dir: "{tmp_path / "store"}" }}\n')
    server.wait_until_ready()
    yield server
    server.close()


@pytest.fixture
def workers(server: Server, tmp_path: Path) -> Iterator[Workers]:
    workers = Workers(server.url, tmp_path)
    for _ in range(2):
        workers.start("old.py")
    yield workers
    workers.close()


@asynccontextmanager
async def edge(url: str) -> AsyncIterator[OperationRegistry]:
    async with NATSTransport(url, name="edge") as transport, from_calls(transport) as operations:
        registry = OperationRegistry()
        operations.keep(registry)
        yield registry


async def test_a_new_version_replaces_the_old_one_under_load(server: Server, workers: Workers) -> None:
    answers: list[dict[str, Any]] = []
    async with edge(server.url) as registry:
        is_over = asyncio.Event()

        async def call_on(caller: int) -> None:
            number = 0
            while not is_over.is_set():
                number += 1
                answers.append((await registry.execute("shop.pay", {"id": f"{caller}-{number}"})).data)

        async with asyncio.timeout(PATIENCE * 2), asyncio.TaskGroup() as callers:
            for caller in range(8):
                callers.create_task(call_on(caller))
            for _ in range(2):
                await grown(answers, 50)
                await asyncio.to_thread(workers.replace_oldest, "new.py")
            await grown(answers, 50)
            is_over.set()
        await until(lambda: "shop.currencies" in registry)
        assert (await registry.execute("shop.currencies")).data == ["EUR"]
        assert (await registry.execute("shop.pay", {"id": "last", "currency": "CHF"})).data["currency"] == "CHF"
    effects = Counter(workers.effects.read_text().split())
    assert effects == Counter(["last", *(answer["id"] for answer in answers)])  # none lost, none doubled
    assert {answer["by"] for answer in answers} == {"old", "new"}
    assert {answer["by"] for answer in answers[-20:]} == {"new"}


async def grown(answers: list[dict[str, Any]], by: int) -> None:
    """Wait for so many more answers."""
    enough = len(answers) + by
    await until(lambda: len(answers) >= enough)


async def test_workers_of_a_later_version_of_the_protocol_lose_and_double_nothing(
    server: Server, workers: Workers
) -> None:
    """Half of the workers cannot be understood: their calls fail with the reason, and all others succeed."""
    workers.replace_oldest("next.py")
    answered: list[str] = []
    refused: dict[str, CallError] = {}
    async with asyncio.timeout(PATIENCE * 2), edge(server.url) as registry:
        for number in range(60):
            try:
                answered.append((await registry.execute("shop.pay", {"id": str(number)})).data["id"])
            except CallError as error:
                refused[str(number)] = error
        workers.replace_oldest("new.py")  # the other old one
        workers.replace_oldest("new.py")
        await until(lambda: "shop.currencies" in registry)
        answered += [(await registry.execute("shop.pay", {"id": number})).data["id"] for number in refused]
    told = {(error.code, error.details["reason"], error.retryable) for error in refused.values()}
    assert told == {("UNAVAILABLE", "version", False)}
    assert len(answered) == 60
    assert Counter(workers.effects.read_text().split()) == Counter(answered)
