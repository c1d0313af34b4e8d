"""A missing extra: every hint names a command that works for the installation at hand."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

ROOT = Path(__file__).parent.parent
HINT = re.compile(r"needs? \w+: (?P<command>pip install (?P<target>-e '[^']+'|'[^']+'))")


class Machine:
    """A checkout, a wheel and a package index with Enfold, and an environment to install it into."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.checkout = folder, folder / "checkout"
        self.checkout.mkdir()
        shutil.copytree(ROOT / "src", self.checkout / "src", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "DESCRIPTION.md", "LICENSE"):
            shutil.copy(ROOT / name, self.checkout)
        (folder / "pets.yaml").write_text(
            "openapi: 3.1.0\ninfo: {title: Pets, version: '1'}\npaths: {/pets: {get: {responses: {default: {description: ''}}}}}\n"
        )
        (folder / "app.py").write_text("def add(x: int) -> int:\n    return x\n")
        self.run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir=wheels", self.checkout])
        (self.wheel,) = (folder / "wheels").glob("*.whl")
        self.run([sys.executable, "-m", "venv", "venv"])
        self.pip(["install", "msgspec", "hatchling", "editables"])

    def run(self, command: list[str | Path], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "PIP_FIND_LINKS": f"{os.environ.get('PIP_FIND_LINKS', '')} {self.folder / 'wheels'}"}
        done = subprocess.run(command, cwd=cwd or self.folder, env=environ, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def pip(self, words: list[str], cwd: Path | None = None) -> None:
        options = ["--quiet", "--disable-pip-version-check"]
        done = self.run([self.folder / "venv/bin/python", "-m", "pip", *options, *words], cwd)
        assert done.returncode == 0, done.stderr

    def install(self, *words: str, cwd: Path | None = None) -> None:
        self.pip(["install", "--no-build-isolation", *words], cwd)

    def enfold(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run([self.folder / "venv/bin/enfold", *words])

    @contextmanager
    def repository(self) -> Iterator[str]:
        """The URL of the checkout as a git repository that is served over HTTP."""
        git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
        steps = "init --quiet -b main", "add .", "commit --quiet -m Start", "update-server-info"
        for step in steps:
            assert self.run([*git, *step.split()], self.checkout).returncode == 0
        handler = partial(SimpleHTTPRequestHandler, directory=str(self.checkout / ".git"))
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            thread = Thread(target=server.serve_forever)
            thread.start()
            try:
                yield f"git+http://127.0.0.1:{server.server_port}/@main"
            finally:
                server.shutdown()
                thread.join()


@pytest.fixture(scope="module")
def machine(package_index: None, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("machine"))


def test_every_hint_is_made_for_the_installation_at_hand() -> None:
    files = [file for file in (ROOT / "src/enfold").rglob("*.py") if "pip install 'enfold[" in file.read_text()]
    assert [file.name for file in files] == ["errors.py"], "use `install_command`"


@pytest.mark.parametrize("kind", ["editable", "path", "wheel", "git", "index"])
def test_the_hint_about_a_missing_extra_works_for_this_installation(machine: Machine, kind: str) -> None:
    checkout, wheel = machine.checkout, machine.wheel
    with machine.repository() if kind == "git" else nullcontext("") as url:
        words, target, folder = {
            "editable": (["-e", str(checkout)], "-e '.[openapi]'", checkout),
            "path": ([str(checkout)], "'.[openapi]'", checkout),
            "wheel": ([str(wheel)], f"'./{wheel.name}[openapi]'", wheel.parent),
            "git": ([f"enfold @ {url}"], f"'enfold[openapi] @ {url}'", machine.folder),
            "index": (["enfold"], "'enfold[openapi]'", machine.folder),
        }[kind]
        machine.pip(["uninstall", "--yes", "enfold", "pyyaml", "httptools", "idna"])
        machine.install("--no-deps", *words)
        missing = machine.enfold("list", "pets.yaml")
        assert missing.returncode == 7
        hint = HINT.search(missing.stderr)
        assert hint is not None, missing.stderr
        assert hint["target"] == target
        assert str(machine.folder) not in missing.stderr, "a remote caller may see it"

        machine.install(*shlex.split(hint["command"])[2:], cwd=folder)
        assert machine.enfold("list", "pets.yaml").stdout.startswith("get_pets\t")


COMMANDS = {
    "http": ["serve", "app.py", "--port", "0"],
    "mcp": ["list", "http://127.0.0.1:9/mcp"],
    "openapi": ["list", "pets.yaml"],
    "nats": ["work", "app.py", "--nats", "nats://127.0.0.1:9"],
    "websocket": ["work", "app.py", "--hub", "ws://127.0.0.1:9"],
    "auth": ["serve", "app.py", "--issuer", "https://127.0.0.1:9/", "--audience", "x"],
}


def test_every_command_that_lacks_an_extra_says_how_to_install_it(machine: Machine) -> None:
    machine.pip(["uninstall", "--yes", "enfold", "pyyaml", "httptools", "idna"])
    machine.install("--no-deps", str(machine.checkout))
    installed = machine.enfold("doctor").stdout
    for extra, words in COMMANDS.items():
        assert f"missing: pip install '.[{extra}]'" in installed
        done = machine.enfold(*words)
        assert (done.returncode, done.stdout) == (7, ""), (extra, done.stderr)
        assert f"pip install '.[{extra}]' (in the checkout of Enfold)" in done.stderr, extra
