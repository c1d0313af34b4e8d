"""The settings of a server: those of its configuration, and over them those of the command line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from enfold.commands.shared.targets import Target, config_of
from enfold.errors import CallError, invalid_argument
from enfold.surfaces.bounds import Bounds, read_bounds

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from enfold.config import Config

MODES = ("all", "search", "auto")


# --- bounds -------------------------------------------------------------------------------------------------------


def bounds_of(target: Target | None, words: Iterable[str] = ()) -> Bounds:
    """The bounds for a target, with `NAME=NUMBER` for each that the command line sets."""
    config = config_of(target)
    return read_bounds({**({} if config is None else config.bounds), **dict(map(_bound, words))})


def _bound(words: str) -> tuple[str, object]:
    name, _, number = words.partition("=")
    try:
        return name.strip(), float(number) if "." in number else int(number)
    except ValueError:
        raise CallError("VALIDATION_ERROR", f"{words[:100]} must be NAME=NUMBER, as in headers=50") from None


# --- what models are shown and given ------------------------------------------------------------------------------


def add_agent_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--expose",
        action="append",
        default=[],
        metavar="[NAMESPACE=]MODE",
        help="what tools/list holds: all, search (tools that find the others), or auto (by its cost)",
    )
    parser.add_argument("--pin", action="append", default=[], metavar="PATTERN", help="an operation listed in any case")
    parser.add_argument("--max-result-tokens", type=int, metavar="N", help="cut longer results, as far as may be")


def agent_settings(options: Namespace, target: Target | None) -> dict[str, Any]:
    """The settings of an MCP server, by their names."""
    config = config_of(target)
    settings = {} if config is None else _configured(config)
    exposed = dict(map(_exposed, options.expose))
    if exposed:
        settings["expose"] = {**settings.get("expose", {}), **exposed}
    if options.pin:
        settings["pinned"] = [*settings.get("pinned", ()), *options.pin]
    if options.max_result_tokens is not None:
        settings["max_result_tokens"] = options.max_result_tokens
    return settings


def _configured(config: Config) -> dict[str, Any]:
    pinned = config.agents.get("pinned", ())
    whole: dict[str, Any] = {
        name: int(config.agents[name])
        for name in ("budget", "max_result_tokens", "max_instructions")
        if name in config.agents
    }
    return {
        "expose": config.exposed,
        "pinned": [pinned] if isinstance(pinned, str) else list(pinned),
        "clients": config.agents.get("clients", {}),
        **whole,
    }


def _exposed(words: str) -> tuple[str, str]:
    namespace, equals, mode = words.rpartition("=")
    if mode not in MODES or (equals and not namespace):
        told = f"--expose {words[:100]}: use all, search or auto, or NAMESPACE=search"
        raise invalid_argument("expose", "constraint", ", ".join(MODES), told)
    return namespace, mode
