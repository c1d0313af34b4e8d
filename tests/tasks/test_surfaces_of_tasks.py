"""Tasks as others set them up: by a configuration, by `enfold work --tasks`, and by the verbs over calls."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.calls.networks import Server
from tests.calls.processes import ROOT

from enfold import CallError, Context, Identity, OperationRegistry
from enfold.calls import PendingRequestMap
from enfold.calls.nats import NATSTransport
from enfold.config import open_config
from enfold.introspection import introduce
from enfold.sources.calls import from_calls
from enfold.surfaces.calls import serve_calls
from enfold.tasks import Tasks
from enfold.tasks.memory import MemoryTasks
from enfold.tasks.sqlite import SQLiteTasks

PROGRAM = """
from enfold import OperationRegistry
ops = OperationRegistry("shop")

@ops.mutation
async def export_all(n: int) -> int:
    return n * 2

@ops.query
def plain() -> int:
    return 1
"""
FILE = """
[tasks]
store = "mine.db"
limit = 7

[sources.mine]
functions = "app.py:ops"
durable = ["export_*"]
on_crash = "retry"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "enfold.toml").write_text(FILE, encoding="utf-8")
    return tmp_path


async def test_a_configuration_says_what_is_durable_and_where_tasks_are_kept(project: Path) -> None:
    async with open_config(project / "enfold.toml", {}) as registry:
        found = {spec.id: (spec.durable, spec.on_crash) for spec in registry.list()}
        assert found == {"shop.export_all": ("optional", "retry"), "shop.plain": ("never", "retry")}
        assert registry.config.tasks == {"store": "mine.db", "limit": 7}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("[tasks]\nlimt = 3", "limit"),
        ("[tasks]\nlimit = 0", "above 0"),
        ("[tasks]\nkeep = 'long'", "keep"),
        ("[sources.x]\nfunctions = 'app.py'\ndurable = { 'a*' = 'maybe' }", "never, optional or required"),
    ],
)
async def test_what_is_wrong_with_it_is_one_sentence(project: Path, line: str, told: str) -> None:
    (project / "enfold.toml").write_text(line, encoding="utf-8")
    with pytest.raises(CallError) as raised:
        async with open_config(project / "enfold.toml", {}):
            pass
    assert told in raised.value.message


async def test_nothing_is_made_where_nothing_is_durable(tmp_path: Path) -> None:
    async with Tasks(OperationRegistry(), SQLiteTasks(tmp_path / "t.db")):
        await asyncio.sleep(0.05)
    assert await asyncio.to_thread(lambda: list(tmp_path.iterdir())) == []


async def test_the_command_runs_what_others_have_ordered(project: Path) -> None:
    (project / "app.py").write_text(PROGRAM.replace("@ops.mutation", "@ops.mutation(durable=True)"), encoding="utf-8")
    words = [sys.executable, "-m", "enfold", "work", str(project / "app.py"), "--tasks", str(project / "t.db")]
    worker = await asyncio.create_subprocess_exec(*words, cwd=ROOT, stderr=subprocess.PIPE)
    try:
        assert worker.stderr is not None
        assert b"runs tasks of 1 operations" in await worker.stderr.readline()
        edge = Tasks(_durable(), SQLiteTasks(project / "t.db"), at_once=0)
        async with asyncio.timeout(20):
            assert (await (await edge.start("shop.export_all", {"n": 21})).result()).data == 42
        await edge.close()
        worker.terminate()
        assert await worker.wait() == 0
    finally:
        if worker.returncode is None:
            worker.kill()


def _durable() -> OperationRegistry:
    ops = OperationRegistry("shop")

    @ops.mutation(durable=True)
    async def export_all(n: int) -> int:
        return n * 2

    return ops


async def test_the_verbs_are_operations_over_calls_and_no_operations_of_whoever_imports(jetstream: Server) -> None:
    registry = _durable()
    async with (
        NATSTransport(jetstream.url, name="worker") as worker,
        NATSTransport(jetstream.url, name="caller") as caller,
        Tasks(registry, MemoryTasks()) as tasks,
    ):
        introduce(registry, {}, tasks=tasks)
        async with serve_calls(registry, worker), PendingRequestMap(caller) as pending:
            verb = await _call(pending, "start", {"operation": "shop.export_all", "input": {"n": 4}})
            seen = [item.data async for item in pending.subscribe("enfold.tasks.watch", {"task_id": verb["task_id"]})]
            assert seen[-1]["result"]["data"] == 8
            assert (await _call(pending, "get", {"task_id": verb["task_id"]}))["status"] == "completed"
            assert await _call(pending, "list", {}) == []  # without identities an id is a secret
            assert (await _call(pending, "cancel", {"task_id": verb["task_id"]}))["status"] == "completed"
            with pytest.raises(CallError) as raised:
                await _call(pending, "answer", {"task_id": "A" * 32, "answers": {}})
            assert raised.value.code == "TASK_NOT_FOUND"
            async with from_calls(caller) as operations:
                assert [operation.spec.id for operation in operations] == ["shop.export_all"]


async def _call(pending: PendingRequestMap, verb: str, input: dict[str, Any]) -> Any:
    return (await pending.call(f"enfold.tasks.{verb}", input)).data


async def test_each_sees_their_own_tasks_by_the_verbs() -> None:
    registry = _durable()
    async with Tasks(registry, MemoryTasks()) as tasks:
        introduce(registry, {}, tasks=tasks)
        guarded = registry.guarded()
        ann, eve = (Context(identity=Identity(name)) for name in ("ann", "eve"))
        await guarded.execute("enfold.tasks.start", {"operation": "shop.export_all", "input": {"n": 1}}, ann)
        assert len((await guarded.execute("enfold.tasks.list", {}, ann)).data) == 1
        assert (await guarded.execute("enfold.tasks.list", {}, eve)).data == []
