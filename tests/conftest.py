"""What tests share: the real programs they run, each found where `make setup` puts it."""

import os
import shutil
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, settings

from enfold import log

# A shared machine may be slow; where a change is judged, the examples are the same at every run.
settings.register_profile(
    "enfold",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI") or os.environ.get("REQUIRE_ALL")),
)
settings.load_profile("enfold")

ROOT = Path(__file__).parent.parent
PLACES = [ROOT / ".venv/bin", ROOT / ".parts/node_modules/.bin", ROOT / ".parts/debian/usr/sbin"]


def not_run(what: str) -> NoReturn:
    """Leave a test out because a part cannot be had; where everything is required that is a failure."""
    if os.environ.get("REQUIRE_ALL"):
        pytest.fail(f"{what} cannot be had here, and REQUIRE_ALL is set")
    pytest.skip(f"not run: {what} cannot be had here")


@pytest.fixture(scope="session")
def program() -> Callable[[str], str]:
    """The path of a program by its name."""

    def find(name: str) -> str:
        search = os.pathsep.join([*map(str, PLACES), os.environ.get("PATH", "")])
        found = shutil.which(name, path=search)
        if found is None:
            not_run(name)
        return str(found)

    return find


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test has logged goes from one process to another as UTF-8, though it may hold half a character."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(autouse=True)
def _talkative() -> Iterator[None]:
    """A command that is run in this process silences logs, which other tests read."""
    yield
    log._silent.clear()
