"""The command `enfold nats permissions`: who may do what on a NATS server, from what the operations require."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from enfold.calls.transports.nats_permissions import NATSUser, nats_permissions, read_users, serves_any
from enfold.commands.shared.command_options import parse_command
from enfold.commands.shared.targets import on_target
from enfold.errors import CallError
from enfold.operation import OperationSpec
from enfold.registry import Registry
from enfold.tasks.nats_names import Names

if TYPE_CHECKING:
    from argparse import ArgumentParser


def run(words: list[str], registry: Registry | None) -> int:
    """Print an authorization block for the server's configuration."""
    if "permissions" not in words[:2] and not {"-h", "--help"} & set(words):
        raise CallError("VALIDATION_ERROR", "nats makes permissions: enfold nats permissions app.py --users users.json")
    rest = [word for index, word in enumerate(words) if index > 1 or word != "permissions"]
    options = parse_command("nats permissions", rest, registry, "Make the permissions of a NATS server.", _add_options)

    def show(found: Registry) -> int:
        specs, users = with_task_verbs(found, users_in(options.users))
        try:
            print(nats_permissions(specs, users, more=Names().rights), end="")
        except ValueError as error:
            raise CallError("VALIDATION_ERROR", f"{options.users}: {error}") from None
        return 0

    return on_target(options.target, show)


def with_task_verbs(registry: Registry, users: list[NATSUser]) -> tuple[list[OperationSpec], list[NATSUser]]:
    """The operations of a registry and its users; where an operation is durable, with the task operations that workers offer."""
    specs = registry.list()
    durable = [spec.id for spec in specs if spec.durable != "never"]
    if not durable:
        return specs, users
    from enfold.introspection.task_verbs import (
        task_operations,
    )  # few programs have tasks, and those have stores to load
    from enfold.surfaces.calls import TASK_VERBS
    from enfold.tasks import Tasks
    from enfold.tasks.memory import MemoryTasks

    verbs = [operation.spec for operation in task_operations(Tasks(registry, MemoryTasks()))]
    serving = [
        msgspec.structs.replace(user, serves=(*user.serves, TASK_VERBS)) if serves_any(user, durable) else user
        for user in users
    ]
    return [*specs, *verbs], serving


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
