"""Idempotency keys in real processes: servers, edges and workers that are killed and frozen, and callers that disconnect."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.calls.networks import Server
from tests.idempotency.processes import Processes, call, processes, settled
from tests.waiting import wait_for


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Processes]:
    with processes(tmp_path) as found:
        yield found


# --- edges and workers on NATS ------------------------------------------------------------------------------------


def test_a_second_edge_gives_the_result_of_a_call_that_timed_out_at_the_first(started: Processes, nats: Server) -> None:
    started.work("--nats", nats.url)
    first, second = (started.serve("--nats", nats.url) for _ in range(2))
    given: dict[str, Any] = {"id": "a", "seconds": 1.5}
    for edge in (first, second):
        assert call(edge.base, "pay", "k", within_ms=300, **given).is_in_progress
    assert [call(edge.base, "pay", "k", **given).data for edge in (second, first, second)] == ["a", "a", "a"]
    assert started.had("a") == 1


def test_an_edge_stores_nothing(started: Processes, nats: Server, nats_program: str) -> None:
    """Two edges in one folder with different servers behind them share no local file."""
    folder = started.folder / "other"
    folder.mkdir()
    other = Server(nats_program, folder, f'jetstream {{ store_dir: "{folder / "jetstream"}" }}\n')
    try:
        other.wait_until_ready()
        for server in (nats, other):
            started.work("--nats", server.url)
        edges = [started.serve("--nats", server.url, cwd=folder) for server in (nats, other)]
        before = set(folder.rglob("*.db"))
        for name, effect in (("pay", "a"), ("pay_as_task", "b")):
            assert [call(edge.base, name, "k", id=effect).data for edge in (*edges, *edges)] == [effect] * 4
            assert started.had(effect) == 2  # one with each server
        assert set(folder.rglob("*.db")) == before == set()
    finally:
        other.close()


def test_a_killed_worker_s_call_has_an_unknown_outcome_and_is_not_started_again(
    started: Processes, nats: Server
) -> None:
    worker, _ = started.work("--nats", nats.url)
    edge = started.serve("--nats", nats.url)
    leaving = threading.Thread(target=call, args=(edge.base, "pay", "k"), kwargs={"id": "a", "seconds": 30})
    leaving.start()
    started.until_had("a")
    worker.kill()
    leaving.join()
    started.work("--nats", nats.url)
    answer = settled(edge.base, "pay", "k", id="a", seconds=30)
    assert (answer.status, answer.code, answer.retryable) == (409, "OUTCOME_UNKNOWN", False)
    assert started.had("a") == 1


def test_a_killed_worker_s_call_is_run_again_with_full_time_where_its_operation_allows_it(
    started: Processes, nats: Server
) -> None:
    worker, _ = started.work("--nats", nats.url)
    edge = started.serve("--nats", nats.url)
    given: dict[str, Any] = {"id": "a", "seconds": 3}
    assert call(edge.base, "pay_again", "k", within_ms=500, **given).is_in_progress
    worker.kill()
    started.work("--nats", nats.url)
    assert settled(edge.base, "pay_again", "k", **given).data == "a"  # each repeat has only two seconds
    assert started.had("a") == 2


def test_the_outcome_of_a_frozen_worker_replaces_the_unknown_one(started: Processes, nats: Server) -> None:
    worker, _ = started.work("--nats", nats.url)
    edge = started.serve("--nats", nats.url)
    assert call(edge.base, "pay", "k", within_ms=500, id="a", seconds=1).is_in_progress
    worker.send_signal(signal.SIGSTOP)
    started.work("--nats", nats.url)
    assert settled(edge.base, "pay", "k", id="a", seconds=1).code == "OUTCOME_UNKNOWN"
    worker.send_signal(signal.SIGCONT)
    wait_for(lambda: call(edge.base, "pay", "k", id="a", seconds=1).data == "a")
    assert started.had("a") == 1


def test_a_worker_that_is_asked_to_stop_ends_calls_whose_callers_have_left(started: Processes, nats: Server) -> None:
    worker, _ = started.work("--nats", nats.url)
    edge = started.serve("--nats", nats.url)
    assert call(edge.base, "pay", "k", within_ms=500, id="a", seconds=2).is_in_progress
    worker.terminate()
    started.work("--nats", nats.url)
    assert worker.wait(30) == 0
    assert settled(edge.base, "pay", "k", id="a", seconds=2).data == "a"
    assert started.had("a") == 1


def test_without_jetstream_a_worker_says_so_and_nothing_is_repeated_by_itself(
    started: Processes, nats_program: str
) -> None:
    server = Server(nats_program, started.folder)
    try:
        server.wait_until_ready()
        worker, said = started.work("--nats", server.url)
        said.until("Idempotency keys are local to this worker: the NATS server has no JetStream")
        edge = started.serve("--nats", server.url)
        assert [call(edge.base, "pay", "k", id="a").data for _ in range(2)] == ["a", "a"]
        assert started.had("a") == 1  # it was the same worker
        started.work("--nats", server.url)
        for number in range(8):  # half of them at the worker that does not answer
            worker.send_signal(signal.SIGSTOP)
            call(edge.base, "pay", f"k{number}", within_ms=5000, id=f"b{number}")
            worker.send_signal(signal.SIGCONT)
        assert max(started.counted().values()) == 1
    finally:
        server.close()


def test_the_shell_s_calls_share_keys_over_nats(started: Processes, nats: Server) -> None:
    started.work("--nats", nats.url)
    words = ("call", nats.url, "shop.pay", "id=a", "--idempotency-key", "k")
    assert [started.run(*words).stdout for _ in range(2)] == ['{"result":"a"}\n'] * 2
    assert started.had("a") == 1
    late = started.run("call", nats.url, "shop.pay", "id=b", "seconds=20", "--idempotency-key", "l", "--timeout", "1")
    assert (late.returncode, late.stderr.split(":")[0]) == (5, "TIMEOUT")


# --- one machine --------------------------------------------------------------------------------------------------


def test_a_killed_server_s_call_has_an_unknown_outcome_after_the_restart(started: Processes) -> None:
    first = started.serve("app.py")
    assert call(first.base, "pay", "k", within_ms=500, id="a", seconds=30).is_in_progress
    first.process.kill()
    first.process.wait()
    second = started.serve("app.py")
    answer = settled(second.base, "pay", "k", id="a", seconds=30)
    assert (answer.status, answer.code) == (409, "OUTCOME_UNKNOWN")
    assert started.had("a") == 1


def test_a_result_is_there_after_the_restart_of_a_killed_server(started: Processes) -> None:
    first = started.serve("app.py")
    assert call(first.base, "pay", "k", id="a").data == "a"
    first.process.kill()
    first.process.wait()
    assert call(started.serve("app.py").base, "pay", "k", id="a").data == "a"
    assert started.had("a") == 1


def test_a_frozen_server_is_not_taken_for_dead(started: Processes) -> None:
    frozen, other = started.serve("app.py"), started.serve("app.py")
    assert call(frozen.base, "pay", "k", within_ms=500, id="a", seconds=1).is_in_progress
    frozen.process.send_signal(signal.SIGSTOP)
    assert call(other.base, "pay", "k", within_ms=4000, id="a", seconds=1).is_in_progress
    frozen.process.send_signal(signal.SIGCONT)
    assert settled(other.base, "pay", "k", id="a", seconds=1).data == "a"
    assert started.had("a") == 1


def test_a_server_that_is_asked_to_stop_ends_calls_whose_callers_have_left(started: Processes) -> None:
    first = started.serve("app.py")
    assert call(first.base, "pay", "k", within_ms=500, id="a", seconds=2).is_in_progress
    assert first.end(signal.SIGTERM) == 0
    assert call(started.serve("app.py").base, "pay", "k", id="a", seconds=2).data == "a"
    assert started.had("a") == 1


def test_one_of_several_processes_is_killed(started: Processes) -> None:
    server = started.serve("app.py", "--workers", "2")
    assert call(server.base, "pay", "k", within_ms=500, id="a", seconds=30).is_in_progress
    for child in Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)  # the one that runs it is among them
    answer = settled(server.base, "pay", "k", id="a", seconds=30)
    assert (answer.status, answer.code) == (409, "OUTCOME_UNKNOWN")
    assert started.had("a") == 1


def test_programs_in_one_folder_share_no_keys(started: Processes) -> None:
    (started.folder / "other.py").write_text((started.folder / "app.py").read_text())
    bases = [started.serve(name).base for name in ("app.py", "other.py")]
    assert [call(base, "pay", "k", id="a").data for base in bases] == ["a", "a"]
    assert started.had("a") == 2


def test_a_command_that_stops_waiting_says_so_and_ends_its_call(started: Processes) -> None:
    words = ("call", "app.py", "shop.pay", "id=a", "seconds=2", "--idempotency-key", "k")
    late = started.run(*words, "--timeout", "0.5")
    assert (late.returncode, late.stderr.split(":")[0]) == (5, "TIMEOUT")
    again = started.run(*words)
    assert (again.stdout, again.stderr, started.had("a")) == ('{"result":"a"}\n', "", 1)


def test_a_durable_call_under_a_key_is_in_progress_for_a_caller_who_stops_waiting(
    started: Processes, nats: Server
) -> None:
    started.work("--nats", nats.url)
    edges = [started.serve("--nats", nats.url) for _ in range(2)]
    given: dict[str, Any] = {"id": "a", "seconds": 2}
    for edge in edges:
        assert call(edge.base, "pay_as_task", "k", within_ms=700, **given).is_in_progress
    assert [settled(edge.base, "pay_as_task", "k", **given).data for edge in edges] == ["a", "a"]
    assert started.had("a") == 1


def test_a_durable_call_under_a_key_whose_worker_died_has_an_unknown_outcome(started: Processes, nats: Server) -> None:
    worker, _ = started.work("--nats", nats.url)
    edge = started.serve("--nats", nats.url)
    given: dict[str, Any] = {"id": "a", "seconds": 30}
    assert call(edge.base, "pay_as_task", "k", within_ms=1500, **given).is_in_progress
    started.until_had("a")
    worker.kill()
    started.work("--nats", nats.url)
    answer = settled(edge.base, "pay_as_task", "k", **given)
    assert (answer.status, answer.code) == (409, "OUTCOME_UNKNOWN")
    assert started.had("a") == 1
