"""Pages typed as a newcomer would, with Enfold installed from a wheel: their files are saved, their commands run in one shell,
and what they show is compared."""

import itertools
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import wait_for

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = ("../README.md", "../DESCRIPTION.md", "tutorial.md", "howto/secure.md", "howto/why-failed.md")
BLOCK = re.compile(r'^```(?:\w+ title="(?P<file>[^"]+)"|console)\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL)
ENDED = "--- ended ---"

# For machines without curl: `curl -s URL [-H HEADER]`, as the page uses it.
CURL = """
import sys, urllib.error, urllib.request
headers = dict(text.split(": ", 1) for text in sys.argv[4::2])
try:
    print(urllib.request.urlopen(urllib.request.Request(sys.argv[2], headers=headers)).read().decode())
except urllib.error.HTTPError as error:
    print(error.read().decode())
"""


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_what_happens(shell: "Shell", page: str) -> None:
    blocks = list(BLOCK.finditer(shell.with_free_ports((DOCS / page).read_text(encoding="utf-8"))))
    for block in blocks:
        if block["file"]:
            (shell.folder / block["file"]).write_text(block["text"], encoding="utf-8")
        else:
            for command, expected in steps(block["text"]):
                shell.expect(command, expected)
    assert len(blocks) >= 4


def steps(block: str) -> Iterator[tuple[str, str]]:
    """Each command of a block, with the output that is shown below it."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        yield command, expected.strip()


class Shell:
    """One bash, as in a terminal; servers run beside it, and a new `enfold serve` takes the place of the one before."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder = folder
        self.numbers = itertools.count()
        development = str(ROOT / ".venv/bin")
        places = [place for place in os.environ["PATH"].split(os.pathsep) if place != development]
        path = os.pathsep.join([str(programs), *places])
        self.process = subprocess.Popen(
            ["bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env={"PATH": path, "HOME": str(folder), "LANG": "C.UTF-8"},
        )

    def with_free_ports(self, page: str) -> str:
        for port in ("8000", "4222"):
            with socket.create_server(("127.0.0.1", 0)) as free:
                number = str(free.getsockname()[1])
            page = page.replace(f":{port}", f":{number}").replace(f"port: {port}", f"port: {number}")
            if port == "8000":
                page = page.replace("$ enfold serve ", f"$ enfold serve --port {number} ")
        return page

    def expect(self, command: str, expected: str) -> None:
        pattern = re.escape(expected).replace("…", "(?s:.*)")
        if not re.match(r"enfold (serve|work)|nats-server", command):
            wait_for(lambda: self._shows(command, pattern))
            return
        if command.startswith("enfold serve"):
            self.run("test -z $SERVER || { kill $SERVER; wait $SERVER; }")
            self.run(f"{self.beside(command)} & SERVER=$!")
        else:
            self.run(f"{self.beside(command)} &")
        self.wait_until_shown(pattern)

    def _shows(self, command: str, pattern: str) -> bool:
        """Run a command once; only `grep` may fail, because a call is logged after its answer is sent."""
        shown = self.run(command)
        is_shown = re.fullmatch(pattern, shown) is not None
        assert is_shown or command.startswith("grep "), (command, shown)
        return is_shown

    def beside(self, command: str) -> str:
        """A command of another terminal."""
        self.log = self.folder / f"server-{next(self.numbers)}.log"
        self.log.touch()
        return f"{command} > {self.log.name} 2>&1"

    def wait_until_shown(self, pattern: str) -> None:
        wait_for(lambda: re.match(pattern, self.log.read_text(encoding="utf-8")))

    def run(self, command: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{{ {command}\n}} < /dev/null; echo; echo '{ENDED}'\n")
        self.process.stdin.flush()
        return "".join(iter(self.process.stdout.readline, f"{ENDED}\n")).strip()


@pytest.fixture
def shell(tmp_path: Path, wheel_bin: Path) -> Iterator[Shell]:
    opened = Shell(tmp_path, wheel_bin)
    assert opened.run("command -v enfold") == str(wheel_bin / "enfold")
    if shutil.which("curl") is None:
        (tmp_path / "curl.py").write_text(CURL, encoding="utf-8")
        opened.run(f'curl() {{ python {tmp_path}/curl.py "$@"; }}')
    yield opened
    opened.run("kill $(jobs -p); wait")
    opened.process.communicate()
