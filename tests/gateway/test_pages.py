"""The statements of the pages on MCP servers and configuration."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from enfold import CallError
from enfold.app.file import read_config

ROOT = Path(__file__).parents[2]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


def test_the_program_on_the_page_prints_what_the_page_says(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests/sources/mcp/little_server.py", tmp_path / "server.py")
    (tmp_path / "program.py").write_text(blocks("mcp-client.md", "python")[0])
    done = subprocess.run([sys.executable, "program.py"], capture_output=True, text=True, check=False, cwd=tmp_path)
    # The third line's warnings are logged too, on stderr.
    assert done.stdout == blocks("mcp-client.md", "text")[0]


def test_the_files_on_the_page_are_read(tmp_path: Path) -> None:
    environ = {"TICKETS_TOKEN": "secret"}
    (tmp_path / "mcp.json").write_text(blocks("configuration.md", "json")[0])
    (tmp_path / "enfold.toml").write_text(blocks("configuration.md", "toml")[0])
    assert [source.name for source in read_config(tmp_path / "mcp.json", environ).sources] == ["files", "tickets"]
    sources = {source.name: source for source in read_config(tmp_path / "enfold.toml", environ).sources}
    assert {name: source.kind for name, source in sources.items()} == {
        "files": "mcp",
        "tickets": "mcp",
        "shop": "openapi",
        "mine": "functions",
    }
    assert sources["tickets"].entry["credentials"] == "secret"
    assert sources["shop"].entry["base_url"] == "https://shop.example.org"


def test_the_mistake_on_the_page_is_reported_as_the_page_shows(tmp_path: Path) -> None:
    path = tmp_path / "enfold.toml"
    path.write_text('[sources.files]\ncommand = "x"\ntimeot = 30\n')
    with pytest.raises(CallError) as caught:
        read_config(path, {})
    assert caught.value.message == f"{tmp_path}/{blocks('configuration.md', 'text')[0].strip()}"
