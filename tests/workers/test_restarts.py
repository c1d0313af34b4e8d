"""Workers that are started again: what is unreachable keeps none of them from serving the rest."""

import json
import os
import shutil
import signal
import sys
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from tests.calls.networks import Server, nats_server_program
from tests.served import LITTLE, WORKED, Served, serving, two_sessions, workers_of
from tests.waiting import wait_for

SLOW = f"""\
import os, sys, time
from pathlib import Path
while Path("hang").exists():
    time.sleep(0.01)
os.execv(sys.executable, [sys.executable, {str(LITTLE)!r}])
"""


def kill_all_workers(served: Served) -> None:
    for worker in workers_of(served):
        os.kill(worker, signal.SIGKILL)


def readiness(served: Served) -> tuple[int, str]:
    """The status, and why the first source that is missing is unreachable."""
    try:
        return 200, str(served.get("/readyz")["missing"])
    except HTTPError as error:
        return error.code, json.load(error)["missing"][0]["why"]


def test_workers_that_die_while_nats_is_unreachable_serve_the_rest_and_rejoin_later(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(WORKED)
    server = Server(nats_server_program(), tmp_path)
    server.wait_until_ready()
    try:
        with serving("app.py", "--nats", server.url, "--workers", "2", cwd=tmp_path) as served:
            two_sessions(served)
            server.kill()
            for _ in range(2):
                served.log.until("is lost")
            before = workers_of(served)
            kill_all_workers(served)
            assert served.get("/functions/shop.who")["result"] not in before
            told = "".join(served.log.until("is unavailable; retrying") for _ in range(2))
            assert told.count(f"{server.url} is unavailable; retrying") == 2
            assert readiness(served) == (503, "not answered yet")
            server.restart()
            for _ in range(2):
                assert "is not there" not in served.log.until(f"{server.url} is back")
            wait_for(lambda: readiness(served)[0] == 200)
            assert served.end(signal.SIGTERM) == 0
    finally:
        server.close()


def test_a_worker_that_is_started_again_does_not_wait_for_a_source_that_is_not_required(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(WORKED)
    (tmp_path / "slow.py").write_text(SLOW)
    command = json.dumps([sys.executable, "slow.py"])
    config = f'[sources.app]\nfunctions = "app.py:ops"\n[sources.slow]\ncommand = {command}\n'
    (tmp_path / "enfold.toml").write_text(config)
    with serving("enfold.toml", "--workers", "2", cwd=tmp_path) as served:
        two_sessions(served)
        (tmp_path / "hang").touch()
        kill_all_workers(served)
        served.get("/functions/shop.who")
        told = "".join(served.log.until("slow has not answered yet") for _ in range(2))
        assert "Waiting for" not in told
        (tmp_path / "hang").unlink()
        for _ in range(2):
            served.log.until("slow is up")
        assert served.get("/functions/slow.add", b'{"x": 1, "y": 2}') == {"result": {"sum": 3}}
        assert served.end(signal.SIGTERM) == 0


def test_workers_whose_folder_is_cleaned_away_continue_to_follow_the_file_and_find_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app.py").write_text(WORKED)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    file = tmp_path / "enfold.toml"
    file.write_text('[sources.app]\nfunctions = "app.py:ops"\n')
    with serving("enfold.toml", "--workers", "2", cwd=tmp_path) as served:
        sessions = two_sessions(served)
        (folder,) = (tmp_path / "tmp").glob("enfold-*")
        shutil.rmtree(folder)
        for name in ("one", "two"):
            file.write_text(f'{file.read_text()}[sources.{name}]\nfunctions = "app.py:ops"\nnamespace = "{name}"\n')
            for _ in range(2):
                served.log.until(f"{name} opened")
        assert (folder.stat().st_mode & 0o777, (folder / "configuration").exists()) == (0o700, True)
        wait_for(lambda: len(list(folder.glob("*.sock"))) == 2)
        for pid, session in sessions.items():
            assert {session.call() for _ in range(6)} == {pid}
        assert served.end(signal.SIGTERM) == 0
    assert not folder.exists()


def test_streams_that_were_passed_on_to_a_worker_that_dies_end_without_a_stack_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(WORKED)
    with serving("app.py", "--workers", "2", cwd=tmp_path) as served:
        victim, session = next(iter(two_sessions(served).items()))
        headers = session.headers | {"Accept": "text/event-stream"}
        streams = [urlopen(Request(f"{served.base}/mcp", headers=headers), timeout=30) for _ in range(8)]  # noqa: S310
        os.kill(victim, signal.SIGKILL)
        for stream in streams:
            with stream, suppress(OSError, HTTPException):
                stream.read()  # to its end
        served.get("/healthz")
        told = served.log.until("was killed by signal 9; restarting it")
        served.process.terminate()
        told += served.log.rest()
        assert served.process.wait(30) == 0
    assert len(told.splitlines()) == 1, told
