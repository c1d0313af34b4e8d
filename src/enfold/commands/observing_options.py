"""What `enfold serve` and `enfold work` let an operator see: the options about logs, lines for calls, and `/metrics`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import msgspec

from enfold.registry import Registry

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from enfold.observing.counting import CallCounts
    from enfold.surfaces.asgi.messages import ASGIApp

__all__ = ["add_log_options", "metrics_mount", "start_logging", "write_calls"]


def add_log_options(parser: ArgumentParser) -> None:
    from argparse import BooleanOptionalAction

    from enfold.commands.log_setup import LEVELS

    parser.add_argument("--log-level", choices=LEVELS, default="info", help="what is written to the log (default info)")
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help="lines for people, or JSON")
    parser.add_argument(
        "--access-log",
        action=BooleanOptionalAction,
        default=None,
        help="write a line for each call (default: where standard error is a terminal)",
    )


def start_logging(options: Namespace) -> None:
    """Write the log as the operator wants it."""
    from enfold.commands.log_setup import set_up_log

    set_up_log(options.log_level, options.log_format)


def write_calls(registry: Registry, options: Namespace) -> None:
    """Write a line for each call, on a terminal or where the operator asks for it."""
    from enfold.commands.log_setup import access_observer

    is_live = sys.stderr.isatty() and options.log_format == "text"
    if is_live if options.access_log is None else options.access_log:
        registry.observers.add(access_observer())


def metrics_mount(registry: Registry, counts: CallCounts, *, has_identities: bool) -> dict[str, ASGIApp]:
    """The app at `/metrics`, for all processes that serve the registry; calls are counted only where the package that writes them is installed."""
    from importlib.util import find_spec

    from enfold.observing.counting import CountsSnapshot
    from enfold.surfaces.metrics import to_metrics

    if find_spec("prometheus_client") is not None:
        registry.observers.add(counts.count)
    elsewhere = registry.reserved.elsewhere

    async def others() -> list[CountsSnapshot]:
        return [] if elsewhere is None else msgspec.convert(await elsewhere.ask("counts"), list[CountsSnapshot])

    mount: Any = to_metrics(counts, has_identities=has_identities, others=others)
    return {"/metrics": mount}
