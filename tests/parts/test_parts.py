"""`make setup` on a machine that reaches no registry: it says what is missing, and goes on."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"


def run(script: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [str(HERE / script), str(folder)]
    variables = {**os.environ, "PATH": path, "npm_config_cache": str(folder / "cache"), **environ}
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def test_an_npm_registry_that_does_not_answer_is_told_and_left_out(tmp_path: Path, silent: str) -> None:
    done = run("npm.sh", tmp_path, npm_config_registry=silent)
    assert (done.returncode, done.stdout) == (0, "")
    assert f"The npm registry {silent} cannot be reached" in done.stderr
    assert not (tmp_path / "node_modules").exists()


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="there is no apt-get here")
def test_a_debian_mirror_that_does_not_answer_is_told_and_left_out(tmp_path: Path, silent: str) -> None:
    (tmp_path / "sources").write_text(f"deb [trusted=yes] {silent} stable main\n")
    (tmp_path / "lists" / "partial").mkdir(parents=True)
    (tmp_path / "apt.conf").write_text(
        f'Dir::Etc::SourceList "{tmp_path}/sources";\nDir::Etc::SourceParts "/dev/null";\nDir::State::Lists "{tmp_path}/lists";\n'
    )
    done = run("debian.sh", tmp_path, APT_CONFIG=str(tmp_path / "apt.conf"), PATH="/usr/bin:/bin")
    assert (done.returncode, done.stdout) == (0, "")
    assert "lighttpd cannot be had from Debian" in done.stderr
