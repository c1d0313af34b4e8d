"""Clients see the application's name and version: the SDK's client, and readers of the OpenAPI document."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Literal, NamedTuple

import pytest
from tests.served import serving

import mcp
from mcp import StdioServerParameters

ADD = """
@ops.query
def add(x: int, y: int) -> int:
    return x + y
"""
REGISTRY = "from enfold import OperationRegistry\nops = OperationRegistry({})\n"
RUN = '\nif __name__ == "__main__":\n    ops.run()\n'


class Named(NamedTuple):
    """An application, what it is started by, and what clients should see."""

    source: str
    target: str
    name: str
    version: str


APPLICATIONS = {
    "a title and a version": Named(
        REGISTRY.format('"shop", title="Corner shop", version="2.5"') + ADD, "till.py", "Corner shop", "2.5"
    ),
    "a namespace": Named(REGISTRY.format('"shop"') + ADD, "till.py", "shop", "0.0.0"),
    "a file": Named(REGISTRY.format("") + ADD, "till.py", "till", "0.0.0"),
    "functions in a file": Named(ADD.replace("@ops.query\n", ""), "till.py", "till", "0.0.0"),
    "one function of a file": Named(ADD.replace("@ops.query\n", ""), "till.py:add", "till", "0.0.0"),
    "a view": Named(
        REGISTRY.format('"shop"') + ADD + "few = ops.only(lambda spec: True)\n", "till.py:few", "shop", "0.0.0"
    ),
    "a module of a distribution": Named(REGISTRY.format("") + ADD, "corner.till:ops", "till", "4.2"),
    "a package of a distribution": Named(REGISTRY.format("") + ADD, "corner:ops", "corner", "4.2"),
    "a file of a distribution": Named(REGISTRY.format('"shop"') + ADD, "corner/till.py", "shop", "4.2"),
    "functions of a distribution": Named(ADD.replace("@ops.query\n", ""), "corner.till", "till", "4.2"),
    "a configuration": Named(REGISTRY.format('"shop"') + ADD, "gateway.toml", "gateway", "0.0.0"),
    "a document": Named("", "pets.json", "Pets", "9.1"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path in which `corner` is installed, by a distribution of another name."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    facts = tmp_path / "corner_shop-4.2.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: corner-shop\nVersion: 4.2\n")
    (facts / "RECORD").write_text("corner/__init__.py,,\ncorner/till.py,,\n")
    (tmp_path / "gateway.toml").write_text('[sources.shop]\nfunctions = "till.py:ops"\n')
    (tmp_path / "pets.json").write_text(
        '{"openapi": "3.1.0", "info": {"title": "Pets", "version": "9.1"}, "servers": [{"url": "http://127.0.0.1:9"}],'
        ' "paths": {"/pets": {"get": {"operationId": "pets", "responses": {"200": {"description": "Fine"}}}}}}'
    )
    return tmp_path


def write(application: Named, folder: Path) -> None:
    (folder / "till.py").write_text(application.source)
    (folder / "corner").mkdir()
    (folder / "corner/__init__.py").write_text(application.source if application.target == "corner:ops" else "")
    (folder / "corner/till.py").write_text(application.source)


def seen_by(client: mcp.Client) -> tuple[str, str]:
    assert client.server_info is not None
    return client.server_info.name, client.server_info.version


@pytest.mark.parametrize("application", APPLICATIONS.values(), ids=APPLICATIONS)
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_an_mcp_client_on_stdio_sees_the_name_of_the_application(
    folder: Path, application: Named, mode: Literal["legacy", "auto"]
) -> None:
    write(application, folder)
    words = ["-m", "enfold", "mcp", application.target]
    server = StdioServerParameters(command=sys.executable, args=words, cwd=folder, env={"PYTHONPATH": str(folder)})
    async with mcp.Client(server, mode=mode) as client:
        assert seen_by(client) == (application.name, application.version)


@pytest.mark.parametrize("application", APPLICATIONS.values(), ids=APPLICATIONS)
async def test_the_document_and_mcp_over_http_have_the_name_of_the_application(
    folder: Path, application: Named
) -> None:
    write(application, folder)
    with serving(application.target, cwd=folder) as served:
        document = served.get("/openapi.json")
        seen = []
        for mode in ("legacy", "auto"):
            async with mcp.Client(f"{served.base}/mcp", mode=mode) as client:
                seen.append(seen_by(client))
    assert document["info"] == {"title": application.name, "version": application.version}
    assert seen == [(application.name, application.version)] * 2


# Prints how many descriptions of installed distributions the first `initialize` has to parse.
READING = """
import sys
read = []
sys.addaudithook(lambda event, values: read.append(str(values[0])) if event == "open" else None)
from corner.till import ops
assert ops.application().version == "0.0.0"
print(sum(path.endswith("METADATA") for path in read))
"""


def test_a_package_that_is_not_installed_gets_its_version_without_parsing_every_distribution(
    tmp_path: Path,
) -> None:
    (tmp_path / "corner").mkdir()
    (tmp_path / "corner/till.py").write_text(REGISTRY.format("") + ADD)
    done = subprocess.run([sys.executable, "-c", READING], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


async def test_a_standalone_script_has_the_name_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "till.py").write_text(REGISTRY.format("") + ADD + RUN)
    server = StdioServerParameters(command=sys.executable, args=[str(tmp_path / "till.py"), "mcp"])
    async with mcp.Client(server) as client:
        assert seen_by(client) == ("till", "0.0.0")
