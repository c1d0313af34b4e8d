"""`make demo` as on a fresh machine: a clean copy of the tree, an empty environment, and one call on each surface."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.serving import is_listening
from tests.waiting import wait_for

ROOT = Path(__file__).parent.parent
PRICE = {"result": 7.0}


class Demo(NamedTuple):
    folder: Path
    port: int
    environ: dict[str, str]
    printed: Path


@pytest.fixture(scope="module")
def demo(package_index: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    home = tmp_path_factory.mktemp("home")
    folder = home / "enfold"
    shutil.copytree(
        ROOT, folder, ignore=shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "site")
    )
    development = str(ROOT / ".venv/bin")
    path = os.pathsep.join(place for place in os.environ["PATH"].split(os.pathsep) if place != development)
    # Nothing but the path, and how this machine reaches its package index.
    environ = {"PATH": path, "HOME": str(home)} | {key: os.environ[key] for key in os.environ if key.startswith("PIP_")}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    printed = home / "printed"
    python = Path(sys.base_prefix) / "bin/python3"
    with printed.open("w") as output:
        process = subprocess.Popen(
            ["make", "demo", f"PORT={port}", f"PYTHON={python}"],
            cwd=folder,
            env=environ,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            wait_until_served(port, process, printed)
            yield Demo(folder, port, environ, printed)
        finally:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(60)


def wait_until_served(port: int, process: subprocess.Popen[bytes], printed: Path) -> None:
    def is_served() -> bool:
        assert process.poll() is None, printed.read_text()
        return is_listening(port)

    wait_for(is_served, within=200)


def ask(port: int, method: str, path: str, body: str | None = None, **headers: str) -> tuple[str, bytes]:
    """The content type and the body of a successful answer."""
    connection = HTTPConnection("127.0.0.1", port)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        assert answer.status == 200
        return answer.headers["Content-Type"], answer.read()
    finally:
        connection.close()


def test_the_demo_answers_over_http(demo: Demo) -> None:
    assert json.loads(ask(demo.port, "GET", "/functions/shop.price?item=tea&quantity=2")[1]) == PRICE


def test_the_demo_takes_an_order_with_a_token(demo: Demo) -> None:
    headers = {"Authorization": "Bearer demo-customer", "Content-Type": "application/json"}
    _, answer = ask(demo.port, "POST", "/functions/shop.order", '{"item": "tea", "quantity": 2}', **headers)
    order = json.loads(answer)["result"]
    assert (order["total"], order["by"]) == (7.0, "customer")


def test_the_demo_has_a_console(demo: Demo) -> None:
    content_type, page = ask(demo.port, "GET", "/", Accept="text/html")
    assert content_type.startswith("text/html")
    assert b"<script" in page


@pytest.mark.parametrize("surface", ["MCP", "Shell"])
def test_the_commands_that_the_demo_prints_work(demo: Demo, surface: str) -> None:
    command = re.search(rf"^ *{surface} +(\.demo/bin/enfold .*)$", demo.printed.read_text(), re.MULTILINE)
    assert command is not None
    done = subprocess.run(
        shlex.split(command[1]), cwd=demo.folder, env=demo.environ, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == PRICE


def test_the_demo_prints_an_entry_for_an_mcp_client(demo: Demo) -> None:
    entry = re.search(r"in an editor: (.*)$", demo.printed.read_text(), re.MULTILINE)
    assert entry is not None
    assert json.loads(entry[1])["mcpServers"]["shop"]["url"] == f"http://127.0.0.1:{demo.port}/mcp"


def test_the_demo_listens_only_on_loopback(demo: Demo) -> None:
    addresses = set(re.findall(r"https?://([^:/\s]+)", demo.printed.read_text()))
    assert addresses == {"127.0.0.1"}
    # A server on all addresses would also hold this one.
    with socket.create_server(("127.0.0.2", demo.port)):
        pass


def test_the_demo_installs_only_what_serving_needs(demo: Demo) -> None:
    sizes = [file.lstat().st_blocks * 512 for file in (demo.folder / ".demo").rglob("*") if not file.is_dir()]
    assert sum(sizes) < 60_000_000
