"""What `examples/deploy` tells others to run is run here, as far as it can be without a container engine."""

import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import yaml
from tests.served import serving
from tests.serving import is_listening
from tests.waiting import wait_for

DEPLOY = Path(__file__).parent.parent.parent / "examples" / "deploy"
PROBE = re.compile(r"CMD (\[.*\])")
SECRETS = {
    "NATS_EDGE": "edge-secret",
    "NATS_WORKER": "worker-secret",
    "NATS_OPERATOR": "operator-secret",
    "ENFOLD_SERVE_TOKEN": "owner-secret",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files as in an image: read-only."""
    made = tmp_path / "app"
    shutil.copytree(DEPLOY, made)
    for path in made.rglob("*"):
        path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    return made


def enfold(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "enfold", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, timeout=60)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextmanager
def running(words: list[str], cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """A command of the files, with our Python instead of the image's."""
    own = {"enfold": [sys.executable, "-m", "enfold"], "python": [sys.executable]}
    command = [*own.get(words[0], [words[0]]), *words[1:]]
    environ = {**os.environ, **SECRETS, "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(command, cwd=cwd, env=environ, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=40)


def ask(address: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
    sent = {"Content-Type": "application/json", "Authorization": "Bearer owner-secret", **headers}
    try:
        with urlopen(Request(address, body, sent), timeout=60) as reply:  # noqa: S310  # our own server
            return reply.status, json.load(reply)
    except HTTPError as error:
        return error.code, json.load(error)
    except OSError:
        return 0, None


def wait_for_status(address: str, status: int = 200) -> Any:
    """The answer of an address as soon as it has a status."""
    return wait_for(lambda: found if (found := ask(address))[0] == status else None)[1]


# --- the container file -------------------------------------------------------------------------------------------


def test_the_entry_and_the_checks_of_container_and_cluster_are_right(folder: Path) -> None:
    port, text = free_port(), (folder / "Containerfile").read_text()
    manifest, service = yaml.safe_load_all((folder / "kubernetes.yaml").read_text())
    pod = manifest["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    entry = json.loads(re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)[0].replace("8000", str(port)))
    check = json.loads(PROBE.findall(text)[0].replace("8000", str(port)))
    with running([*entry, *container["args"], "--allow-host", "127.0.0.1"], folder):
        for probe in (container["livenessProbe"], container["readinessProbe"]):
            host = {header["name"]: header["value"] for header in probe["httpGet"]["httpHeaders"]}
            wait_for_status(f"http://127.0.0.1:{port}/healthz")
            assert ask(f"http://127.0.0.1:{port}{probe['httpGet']['path']}", **host)[0] == 200
        subprocess.run([sys.executable, *check[1:]], check=True, timeout=60)
        assert ask(f"http://127.0.0.1:{port}/functions/shop.price?item=tea") == (200, {"result": 350})
    assert f"USER {pod['securityContext']['runAsUser']}:" in text
    assert service["spec"]["selector"] == manifest["spec"]["template"]["metadata"]["labels"]


# --- compose ------------------------------------------------------------------------------------------------------


def test_edge_workers_and_nats_work_together_with_the_permissions_of_the_operations(
    folder: Path, tmp_path: Path, program: Callable[[str], str]
) -> None:
    made = enfold("nats", "permissions", "app.py", "--users", "users.json", cwd=folder)
    assert made.stdout == (folder / "permissions.conf").read_text()
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    broker, edge, monitor = free_port(), free_port(), free_port()
    conf = folder / "nats.conf"
    text = conf.read_text().replace("4222", str(broker)).replace("8222", str(monitor)).replace("/tmp", str(tmp_path))
    conf.chmod(0o600)
    conf.write_text(text)

    def words(service: str) -> list[str]:
        found: list[str] = services[service]["entrypoint"]
        filled = [re.sub(r"\$\{(\w+)\}", lambda name: SECRETS[name[1]], word) for word in found]
        return [word.replace("@nats:4222", f"@127.0.0.1:{broker}").replace("8000", str(edge)) for word in filled]

    nats = [program("nats-server"), "-c", str(conf)]
    with running(nats, folder) as server:
        wait_for_status(f"http://127.0.0.1:{monitor}/healthz")
        assert enfold(*words("streams")[1:], cwd=folder).returncode == 0
        with running(words("worker"), folder), running(words("worker"), folder), running(words("edge"), folder):
            base = f"http://127.0.0.1:{edge}"
            assert wait_for_status(f"{base}/readyz")["status"] == "ready"
            assert wait_for_status(f"{base}/functions/shop.price?item=tea") == {"result": 350}
            assert ask(f"{base}/functions/shop.order", b'{"item": "cup", "count": 2}') == (200, {"result": 2400})
            assert check(services["edge"], "8000", edge) == 0
            if shutil.which("wget") is not None:
                assert check(services["nats"], "8222", monitor) == 0
            server.terminate()
            missing = wait_for_status(f"{base}/readyz", 503)["missing"]
            assert check(services["edge"], "8000", edge) != 0
            assert [(each["kind"], each["state"]) for each in missing] == [("calls", "down")]
            assert "secret" not in json.dumps(missing)


def check(service: Any, port: str, ours: int) -> int:
    """The exit code of a service's health check, at the port that stands for its own."""
    kind, program, *words = service["healthcheck"]["test"]
    assert kind == "CMD"
    command = [sys.executable if program == "python" else program, *(word.replace(port, str(ours)) for word in words)]
    return subprocess.run(command, check=False, timeout=30, capture_output=True).returncode


def test_every_service_of_ours_has_the_time_to_end_that_it_takes() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert [services[name]["stop_grace_period"] for name in ("edge", "worker")] == ["30s", "30s"]
    assert "TimeoutStopSec=30\n" in (DEPLOY / "enfold.service").read_text()


# --- systemd ------------------------------------------------------------------------------------------------------


def test_the_unit_is_one_that_systemd_accepts(tmp_path: Path) -> None:
    unit = (DEPLOY / "enfold.service").read_text()
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze")
    path = tmp_path / "enfold.service"
    path.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable} -m enfold", unit, flags=re.MULTILINE))
    done = subprocess.run([analyze, "verify", str(path)], capture_output=True, text=True, check=False, timeout=60)
    assert "enfold.service" not in done.stderr, done.stderr


def test_the_service_of_the_unit_reloads_and_stops_as_the_unit_says(folder: Path) -> None:
    unit, port = (folder / "enfold.service").read_text(), free_port()
    words = re.findall(r"^ExecStart=\S+/(enfold .*)$", unit, re.MULTILINE)[0].replace("8000", str(port)).split()
    reload = re.findall(r"^ExecReload=(.*)$", unit, re.MULTILINE)[0]
    with running(words, folder) as process:
        wait_for_status(f"http://127.0.0.1:{port}/readyz")
        subprocess.run(reload.replace("$MAINPID", str(process.pid)).split(), check=True, timeout=60)
        assert ask(f"http://127.0.0.1:{port}/functions/shop.price?item=tea") == (200, {"result": 350})
    assert process.returncode == 0


# --- behind a proxy -----------------------------------------------------------------------------------------------

PROXIED = """\
pid {folder}/pid;
daemon off;
master_process off;
error_log {folder}/errors;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {own}
}}
"""


@contextmanager
def behind_nginx(nginx: str, upstream: int, folder: Path) -> Iterator[int]:
    """The port of nginx with the file that is shown, before a server on another port."""
    port = free_port()
    own = (DEPLOY / "nginx.conf").read_text().replace("listen 80;", f"listen 127.0.0.1:{port};")
    own = own.replace("127.0.0.1:8000", f"127.0.0.1:{upstream}")
    path = folder / "nginx.conf"
    path.write_text(PROXIED.format(folder=folder, own=own))
    with subprocess.Popen([nginx, "-e", str(folder / "errors"), "-c", str(path)]) as process:
        try:
            wait_for(lambda: process.poll() is not None or is_listening(port))
            assert process.poll() is None, (folder / "errors").read_text()
            yield port
        finally:
            process.terminate()
            process.wait(30)


def refused(port: int, *, source: str = "127.0.0.1", **headers: str) -> dict[str, str]:
    """The headers of the answer to a wrong token."""
    told = {"Host": "api.example.org", "Authorization": "Bearer wrong", **headers}
    connection = HTTPConnection("127.0.0.1", port, timeout=30, source_address=(source, 0))
    with closing(connection):
        connection.request("POST", "/functions/shop.greet", b"{}", {**told, "Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 401
        return dict(answer.getheaders())


SERVED = ["app.py", "--token", "right", "--allow-host", "api.example.org", "--log-level", "warning"]
CLAIMED = {"X-Forwarded-For": "203.0.113.9", "X-Forwarded-Proto": "https"}


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_client_that_is_not_a_proxy_claims_neither_another_address_nor_another_scheme(
    folder: Path, workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    for proxies in ([], ["--forwarded-allow-ips", "192.0.2.1"]):
        with serving(*SERVED, *proxies, "--workers", workers, cwd=folder) as served:
            answer = refused(int(served.base.rpartition(":")[2]), **CLAIMED)
            assert "A token from 127.0.0.1 was refused" in served.log.until("was refused")
            assert 'resource_metadata="http://api.example.org' in answer["www-authenticate"]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_proxy_that_was_named_is_believed(folder: Path, workers: str) -> None:
    words = ["--forwarded-allow-ips", "192.0.2.0/24, 127.0.0.1", "--workers", workers]
    with serving(*SERVED, *words, cwd=folder) as served:
        answer = refused(int(served.base.rpartition(":")[2]), **CLAIMED)
        assert "A token from 203.0.113.9 was refused" in served.log.until("was refused")
        assert 'resource_metadata="https://api.example.org' in answer["www-authenticate"]


def test_behind_nginx_the_address_is_the_one_that_nginx_saw(
    folder: Path, tmp_path: Path, program: Callable[[str], str]
) -> None:
    with (
        serving(*SERVED, "--forwarded-allow-ips", "127.0.0.1", cwd=folder) as served,
        behind_nginx(program("nginx"), int(served.base.rpartition(":")[2]), tmp_path) as port,
    ):
        answer = refused(port, source="127.0.0.2", **CLAIMED)
        assert "A token from 127.0.0.2 was refused" in served.log.until("was refused")
        assert 'resource_metadata="http://api.example.org' in answer["www-authenticate"]


@pytest.mark.parametrize("wrong", ["*", "localhost", "10.0.0.1/8", "", "127.0.0.1,,"])
def test_proxies_are_named_by_addresses(folder: Path, wrong: str) -> None:
    ended = enfold("serve", *SERVED, "--forwarded-allow-ips", wrong, cwd=folder)
    assert ended.returncode == 2
    assert "--forwarded-allow-ips must be addresses or networks" in ended.stderr
