"""The MCP conformance suite, where it is installed; the fixtures themselves, always."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import not_run

HERE = Path(__file__).parent
NOT_RUN = 2


def test_the_server_passes_the_conformance_suite() -> None:
    program = [sys.executable, str(HERE / "suite.py"), "--sample"]
    done = subprocess.run(program, check=False, capture_output=True, text=True, timeout=900)
    if done.returncode == NOT_RUN:
        not_run("@modelcontextprotocol/conformance")
    assert done.returncode == 0, done.stdout


def test_no_file_of_ours_knows_a_fixture() -> None:
    sources = (HERE.parent.parent / "src").rglob("*.py")
    assert not [path for path in sources if "test_simple_text" in path.read_text() or "test://" in path.read_text()]
