"""`enfold serve` as a process: startup, its name, and shutdown on signals with all child processes."""

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from tests.served import (
    APP,
    LITTLE,
    WORKED,
    Served,
    Session,
    is_running,
    serving,
    two_sessions,
    workers_of,
)
from tests.waiting import wait_for

# --- ending -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["terminated", "interrupted"])
def test_a_signal_lets_calls_finish_and_ends_the_children_and_the_sources(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "app.py").write_text(APP)
    # A child that does not end by itself when its input does.
    command = json.dumps([sys.executable, str(LITTLE), "--stays"])
    (tmp_path / "enfold.toml").write_text(
        f'[sources.app]\nfunctions = "app.py:ops"\n[sources.little]\ncommand = {command}\n'
    )
    answers: list[Any] = []
    with serving("enfold.toml", cwd=tmp_path) as served:
        child = served.get("/functions/little.told", b"{}")["result"]["pid"]
        calling = threading.Thread(target=lambda: answers.append(served.get("/functions/shop.slow")))
        calling.start()
        wait_for((tmp_path / "begun").exists)
        served.process.send_signal(number)
        (tmp_path / "go").touch()
        assert served.process.wait(30) == 0
        calling.join(30)
    assert answers == [{"result": "finished"}]
    assert (tmp_path / "stopped").exists()
    assert not is_running(child)


def test_calls_that_outlast_the_grace_are_cancelled_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    answers: list[Any] = []

    def call() -> None:
        try:
            served.get("/functions/shop.slow")
        except HTTPError as error:
            answers.append((error.code, json.load(error)))

    with serving("app.py", "--grace", "0.2", cwd=tmp_path) as served:
        calling = threading.Thread(target=call)
        calling.start()
        wait_for((tmp_path / "begun").exists)
        assert served.end(signal.SIGTERM) == 0
        calling.join(30)
        log = served.log.rest().splitlines()
    assert answers == [(499, {"error": "The call was cancelled"})]
    assert len(log) == 1
    assert "Cancel 1 running task(s)" in log[0]


def test_a_signal_before_anything_is_served_ends_what_has_been_opened(tmp_path: Path) -> None:
    code = "import os, time; from pathlib import Path; Path('pid').write_text(str(os.getpid())); time.sleep(600)"
    command = json.dumps([sys.executable, "-c", code])
    (tmp_path / "enfold.toml").write_text(f"[sources.mute]\ncommand = {command}\n")
    words = [sys.executable, "-m", "enfold", "serve", "enfold.toml", "--port", "0"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        pid = wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        process.terminate()
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    assert not is_running(int(pid))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["terminated", "interrupted"])
def test_a_server_on_the_standard_streams_stops_what_it_has_started(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "app.py").write_text(APP)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as above
    words, pipe = [sys.executable, "-m", "enfold", "mcp", "app.py"], subprocess.PIPE
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "shop_slow", "arguments": {}}}
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(call) + "\n")
        process.stdin.flush()
        wait_for((tmp_path / "begun").exists)
        process.send_signal(number)
        assert process.communicate(timeout=30)[1] == ""
    assert process.returncode == 6
    assert (tmp_path / "stopped").exists()


# --- starting -----------------------------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_reported_before_anything_is_opened(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text('from pathlib import Path\nPath("imported").touch()\n' + APP)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        words = [sys.executable, "-m", "enfold", "serve", "app.py", "--port", port]
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60)
    assert (done.returncode, done.stderr) == (
        7,
        f"UNAVAILABLE: Port {port} on 127.0.0.1 is in use: choose another with --port\n",
    )
    assert not (tmp_path / "imported").exists()


def test_https_and_a_path_that_a_proxy_takes_away(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    write_certificate(tmp_path)
    trust = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    trust.check_hostname = False
    words = ("--tls-cert", "cert.pem", "--tls-key", "key.pem", "--root-path", "/shop/")
    with serving("app.py", *words, cwd=tmp_path) as served:
        document = served.get("/openapi.json", context=trust)
        ready = served.get("/readyz", context=trust)
        assert served.end(signal.SIGTERM) == 0
    assert served.base.startswith("https://127.0.0.1:")
    assert document["servers"] == [{"url": "/shop"}]
    assert ready == {"status": "ready", "missing": []}


def test_a_path_that_a_proxy_takes_away_is_written_as_clients_send_it(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with serving("app.py", "--root-path", "/läden/a b%20c?", cwd=tmp_path) as served:
        document = served.get("/openapi.json")
        assert served.end(signal.SIGTERM) == 0
    assert document["servers"] == [{"url": "/l%C3%A4den/a%20b%20c%3F"}]


def test_a_wrong_certificate_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "cert.pem").write_text("no certificate")
    for words, said in (
        (["--tls-cert", "gone.pem"], "Cannot read the certificate from gone.pem: No such file or directory"),
        (["--tls-cert", "cert.pem"], "Cannot read the certificate from cert.pem: "),
        (["--tls-key", "key.pem"], "--tls-key needs --tls-cert"),
    ):
        command = [sys.executable, "-m", "enfold", "serve", "app.py", "--port", "0", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60)
        assert (done.returncode, done.stderr.startswith(f"VALIDATION_ERROR: {said}")) == (2, True), done.stderr


def write_certificate(folder: Path) -> None:
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout key.pem -out cert.pem -days 2"
    )
    subprocess.run([*command.split(), "-subj", "/CN=localhost"], check=True, cwd=folder, capture_output=True)


# --- names --------------------------------------------------------------------------------------------------------


def server_info(base: str) -> Any:
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).encode()
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    with urlopen(Request(f"{base}/mcp", body, headers), timeout=30) as reply:  # noqa: S310  # our own server
        return json.load(reply)["result"]["serverInfo"]


@pytest.mark.parametrize(
    ("target", "words", "name", "version"),
    [
        ("app.py", (), "Corner shop", "2.5"),
        ("app.py", ("--title", "Till", "--app-version", "3"), "Till", "3"),
        ("enfold.toml", (), "Kiosk", "7"),
    ],
    ids=["the registry's own", "flags", "a configuration"],
)
def test_the_application_has_its_name_everywhere(
    tmp_path: Path, target: str, words: tuple[str, ...], name: str, version: str
) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "enfold.toml").write_text(
        '[app]\ntitle = "Kiosk"\nversion = "7"\n[sources.app]\nfunctions = "app.py:ops"\n'
    )
    with serving(target, *words, cwd=tmp_path) as served:
        document = served.get("/openapi.json")
        info = server_info(served.base)
    assert info == {"name": name, "version": version}
    assert document["info"] == {"title": name, "version": version}
    assert f"{name} {version} serves 1 operation" in served.said


def test_a_script_is_called_by_its_own_name_in_its_usage(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    for words, said in ((["--help"], "usage: app.py COMMAND [options]"), (["serve", "--help"], "usage: app.py serve")):
        command = [sys.executable, "app.py", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, timeout=60)
        assert done.stdout.startswith(said)
        assert os.linesep + "  serve" in done.stdout or words[0] == "serve"


# --- workers ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    folder = tmp_path_factory.mktemp("workers")
    (folder / "app.py").write_text(WORKED)
    with serving("app.py", "--workers", "2", "--keep-payloads", cwd=folder) as served:
        two_sessions(served)  # both are there
        yield served, folder


def test_a_session_and_an_idempotency_key_are_one_on_every_connection_and_surface(worked: tuple[Served, Path]) -> None:
    served, folder = worked
    sessions = two_sessions(served)
    assert {pid: {session.call() for _ in range(8)} for pid, session in sessions.items()} == {
        pid: {pid} for pid in sessions
    }
    for number in range(3):
        headers = {"Content-Type": "application/json", "Idempotency-Key": f"key-{number}"}
        for _ in range(6):
            with urlopen(Request(f"{served.base}/functions/order", b"{}", headers), timeout=30) as reply:  # noqa: S310
                assert json.load(reply)["result"] in {session.order(f"key-{number}") for session in sessions.values()}
    assert (folder / "orders").read_text() == "xxx"
    assert {session.order("key-mcp") for session in sessions.values()} <= sessions.keys()
    assert (folder / "orders").read_text() == "xxxx"


def test_a_response_arrives_before_its_worker_has_read_the_whole_request(
    worked: tuple[Served, Path],
) -> None:
    for session in two_sessions(worked[0]).values():
        assert {session.ask("POST", b" " * 200_000, Content_Type="text/plain") for _ in range(12)} == {415}
        assert {session.ask("GET", Accept="application/json") for _ in range(12)} == {406}
    for _ in range(12):
        ended = Session(worked[0].base)
        assert (ended.ask("DELETE"), ended.ask("DELETE")) == (204, 404)


def test_metrics_sources_and_calls_cover_all_workers(worked: tuple[Served, Path]) -> None:
    served, _ = worked
    answers: list[int] = []

    def ask() -> bool:
        answers.append(served.get("/functions/shop.who")["result"])
        return len(set(answers)) == 2 and len(answers) >= 20

    wait_for(ask)
    pids, asked = set(answers), len(answers)
    with urlopen(f"{served.base}/metrics", timeout=30) as reply:  # noqa: S310  # our own server
        lines = reply.read().decode().splitlines()
    (counted,) = [line for line in lines if re.match(r'enfold_calls_total\{.*operation="shop.who"', line)]
    assert float(counted.split()[-1]) >= asked
    with urlopen(f"{served.base}/functions/enfold.calls?follow=false", timeout=30) as reply:  # noqa: S310
        calls = reply.read().decode()
    assert calls.count('"operation":"shop.who"') >= min(asked, 200)
    assert all(f'"arguments":{{}},"result":{pid},' in calls for pid in pids)  # what --keep-payloads asks for
    with urlopen(f"{served.base}/functions/enfold.calls", timeout=30) as stream:  # noqa: S310
        marks = {f"mark-{number}" for number in range(12)}
        for mark in marks:  # each on a connection of its own, and so now here, now there
            request = Request(f"{served.base}/functions/shop.who", headers={"X-Request-Id": mark})  # noqa: S310
            urlopen(request, timeout=30).close()  # noqa: S310

        def are_read() -> bool:
            line = stream.readline().decode()
            marks.difference_update([mark for mark in marks if f'"{mark}"' in line])
            return not marks

        wait_for(are_read)
    (source,) = served.get("/functions/enfold.sources")["result"]
    assert (source["name"], source["state"]) == ("app.py", "up")


def test_a_killed_worker_only_loses_its_own_calls_and_sessions_and_is_restarted(
    worked: tuple[Served, Path],
) -> None:
    served, folder = worked
    sessions = two_sessions(served)
    before = workers_of(served)
    assert before == sessions.keys()
    failures: list[BaseException] = []

    def hang() -> None:
        try:
            served.get("/functions/shop.hang")
        except (OSError, HTTPException) as error:
            failures.append(error)

    hanging = threading.Thread(target=hang)
    hanging.start()
    victim = int(wait_for(lambda: next(folder.glob("hanging-*"), None)).name.partition("-")[2])
    ran = sessions[victim].order("key-of-the-dead")
    os.kill(victim, signal.SIGKILL)
    hanging.join(30)
    assert len(failures) == 1
    wait_for(lambda: len(workers_of(served)) == 2 and victim not in workers_of(served))
    other = next(iter(before - {victim}))
    assert sessions[other].call() == other
    with pytest.raises(HTTPError, match="404"):
        sessions[victim].call()
    assert two_sessions(served).keys() == workers_of(served)
    assert (ran, sessions[other].order("key-of-the-dead")) == (victim, victim)  # what it had done is not done again


def test_a_worker_restarts_with_the_active_configuration_although_its_file_is_invalid(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(WORKED)
    file = tmp_path / "enfold.toml"
    file.write_text('[sources.first]\nfunctions = "app.py:ops"\n')
    with serving("enfold.toml", "--workers", "2", cwd=tmp_path) as served:
        two_sessions(served)
        file.write_text(file.read_text() + '[sources.second]\nfunctions = "app.py:ops"\nnamespace = "second"\n')
        for _ in range(2):
            served.log.until("second opened")
        file.write_text("[sources.first")
        for _ in range(2):
            served.log.until("stays active")
        victim = min(workers_of(served))
        os.kill(victim, signal.SIGKILL)
        served.log.until("stays active")  # it has tried the file, and goes on
        both = workers_of(served)
        assert (len(both), victim in both) == (2, False)

        def is_heard_of_all() -> bool:
            both.discard(served.get("/functions/second.shop.who")["result"])
            return not both

        wait_for(is_heard_of_all)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["ended", "killed"])
def test_workers_end_with_their_parent(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "app.py").write_text(WORKED)
    with serving("app.py", "--workers", "2", cwd=tmp_path) as served:
        workers = wait_for(lambda: found if len(found := workers_of(served)) == 2 else None)
        assert served.end(number) == (0 if number == signal.SIGTERM else -number)
        wait_for(lambda: not any(is_running(pid) for pid in workers))


def test_a_startup_failure_of_workers_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import no_such_module\n")
    command = [sys.executable, "-m", "enfold", "serve", "app.py", "--port", "0", "--workers", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60)
    assert (done.returncode, done.stderr.count("no_such_module")) == (1, 1)
