"""`python -m benchmarks [names]`: make what the races need, then run them one after another, each in its own process."""

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


def main() -> int:
    """Zero, whatever the ratios are: they are figures. Not zero when a benchmark could not do its work."""
    chosen = _arguments()
    prepare(BARE)
    prepare(PEERS)
    worst = max(_run(name, chosen.rounds) for name in chosen.names or NAMES)
    if chosen.publish:
        published(chosen.names or NAMES)
    return worst


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Enfold beside its peers and its floors.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of {', '.join(NAMES)}; all of them by default")
    parser.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS, help=f"at least {MIN_ROUNDS} (%(default)s)")
    parser.add_argument(
        "--publish",
        action="store_true",
        help="put the figures into docs/figures.json, and renew the plots of the pages",
    )
    chosen = parser.parse_args()
    for name in chosen.names:
        if name not in NAMES:
            parser.error(f"there is no benchmark {name}: choose from {', '.join(NAMES)}")
    return chosen


def _run(name: str, rounds: int) -> int:
    command = [str(PEERS.python), "-m", f"benchmarks.{name}", str(rounds)]
    return abs(subprocess.run(command, cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    sys.exit(main())
