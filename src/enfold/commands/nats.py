"""The command `enfold nats permissions`: who may do what on a NATS server, from what the operations require."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from enfold.calls.transports.nats_permissions import NATSUser, nats_permissions, read_users
from enfold.commands.command_options import parse
from enfold.commands.targets import on_target
from enfold.errors import CallError
from enfold.registry import Registry
from enfold.tasks.nats_names import Names

if TYPE_CHECKING:
    from argparse import ArgumentParser

__all__ = ["run", "users_in"]


def run(words: list[str], registry: Registry | None) -> int:
    """Print an authorization block for the server's configuration."""
    if "permissions" not in words[:2] and not {"-h", "--help"} & set(words):
        raise CallError("VALIDATION_ERROR", "nats makes permissions: enfold nats permissions app.py --users users.json")
    rest = [word for index, word in enumerate(words) if index > 1 or word != "permissions"]
    options = parse("nats permissions", rest, registry, "Make the permissions of a NATS server.", _add_options)

    def show(found: Registry) -> int:
        print(nats_permissions(found.list(), users_in(options.users), more=Names().rights), end="")
        return 0

    return on_target(options.target, registry, show)


def _add_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--users", type=Path, required=True, help="JSON: [{id, scopes, resources, serves, operator, edge}]"
    )


def users_in(file: Path) -> list[NATSUser]:
    """The users a file lists; whatever is wrong with it is one sentence."""
    try:
        return read_users(file.read_bytes())
    except OSError as error:
        raise CallError("VALIDATION_ERROR", f"The users cannot be read from {file}: {error.strerror}") from None
    except ValueError as error:
        raise CallError("VALIDATION_ERROR", f"{file}: {error}") from None
