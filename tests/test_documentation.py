import ast
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from enfold import testing

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted([*(ROOT / "examples").glob("*.py"), *(ROOT / "examples/extending").glob("*.py")])
BROUGHT = {"enfold", "msgspec", "uvicorn"}  # the package, what it depends on, and what `enfold[http]` brings


def test_the_pages_show_the_examples_and_what_they_print() -> None:
    done = subprocess.run(
        [sys.executable, "docs/build.py", "--check"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "run `make docs`"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_without_a_word_on_stderr(path: Path) -> None:
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_link_in_the_pages_leads_somewhere() -> None:
    pages = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text())]
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []


def test_the_menu_of_the_site_has_every_page_once() -> None:
    menu = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(menu) == sorted([*pages, "index.md"])  # the front page of the site is the README


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_needs_nothing_that_the_extras_do_not_bring(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = [node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in imports]
    packages = {str(module).partition(".")[0] for module in modules} - sys.stdlib_module_names
    assert packages <= BROUGHT


async def test_the_app_that_the_page_mounts_needs_no_lifespan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/howto/mount.md").read_text(encoding="utf-8")
    for name, text in re.findall(r'^```python title="(\w+\.py)"\n(.*?)^```$', page, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    app = importlib.import_module("star").app

    client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "a test", "version": "1"}}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}
    headers = {"Host": "127.0.0.1", "Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    greeting = testing.Conversation(app, "POST", "/mcp/", headers, json.dumps(hello).encode())
    call = testing.Conversation(app, "GET", "/ops/functions/shop.price?item=tea", {"Host": "127.0.0.1"})
    assert b'"serverInfo"' in await greeting.body()
    assert json.loads(await call.body()) == {"result": 3.5}
