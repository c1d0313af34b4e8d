"""The site as readers get it: `make docs` builds it, the Python API has every public name, and the search finds pages."""

import importlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, sync_playwright
from tests.conftest import not_run
from tests.surfaces.console.visiting import launched
from tests.waiting import PATIENCE

import enfold

ROOT = Path(__file__).parent.parent
SOURCE = Path(enfold.__file__).parent
# Modules with `__all__` that programs do not import: parts of a package that says itself what is public.
INTERNAL = re.compile(
    r"enfold\.(schema|http_client)\b.*|enfold\.app\.(app|file)|enfold\.tasks\.model|enfold\.formats\.wrapper_schemas"
    r"|enfold\.surfaces\.(introspection|mcp\.results)|enfold\.sources\.reports"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = launched(playwright)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("mkdocstrings_handlers") is None:
        not_run("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def public_names() -> Iterator[tuple[str, str]]:
    """Each public name with the module whose `__all__` has it."""
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        module = ".".join(parts).removesuffix(".__init__")
        if "__all__ = " in path.read_text(encoding="utf-8") and not INTERNAL.fullmatch(module):
            yield from ((module, name) for name in importlib.import_module(module).__all__)


def test_every_public_name_is_in_the_python_api(site: Path) -> None:
    pages = [path.read_text(encoding="utf-8") for path in (site / "api").glob("*.html")]
    anchors = {anchor for page in pages for anchor in re.findall(r'id="(enfold[\w.]*)"', page)}
    missing = [
        f"{module}.{name}"
        for module, name in public_names()
        if not anchors & {f"{module}.{name}", f"enfold.{name}" if name in enfold.__all__ else ""}
    ]
    assert missing == []
    assert "enfold.OperationRegistry.execute" in anchors


def test_the_site_asks_no_other_host(site: Path) -> None:
    pages = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    loads = r'<(?:script|img|iframe)[^>]+src="https?:|<link[^>]+(?:stylesheet|preconnect|icon)[^>]+href="https?:'
    assert [path.name for path, text in pages.items() if re.search(loads, text)] == []
    assert len(pages) > 50


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("OperationRegistry", "api/enfold.html"),
        ("execute", "api/enfold.html"),
        ("Depends", "dependencies.html"),
        ("Tokens", "identities.html"),
        ("App", "app.html"),
        ("CallError", "api/enfold.html"),
        ("testing.override", "dependencies.html"),
        ("from_openapi", "api/sources.html"),
        ("middleware", "middleware.html"),
        ("retry", "middleware.html"),
        ("dependency injection", "dependencies.html"),
        ("REST", "rest.html"),
        ("problem details", "errors.html"),
        ("upload", "files.html"),
        ("image", "files.html"),
        ("durable task", "tasks.html"),
        ("bearer token", "identities.html"),
        ("why a call failed", "howto/why-failed.html"),
    ],
)
def test_searching_the_site_finds_the_page(site: Path, browser: Browser, words: str, page: str) -> None:
    """The site is opened from the disk, as its readers may do."""
    tab = browser.new_page()
    tab.goto(f"{(site / 'index.html').as_uri()}?q={quote(words)}")
    results = tab.locator("a.md-search-result__link")
    results.first.wait_for(timeout=PATIENCE * 1000)
    links = [link.get_attribute("href") or "" for link in results.all()]
    tab.close()
    found = [re.split(r"[?#]", link.removeprefix(f"{site.as_uri()}/"))[0] for link in links]
    assert page in list(dict.fromkeys(found))[:3]
