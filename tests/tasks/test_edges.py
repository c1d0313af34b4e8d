"""Edges with remote workers: a task has one id on every surface and every edge."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
from tests.calls.networks import Server, nats_server_program
from tests.calls.processes import IS_FULL, say
from tests.tasks.processes import TaskProcess

from enfold.auth.token_file import add_token
from enfold.commands.main import main

WORKER = """
import asyncio
from pathlib import Path
from enfold import Context, OperationRegistry
ops = OperationRegistry("shop")

@ops.mutation(durable=True, on_crash="retry")
async def report(year: int, context: Context) -> int:
    with open("effects", "a") as effects:
        effects.write(f"{year}\\n")
    context.progress(1, 2, "half")
    while year > 3000 and not Path("go").exists():
        await asyncio.sleep(0.02)
    return year

@ops.mutation(durable="required")
async def needed(year: int) -> int:
    with open("effects", "a") as effects:
        effects.write(f"needed {year}\\n")
    return year
"""
EDGE = """
from enfold import OperationRegistry
ops = OperationRegistry("edge")

@ops.mutation(durable=True)
async def own(n: int) -> int: return n + 1
"""


Start = Callable[..., TaskProcess]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    found = Server(nats_server_program(), tmp_path, f'jetstream {{ store_dir: "{tmp_path / "js"}" }}\n')
    found.wait_until_ready()
    yield found
    found.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "edge.py").write_text(EDGE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def edge(folder: Path, server: Server) -> Iterator[Start]:
    """Starts an edge of the server, with these words besides."""
    running: list[TaskProcess] = []

    def start(*words: str) -> TaskProcess:
        running.append(TaskProcess(folder, *words, "--nats", server.url))
        return running[-1]

    yield start
    for each in running:
        each.process.kill()
        each.process.wait()


@pytest.fixture
def worker(folder: Path, server: Server) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-m", "enfold", "work", "worker.py", "--nats", server.url]
    with subprocess.Popen(words, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "serves" in process.stderr.readline()
        yield process
        process.kill()


def listed(server: Server, capfd: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """The tasks that the shell sees: of each id, status, operation and how far it is."""
    capfd.readouterr()
    assert main(["tasks", "list", "--tasks", server.url, "--limit", "1000"]) == 0
    lines = [line.split("\t") for line in capfd.readouterr().out.splitlines()]
    found = {words[0]: words[1:] for words in lines}
    assert len(found) == len(lines)
    return found


@pytest.mark.parametrize("words", [(), ("--tasks",)], ids=["by default", "with --tasks nats://"])
def test_an_order_is_one_task_for_http_mcp_console_shell_and_every_edge(
    edge: Start,
    worker: subprocess.Popen[str],
    server: Server,
    folder: Path,
    capfd: pytest.CaptureFixture[str],
    words: tuple[str, ...],
) -> None:
    del worker
    token = add_token(folder / "tokens.json", "ann")
    more = ("--tokens", "tokens.json", *((*words, server.url) if words else ()))
    first, second = edges = [edge(*more) for _ in range(2)]
    for each in edges:
        each.headers = {"Authorization": f"Bearer {token}"}
    over_http = first.order("shop.report", {"year": 4001})
    over_mcp = second.mcp("tools/call", {"name": "shop_report", "arguments": {"year": 4002}}, mcp_name="shop_report")[
        "taskId"
    ]
    for each in edges:
        for task_id in (over_http, over_mcp):
            told = [each.progress(task_id), each.mcp("tasks/get", {"taskId": task_id}, mcp_name=task_id)]
            assert {(state["status"], state["statusMessage"]) for state in told} == {("working", "1 of 2: half")}
        console = each.ask("POST", "/functions/enfold.tasks.list", {})[1]["result"]
        assert {(task["task_id"], task["message"]) for task in console} == {
            (over_http, "1 of 2: half"),
            (over_mcp, "1 of 2: half"),
        }
    known = ["working", "shop.report", "1 of 2: half"]
    assert listed(server, capfd) == {over_http: known, over_mcp: known}
    (folder / "go").touch()
    for each in edges:
        assert each.result(over_http) == (200, {"result": 4001})
        assert each.result(over_mcp) == (200, {"result": 4002})
    assert {words[0] for words in listed(server, capfd).values()} == {"completed"}
    assert sorted((folder / "effects").read_text().split()) == ["4001", "4002"]
    assert not (folder / ".enfold").exists()


def test_a_client_of_fastmcp_follows_the_tasks_of_workers_through_an_edge(
    edge: Start, worker: subprocess.Popen[str], server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    del worker
    one = edge()
    one.called("shop.report", {"year": 1})
    client = f"""
import asyncio, sys
from importlib import import_module
fastmcp, tasks = import_module("fastmcp"), import_module("fastmcp_tasks")

async def main():
    async with fastmcp.Client("http://127.0.0.1:{one.port}/mcp") as client:
        handle = await tasks.call_tool_task(client, "shop_report", {{"year": 7}})
        print(handle.task_id, (await handle.result()).structured_content)

asyncio.run(main())
"""
    found = subprocess.run([sys.executable, "-c", client], capture_output=True, text=True, check=False, timeout=60)
    task_id, _, result = found.stdout.strip().partition(" ")
    assert result == "{'result': 7}", found.stderr
    assert listed(server, capfd) == {task_id: ["completed", "shop.report", "1 of 2: half"]}


def test_a_plain_call_with_a_key_or_of_what_must_be_a_task_is_one_task_too(
    edge: Start, worker: subprocess.Popen[str], server: Server, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    del worker
    first, second = edge(), edge()
    for each in (first, second, first):
        called = each.called("shop.report", {"year": 7}, idempotency_key="k")
        assert called == (200, {"result": 7})
    assert first.called("shop.needed", {"year": 8}) == (200, {"result": 8})
    assert sorted(words[1] for words in listed(server, capfd).values()) == ["shop.needed", "shop.report"]
    assert sorted((folder / "effects").read_text().splitlines()) == ["7", "needed 8"]


def test_a_killed_or_restarted_edge_loses_doubles_and_blocks_no_call(
    edge: Start, worker: subprocess.Popen[str], server: Server, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    del worker
    stays, count, ids = edge(), 20 if IS_FULL else 2, []
    for n in range(count):
        dies = edge()
        ids += [dies.order("shop.report", {"year": year}) for year in (n, 4000 + n)]
        dies.process.kill() if n % 2 else dies.process.terminate()
        dies.process.wait(40)
    (folder / "go").touch()
    back = edge()
    results = [each.result(task_id) for task_id in ids for each in (stays, back)]
    assert [status for status, _ in results] == [200] * len(results)
    found, effects = listed(server, capfd), Counter((folder / "effects").read_text().split())
    assert set(found) == set(ids)
    assert {words[0] for words in found.values()} == {"completed"}
    assert set(effects.values()) == {1}
    say("edges", f"{count} edges ended, {len(ids)} tasks: 0 lost, 0 doubled, 0 stuck")


def test_an_edge_with_its_own_operations_runs_these_and_leaves_the_others_to_their_workers(
    edge: Start, worker: subprocess.Popen[str], server: Server, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one, other = edge("edge.py"), edge()
    own, theirs = one.order("edge.own", {"n": 1}), one.order("shop.report", {"year": 1})
    assert [other.result(own), other.result(theirs)] == [(200, {"result": 2}), (200, {"result": 1})]
    worker.kill()
    worker.wait()
    waiting = one.order("shop.report", {"year": 2})
    assert one.result(one.order("edge.own", {"n": 2})) == (200, {"result": 3})
    assert one.state(waiting)["status"] == "working"
    assert sorted(words[1] for words in listed(server, capfd).values()) == [
        "edge.own",
        "edge.own",
        "shop.report",
        "shop.report",
    ]
    assert (folder / "effects").read_text() == "1\n"


def test_with_a_file_for_its_own_tasks_an_edge_only_calls_its_peers(
    edge: Start, worker: subprocess.Popen[str], server: Server, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    del worker
    one = edge("edge.py", "--tasks", "own.db")
    assert one.result(one.order("edge.own", {"n": 1})) == (200, {"result": 2})

    assert one.called("shop.report", {"year": 1}, prefer="respond-async") == (200, {"result": 1})
    assert listed(server, capfd) == {}


def test_a_configuration_says_that_a_process_only_orders(
    folder: Path, server: Server, worker: subprocess.Popen[str], edge: Start
) -> None:
    del edge, worker
    (folder / "enfold.toml").write_text(
        f'[tasks]\nstore = "{server.url}"\nat_once = 0\n[sources.shop]\nfunctions = "worker.py"\n'
    )
    one = TaskProcess(folder, "enfold.toml")
    try:
        assert one.result(one.order("shop.report", {"year": 5})) == (200, {"result": 5})
        metrics = HTTPConnection("127.0.0.1", one.port)
        metrics.request("GET", "/metrics")
        assert b'enfold_tasks{state="working"} 0' in metrics.getresponse().read()
        metrics.close()
    finally:
        one.process.kill()
        one.process.wait()


def test_the_shell_orders_from_the_workers_that_it_calls(
    folder: Path, server: Server, worker: subprocess.Popen[str], capfd: pytest.CaptureFixture[str]
) -> None:
    del worker
    capfd.readouterr()
    assert main(["call", server.url, "shop.report", "year=6", "--detach"]) == 0
    task_id = capfd.readouterr().out.strip()
    assert main(["tasks", "wait", task_id, "--tasks", server.url, "--timeout", "40"]) == 0
    assert list(listed(server, capfd)) == [task_id]
    assert not (folder / ".enfold").exists()


def test_an_edge_serves_peers_whose_server_has_no_jetstream(folder: Path, edge: Start) -> None:
    del edge
    plain = Server(nats_server_program(), folder, name="plain")
    plain.wait_until_ready()
    peer = subprocess.Popen([sys.executable, "-c", _PLAIN_WORKER, plain.url], cwd=folder, stdout=subprocess.PIPE)
    started = [peer]
    try:
        assert peer.stdout is not None
        assert peer.stdout.readline() == b"ready\n"
        one = TaskProcess(folder, "--nats", plain.url)
        started.append(one.process)
        assert one.called("shop.ping", {}) == (200, {"result": "pong"})
        status, error = one.ask("POST", "/functions/shop.later", {}, prefer="respond-async")
        assert (status, error) == (503, {"error": "The task store is unavailable: retry later"})
    finally:
        for each in started:
            each.kill()
            each.communicate()
        plain.close()


_PLAIN_WORKER = """
import asyncio, sys
from enfold import OperationRegistry
from enfold.surfaces.calls import serve_calls
from enfold.calls.nats import NATSTransport
ops = OperationRegistry("shop")

@ops.query
def ping() -> str: return "pong"

@ops.mutation(durable=True)
def later() -> str: return "done"

async def work():
    async with NATSTransport(sys.argv[1]) as transport, serve_calls(ops, transport):
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(work())
"""
