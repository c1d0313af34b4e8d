"""Generates the marked blocks of the pages: examples and their output, reference tables, and diagrams of packages and calls.

`python docs/build.py` rewrites them; `--check` only lists the files that would change.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import figures
import flow
import reference
import terminal

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]

# <!-- example: file.py --> ... <!-- end --> and likewise `file:`, `output:`, `picture:`, `steps:`, `reference:` and `figures:`
BLOCK = re.compile(
    r"(<!-- (example|file|output|picture|steps|reference|figures): (\S+) -->\n).*?(<!-- end -->)", re.DOTALL
)


def main(arguments: list[str]) -> int:
    write = "--check" not in arguments
    changed = [page for page in PAGES if rebuild(page, write=write)]
    made = {
        ROOT / "docs" / reference.SCHEMA: reference.schema(),
        **figures.pictures(),
        terminal.FILE: terminal.picture(),
    }
    changed += [file for file, text in made.items() if replace(file, text, write=write)]
    for page in changed:
        print(f"{page.relative_to(ROOT)}: {'differs' if '--check' in arguments else 'rebuilt'}")
    return 1 if changed and "--check" in arguments else 0


def rebuild(page: Path, *, write: bool) -> bool:
    """Regenerate every marked block of a page; return whether anything changed."""
    old = page.read_text(encoding="utf-8")
    new = BLOCK.sub(lambda match: f"{match[1]}{MAKERS[match[2]](match[3])}\n{match[4]}", old)
    return replace(page, new, write=write)


def replace(file: Path, new: str, *, write: bool) -> bool:
    """Write a file if its text differs; return whether it does."""
    differs = not file.exists() or file.read_text(encoding="utf-8") != new
    if write and differs:
        file.parent.mkdir(exist_ok=True)
        file.write_text(new, encoding="utf-8")
    return differs


def example(name: str) -> str:
    return f"```python\n{(ROOT / 'examples' / name).read_text(encoding='utf-8').strip()}\n```"


def file(name: str) -> str:
    """Return a configuration file of `examples/` as a block that can be unfolded; the site does not link to files."""
    path = ROOT / "examples" / name
    kind = {".yaml": "yaml", ".service": "ini", ".conf": "nginx"}.get(path.suffix, "docker")
    text = f"```{kind}\n{path.read_text(encoding='utf-8').strip()}\n```"
    return f'<details markdown="1">\n<summary>{path.name}</summary>\n\n{text}\n\n</details>'


def output(name: str) -> str:
    done = subprocess.run(  # noqa: S603  # our own example
        [sys.executable, str(ROOT / "examples" / name)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return f"```text\n{done.stdout.strip()}\n```"


def picture(name: str) -> str:
    return f"```mermaid\n{PICTURES[name]()}\n```"


def layers() -> str:
    """Draw the packages in layers, from the import contract: imports point down."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    rows = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    boxes = [re.sub(r"[|:]", "·", row).replace("(", "").replace(")", "") for row in rows]
    nodes = [f'  L{number}["{box}"]' for number, box in enumerate(boxes)]
    arrows = [f"  L{number} --> L{number + 1}" for number in range(len(boxes) - 1)]
    return "\n".join(["flowchart TD", *nodes, *arrows])


def steps(name: str) -> str:
    return flow.table(name)


STACK = """
flowchart TD
  H["HTTP: limits, hosts, authentication, router"] --> O["observe: span and record"]
  M["MCP · CGI · shell · calls · your code"] --> O
  O --> A["access: scopes and resources"]
  A --> L["limits: calls at once and per second"]
  L --> K["task, or idempotency key"]
  K --> U["user middleware: registry, source, operation"]
  U --> R["recording: provenance"]
  R --> P["payload log"]
  P --> S["selection: only the fields asked for"]
  S --> F["funnel: read the arguments, run the handler within its time, finish the result"]
"""

PICTURES: dict[str, Callable[[], str]] = {
    "layers": layers,
    "stack": STACK.strip,
    "http_call": lambda: flow.picture("http"),
    "mcp_call": lambda: flow.picture("mcp"),
}
MAKERS: dict[str, Callable[[str], str]] = {
    "example": example,
    "file": file,
    "output": output,
    "picture": picture,
    "steps": steps,
    "reference": reference.table,
    "figures": figures.block,
}
if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
