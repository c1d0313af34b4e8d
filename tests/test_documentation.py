import ast
import importlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

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
def test_an_example_runs_from_a_wheel_without_a_word_on_stderr(path: Path, wheel_bin: Path) -> None:
    done = subprocess.run([wheel_bin / "python", path], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_link_in_the_pages_has_a_target() -> None:
    pages = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    links = [(page, *link) for page in pages for link in re.findall(r"\]\(([^)#:]*)(#[^)]+)?\)", page.read_text())]
    dead = [(page.name, link) for page, link, _ in links if not (page.parent / link).exists()]
    anchors = [(page, (page.parent / link) if link else page, anchor[1:]) for page, link, anchor in links if anchor]
    assert dead + [(page.name, anchor) for page, target, anchor in anchors if anchor not in headings(target)] == []
    assert len(anchors) > 30


def headings(page: Path) -> set[str]:
    """The anchors of a page, as mkdocs makes them of its headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    plain = [re.sub(r"[^\w\s-]", "", title).strip().lower() for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    return {re.sub(r"[-\s]+", "-", title) for title in plain}


def test_the_description_of_the_package_needs_nothing_beside_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (ROOT / project["readme"]).read_text(encoding="utf-8")
    assert re.findall(r"!\[|\]\((?!https?:)", text) == []  # no picture, and no link into the repository
    front = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [block for block in re.findall(r"^```.*?^```$", text, re.MULTILINE | re.DOTALL) if block not in front] == []


def test_the_menu_of_the_site_has_every_page_once() -> None:
    menu = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(menu) == sorted([*pages, "index.md"])  # the front page of the site is the README


def test_the_site_brings_its_own_script_for_the_search_from_the_disk() -> None:
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    script = re.search(r"polyfills: \[([\w.-]+)\]", settings)
    assert "\n  - offline\n" in settings
    assert script is not None
    assert "iframe-worker" in script[1], "the plugin would fetch one of this name from another host"
    assert (ROOT / "docs" / script[1]).exists()


def test_every_example_says_first_what_it_shows_and_is_on_the_front_page() -> None:
    front = (ROOT / "README.md").read_text(encoding="utf-8")
    programs = {path: path.read_text(encoding="utf-8") for path in (ROOT / "examples").rglob("*.py")}
    assert [
        path for path, text in programs.items() if not re.match(r'"""[A-Z].{20,}\.(?:"""|$)', text, re.MULTILINE)
    ] == []
    assert [path for path in programs if f"({path.relative_to(ROOT).as_posix()})" not in front] == []


def test_the_readme_opens_with_two_commands_and_ci_runs_the_second() -> None:
    opening = re.search(
        r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert opening is not None
    assert [line.partition("#")[0].strip() for line in opening[1].splitlines()] == ["make demo", "make test"]
    assert (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()[-1] == "REQUIRE_ALL=1 make test"


def test_make_check_finds_phrases_to_avoid(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("Say who calls.\nIn the place\nof `app.py` may stand a file.\n")
    search = [sys.executable, str(ROOT / "docs/phrases.py")]
    found = subprocess.run([*search, "page.md"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert found.stdout.splitlines() == ["page.md:2: avoid 'In the place of'", "page.md:3: avoid 'may stand'"]
    pages = subprocess.run(search, capture_output=True, text=True, check=False)
    assert (found.returncode, pages.returncode, pages.stdout) == (1, 0, "")
    assert "docs/phrases.py" in (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_needs_nothing_that_the_extras_do_not_bring(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = [node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in imports]
    packages = {str(module).partition(".")[0] for module in modules} - sys.stdlib_module_names
    assert packages <= BROUGHT


PROGRAMS = [
    ("mount.md", "fast", "shop_price", {"item": "tea"}),
    ("mount.md", "star", "shop_price", {"item": "tea"}),
    ("mount.md", "asgi", "shop_price", {"item": "tea"}),
    ("move.md", "inside", "items_get_item", {"number": 5}),
]


@pytest.mark.parametrize(("page", "name", "tool", "arguments"), PROGRAMS, ids=[row[1] for row in PROGRAMS])
async def test_an_app_that_a_page_mounts_needs_no_lifespan(
    page: str, name: str, tool: str, arguments: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs/howto" / page).read_text(encoding="utf-8")
    for file, program in re.findall(r'^```python title="(\w+\.py)"\n(.*?)^```$', text, re.MULTILINE | re.DOTALL):
        (tmp_path / file).write_text(program, encoding="utf-8")
    (tmp_path / "settings.py").write_text("SECRET_KEY = 'x'\nROOT_URLCONF = 'settings'\nurlpatterns = []\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ops", raising=False)
    module = importlib.import_module(name)
    app = getattr(module, "application", None) or module.app

    client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "a test", "version": "1"}}
    greeting, _ = await posted(app, "initialize", client, {})
    session = {"Mcp-Session-Id": greeting["mcp-session-id"], "Mcp-Protocol-Version": "2025-11-25"}
    _, answer = await posted(app, "tools/call", {"name": tool, "arguments": arguments}, session)
    assert b'"isError":true' not in answer
    assert b"3.5" in answer or b'"number":5' in answer, answer


async def posted(
    app: Any, method: str, params: dict[str, Any], headers: dict[str, str]
) -> tuple[dict[str, str], bytes]:
    sent = {"Host": "127.0.0.1", "Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    conversation = testing.Conversation(app, "POST", "/mcp/", {**sent, **headers}, body)
    body = await conversation.body()
    return conversation.headers, body
