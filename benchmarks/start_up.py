"""From nothing to an imported registry: new interpreters in turn, timed on the wall, with a look at what ours loads."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from benchmarks.environments import BARE, HOME, PEERS
from benchmarks.harness import Contender, Goal, Race, Sample
from benchmarks.program import race_all

if TYPE_CHECKING:
    from pathlib import Path

NOTHING: Final = "pass"
MSGSPEC: Final = "import msgspec"
ENFOLD: Final = "from enfold import OperationRegistry"
PYDANTIC: Final = "from pydantic import TypeAdapter"
SDK: Final = "from mcp.server import MCPServer"
FASTMCP: Final = "from fastmcp import FastMCP"

# A batch long enough for several starts of the light ones: starting a process is a noisy thing.
BATCH_US: Final = 300_000.0

# What a program that only imports the registry must not pay for.
UNWANTED: Final = (
    "asyncio",
    "cryptography",
    "httpx2",
    "mcp",
    "nats",
    "opentelemetry",
    "pydantic",
    "ruamel",
    "uvicorn",
    "websockets",
)


def main(rounds: int) -> int:
    light = (_start(BARE.python, program) for program in (NOTHING, MSGSPEC, ENFOLD))
    heavy = (_start(PEERS.python, program) for program in (PYDANTIC, SDK, FASTMCP))
    goals = (Goal(ENFOLD, MSGSPEC, "at most", 1.6),)
    race = Race("start-up", (*light, *heavy), (MSGSPEC, ENFOLD), goals, "wall", BATCH_US)
    return race_all("start_up", [race], rounds)


def _start(python: Path, program: str) -> Contender:
    async def answer() -> Any:
        # Asked where the optional packages are installed: where they are not, nobody could load them.
        return _unwanted_of(program) if program == ENFOLD else []

    async def batch(count: int) -> Sample:
        cpu, wall = _children_cpu_us(), time.perf_counter_ns()
        for _ in range(count):
            _run(python, program)
        return Sample((_children_cpu_us() - cpu) / count, (time.perf_counter_ns() - wall) / count / 1_000)

    return Contender(program, batch, answer, [])


def _unwanted_of(program: str) -> list[str]:
    question = f"{program}\nimport json, sys\nprint(json.dumps([name for name in {UNWANTED} if name in sys.modules]))"
    loaded: list[str] = json.loads(_run(PEERS.python, question))
    return loaded


def _run(python: Path, program: str) -> bytes:
    return subprocess.run([python, "-c", program], check=True, stdout=subprocess.PIPE, env=_with_bytecode()).stdout


def _with_bytecode() -> dict[str, str]:
    """The environment in which every module is compiled once, as an installed package is, and not in the checkout."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, "PYTHONPYCACHEPREFIX": str(HOME / "bytecode")}


def _children_cpu_us() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) * 1_000_000


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
