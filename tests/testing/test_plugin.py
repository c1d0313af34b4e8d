"""The pytest plugin, as a user's project finds it: by its entry point."""

import subprocess
import sys
from pathlib import Path

SCENARIO = """
import asyncio
import pytest
from enfold import OperationRegistry

ops = OperationRegistry("shop")

@ops.query
def add(x: int, y: int) -> int:
    return x + y

def test_add_sums_two_numbers(enfold_client):
    async def scenario():
        async with enfold_client(ops) as client:
            assert (await client.call("shop.add", {"x": 1, "y": 2})).data == 3
    asyncio.run(scenario())

@pytest.mark.enfold_surfaces("http", "cgi")
def test_some(enfold_surface):
    assert enfold_surface in ("http", "cgi")

@pytest.mark.enfold_surfaces("soap")
def test_none(enfold_client):
    enfold_client(ops)
"""


def test_a_test_runs_once_for_each_surface(tmp_path: Path) -> None:
    (tmp_path / "test_scenario.py").write_text(SCENARIO)
    words = ["-q", "--strict-markers", "-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "no:anyio"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert "1 failed, 9 passed" in done.stdout, done.stdout
    assert "There is no surface 'soap' to test" in done.stdout


def test_a_project_that_uses_no_fixture_pays_nothing() -> None:
    program = "import sys, enfold.pytest_plugin as p; print(sorted(n for n in sys.modules if n.startswith('enfold.')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "enfold.surfaces" not in done.stdout
