"""The site as readers get it: `make docs` builds it, the Python API has every public name, and the search finds pages."""

import importlib
import importlib.util
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import not_run

import enfold

ROOT = Path(__file__).parent.parent
SOURCE = Path(enfold.__file__).parent
# Modules with `__all__` that programs do not import: parts of a package that says itself what is public.
INTERNAL = re.compile(
    r"enfold\.(schema|http_client)\b.*|enfold\.app\.(app|file)|enfold\.tasks\.model|enfold\.formats\.wrapper_schemas"
    r"|enfold\.surfaces\.(responses|introspection|mcp\.results)|enfold\.sources\.reports"
)


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
def test_searching_the_site_finds_the_page(site: Path, words: str, page: str) -> None:
    assert page in found_pages(site, words)[:3]


def found_pages(site: Path, words: str) -> list[str]:
    """Pages that contain all words, best first: words in titles count most, then how often they occur."""
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))["docs"]
    scores: dict[str, float] = {}
    for entry in index:
        found = [score(word, entry) for word in words.lower().split()]
        if all(found):
            page = entry["location"].partition("#")[0]
            scores[page] = max(scores.get(page, 0), sum(found) * entry.get("boost", 1))
    return sorted(scores, key=lambda page: -scores[page])


def score(word: str, entry: dict[str, Any]) -> float:
    text = str(entry["text"]).lower()
    return 10.0 * str(entry["title"]).lower().count(word) + text.count(word) / math.sqrt(10 + text.count(" "))
