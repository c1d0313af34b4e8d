"""What is told to somebody who names no target: what one can be, and the nearest that lies in their folder. Loaded for that."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import Final

from enfold.errors import CallError

PROGRAM: Final = "a Python program (app.py, app.py:ops, package.module)"
ANY: Final = (
    f"{PROGRAM}, a configuration (enfold.toml, or an editor's mcpServers JSON), an OpenAPI document, "
    "an address (https://…, nats://…, ws://…), or -- COMMAND, which starts an MCP server"
)

_USUAL: Final = "app.py"
_OTHERS: Final = ("mcp.json", ".mcp.json", "openapi.yaml", "openapi.yml", "openapi.json")
_MAX_FILES: Final = 200  # that are looked into
_MAX_READ: Final = 65_536  # bytes of each


def missing_target(command: str, kinds: str = ANY, *, rest: str = "", besides: str = "") -> CallError:
    """The refusal of a command without a target; `rest` is what follows one, `besides` what may stand in its place."""
    found = next(_targets_here(only_programs=kinds is PROGRAM), None)
    here = "" if found is None else f" ({found} is in this folder)"
    example = f"enfold {command} {quote(found or _USUAL)}{rest}"
    return CallError(
        "VALIDATION_ERROR", f"{command} needs a target, as in: {example}{here}. A target is {kinds}{besides}"
    )


def _targets_here(*, only_programs: bool) -> Iterator[str]:
    """What could be meant in the current folder, the likeliest first."""
    try:
        names = {name for name in os.listdir() if name.isprintable() and not name.startswith("-")}  # noqa: PTH208  # names are all we need
    except OSError:
        return
    if not only_programs and "enfold.toml" in names:
        yield "enfold.toml"
    if _USUAL in names:
        yield _USUAL
    programs = sorted(name for name in names if name.endswith(".py"))[:_MAX_FILES]
    yield from (name for name in programs if _names_us(Path(name)))
    if not only_programs:
        yield from (name for name in _OTHERS if name in names)


def _names_us(file: Path) -> bool:
    try:
        with file.open("rb") as text:
            return b"enfold" in text.read(_MAX_READ)
    except OSError:
        return False
