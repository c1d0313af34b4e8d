"""The client leg of the MCP conformance suite, where it is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import not_run

ROOT = Path(__file__).parent.parent.parent
NOT_RUN = 2


def test_our_client_passes_the_conformance_suite() -> None:
    program = [sys.executable, "-m", "tests.conformance.client_suite", "--core"]
    done = subprocess.run(program, check=False, capture_output=True, text=True, timeout=600, cwd=ROOT)
    if done.returncode == NOT_RUN:
        not_run("@modelcontextprotocol/conformance")
    assert done.returncode == 0, done.stdout
