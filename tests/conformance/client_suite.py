"""Runs the client part of the MCP conformance suite against our client, and counts the status of every check.

`python -m tests.conformance.client_suite` needs what `suite.py` needs. It ends with 0 when no check failed or warned;
those that are skipped are about what a client may leave undone. `--core` runs what every client must do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

from tests.conformance.suite import GOOD, ROOT, SUITE, _node

CLIENT: Final = ROOT / "tests" / "sources" / "mcp" / "conformance_client.py"
# What every client must do; and every scenario that there is: those of each revision, those of the first revision
# with a login, and the extensions.
CORE: Final = (("core", "2025-11-25"), ("core", "2026-07-28"))
ALL: Final = (("all", "2025-11-25"), ("all", "2026-07-28"), ("backcompat", "2025-03-26"), ("extensions", ""))


def main(arguments: list[str]) -> int:
    node = _node()
    if node is None or not SUITE.exists():
        sys.stderr.write("not run: the suite needs node and its own package below .parts\n")
        return 2
    legs = CORE if "--core" in arguments else ALL
    bad = [line for suite, revision in legs for line in _run(node, suite, revision)]
    sys.stdout.write("\n".join([*bad, "" if bad else "No check of the client failed or warned.\n"]))
    return 1 if bad else 0


def _run(node: str, suite: str, revision: str) -> list[str]:
    """One leg; a line for each check that is not good."""
    with tempfile.TemporaryDirectory() as home:
        command = [node, str(SUITE), "client", "--suite", suite, "--command", f"{sys.executable} {CLIENT}", "-o", home]
        choice = ["--spec-version", revision] if revision else []
        # They all run at once, and a machine with few cores needs time for that; what they say is in the files.
        patient = [*command, *choice, "--timeout", "90000"]
        subprocess.run(patient, check=False, env=_environment(node), capture_output=True)
        found = {path.parent: json.loads(path.read_text()) for path in sorted(Path(home).rglob("checks.json"))}
    checks = [(folder.name, check) for folder, each in found.items() for check in each]
    count = Counter(check["status"] for _, check in checks)
    where = f"client {suite} {revision}".strip()
    sys.stdout.write(f"{where}: {len(found)} scenarios, {', '.join(f'{n} {status}' for status, n in count.items())}\n")
    if not checks:
        return [f"{where}: the suite gave no checks"]
    return [_line(where, scenario, check) for scenario, check in checks if check["status"] not in (*GOOD, "SKIPPED")]


def _environment(node: str) -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(node).parent}{os.pathsep}{os.environ['PATH']}"}


def _line(where: str, scenario: str, check: dict[str, Any]) -> str:
    return f"{where} {scenario} {check['id']} {check['status']}: {check.get('errorMessage') or check['description']}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
