"""A worker that is stopped while its store accepts no writes ends soon, and its tasks are taken over."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.calls.networks import Server, nats_server_program
from tests.tasks.processes import TaskProcess
from tests.waiting import wait_for

APP = """
import asyncio
from pathlib import Path
from enfold import OperationRegistry
ops = OperationRegistry("shop")

@ops.mutation(durable=True, on_crash="retry")
async def report(year: int) -> int:
    with open("effects", "a") as effects:
        effects.write("begun\\n")
    while not Path("go").exists():
        await asyncio.sleep(0.02)
    return year
"""
LOST = "has finished, but its outcome could not be stored before this worker had to stop"
PATIENCE = 40  # seconds; the grace below is longer than that, so that no test waits for it


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


@pytest.fixture
def started(folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    del folder
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for each in processes:
        each.kill()
        each.wait()


def test_a_server_with_a_full_disk_does_not_wait_its_grace_for_an_outcome_that_cannot_be_stored(
    folder: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    server = TaskProcess(folder, "app.py", "--tasks", "t.db", "--grace", "600")
    started.append(server.process)
    task_id = server.order("shop.report", {"year": 1})
    wait_for((folder / "effects").exists)
    _, most = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (4096, most))
    (folder / "go").touch()
    wait_for(lambda: "cannot be recorded yet" in server.log.read_text())
    server.process.terminate()
    assert server.process.wait(PATIENCE) == 0
    assert LOST in server.log.read_text()
    again = TaskProcess(folder, "app.py", "--tasks", "t.db")
    started.append(again.process)
    assert again.result(task_id) == (200, {"result": 1})
    assert (folder / "effects").read_text() == "begun\n" * 2


@pytest.mark.parametrize("is_over", [True, False], ids=["an outcome", "a running task"])
def test_a_worker_whose_nats_server_is_gone_ends_and_another_takes_over(
    folder: Path, started: list[subprocess.Popen[bytes]], *, is_over: bool
) -> None:
    server = Server(nats_server_program(), folder, f'jetstream {{ store_dir: "{folder}/js" }}\n')
    server.wait_until_ready()
    command = [sys.executable, "-m", "enfold", "work", "app.py", "--nats", server.url]

    def work(name: str) -> subprocess.Popen[bytes]:
        with (folder / name).open("w") as log:
            started.append(subprocess.Popen(command, cwd=folder, stderr=log))
        wait_for(lambda: "serves" in (folder / name).read_text())
        return started[-1]

    try:
        worker, edge = work("first"), TaskProcess(folder, "--nats", server.url)
        started.append(edge.process)
        task_id = edge.order("shop.report", {"year": 1})
        wait_for((folder / "effects").exists)
        server.kill()
        if is_over:
            (folder / "go").touch()
            wait_for(lambda: "is lost" in (folder / "first").read_text())
        worker.terminate()
        assert worker.wait(PATIENCE) == 0
        assert LOST in (folder / "first").read_text()
        (folder / "go").touch()
        server.restart()
        work("second")
        # The edge has to connect again first.
        found = wait_for(lambda: answer if (answer := edge.result(task_id))[0] not in (202, 503) else None)
        assert found == (200, {"result": 1})
        assert (folder / "effects").read_text() == "begun\n" * 2
    finally:
        server.close()
