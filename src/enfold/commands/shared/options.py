"""Options that several commands share, parsed with argparse. `call` and `cgi` do not use it, to start fast."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from enfold.commands.main import CommandEndedError
from enfold.commands.shared.advice import check_options, missing_target
from enfold.commands.shared.targets import Target, config_of, read_target, script_target, split_command
from enfold.errors import CallError, invalid_argument, nearest
from enfold.runtime.registry import Registry
from enfold.surfaces.limits import Limits, read_limits

MOST = 2**63 - 1  # of a number without a limit of its own
TARGETS = "app.py, app.py:ops, package.module:ops, a configuration, an OpenAPI document, or an address; or -- COMMAND"


def parse_command(
    command: str,
    words: list[str],
    registry: Registry | None,
    description: str,
    add: Callable[[ArgumentParser], None],
) -> Namespace:
    """Parse the options of a command that takes a target: the named one, or a script's registry."""
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
    """Parse the options; argparse itself prints the help, and errors of options that it knows."""
    check_options(parser.prog.partition(" ")[2], words, parser.format_usage)
    try:
        options, unknown = parser.parse_known_args(words)
    except SystemExit as error:
        raise CommandEndedError(error.code) from None
    if unknown:
        raise CallError("VALIDATION_ERROR", _not_known(parser, unknown[0].partition("=")[0]))
    return options


def _not_known(parser: ArgumentParser, word: str) -> str:
    options = re.findall(r"--[a-z-]+", parser.format_usage())
    near = nearest(word, options) if word.startswith("--") else None
    advice = f"did you mean {near}?" if near else f"see {parser.prog} --help"
    return f"{parser.prog} does not accept {word}: {advice}"


class TargetParser(ArgumentParser):
    """Parses the options of a command with targets; explains what a missing target can be."""

    def __init__(self, command: str, *, targets: tuple[str, ...] = ("target",), rest: str = "", **options: Any) -> None:
        """`targets` names the arguments that are targets, `rest` is what else the command needs."""
        super().__init__(**options, allow_abbrev=False)
        self._command = command
        self._targets = targets
        self._rest = rest

    def error(self, message: str) -> NoReturn:
        """Explain a missing target; leave other errors to argparse."""
        said, _, missing = message.rpartition(": ")
        if said.endswith("required") and not set(self._targets).isdisjoint(missing.split(", ")):
            raise missing_target(self._command, rest=self._rest)
        super().error(message)


def add_list(parser: ArgumentParser, option: str, metavar: str, help: str) -> None:
    """Add an option that may be given several times."""
    parser.add_argument(option, action="append", default=[], metavar=metavar, help=help)


def add_number(
    parser: ArgumentParser,
    option: str,
    least: int = 1,
    most: int = MOST,
    *,
    kind: Callable[[str], float] = int,
    **settings: Any,
) -> None:
    """Add an option that is a number in a range."""
    parser.add_argument(option, type=number_reader(option, least, most, kind), **settings)


def number_reader(name: str, least: int, most: int = MOST, kind: Callable[[str], float] = int) -> Callable[[str], Any]:
    """Return a function that reads a number in a range; `name` is that of the option or variable, for messages."""

    def read(text: str) -> float:
        try:
            found = kind(text)
        except ValueError:
            found = float("nan")
        if not least <= found <= most:
            limits = f"from {least} to {most}" if most < MOST else f"of at least {least}"
            raise CallError("VALIDATION_ERROR", f"{name} must be a number {limits}, not {text[:50]}")
        return found

    return read


MODES = ("all", "search", "auto")


# --- limits -------------------------------------------------------------------------------------------------------


def limits_of(target: Target | None, words: Iterable[str] = ()) -> Limits:
    """Return the limits for a target, with `NAME=NUMBER` for each that the command line sets."""
    config = config_of(target)
    return read_limits({**({} if config is None else config.limits), **dict(map(_limit, words))})


def _limit(words: str) -> tuple[str, object]:
    name, _, number = words.partition("=")
    try:
        return name.strip(), float(number) if "." in number else int(number)
    except ValueError:
        raise CallError("VALIDATION_ERROR", f"{words[:100]} must be NAME=NUMBER, as in headers=50") from None


# --- what models are shown and given ------------------------------------------------------------------------------


def add_agent_options(parser: ArgumentParser) -> None:
    told = "what tools/list contains: all tools, search tools, or auto (by cost)"
    add_list(parser, "--expose", "[NAMESPACE=]MODE", told)
    add_list(parser, "--pin", "PATTERN", "an operation that is always listed")
    add_number(parser, "--max-result-tokens", metavar="N", help="shorten longer results where possible")


def agent_settings(options: Namespace, target: Target | None) -> dict[str, Any]:
    """Return the settings of an MCP server by name."""
    config = config_of(target)
    settings: dict[str, Any] = {} if config is None else {**config.agents, "expose": config.exposed}
    exposed = dict(map(_exposed, options.expose))
    if exposed:
        settings["expose"] = {**settings.get("expose", {}), **exposed}
    if options.pin:
        configured = settings.get("pinned", ())
        settings["pinned"] = [*([configured] if isinstance(configured, str) else configured), *options.pin]
    if options.max_result_tokens is not None:
        settings["max_result_tokens"] = options.max_result_tokens
    return settings


def _exposed(words: str) -> tuple[str, str]:
    namespace, equals, mode = words.rpartition("=")
    if mode not in MODES or (equals and not namespace):
        told = f"--expose {words[:100]} is invalid: use all, search, auto, or NAMESPACE=search"
        raise invalid_argument("expose", "constraint", ", ".join(MODES), told)
    return namespace, mode
