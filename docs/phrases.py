"""Finds phrases that Enfold avoids, in code, tests, examples and documentation. Part of `make check`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "tests", "examples", "benchmarks", "docs")
KINDS = {".py", ".md", ".js", ".html", ".css", ".toml", ".yaml", ".yml"}
# This list, its test, and the code of another project.
LEFT_OUT = {"docs/phrases.py", "tests/test_documentation.py", "docs/iframe-worker.js"}
PHRASES = """
is told | are told | whoever | nobody | somebody | stranger | strangers | in peace | of one's own | goes by the name
go by the name | in the place of | may stand | that is had | cannot be had | in force | no such thing | half a character
does not exist for them | rooms | house | door | doors | story | stories | entrance | first results | once store
close to strangers | told by | for ever | in vain | that are none | what is no | as it came | as they came
is away | was away | are away | tell of | tells of | as it is named | to its own taste | has nothing to say | signs of life
and its kin | where it stands
"""
WORDS = [
    re.escape(phrase.strip()).replace(r"\ ", r"[\s#/*]+") for phrase in re.split(r"[|\n]", PHRASES) if phrase.strip()
]
FOUND = re.compile(rf"\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)


def main(names: list[str]) -> int:
    found = [line for file in (map(Path, names) if names else tracked()) for line in phrases_in(file)]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


def phrases_in(file: Path) -> Iterator[str]:
    """One line for each phrase to avoid in a file."""
    text = file.read_text(encoding="utf-8")
    for match in FOUND.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield f"{file}:{line}: avoid {' '.join(match[0].split())!r}"


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
