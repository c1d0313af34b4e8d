"""Finds phrases that Enfold avoids, in code, tests, examples and documentation. Part of `make check`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "tests", "examples", "benchmarks", "docs")
KINDS = {".py", ".md", ".js", ".html", ".css", ".toml", ".yaml", ".yml"}
LEFT_OUT = {"docs/phrases.py", "docs/iframe-worker.js"}  # this list, and the code of another project
PHRASES = """
is told | are told | whoever | nobody | somebody | stranger | strangers | in peace | of one's own | goes by the name
go by the name | in the place of | may stand | that is had | cannot be had | in force | no such thing | half a character
does not exist for them | rooms | house | door | doors | story | stories | entrance | first results | once store
close to strangers | told by
"""
WORDS = [
    re.escape(phrase.strip()).replace(r"\ ", r"[\s#/*]+") for phrase in re.split(r"[|\n]", PHRASES) if phrase.strip()
]
# Occurrences that are left, by folder; only lower these numbers.
LEFT = {
    "tests": 39,
    "tests/auth": 26,
    "tests/calls": 37,
    "tests/commands": 17,
    "tests/conformance": 1,
    "tests/formats": 6,
    "tests/gateway": 26,
    "tests/idempotency": 4,
    "tests/observability": 6,
    "tests/provenance": 27,
    "tests/running": 1,
    "tests/schema": 20,
    "tests/search": 2,
    "tests/sources": 24,
    "tests/surfaces": 48,
    "tests/tasks": 33,
    "tests/testing": 9,
    "tests/workers": 5,
}
FOUND = re.compile(rf"\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)


def main(names: list[str]) -> int:
    found: dict[str, list[str]] = {}
    for file in map(Path, names) if names else tracked():
        text = file.read_text(encoding="utf-8")
        for match in FOUND.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.setdefault(folder_of(file), []).append(f"{file}:{line}: avoid {' '.join(match[0].split())!r}")
    lines = [line for folder, each in found.items() if names or len(each) > LEFT.get(folder, 0) for line in each]
    print(*lines, sep="\n", end="\n" if lines else "")
    return 1 if lines else 0


def folder_of(file: Path) -> str:
    """The key of a file in `LEFT`: its package in `src`, its folder in `tests`, or the top folder."""
    parts = file.resolve().relative_to(ROOT).parts if file.resolve().is_relative_to(ROOT) else (file.name,)
    depth = {"src": 3, "tests": 2 if len(parts) > 2 else 1}.get(parts[0], 1)
    return "/".join(parts[:depth])


def tracked() -> Iterator[Path]:
    """Every file of the repository that contains prose or code."""
    yield from sorted(ROOT.glob("*.md"))
    yield from (ROOT / name for name in ("pyproject.toml", "mkdocs.yml", "Makefile"))
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in KINDS and file.is_file() and file.relative_to(ROOT).as_posix() not in LEFT_OUT:
                yield file


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
