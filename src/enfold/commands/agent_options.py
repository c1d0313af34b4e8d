"""What models are shown and given: the settings of a configuration, and over them those of the command line."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from enfold.commands.targets import Target
from enfold.errors import CallError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

__all__ = ["add_agent_options", "agent_settings"]

MODES = ("all", "search", "auto")


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
    settings = _configured(target) if target is not None and target.kind == "configuration" else {}
    exposed = dict(map(_exposed, options.expose))
    if exposed:
        settings["expose"] = {**settings.get("expose", {}), **exposed}
    if options.pin:
        settings["pinned"] = [*settings.get("pinned", ()), *options.pin]
    if options.max_result_tokens is not None:
        settings["max_result_tokens"] = options.max_result_tokens
    return settings


def _configured(target: Target) -> dict[str, Any]:
    from enfold.config import read_config

    config = read_config(target.text, os.environ)
    pinned = config.agents.get("pinned", ())
    whole: dict[str, Any] = {
        name: int(config.agents[name]) for name in ("budget", "max_result_tokens") if name in config.agents
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
        raise CallError(
            "VALIDATION_ERROR", told, {"argument": "expose", "reason": "constraint", "expected": ", ".join(MODES)}
        )
    return namespace, mode
