"""Tasks of real servers: one task seen the same everywhere, servers that are killed, and a disk that is full.

`ENFOLD_FAULTS=1` (`make faults`) runs more of each.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from tests.calls.networks import Server
from tests.calls.processes import IS_FULL, ROOT, say
from tests.tasks.processes import TaskProcess
from tests.waiting import wait_for

from enfold.auth.token_file import add_token
from enfold.calls import PendingRequestMap
from enfold.calls.nats import NATSTransport
from enfold.commands.main import main

APP = """
import asyncio
from enfold import CallError, Context, OperationRegistry
ops = OperationRegistry("shop")

@ops.mutation(durable=True, on_crash="retry")
async def report(year: int, context: Context) -> dict[str, int]:
    context.progress(1, 2, "half")
    with open("effects", "a") as effects:
        effects.write(f"{year}\\n")
    if year < 0:
        raise CallError("SOLD_OUT", "No such year", {"year": year})
    if year == 9999:
        await asyncio.Event().wait()
    return {"year": year}

@ops.mutation
async def plain(size: int) -> str:
    with open("effects", "a") as effects:
        effects.write("plain\\n")
    return "x" * size

@ops.mutation(durable=True)
async def sign(context: Context) -> str:
    return (await context.ask("Sure?")).action
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def servers(folder: Path) -> Iterator[list[TaskProcess]]:
    running: list[TaskProcess] = []
    yield running
    for each in running:
        each.kill()


def test_the_key_of_a_plain_call_is_stored_on_nats_with_the_tasks(
    folder: Path, servers: list[TaskProcess], jetstream: Server
) -> None:
    """One store for tasks and idempotency keys: commands and servers of several machines share both."""
    store, key = ("--tasks", jetstream.url), f"k{folder}"
    servers += [TaskProcess(folder, "app.py", *store) for _ in range(2)]
    told = [each.ask("POST", "/functions/shop.plain", {"size": 1}, idempotency_key=key) for each in servers]
    assert told == [(200, {"result": "x"})] * 2
    words = ["call", "app.py", "shop.plain", "size=1", "--idempotency-key", f"{key} of the shell", *store]
    assert [main(words), main(words), (folder / "effects").read_text()] == [0, 0, "plain\n" * 2]
    # A result that the server does not take: its caller gets it, and a repeat hears that it was there.
    large = [
        each.ask("POST", "/functions/shop.plain", {"size": 2_000_000}, idempotency_key=f"{key} large")[0]
        for each in servers
    ]
    assert (large, (folder / "effects").read_text()) == ([200, 413], "plain\n" * 3)
    assert not (folder / ".enfold").exists()


def _worker_of(folder: Path, url: str) -> subprocess.Popen[str]:
    """`enfold work app.py --nats`, which offers the verbs of tasks to the peers there."""
    words = [sys.executable, "-m", "enfold", "work", "app.py", "--nats", url]
    worker = subprocess.Popen(words, cwd=folder, stderr=subprocess.PIPE, text=True)
    assert worker.stderr is not None
    assert "serves" in worker.stderr.readline()
    return worker


def _ended(worker: subprocess.Popen[str]) -> None:
    with worker:  # which closes what it wrote to, and waits
        worker.kill()


async def _asked_over(url: str, task_id: str) -> Any:
    async with NATSTransport(url, name="asker") as transport, PendingRequestMap(transport) as calls:
        return (await calls.call("enfold.tasks.get", {"task_id": task_id})).data


@pytest.mark.parametrize("kind", ["sqlite", "nats"])
def test_one_task_is_the_same_on_every_surface(
    folder: Path,
    servers: list[TaskProcess],
    kind: str,
    request: pytest.FixtureRequest,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Check 10: begun over HTTP, asked over HTTP, MCP, the shell and by the verbs of calls, over NATS too; each in every state."""
    jetstream: Server | None = None if kind == "sqlite" else request.getfixturevalue("jetstream")
    store = ["--tasks", "t.db" if jetstream is None else jetstream.url]
    server = TaskProcess(folder, "app.py", *store)
    servers.append(server)
    if jetstream is not None:
        worker = _worker_of(folder, jetstream.url)
        request.addfinalizer(lambda: _ended(worker))
    begun = {
        "completed": server.start("report", {"year": 2026}),
        "failed": server.start("report", {"year": -1}),
        "cancelled": server.start("report", {"year": 9999}),
        "working": server.start("report", {"year": 9999}),
        "input_required": server.start("sign", {}),
    }
    server.ask("DELETE", f"/tasks/{begun['cancelled']['taskId']}")
    for status, task in begun.items():
        path = f"/tasks/{task['taskId']}"
        here = wait_for(partial(_reached, server, path, status))
        capfd.readouterr()
        assert main(["tasks", "get", task["taskId"], *store]) == 0
        shell = json.loads(capfd.readouterr().out)
        there = server.mcp("tasks/get", {"taskId": task["taskId"]})
        verb = server.ask("POST", "/functions/enfold.tasks.get", {"task_id": task["taskId"]})[1]["result"]
        if jetstream is not None:
            assert asyncio.run(_asked_over(jetstream.url, task["taskId"])) == verb
        assert _without_poll(shell) == _without_poll(here)
        same = ("taskId", "createdAt", "lastUpdatedAt", "ttlMs", "statusMessage", "inputRequests")
        assert {name: there.get(name) for name in same} == {name: here.get(name) for name in same}
        assert there["status"] == ("completed" if status == "failed" else status)  # as section 4 maps them
        assert (verb["status"], verb["ttl_ms"], verb["message"]) == (
            status,
            here["ttlMs"],
            here.get("statusMessage"),
        )
        assert verb["questions"] == here.get("inputRequests", {})
        if status == "completed":
            data = [here["result"]["result"], there["result"]["structuredContent"]["result"], verb["result"]["data"]]
            assert data == [{"year": 2026}] * 3
        if status == "failed":
            code = there["result"]["_meta"]["enfold/error"]["code"]
            assert (there["result"]["isError"], code, verb["error"]["code"]) == (True, "SOLD_OUT", "SOLD_OUT")
            assert main(["tasks", "wait", task["taskId"], *store]) != 0
    say("10", f"{kind}: {len(begun)} states on HTTP, MCP, shell and verbs, equal")


def _reached(server: TaskProcess, path: str, status: str) -> Any:
    """The task where it has the status, and a message if it is working; else None."""
    task = server.ask("GET", path)[1]
    return task if task["status"] == status and (status != "working" or "statusMessage" in task) else None


def _without_poll(task: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in task.items() if name != "pollIntervalMs"}


def test_servers_on_one_file_are_killed_around_their_answer_and_a_key_is_one_task(
    folder: Path, servers: list[TaskProcess]
) -> None:
    """Checks 17, 18, 25, 36: either server survives the other with the task, and no token is written anywhere."""
    count, dice, unanswered = 20 if IS_FULL else 1, random.Random(25), 0  # noqa: S311  # to be thrown again
    token = add_token(folder / "tokens.json", "ann")
    other = add_token(folder / "tokens.json", "bob")
    words = ("--tasks", "t.db", "--tokens", "tokens.json", "--store", "prov.db", "--record", "all", "--provenance")
    hers, his = {"authorization": f"Bearer {token}"}, {"authorization": f"bearer {other}"}
    stays, dies = TaskProcess(folder, "app.py", *words), TaskProcess(folder, "app.py", *words)
    servers += [stays, dies]
    for n in range(count):
        answers: list[Any] = []
        asked = {**hers, "idempotency_key": f"k{n}"}

        def order(
            server: TaskProcess = dies, n: int = n, asked: dict[str, str] = asked, answers: Any = answers
        ) -> None:
            with suppress(OSError, HTTPException):
                answers.append(server.start("report", {"year": n}, **asked))

        calling = threading.Thread(target=order)
        calling.start()
        time.sleep(dice.random() * 0.02)  # somewhere between the request and the answer
        dies.kill()
        calling.join()
        unanswered += not answers
        task = stays.start("report", {"year": n}, **asked)
        assert [task["taskId"]] * len(answers) == [each["taskId"] for each in answers]
        assert stays.ask("GET", f"/tasks/{task['taskId']}/result?wait=30", **hers) == (200, {"result": {"year": n}})
        assert stays.ask("GET", f"/tasks/{task['taskId']}", **his)[0] == 404
        assert stays.ask("POST", "/functions/shop.report", {"year": -n - 1}, **asked)[0] == 400
        dies = TaskProcess(folder, "app.py", *words)
        servers.append(dies)
        plain = dies.ask("POST", "/functions/shop.report", {"year": n}, **asked)
        assert plain == (200, {"result": {"year": n}})
    begun = dies.mcp("tools/call", {"name": "shop.report", "arguments": {"year": 0}}, mcp_name="shop.report", **his)
    assert stays.ask("GET", f"/tasks/{begun['taskId']}?wait=30", **his)[1]["status"] == "completed"
    effects = Counter((folder / "effects").read_text().split())
    with closing(sqlite3.connect("t.db")) as file, file:
        kept = file.execute("SELECT COUNT(*), COUNT(DISTINCT key) FROM tasks WHERE status = 'completed'").fetchone()
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    file.close()
    assert kept == (count + 1, count)
    say(
        "17, 18, 25",
        f"{count} kills, {unanswered} before the answer; {sum(n > 1 for n in effects.values())} effects twice",
    )
    for each in servers:
        each.kill()
    written = [path for path in folder.rglob("*") if path.is_file()]
    found = [path for path in written if any(word.encode() in path.read_bytes() for word in (token, other))]
    say(
        "36",
        f"{len(written)} files with {sum(path.stat().st_size for path in written)} bytes: {len(found)} hold a token",
    )
    assert {"t.db", "prov.db"} <= {path.name for path in written}
    assert found == []


def test_tasks_of_callers_killed_while_starting_them_run_and_are_found_by_id_and_key(
    folder: Path, servers: list[TaskProcess]
) -> None:
    """Check 18: a caller dies, and its connection with it, while the server accepts its task."""
    count = 2000 if IS_FULL else 40
    server = TaskProcess(folder, "app.py", "--tasks", "t.db")
    servers.append(server)
    killing = [sys.executable, "-m", "tests.tasks.fault_process", "call", str(server.port), str(count)]
    subprocess.run(killing, cwd=ROOT, check=True)
    with closing(sqlite3.connect("t.db")) as file, file:
        accepted = dict(file.execute("SELECT key, id FROM tasks").fetchall())
    file.close()
    for key, task_id in accepted.items():
        result = (200, {"result": {"year": int(key[1:])}})
        assert server.ask("GET", f"/tasks/{task_id}/result?wait=20") == result
        assert server.ask("POST", "/functions/shop.report", {"year": int(key[1:])}, idempotency_key=key) == result
    effects = Counter((folder / "effects").read_text().split())
    say("18", f"{count} callers killed, {len(accepted)} of their tasks accepted, all done, each once")
    assert accepted
    assert effects == dict.fromkeys((key[1:] for key in accepted), 1)


def test_a_full_disk_refuses_new_tasks_and_accepts_them_again_when_space_is_free(
    folder: Path, servers: list[TaskProcess]
) -> None:
    server = TaskProcess(folder, "app.py", "--tasks", "t.db")
    servers.append(server)
    kept = server.start("report", {"year": 1})
    assert server.ask("GET", f"/tasks/{kept['taskId']}?wait=20")[1]["status"] == "completed"
    running = server.start("sign", {})
    assert server.ask("GET", f"/tasks/{running['taskId']}?wait=20")[1]["status"] == "input_required"
    _, most = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (4096, most))
    for headers in ({"prefer": "respond-async"}, {"idempotency_key": "k"}):
        assert server.ask("POST", "/functions/shop.report", {"year": 2}, **headers)[0] == 503
    assert server.ask("POST", "/functions/shop.report", {"year": 3}) == (200, {"result": {"year": 3}})  # no task
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (most, most))
    again = server.ask(
        "POST", "/functions/shop.report", {"year": 2}, idempotency_key="k", prefer="respond-async, wait=20"
    )
    assert again == (200, {"result": {"year": 2}})
    assert server.ask("GET", f"/tasks/{kept['taskId']}/result") == (200, {"result": {"year": 1}})
    assert server.ask("GET", f"/tasks/{running['taskId']}")[1]["status"] == "input_required"
    assert Counter((folder / "effects").read_text().split()) == Counter({"1": 1, "2": 1, "3": 1})
