"""What a command of `enfold` is run on: a target in its words, a configuration, or the registry of a user's script."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from enfold.errors import CallError
from enfold.registry import Registry

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from contextlib import AbstractAsyncContextManager

    from enfold.config import Logins

__all__ = [
    "TOKEN",
    "ToldError",
    "first_is_target",
    "is_config",
    "load",
    "logins",
    "on_target",
    "opened",
    "parse",
    "parsed",
    "with_config",
]

TOKEN: Final = "ENFOLD_TOKEN"  # noqa: S105  # the variable that holds our own token at a hub or a broker
LOGIN_PATIENCE: Final = 330.0  # seconds that a command waits for a user who has to log in


def parse(
    command: str,
    words: list[str],
    registry: Registry | None,
    description: str,
    add: Callable[[ArgumentParser], None],
) -> Namespace:
    """The options of a command that takes a target, unless a script's registry is the target."""
    from argparse import ArgumentParser

    parser = ArgumentParser(prog=f"enfold {command}", description=description, allow_abbrev=False)
    if registry is None:
        # An edge serves what its peers have, and needs no target of its own.
        count = "?" if command == "serve" else None
        parser.add_argument("target", nargs=count, help="app.py, app.py:ops, package.module:ops, or a configuration")
    add(parser)
    return parsed(parser, words)


def parsed(parser: ArgumentParser, words: list[str]) -> Namespace:
    """The options that the words give; argparse itself prints the help, and what is wrong."""
    try:
        return parser.parse_args(words)
    except SystemExit as error:
        raise ToldError(error.code) from None


class ToldError(Exception):
    """The command ends here, and its user has been told why."""

    def __init__(self, code: object) -> None:
        super().__init__()
        self.exit_code = code if isinstance(code, int) else 0


def load(target: str) -> Registry:
    """The registry a target names; whatever is wrong with it becomes one sentence."""
    from enfold.sources.functions import TargetError, load_target

    try:
        return load_target(target)
    except TargetError as error:
        raise CallError("VALIDATION_ERROR", str(error)) from None
    except SystemExit as error:
        raise CallError("EXECUTION_ERROR", f"{target} ended the program itself ({error.code})") from None
    except Exception as error:
        raise CallError("EXECUTION_ERROR", f"{target} cannot be imported: {_where(error)}") from error


def _where(error: BaseException) -> str:
    """What an exception says, and the last line of the user's code it came through."""
    if isinstance(error, SyntaxError):
        return f"{error.msg} ({error.filename}, line {error.lineno})"
    own = str(Path(__file__).parent.parent)
    text = f"{type(error).__name__}: {error}"
    trace, place = error.__traceback__, ""
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith(("<", own)):
            place = f" ({name}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return text + place


def first_is_target(words: list[str], registry: Registry | None, command: str) -> tuple[Registry, list[str]]:
    if registry is not None:
        return registry, words
    if not words or words[0].startswith("-"):
        raise CallError("VALIDATION_ERROR", f"{command} needs a target, as in: enfold {command} app.py")
    if is_config(words[0]):
        raise CallError("VALIDATION_ERROR", f"{command} takes a program, and {words[0]} is a configuration")
    return load(words[0]), words[1:]


def opened(target: str) -> AbstractAsyncContextManager[Registry]:
    """What a target names, for a command that serves it: a program as it is, a configuration with its sources open."""
    if not is_config(target):
        from contextlib import nullcontext

        return nullcontext(load(target))
    from enfold.config import open_config

    return open_config(target, os.environ, logins=logins())


def is_config(target: str) -> bool:
    if not target.endswith((".json", ".toml")):
        return False
    from enfold.config import is_config as has_sources

    return has_sources(target)


def on_target(
    options: Namespace, registry: Registry | None, command: Callable[[Registry], int], operation: str | None = None
) -> int:
    """Run a command on what its options name; one that is about a single operation need not open every source."""
    if registry is not None or not is_config(options.target):
        return command(registry or load(options.target))

    async def run(found: Registry) -> int:
        return command(found)

    return with_config(options.target, run, operation)


def with_config(
    path: str, command: Callable[[Registry], Coroutine[Any, Any, int]], operation: str | None = None
) -> int:
    """Run a command on the sources of a configuration, in the loop that they live in."""
    import asyncio

    from enfold.config import open_config

    async def run() -> int:
        async with open_config(path, os.environ, logins=logins(LOGIN_PATIENCE), operation=operation) as registry:
            return await command(registry)

    return asyncio.run(run())


def logins(patience: float = 0.0) -> Logins:
    """Users of the command log in with their browser, and only once: what came of it is kept below their home."""
    from enfold.config import Logins

    home = os.environ.get("HOME") or os.environ.get("USERPROFILE")
    state = os.environ.get("XDG_STATE_HOME") or (home and f"{home}/.local/state")
    return Logins(_open_browser, str(Path(state) / "enfold" / "logins") if state else None, patience)


async def _open_browser(url: str) -> None:
    from asyncio import to_thread
    from webbrowser import open_new_tab

    print(f"An MCP server asks you to log in. Where no browser opens, go to:\n  {url}", file=sys.stderr, flush=True)
    # Where there is no screen, a browser in the terminal would take it over.
    if sys.platform in ("win32", "darwin") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        await to_thread(open_new_tab, url)
