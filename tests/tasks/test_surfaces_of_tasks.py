"""Tasks as others set them up: by a configuration, by `enfold work --tasks`, and by the verbs over calls."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from tests.calls.networks import Memory, Server
from tests.calls.processes import ROOT
from tests.waiting import PATIENCE

from enfold import CallError, Context, Identity, OperationRegistry
from enfold.app.file import read_config
from enfold.app.reconciler import open_config
from enfold.auth.token_file import add_token
from enfold.calls import PendingRequestMap
from enfold.calls.memory import MemoryTransport
from enfold.calls.nats import NATSTransport
from enfold.sources.calls import from_calls
from enfold.sources.functions import load_target
from enfold.surfaces.calls import serve_calls
from enfold.surfaces.introspection import introduce
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
    assert read_config(project / "enfold.toml", {}).tasks == {"store": "mine.db", "limit": 7}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("[tasks]\nlimt = 3", "limit"),
        ("[tasks]\nlimit = 0", "above 0"),
        ("[tasks]\nkeep = 'long'", "keep"),
        ("[sources.x]\nfunctions = 'app.py'\ndurable = { 'a*' = 'maybe' }", "never, optional or required"),
    ],
)
async def test_a_mistake_is_reported_in_one_sentence(project: Path, line: str, told: str) -> None:
    (project / "enfold.toml").write_text(line, encoding="utf-8")
    with pytest.raises(CallError) as raised:
        async with open_config(project / "enfold.toml", {}):
            pass
    assert told in raised.value.message


async def test_no_store_is_created_without_durable_operations(tmp_path: Path) -> None:
    async with Tasks(OperationRegistry(), SQLiteTasks(tmp_path / "t.db")):
        await asyncio.sleep(0.05)
    assert await asyncio.to_thread(lambda: list(tmp_path.iterdir())) == []


async def test_the_command_runs_what_others_have_ordered(project: Path) -> None:
    (project / "app.py").write_text(PROGRAM.replace("@ops.mutation", "@ops.mutation(durable=True)"), encoding="utf-8")
    with (project / "app.py").open("a", encoding="utf-8") as program:
        program.write("ops.mutation(durable=True, access={'required_scopes': ['write']}, name='guarded')(export_all)\n")
    add_token(project / "tokens.json", "ann", scopes=["read"])
    words = [sys.executable, "-m", "enfold", "work", str(project / "app.py"), "--tasks", str(project / "t.db")]
    words += ["--tokens", str(project / "tokens.json")]
    worker = await asyncio.create_subprocess_exec(*words, cwd=ROOT, stderr=subprocess.PIPE)
    try:
        assert worker.stderr is not None
        assert b"runs tasks of 2 operations" in await worker.stderr.readline()
        ops = _durable()
        ops.register(ops.get_handler("shop.export_all"), name="guarded", durable=True, type="mutation")
        edge = Tasks(ops, SQLiteTasks(project / "t.db"), at_once=0)
        lost = await edge.start("shop.guarded", {"n": 1}, identity=Identity("ann", frozenset({"read", "write"})))
        async with asyncio.timeout(PATIENCE):
            assert (await (await edge.start("shop.export_all", {"n": 21})).result()).data == 42
            with pytest.raises(CallError) as raised:  # the scope is gone since the order
                await lost.result()
            assert raised.value.code == "ACCESS_DENIED"
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


async def test_the_task_operations_are_served_over_calls_and_not_imported(jetstream: Server) -> None:
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
            keyed = {"operation": "shop.export_all", "input": {"n": 5}, "idempotency_key": "k"}
            both = (pending.call("shop.export_all", {"n": 5}, idempotency_key="k"), _call(pending, "start", keyed))
            plain, verb = await asyncio.gather(*both)
            assert (plain.data, tasks.runner.started) == (10, 2)  # one key, one run
            with pytest.raises(CallError, match="another input"):
                await pending.call("shop.export_all", {"n": 6}, idempotency_key="k")
            async with from_calls(caller) as operations:
                assert [operation.spec.id for operation in operations] == ["shop.export_all"]


async def _call(pending: PendingRequestMap, verb: str, input: dict[str, Any]) -> Any:
    return (await pending.call(f"enfold.tasks.{verb}", input)).data


MUST = """
import asyncio
from enfold import Context, OperationRegistry
ops = OperationRegistry("shop")

@ops.mutation(durable="required", on_crash="fail")
async def archive(seconds: float, context: Context) -> str:
    await asyncio.sleep(seconds)
    return context.task.id

@ops.mutation(durable="required")
def in_place(context: Context) -> str:
    return context.task.id
"""


@pytest.mark.parametrize("way", ["shell", "cgi", "request over cgi", "calls"])
async def test_a_required_task_runs_as_one_for_callers_without_tasks_so_that_a_timeout_names_it(
    tmp_path: Path, way: str
) -> None:
    (tmp_path / "app.py").write_text(MUST, encoding="utf-8")
    ask = {"shell": _by_shell, "cgi": _by_cgi, "request over cgi": _by_request, "calls": _by_calls}[way]
    status, told = await ask(tmp_path, "archive", 0.0, 20.0)
    assert (status, len(told)) == ("completed", 32)
    status, _ = await ask(tmp_path, "archive", 3600.0, 0.5)
    assert status in ("failed", "working")  # given up with its program, or gone on with
    if way != "calls":
        status, told = await ask(tmp_path, "in_place", None, 20.0)
        assert (status, len(told)) == ("completed", 32)


async def _by_shell(folder: Path, name: str, seconds: float | None, limit: float) -> tuple[str, str]:
    given = [] if seconds is None else [f"seconds={seconds}"]
    words = ["call", "app.py", f"shop.{name}", *given, f"--timeout={limit}", "--format", "envelope"]
    return await _found(folder, json.loads(await _enfold(folder, words)))


async def _by_cgi(folder: Path, name: str, seconds: float | None, limit: float) -> tuple[str, str]:
    body = json.dumps({} if seconds is None else {"seconds": seconds}).encode()
    wishes = {"HTTP_ENFOLD_FORMAT": "envelope", "HTTP_ENFOLD_TIMEOUT_MS": str(int(limit * 1000))}
    return await _by_any_cgi(folder, f"/functions/shop.{name}", body, **wishes)


async def _by_request(folder: Path, name: str, seconds: float | None, limit: float) -> tuple[str, str]:
    given = {} if seconds is None else {"seconds": seconds}
    tool = {"name": f"shop.{name}"}
    request = {"schema_version": "mcp.request.v0.1", "tool": tool, "params": given, "artifacts": []}
    wish = {"HTTP_ENFOLD_TIMEOUT_MS": str(int(limit * 1000))}
    return await _by_any_cgi(folder, "/call", json.dumps(request).encode(), **wish)


async def _by_any_cgi(folder: Path, path: str, body: bytes, **variables: str) -> tuple[str, str]:
    environ = {"REQUEST_METHOD": "POST", "CONTENT_TYPE": "application/json", "PATH_INFO": path, **variables}
    out = await _enfold(folder, ["cgi", "app.py"], body, CONTENT_LENGTH=str(len(body)), **environ)
    return await _found(folder, json.loads(out.partition("\r\n\r\n")[2]))


async def _by_calls(folder: Path, name: str, seconds: float | None, limit: float) -> tuple[str, str]:
    registry = load_target(str(folder / "app.py"))
    transport = MemoryTransport()
    async with (
        Tasks(registry, MemoryTasks()) as tasks,
        serve_calls(registry, transport),
        PendingRequestMap(transport) as calls,
    ):
        try:
            given = {} if seconds is None else {"seconds": seconds}
            task_id = (await calls.call(f"shop.{name}", given, timeout=limit)).data
        except CallError as error:
            task_id = error.details["task"] if error.code == "TIMEOUT" else error.message
        return (await (await tasks.get(task_id)).state()).status.value, task_id


async def _found(folder: Path, told: Any) -> tuple[str, str]:
    """The status of the task that an answer is of, or that its timeout names."""
    if errors := [told["error"]] if "error" in told else told.get("errors", []):
        assert errors[0]["code"].removeprefix("ENFOLD.") == "TIMEOUT", told
        task_id = errors[0]["details"]["task"]
    else:
        task_id = told["data"] if "data" in told else told["result"]
    state = json.loads(await _enfold(folder, ["tasks", "get", task_id]))
    return state["status"], task_id


async def _enfold(folder: Path, words: list[str], body: bytes = b"", **variables: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "enfold", *words),
        cwd=folder,
        env={**os.environ, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, _ = await process.communicate(body)
    return out.decode()


async def test_over_calls_another_callers_task_looks_like_one_that_never_existed() -> None:
    """Check 31 over calls, where the transport says who calls: every verb, and the task goes on untouched."""
    registry, network = OperationRegistry("shop"), Memory()

    @registry.mutation(durable=True)
    async def sign(context: Context) -> str:
        return (await context.ask("Sure?")).action

    async with (
        Tasks(registry, MemoryTasks()) as tasks,
        serve_calls(registry, network.peer("worker")),
        PendingRequestMap(network.peer("alice")) as alice,
        PendingRequestMap(network.peer("bob")) as bob,
    ):
        introduce(registry, {}, tasks=tasks)
        task_id = (await _call(alice, "start", {"operation": "shop.sign"}))["task_id"]
        async for task in alice.subscribe("enfold.tasks.watch", {"task_id": task_id}):
            if task.data["questions"]:
                break
        answers = {key: {"action": "decline"} for key in task.data["questions"]}
        for which in (task_id, "A" * 32, "s.x", "../etc"):
            refusals = [
                await _refusal(_call(bob, verb, {"task_id": which, **given}))
                for verb, given in (("get", {}), ("answer", {"answers": answers}), ("cancel", {}))
            ]
            refusals.append(await _refusal(anext(bob.subscribe("enfold.tasks.watch", {"task_id": which}))))
            assert set(refusals) == {("TASK_NOT_FOUND", "Task not found, or expired")}, which
        assert await _call(bob, "list", {}) == []
        assert (await _call(alice, "get", {"task_id": task_id}))["status"] == "input_required"
        await _call(alice, "answer", {"task_id": task_id, "answers": answers})
        async for task in alice.subscribe("enfold.tasks.watch", {"task_id": task_id}):
            last = task.data
        assert last["result"]["data"] == "decline"


async def _refusal(call: Awaitable[Any]) -> tuple[str, str]:
    with pytest.raises(CallError) as refused:
        await call
    return refused.value.code, refused.value.message


async def test_each_sees_their_own_tasks_by_the_verbs() -> None:
    registry = _durable()
    async with Tasks(registry, MemoryTasks()) as tasks:
        introduce(registry, {}, tasks=tasks)
        guarded = registry.guarded()
        ann, eve = (Context(identity=Identity(name)) for name in ("ann", "eve"))
        await guarded.execute("enfold.tasks.start", {"operation": "shop.export_all", "input": {"n": 1}}, ann)
        assert len((await guarded.execute("enfold.tasks.list", {}, ann)).data) == 1
        assert (await guarded.execute("enfold.tasks.list", {}, eve)).data == []
