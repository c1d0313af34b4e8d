"""The options of a command, read by argparse, which is loaded when a command needs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from enfold.commands.targets import read_target, split_command
from enfold.registry import Registry

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

__all__ = ["TARGETS", "ToldError", "parse", "parsed"]

TARGETS = "app.py, app.py:ops, package.module:ops, a configuration, an OpenAPI document, or an address; or -- COMMAND"


def parse(
    command: str,
    words: list[str],
    registry: Registry | None,
    description: str,
    add: Callable[[ArgumentParser], None],
) -> Namespace:
    """The options of a command that takes a target, unless a script's registry is the target."""
    from argparse import ArgumentParser

    own, server = split_command(words) if registry is None else (words, None)
    name = "enfold" if registry is None else os.path.basename(sys.argv[0])  # noqa: PTH119  # `pathlib` takes its time to load
    parser = ArgumentParser(prog=f"{name} {command}", description=description, allow_abbrev=False)
    if registry is None and server is None:
        # An edge serves what its peers have, and needs no target of its own.
        count = "?" if command == "serve" else None
        parser.add_argument("target", nargs=count, help=TARGETS)
    add(parser)
    options = parsed(parser, own)
    named = getattr(options, "target", None)
    options.target = server or (named and read_target(named))
    return options


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
