"""`python -m benchmarks [names]`: make what the comparisons need, then run them one after another, each in its own process."""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import Final

from benchmarks.environments import BARE, PEERS, ROOT, prepare
from benchmarks.harness import DEFAULT_ROUNDS, MIN_ROUNDS
from benchmarks.published import published

NAMES: Final = (
    "hops",
    "in_process",
    "schema_engines",
    "start_up",
    "http",
    "workers",
    "mcp_http",
    "mcp_stdio",
    "mcp_client",
    "tasks",
    "gateway",
    "openapi",
    "agents",
    "web",
    "calls",
    "provenance",
)
ON_REQUEST: Final = ("scale",)  # starts a fleet of processes and takes minutes
_NAMES_HELP: Final = f"one of {', '.join(NAMES)}; all of them by default; or {', '.join(ON_REQUEST)}"


def main() -> int:
    """Zero, whatever the ratios are: they are figures. Not zero when a benchmark could not do its work."""
    chosen = _arguments()
    prepare(BARE)
    prepare(PEERS)
    options = ["--quick"] if chosen.quick else []
    worst = max(_run(name, chosen.rounds, options) for name in chosen.names or NAMES)
    if chosen.publish:
        published(name for name in chosen.names or NAMES if name in NAMES)
    return worst


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Enfold beside its peers and its floors.")
    parser.add_argument("names", nargs="*", metavar="name", help=_NAMES_HELP)
    parser.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS, help=f"at least {MIN_ROUNDS} (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="with `scale` alone: a smaller fleet, for about a minute")
    parser.add_argument(
        "--publish",
        action="store_true",
        help="put the figures into docs/figures.json, and renew the plots of the pages",
    )
    chosen = parser.parse_args()
    for name in chosen.names:
        if name not in NAMES + ON_REQUEST:
            parser.error(f"there is no benchmark {name}: choose from {', '.join(NAMES + ON_REQUEST)}")
    if chosen.quick and tuple(chosen.names) != ON_REQUEST:
        parser.error("--quick is an option of the benchmark scale alone")
    return chosen


def _run(name: str, rounds: int, options: list[str]) -> int:
    command = [str(PEERS.python), "-m", f"benchmarks.{name}", str(rounds), *options]
    return abs(subprocess.run(command, cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    sys.exit(main())
