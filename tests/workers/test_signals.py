"""Signals at any time: SIGHUP ends no server, and a process that gets one leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from tests.served import APP, LITTLE, WORKED, Served, is_running, serving, two_sessions, workers_of
from tests.waiting import wait_for

from enfold import CallError
from enfold.app import signals
from enfold.surfaces.limits import Limits, divided

WAITS = """\
import os, time
from pathlib import Path
Path(f"importing-{os.getpid()}").touch()
while Path("hold").exists():
    time.sleep(0.01)
"""
STUBBORN = f"""\
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, {str(LITTLE)!r}, "--stays"])
"""
HURRIED = (
    "import enfold.commands.serve as serve; serve.DRAIN_TIMEOUT = 0\nfrom enfold.commands.main import main; main()"
)


def children_of(process: int) -> set[int]:
    with suppress(OSError):
        tasks = Path(f"/proc/{process}/task").iterdir()
        return {int(each) for task in tasks for each in (task / "children").read_text().split()}
    return set()


def importing(folder: Path) -> set[int]:
    """The processes that have begun to import the program."""
    return {int(path.name.partition("-")[2]) for path in folder.glob("importing-*")}


@contextmanager
def started(*words: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """A server that has been started, and may not have come to serve yet."""
    command = [sys.executable, "-m", "enfold", "serve", *words, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=cwd) as process:
        try:
            yield process
        finally:
            process.kill()


# --- SIGHUP -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [(), ("--workers", "2")], ids=["one process", "workers"])
def test_a_hangup_while_a_server_starts_does_not_end_it(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "app.py").write_text(WAITS + WORKED)
    (tmp_path / "hold").touch()
    with started("app.py", *words, cwd=tmp_path) as process:
        (first,) = wait_for(lambda: importing(tmp_path))
        process.send_signal(signal.SIGHUP)
        os.kill(first, signal.SIGHUP)
        (tmp_path / "hold").unlink()
        served = Served(process)
        assert served.get("/healthz") == {"status": "ok"}
        assert importing(tmp_path) >= {first}
        assert served.end(signal.SIGTERM) == 0


def test_a_hangup_does_not_end_a_worker_that_is_started_again(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(WAITS + WORKED)
    with serving("app.py", "--workers", "2", cwd=tmp_path) as served:
        two_sessions(served)
        before = importing(tmp_path)
        (tmp_path / "hold").touch()
        os.kill(min(workers_of(served)), signal.SIGKILL)
        (new,) = wait_for(lambda: importing(tmp_path) - before)
        served.process.send_signal(signal.SIGHUP)
        os.kill(new, signal.SIGHUP)
        (tmp_path / "hold").unlink()
        wait_for(lambda: served.get("/functions/shop.who")["result"] == new)
        assert served.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("words", [(), ("--workers", "2"), ("--reload",)], ids=["one process", "workers", "reloading"])
def test_a_hangup_has_the_configuration_read_though_it_has_not_changed(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "app.py").write_text(WORKED)
    (tmp_path / "enfold.toml").write_text('[sources.app]\nfunctions = "app.py:ops"\n')
    with serving("enfold.toml", *words, cwd=tmp_path) as served:
        if "--workers" in words:
            two_sessions(served)
        for _ in range(2):
            served.process.send_signal(signal.SIGHUP)
            for _ in range(2 if "--workers" in words else 1):
                served.log.until("enfold.toml was reloaded: no source changed")
        assert served.get("/functions/shop.who")["result"]
        assert served.end(signal.SIGTERM) == 0


# --- the end ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [(), ("--workers", "2")], ids=["one process", "workers"])
def test_repeated_signals_do_not_interrupt_the_shutdown_of_a_server(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "app.py").write_text(APP)
    with serving("app.py", *words, cwd=tmp_path) as served:

        def has_ended() -> bool:
            served.process.terminate()
            return served.process.poll() is not None

        wait_for(has_ended)
        assert served.process.returncode == 0


STAYS = """
@ops.query
async def stay() -> None:
    Path("begun").touch()
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
"""
HANGS = """
@ops.on_stop
async def hang() -> None:
    Path("stopping").touch()
    await asyncio.Event().wait()
"""


@pytest.mark.parametrize("words", [(), ("--workers", "2")], ids=["one process", "workers"])
def test_a_call_that_does_not_let_itself_be_cancelled_keeps_no_server(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "app.py").write_text(WORKED + STAYS)
    with serving("app.py", "--grace", "0.2", *words, cwd=tmp_path) as served:
        calling = threading.Thread(target=is_listening, args=(served, "/functions/shop.stay"))
        calling.start()
        wait_for((tmp_path / "begun").exists)
        family = {served.process.pid, *workers_of(served)}
        assert served.end(signal.SIGTERM) == 0
        calling.join(30)
    assert not any(map(is_running, family))


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
@pytest.mark.parametrize("words", [(), ("--workers", "2")], ids=["one process", "workers"])
def test_a_function_that_hangs_at_shutdown_does_not_keep_the_server(
    tmp_path: Path, words: tuple[str, ...], times: int
) -> None:
    (tmp_path / "app.py").write_text(WORKED + HANGS)
    grace = "0.2" if times == 1 else "600"
    with serving("app.py", "--grace", grace, *words, cwd=tmp_path) as served:
        if times == 2:
            served.process.terminate()
            wait_for((tmp_path / "stopping").exists)
        assert served.end(signal.SIGTERM) == 0


def test_a_server_that_could_not_start_does_not_leave_its_process() -> None:
    async def fail() -> None:
        raise CallError("UNAVAILABLE", "no worker")

    before, handlers = (
        threading.active_count(),
        [(each, signal.getsignal(each)) for each in (signal.SIGTERM, signal.SIGINT)],
    )
    try:
        with pytest.raises(CallError):
            signals.run_server(fail())
        assert threading.active_count() == before  # no thread is left waiting to stop us
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)


def test_child_processes_of_a_killed_worker_are_killed_if_they_do_not_end(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(WORKED)
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    command = json.dumps([sys.executable, "stubborn.py"])
    config = f'[sources.app]\nfunctions = "app.py:ops"\n[sources.stubborn]\ncommand = {command}\n'
    (tmp_path / "enfold.toml").write_text(config)
    with serving("enfold.toml", "--workers", "2", cwd=tmp_path) as served:
        two_sessions(served)
        victim = min(workers_of(served))
        orphans = wait_for(lambda: children_of(victim))
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: not any(map(is_running, orphans)))
        served.end(signal.SIGTERM)


# --- reloading ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
def test_a_reloading_server_ends_as_it_does_without_and_leaves_nothing(tmp_path: Path, times: int) -> None:
    (tmp_path / "app.py").write_text(APP)
    command = json.dumps([sys.executable, str(LITTLE), "--stays"])
    config = f'[sources.app]\nfunctions = "app.py:ops"\n[sources.little]\ncommand = {command}\n'
    (tmp_path / "enfold.toml").write_text(config)
    words = [sys.executable, "-c", HURRIED, "serve", "enfold.toml", "--reload", "--port", "0"]
    answers: list[Any] = []

    def call() -> None:
        try:
            answers.append(served.get("/functions/shop.slow"))
        except HTTPError as error:
            answers.append(error.code)

    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        served = Served(process)
        child = served.get("/functions/little.told", b"{}")["result"]["pid"]
        family = {*children_of(process.pid), child}
        calling = threading.Thread(target=call)
        calling.start()
        wait_for((tmp_path / "begun").exists)
        process.terminate()
        wait_for(lambda: not is_listening(served))
        if times == 2:
            process.terminate()
        else:
            (tmp_path / "go").touch()
        assert process.wait(30) == 0
        calling.join(30)
    assert answers == [{"result": "finished"} if times == 1 else 499]
    assert not any(map(is_running, family))


def is_listening(served: Served, path: str = "/healthz") -> bool:
    try:
        served.get(path)
    except HTTPError:
        return True
    except (OSError, HTTPException):
        return False
    return True


# --- limits -------------------------------------------------------------------------------------------------------


def test_workers_share_what_one_server_may_take_to_the_last_one() -> None:
    limits = Limits(calls_at_once=7, calls_per_second=8.0)
    shares = [divided(limits, 4, number) for number in range(4)]
    assert [share.calls_at_once for share in shares] == [1, 2, 2, 2]
    assert sum(share.connections for share in shares) == limits.connections
    assert {share.calls_per_second for share in shares} == {2.0}
    assert {share.header_bytes for share in shares} == {limits.header_bytes}


def test_all_workers_together_admit_no_more_calls_than_one_server(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    outcomes: list[Any] = []

    def call() -> None:
        try:
            outcomes.append(served.get("/functions/shop.slow")["result"])
        except HTTPError as error:
            outcomes.append(error.code)

    with serving("app.py", "--workers", "2", "--limit", "calls_at_once=2", cwd=tmp_path) as served:
        wait_for(lambda: len(workers_of(served)) == 2)
        callers = [threading.Thread(target=call) for _ in range(8)]
        for caller in callers:
            caller.start()
        wait_for(lambda: len(outcomes) >= 6)
        (tmp_path / "go").touch()
        for caller in callers:
            caller.join(30)
        assert served.end(signal.SIGTERM) == 0
    assert outcomes[:6] == [429] * 6
    assert "finished" in outcomes
