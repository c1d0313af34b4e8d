"""Hooks of the site: the README is the front page, links to other files become their names, diagrams are drawn, and controls
that the theme leaves without an accessible name get one."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.append(str(Path(__file__).parent))  # mkdocs loads this file by its path alone
import drawing

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
FRONT = ROOT / "README.md"
LINK = re.compile(r"(?P<bang>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")

SCREENSHOT = re.compile(r'(<img [^>]*?src="([^"]*pictures/(?:console-[\w-]+\.png|shell\.svg))"[^>]*>)')
UNNAMED = {
    'data-md-component="search" role="dialog"': "Search",
    'data-md-toggle="search" type="checkbox"': "Search",
    'data-md-toggle="drawer" type="checkbox"': "Menu",
}
PICTURE = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    files.append(File.generated(config, "index.md", content=FRONT.read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links of the repository into links of the site; mkdocs reports dead ones. Guides come before the API in a search."""
    if page.file.src_uri.startswith("api/"):
        page.meta["search"] = {"boost": 0.5}
    written = FRONT if page.file.src_uri == "index.md" else DOCS / page.file.src_uri
    linked = LINK.sub(lambda link: _on_the_site(link, written, DOCS / page.file.src_uri), markdown)
    return PICTURE.sub(lambda picture: drawing.draw(picture[1]), linked)


def on_page_content(html: str, **_: Any) -> str:
    """Link each screenshot to its full size: on a phone its text is too small to read."""
    return SCREENSHOT.sub(r'<a href="\2">\1</a>', html)


def on_post_page(output: str, **_: Any) -> str:
    return _with_names(output)


def on_post_template(output: str, **_: Any) -> str:
    return _with_names(output)


def _with_names(output: str) -> str:
    """Add accessible names to controls that the theme leaves without one."""
    for found, name in UNNAMED.items():
        output = output.replace(found, f'{found} aria-label="{name}"')
    return output


def _on_the_site(link: re.Match[str], written: Path, page: Path) -> str:
    target = (written.parent / link["target"]).resolve()
    if target == FRONT:
        target = DOCS / "index.md"
    elif not target.exists():
        return link[0]
    elif not target.is_relative_to(DOCS):
        return _named(link["text"], target.relative_to(ROOT).as_posix())
    relative = Path(os.path.relpath(target, page.parent)).as_posix()
    return f"{link['bang']}[{link['text']}]({relative}{link['anchor'] or ''})"


def _named(text: str, path: str) -> str:
    return f"`{path}`" if text.strip("`") in path else f"{text} (`{path}`)"
