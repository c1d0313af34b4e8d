"""Collects every option of every command from its parser, so that the page is complete."""

from __future__ import annotations

import re
import sys
from argparse import SUPPRESS, Action, ArgumentParser, _SubParsersAction
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from unittest.mock import patch

from enfold.commands import call, cgi, nats
from enfold.commands.main import COMMANDS, CommandEndedError
from enfold.surfaces.command_line import USAGE

LINK = re.compile(r"docs/([a-z-]+)\.md")
RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"


def sections() -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """Yield each command that has options: its name, what it does, and a row for each option."""
    for command, about in COMMANDS.items():
        if command == "call":
            yield command, about, list(_of_call())
        elif command == "cgi":
            yield command, about, [(_name(name, "VALUE"), _told(*facts)) for name, facts in cgi.OPTIONS.items()]
        elif command == "nats":
            for verb in nats.VERBS:
                parser = _parser_of(command, verb)
                yield from _of_parser(parser, f"{command} {verb}", (parser.description or "").rstrip("."))
        elif command != "completion":  # which takes the name of a shell
            yield from _of_parser(_parser_of(command), command, about)


def _of_parser(parser: ArgumentParser, name: str, about: str) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """A command, or each of those below it: `token new`, `token list`."""
    below = [action for action in parser._actions if isinstance(action, _SubParsersAction)]
    for action in below:
        words = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for verb, each in action.choices.items():
            yield from _of_parser(each, f"{name} {verb}", words[verb])
    rows = [_row(action) for action in parser._actions if action.option_strings and action.dest != "help"]
    if rows:
        yield parser.prog.partition(" ")[2], about, rows


def _parser_of(command: str, *verb: str) -> ArgumentParser:
    """The parser that a command makes; it is caught where it would read its words."""
    caught: list[ArgumentParser] = []

    def catch(parser: ArgumentParser, _: list[str]) -> None:
        caught.append(parser)
        raise SystemExit(0)

    with patch.object(ArgumentParser, "parse_known_args", catch), suppress(CommandEndedError):
        import_module(f"enfold.commands.{command}").run([*verb, "--help"], None)
    return caught[0]


def _row(action: Action) -> tuple[str, str]:
    value = "" if action.nargs == 0 else _value(action)
    choices = [f"`{choice}`" for choice in action.choices or ()]
    words = [
        LINK.sub(r"[\1](\1.md)", action.help or ""),
        *([f"{', '.join(choices[:-1])} or {choices[-1]}"] if choices else []),
    ]
    told = _told(": ".join(filter(None, words)), action.default)
    return ", ".join(_name(option, value) for option in action.option_strings), _again(action, told)


def _value(action: Action) -> str:
    """What stands behind an option, as in the help."""
    value = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    return f"[{value}]" if action.nargs == "?" else value


def _name(option: str, value: str) -> str:
    return f"`{option} {value}`" if value else f"`{option}`"


def _told(words: str, default: object) -> str:
    if default in (None, "", False, SUPPRESS) or isinstance(default, list) or "default" in words:
        return words
    shown = "that of the Python which runs this" if default == RUNNING else f"`{default}`"
    return f"{words} (default {shown})" if words else f"default {shown}"


def _again(action: Action, words: str) -> str:
    is_list = type(action).__name__ == "_AppendAction" and "again" not in words
    return f"{words}; may be given again" if is_list else words


def _of_call() -> Iterator[tuple[str, str]]:
    """The words of its own help."""
    for line in [*USAGE.splitlines(), *call._OURS.splitlines()]:
        found = re.match(r"  (--[a-z-]+)(?: ([A-Z]+))? +(.+)$", line)
        if found:
            yield _name(found[1], found[2] or ""), found[3]
