"""The options of a command, read by argparse; commands that have to start fast do without."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any, NoReturn

from enfold.commands.main import CommandEndedError
from enfold.commands.shared.habits import check_options
from enfold.commands.shared.targets import read_target, script_target, split_command
from enfold.errors import CallError
from enfold.registry import Registry

TARGETS = "app.py, app.py:ops, package.module:ops, a configuration, an OpenAPI document, or an address; or -- COMMAND"


def parse_command(
    command: str,
    words: list[str],
    registry: Registry | None,
    description: str,
    add: Callable[[ArgumentParser], None],
) -> Namespace:
    """The options of a command that takes a target: the one that the words name, or a script's registry."""
    own, target = split_command(words) if registry is None else (words, script_target(registry))
    name = "enfold" if registry is None else script_target(registry).text
    parser = TargetParser(command, prog=f"{name} {command}", description=description)
    if target is None:
        # An edge serves what its peers have; without a target, the installation itself is looked at.
        count = "?" if command in ("serve", "doctor") else None
        parser.add_argument("target", nargs=count, help=TARGETS)
    add(parser)
    options = parse_options(parser, own)
    if target is None and options.target is not None:
        target = read_target(options.target)
    options.target = target
    return options


def parse_options(parser: ArgumentParser, words: list[str]) -> Namespace:
    """The options that the words give; argparse itself prints the help, and what is wrong with a word that it knows."""
    check_options(parser.prog.partition(" ")[2], words, parser.format_usage)
    try:
        options, unknown = parser.parse_known_args(words)
    except SystemExit as error:
        raise CommandEndedError(error.code) from None
    if unknown:
        raise CallError("VALIDATION_ERROR", _not_known(parser, unknown[0].partition("=")[0]))
    return options


def _not_known(parser: ArgumentParser, word: str) -> str:
    from enfold.nearest import nearest  # for a mistake alone

    options = re.findall(r"--[a-z-]+", parser.format_usage())
    near = nearest(word, options) if word.startswith("--") else None
    advice = f"did you mean {near}?" if near else f"{parser.prog} --help says what it takes"
    return f"{parser.prog} does not know {word}: {advice}"


class TargetParser(ArgumentParser):
    """Reads the options of a command with targets; where one is missing, the user is told what it can be."""

    def __init__(self, command: str, *, targets: tuple[str, ...] = ("target",), rest: str = "", **options: Any) -> None:
        """`targets` are the names of the arguments that are targets, `rest` is what else the command needs."""
        super().__init__(**options, allow_abbrev=False)
        self._command = command
        self._targets = targets
        self._rest = rest

    def error(self, message: str) -> NoReturn:
        """Tell of a target that is missing; all else that is wrong is told as argparse does."""
        said, _, missing = message.rpartition(": ")
        if said.endswith("required") and not set(self._targets).isdisjoint(missing.split(", ")):
            from enfold.commands.shared.missing_target import missing_target

            raise missing_target(self._command, rest=self._rest)
        super().error(message)
