"""The official TypeScript clients list the tools of OpenAPI documents: `python -m tests.conformance.typescript_clients`.

It takes the documents of the tests, or those named on the command line, and needs node and the packages
`@modelcontextprotocol/sdk` and `@modelcontextprotocol/client` below `.parts`. It ends with 0 when every client listed
every operation of every document.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from tests.sources.openapi.documents import documents

from enfold.sources.openapi import from_openapi

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent.parent
PARTS: Final = ROOT / ".parts"
NOT_RUN: Final = 2


def main(paths: list[str]) -> int:
    if not can_run():
        sys.stderr.write("not run: this needs node and the MCP packages below .parts\n")
        return NOT_RUN
    chosen = [Path(each) for each in paths] or [each.path for each in documents()]
    wrong = 0
    for line in lines(chosen):
        is_right = line.get("tools") == line.get("wanted") and "error" not in line
        wrong += not is_right
        sys.stdout.write(f"{'right' if is_right else 'WRONG'} {json.dumps(line)}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{len(chosen)} documents, {wrong} wrong\n")
    return 1 if wrong else 0


def can_run() -> bool:
    packages = PARTS / "node_modules" / "@modelcontextprotocol"
    return shutil.which("node") is not None and all((packages / each).exists() for each in ("sdk", "client"))


def lines(paths: Iterable[Path]) -> Iterable[dict[str, Any]]:
    """What each client says of each document, beside the number of tools it should have listed."""
    server = json.dumps([sys.executable, str(HERE / "openapi_server.py")])
    for document in paths:
        wanted = len(from_openapi(document, base_url="http://127.0.0.1:9"))
        program = ["node", str(HERE / "list_tools.mjs"), str(PARTS), server, str(document)]
        done = subprocess.run(program, check=False, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            yield {"document": str(document), "error": done.stderr[-500:]}
        for line in done.stdout.splitlines():
            yield {**json.loads(line), "wanted": wanted}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
