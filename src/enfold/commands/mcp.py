"""The command `enfold mcp`: an MCP server on the standard streams, and the entry that an editor needs to start it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enfold.commands.printing import print_json
from enfold.commands.targets import first_is_target, is_config, logins, parse
from enfold.errors import CallError
from enfold.registry import Registry

if TYPE_CHECKING:
    from argparse import ArgumentParser

__all__ = ["run"]


def run(words: list[str], registry: Registry | None) -> int:
    """Serve until standard input ends, or print the editor's entry."""
    # An editor gives a target alone, and waits for us: argparse would take its time.
    if any(word.startswith("-") for word in words):
        return _by_options(words, registry)
    if registry is None and words and is_config(words[0]):
        return _serve_config(words[0])
    found, rest = first_is_target(words, registry, "mcp")
    if rest:
        raise CallError("VALIDATION_ERROR", f"mcp does not know {rest[0]!r}: it takes a target and --install-json")
    from enfold.surfaces.mcp import serve_stdio

    serve_stdio(found)
    return 0


def _by_options(words: list[str], registry: Registry | None) -> int:
    def add(parser: ArgumentParser) -> None:
        parser.add_argument("--install-json", action="store_true", help="print the entry for an editor's configuration")

    options = parse("mcp", words, registry, "Serve the operations as an MCP server on the standard streams.", add)
    if not options.install_json:
        return run([] if registry is not None else [options.target], registry)
    print_json(_editor_entry(options.target) if registry is None else _entry_of_script())
    return 0


def _serve_config(path: str) -> int:
    import asyncio

    from enfold.config import open_config
    from enfold.surfaces.mcp import run_stdio

    async def serve() -> None:
        async with open_config(path, os.environ, logins=logins()) as registry:
            await run_stdio(registry)

    asyncio.run(serve())
    return 0


def _editor_entry(target: str) -> dict[str, Any]:
    """What an editor's configuration needs to start this server."""
    place, colon, name = target.partition(":")
    path = Path(place)
    if path.suffix in (".py", ".json", ".toml") and not path.exists():
        raise CallError("VALIDATION_ERROR", f"There is no file {place}")
    where = f"{path.resolve()}{colon}{name}" if path.exists() else target
    return _entry(path.stem, "-m", "enfold", "mcp", where)


def _entry_of_script() -> dict[str, Any]:
    script = Path(sys.argv[0]).resolve()
    return _entry(script.stem, str(script), "mcp")


def _entry(name: str, *words: str) -> dict[str, Any]:
    return {"mcpServers": {name: {"command": sys.executable, "args": list(words)}}}
