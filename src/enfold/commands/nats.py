"""The command `enfold nats`: the permissions of a NATS server, and its shared streams."""

from __future__ import annotations

import asyncio
import os
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from enfold.calls.transports.nats_streams import NATSUser, nats_permissions, read_users, serves
from enfold.commands.shared.options import add_number, parse_command, parse_options
from enfold.commands.shared.targets import TOKEN, on_target
from enfold.errors import CallError
from enfold.operations import OperationSpec
from enfold.runtime.registry import Registry
from enfold.runtime.reserved import TASK_VERBS
from enfold.tasks.nats_streams import Names

if TYPE_CHECKING:
    from argparse import Namespace

    from nats.js.api import StreamConfig

VERBS: Final = ("permissions", "init")
_USAGE: Final = (
    "nats needs a subcommand: enfold nats permissions app.py --users users.json, or enfold nats init nats://…"
)


def run(words: list[str], registry: Registry | None) -> int:
    """Print an authorization block for the server's configuration, or create the streams."""
    verb = next((word for word in words[:2] if word in VERBS), None)
    if verb is None and not {"-h", "--help"} & set(words):
        raise CallError("VALIDATION_ERROR", _USAGE)
    rest = list(words)
    if verb is not None:
        rest.remove(verb)
    if verb == "init":
        return asyncio.run(_init(parse_options(_init_parser(), rest)))
    options = parse_command(
        "nats permissions", rest, registry, "Generate the permissions of a NATS server.", _add_options
    )

    def show(found: Registry) -> int:
        specs, users = with_task_verbs(found, users_in(options.users))
        try:
            print(nats_permissions(specs, users, more=Names().rights, shards=options.shards), end="")
        except ValueError as error:
            raise CallError("VALIDATION_ERROR", f"{options.users}: {error}") from None
        return 0

    return on_target(options.target, show)


def with_task_verbs(registry: Registry, users: list[NATSUser]) -> tuple[list[OperationSpec], list[NATSUser]]:
    """Return the operations of a registry and its users, with the task operations if one is durable.

    A user who serves every durable operation offers them; another one only where the file says so (`"enfold.tasks"`).
    """
    specs = registry.list()
    if all(spec.durable == "never" for spec in specs):
        return specs, users
    # Few programs have tasks, and those have stores to load.
    from enfold.surfaces.introspection.tasks import operations
    from enfold.tasks import Tasks
    from enfold.tasks.memory import MemoryTasks

    verbs = [operation.spec for operation in operations(Tasks(registry, MemoryTasks()))]
    serving = [
        msgspec.structs.replace(user, serves=(*user.serves, TASK_VERBS)) if _answers_for_all(user, specs) else user
        for user in users
    ]
    return [*specs, *verbs], serving


def _answers_for_all(user: NATSUser, specs: Sequence[OperationSpec]) -> bool:
    """Whether a user may offer the task operations: through them it sees the orders of every durable operation."""
    return all(serves(user, spec.id) for spec in specs if spec.durable != "never")


def _add_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--users", type=Path, required=True, help="JSON: [{id, scopes, resources, serves, operator, edge, key}]"
    )
    add_number(parser, "--shards", default=1, help="buckets for idempotency keys, as for `enfold nats init`")


def users_in(file: Path) -> list[NATSUser]:
    """Read the users of a file; an error is reported as one sentence."""
    try:
        users = read_users(file.read_bytes())
    except OSError as error:
        raise CallError("VALIDATION_ERROR", f"Cannot read the users from {file}: {error.strerror}") from None
    except ValueError as error:
        raise CallError("VALIDATION_ERROR", f"{file}: {error}") from None
    # A key lies beside the file that names it.
    return [
        user if user.key is None else msgspec.structs.replace(user, key=str(file.parent / user.key)) for user in users
    ]


# --- enfold nats init ---------------------------------------------------------------------------------------------


def _init_parser() -> ArgumentParser:
    told = "Create the streams of tasks and idempotency keys on a NATS server, or repair their configuration."
    parser = ArgumentParser("enfold nats init", description=told, allow_abbrev=False)
    parser.add_argument(
        "address", metavar="URL", help="the server, with the credentials of an operator: nats://operator:…@host"
    )
    parser.add_argument(
        "--replicas", type=int, help="replicas of each stream (default 1, or 3 in a cluster of three or more)"
    )
    parser.add_argument("--keep", type=float, help="seconds for which idempotency keys are kept (default 3600)")
    shards = "buckets among which idempotency keys are divided (default 1, or as it is)"
    add_number(parser, "--shards", help=shards)
    parser.add_argument("--insecure", action="store_true", help="allow a remote server without credentials")
    return parser


async def _init(options: Namespace) -> int:
    from enfold.calls.protocol.transport import keeps_state  # these all are for this verb alone
    from enfold.calls.transports.addresses import reached
    from enfold.calls.transports.nats_streams import make_stream, reachable
    from enfold.calls.worker.nats_idempotency_store import idempotency_streams
    from enfold.middleware.idempotency_store import KEEP
    from enfold.tasks.nats_streams import API_TIMEOUT, task_streams

    async with reached(options.address, token=os.environ.get(TOKEN), insecure=options.insecure) as transport:
        if not keeps_state(transport):
            raise CallError("VALIDATION_ERROR", f"{options.address} is not a NATS URL: use nats://…")
        client = transport.client
        context = client.jetstream(timeout=API_TIMEOUT)
        keep = KEEP if options.keep is None else options.keep

        async def make(config: StreamConfig) -> None:
            try:
                async with reachable():
                    await make_stream(client, context, config)
            except CallError as error:
                message = f'Cannot create {config.name}: {error.message}. The user needs "operator": true'
                raise CallError(error.code, message) from None
            print(f"{config.name} is ready")

        for config in task_streams(Names(), options.replicas):
            await make(config)
        async with reachable():
            buckets = await idempotency_streams(context, keep, options.replicas, options.shards)
        for config in buckets:
            await make(config)
    return 0
