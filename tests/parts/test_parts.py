"""`make setup` and the test run on a machine that reaches neither npm nor Debian: missing parts are skipped, listed, and fetched later."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PACKAGE = "@sinclair/typebox"


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"


def run(*command: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "npm_config_cache": str(folder / "cache"), **environ}
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False, cwd=folder)


def test_an_npm_registry_that_does_not_answer_is_reported(tmp_path: Path, silent: str) -> None:
    done = run(str(HERE / "npm.sh"), str(tmp_path), folder=tmp_path, npm_config_registry=silent)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"The npm registry {silent} cannot be reached" in done.stderr
    assert not (tmp_path / "node_modules").exists()


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="this machine has no apt-get")
def test_a_debian_mirror_that_does_not_answer_is_reported(tmp_path: Path, silent: str) -> None:
    (tmp_path / "sources").write_text(f"deb [trusted=yes] {silent} stable main\n")
    (tmp_path / "lists" / "partial").mkdir(parents=True)
    (tmp_path / "apt.conf").write_text(
        f'Dir::Etc::SourceList "{tmp_path}/sources";\nDir::Etc::SourceParts "/dev/null";\nDir::State::Lists "{tmp_path}/lists";\n'
    )
    conf = str(tmp_path / "apt.conf")
    done = run(str(HERE / "debian.sh"), str(tmp_path), folder=tmp_path, APT_CONFIG=conf, PATH="/usr/bin:/bin")
    assert (done.returncode, done.stdout) == (1, "")
    assert "lighttpd is not installed, and Debian's package could not be fetched" in done.stderr


def test_a_part_that_could_not_be_fetched_is_fetched_by_the_next_make(tmp_path: Path, silent: str) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copytree(HERE, tmp_path / "tests/parts")
    (tmp_path / "tests/parts/package.json").write_text(
        json.dumps({"private": True, "dependencies": {PACKAGE: "1.0.0"}})
    )
    (tmp_path / ".venv").mkdir()
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / ".venv/ready").touch()
    installed, stamp = tmp_path / ".parts/node_modules" / PACKAGE / "package.json", tmp_path / ".parts/npm.ready"

    unreachable = run("make", ".parts/npm.ready", folder=tmp_path, npm_config_registry=silent)
    assert (unreachable.returncode, installed.exists(), stamp.exists()) == (0, False, False)
    assert "cannot be reached: the tests that need npm packages will be skipped" in unreachable.stderr

    with registry() as url:
        reachable = run("make", ".parts/npm.ready", folder=tmp_path, npm_config_registry=url)
    assert (reachable.returncode, installed.exists(), stamp.exists()) == (0, True, True), reachable.stderr

    again = run("make", ".parts/npm.ready", folder=tmp_path, npm_config_registry=silent)
    assert (again.returncode, again.stderr) == (0, "")
    assert "up to date" in again.stdout


@contextmanager
def registry() -> Iterator[str]:
    """An npm registry that has one package."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        manifest = json.dumps({"name": PACKAGE, "version": "1.0.0"}).encode()
        member = tarfile.TarInfo("package/package.json")
        member.size = len(manifest)
        archive.addfile(member, io.BytesIO(manifest))
    tarball = buffer.getvalue()
    integrity = f"sha512-{base64.b64encode(hashlib.sha512(tarball).digest()).decode()}"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            dist = {"tarball": f"{url}typebox.tgz", "integrity": integrity}
            version = {"name": PACKAGE, "version": "1.0.0", "dist": dist}
            document = {"name": PACKAGE, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
            body = tarball if self.path.endswith(".tgz") else json.dumps(document).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Keep the test's output quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    url = f"http://127.0.0.1:{server.server_port}/"
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield url
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


NEEDY = """
import pytest
from tests.conftest import not_run

@pytest.mark.parametrize("number", range(3))
def test_in_a_browser(number):
    not_run("chromium")

def test_with_prism(program):
    program("@stoplight/prism-cli")

@pytest.mark.skip(reason="runs with `make faults`")
def test_long(): ...
"""


def pytest_run(folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_needy.py").write_text(NEEDY)
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "--rootdir", ".", "-c", os.devnull]
    variables = {"PYTHONPATH": str(ROOT), "REQUIRE_ALL": "", **environ}
    return run(sys.executable, "-m", "pytest", *options, folder=folder, **variables)


def test_the_run_ends_with_one_list_of_what_was_skipped_and_how_to_get_it(tmp_path: Path) -> None:
    done = pytest_run(tmp_path)
    heading, *lines, _, result = done.stdout.rpartition("= 5 tests skipped =")[2].splitlines()
    assert (done.returncode, heading.strip("= ")) == (0, "")
    assert lines == [
        "    3  chromium is missing (run `make setup` when Debian's packages can be reached, or `sudo apt-get install chromium`)",
        "    1  @stoplight/prism-cli is missing (run `make setup` when the npm registry can be reached)",
        "    1  runs with `make faults`",
    ]
    assert "5 skipped" in result


def test_a_missing_part_is_a_failure_where_all_are_required(tmp_path: Path) -> None:
    done = pytest_run(tmp_path, REQUIRE_ALL="1")
    assert done.returncode == 1
    assert "4 failed, 1 skipped" in done.stdout
    assert "chromium is missing" in done.stdout
