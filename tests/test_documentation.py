import ast
import subprocess
import sys
from pathlib import Path

import pytest

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
    import re

    pages = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text())]
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []


def test_the_menu_of_the_site_has_every_page_once() -> None:
    import re

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
