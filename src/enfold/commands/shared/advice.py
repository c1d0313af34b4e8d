"""Hints for an invalid command line: a missing target, and commands or options of other tools."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Final

from enfold.errors import CallError

PROGRAM: Final = "a Python program (app.py, app.py:ops, package.module)"
ANY: Final = (
    f"{PROGRAM}, a configuration (enfold.toml, or an editor's mcpServers JSON), an OpenAPI document, "
    "a URL (https://…, nats://…, ws://…), or -- COMMAND to start an MCP server"
)

_USUAL: Final = "app.py"
_OTHERS: Final = ("mcp.json", ".mcp.json", "openapi.yaml", "openapi.yml", "openapi.json")
_MAX_FILES: Final = 200  # that are looked into
_MAX_READ: Final = 65_536  # bytes of each


def missing_target(command: str, kinds: str = ANY, *, rest: str = "", besides: str = "") -> CallError:
    """Return the error for a missing target; `rest` follows a target, `besides` are the alternatives to one."""
    found = next(_targets_here(only_programs=kinds is PROGRAM), None)
    here = "" if found is None else f" ({found} is in this folder)"
    example = f"enfold {command} {quote(found or _USUAL)}{rest}"
    return CallError(
        "VALIDATION_ERROR", f"{command} needs a target, as in: {example}{here}. A target is {kinds}{besides}"
    )


def _targets_here(*, only_programs: bool) -> Iterator[str]:
    """Return likely targets in the current folder, likeliest first."""
    try:
        names = {name for name in os.listdir() if name.isprintable() and not name.startswith("-")}  # noqa: PTH208  # names are all we need
    except OSError:
        return
    if not only_programs and "enfold.toml" in names:
        yield "enfold.toml"
    if _USUAL in names:
        yield _USUAL
    programs = sorted(name for name in names if name.endswith(".py"))[:_MAX_FILES]
    for name in programs:
        with suppress(OSError), Path(name).open("rb") as text:
            if b"enfold" in text.read(_MAX_READ):
                yield name
    if not only_programs:
        yield from (name for name in _OTHERS if name in names)


_SERVE: Final = "enfold serve {target} serves HTTP, and MCP at /mcp; enfold mcp {target} serves MCP over stdio"

_COMMANDS: Final = {
    "run": _SERVE,
    "start": _SERVE,
    "dev": "enfold serve {target} --reload restarts when a file changes",
    "install": "enfold mcp {target} --install-json prints the entry for an editor's configuration",
    "tools": "enfold list {target}",
    "version": "enfold --version",
}
_OPTIONS: Final = {  # without their dashes
    "transport": _SERVE,
    "config": "pass the configuration as the target: enfold {command} {value}",
    "api-key": "use --token, or --tokens FILE",
    "ssl-certfile": "use --tls-cert",
    "ssl-keyfile": "use --tls-key",
    "cors-allow-origins": "use --allow-origin",
    "path-prefix": "use --root-path",
}
_TARGET: Final = re.compile(r"[^=]*(\.(py|toml|jsonc?|ya?ml)\b|://|:\w+$).*")


def unknown_command(words: list[str]) -> CallError | None:
    """Return the error for a command of other tools, or for a target or option without a command."""
    command, target = words[0], _target(words)
    if command in _COMMANDS:
        advice = _COMMANDS[command].format(target=target)
    elif command.startswith("-") or _TARGET.fullmatch(command):
        target = _value("config", words) or target
        advice = f"put the command first: enfold serve {target}"
    else:
        return None
    return CallError("VALIDATION_ERROR", f"Unknown command {command!r}: {advice}")


def check_options(command: str, words: list[str], usage: Callable[[], str] = str) -> None:
    """Refuse options of other tools, unless the usage of the command has one of that name."""
    for word in words:
        option = word.partition("=")[0].removeprefix("--")
        if word.startswith("--") and option in _OPTIONS and not re.search(rf"--{option}(?![\w-])", usage()):
            value = _value(option, words) or "enfold.toml"
            advice = _OPTIONS[option].format(command=command, target=_target(words), value=value)
            raise CallError("VALIDATION_ERROR", f"enfold {command} has no option --{option}: {advice}")


def _target(words: list[str]) -> str:
    return quote(next((word for word in words if _TARGET.fullmatch(word)), "app.py"))


def _value(option: str, words: list[str]) -> str:
    """Return the value of an option, in either spelling; "" if there is none."""
    for place, word in enumerate(words):
        if word.startswith(f"--{option}="):
            return quote(word.partition("=")[2])
        if word == f"--{option}" and place + 1 < len(words):
            return quote(words[place + 1])
    return ""
