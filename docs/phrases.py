"""Finds phrases that the documentation avoids: riddles, metaphors and archaic word order. Part of `make check`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "DESCRIPTION.md", "CONTRIBUTING.md", "docs/tutorial.md", "docs/glossary.md")
PHRASES = """
is told | are told | whoever | nobody | somebody | stranger | strangers | in peace | of one's own | goes by the name
go by the name | in the place of | may stand | that is had | cannot be had | in force | no such thing | half a character
does not exist for them | rooms | house | door | doors | story | stories | entrance | first results | once store
"""
WORDS = [re.escape(phrase.strip()).replace(r"\ ", r"\s+") for phrase in re.split(r"[|\n]", PHRASES) if phrase.strip()]
FOUND = re.compile(rf"\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)


def main(names: list[str]) -> int:
    files = [Path(name) for name in names] or [*map(ROOT.joinpath, PAGES), *sorted((ROOT / "examples").rglob("*.py"))]
    count = 0
    for file in files:
        text = file.read_text(encoding="utf-8")
        for match in FOUND.finditer(text):
            count += 1
            print(f"{file}:{text.count(chr(10), 0, match.start()) + 1}: avoid {' '.join(match[0].split())!r}")
    return 1 if count else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
