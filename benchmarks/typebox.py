"""TypeBox in a node process of its own, asked over its pipes, so that its batches take turns with ours."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any, Final, Self

from benchmarks.environments import ROOT
from benchmarks.harness import Contender, Sample

if TYPE_CHECKING:
    from pathlib import Path

NODE: Final = ROOT / ".venv" / "bin" / "node"
PARTS: Final = ROOT / ".parts"
PROGRAM: Final = ROOT / "benchmarks" / "typebox.mjs"


def is_here() -> bool:
    return NODE.exists() and (PARTS / "node_modules" / "@sinclair" / "typebox").exists()


class TypeBox:
    """A node process that casts one value to one schema a given number of times."""

    def __init__(self, node: Path = NODE, parts: Path = PARTS) -> None:
        command = [str(node), str(PROGRAM), str(parts / "package.json")]
        self._node = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._node.communicate()

    def caster(self, contender: str, case: str, schema: dict[str, Any], value: Any, expected: Any) -> Contender:
        """A contender whose calls are timed by node itself, without the cost of the pipe."""
        self._ask(name=case, schema=schema, value=value)

        async def answer() -> Any:
            return self._ask(name=case)

        async def batch(count: int) -> Sample:
            return Sample(**self._ask(name=case, count=count))

        return Contender(contender, batch, answer, expected)

    def _ask(self, **request: Any) -> Any:
        assert self._node.stdin is not None
        assert self._node.stdout is not None
        self._node.stdin.write(json.dumps(request) + "\n")
        self._node.stdin.flush()
        return json.loads(self._node.stdout.readline())
